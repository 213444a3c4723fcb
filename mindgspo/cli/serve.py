"""The command that serves completions."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Annotated

import typer

from mindgspo.cli.options import ConfigArgument, EmulateOption, SetOption, emulated_overrides
from mindgspo.progress import activity


def serve_command(
    config: ConfigArgument,
    set_: SetOption = None,
    host: Annotated[
        str, typer.Option(help="Address to listen at; one that other machines reach needs a key.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0 takes a free one.")] = 8000,
    cards: Annotated[
        str | None,
        typer.Option(metavar="4,5", help="Cards of the replica, by default those that DEVICE_ID says, or the first."),
    ] = None,
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Sets rollout.servers.api_key_file: its only line is the key that every request must prove.",
        ),
    ] = None,
    weights_dir: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder below which weights may be, beside the one that the experiment's own run hands them over in; "
            "may be repeated.",
        ),
    ] = None,
    own_weights: Annotated[
        bool,
        typer.Option(
            "--own-weights",
            help="Start with the weights of model.path, e.g. for a teacher; else they come from a trainer.",
        ),
    ] = False,
    logs: Annotated[
        Path | None, typer.Option(help="Folder for the logs of several ranks; by default serve/<experiment>.")
    ] = None,
    emulate_ascend: EmulateOption = False,
) -> None:
    """Serve completions over HTTP, for trainers that run elsewhere.

    This is one replica of an experiment's infer plan. Without --own-weights it starts without weights and receives
    them from its trainer (docs/rollout_servers.md). Ctrl-C ends it.
    """
    from mindgspo.checkpoint.adapted import base_digest, base_record
    from mindgspo.config import load_config
    from mindgspo.config.hub import Fetch
    from mindgspo.launch.serving import start_serving
    from mindgspo.planner import replica_with_cache_budget
    from mindgspo.rollout.server_key import server_key
    from mindgspo.rollout.weights_folder import weights_folders

    overrides = emulated_overrides(emulate_ascend, set_)
    if api_key_file is not None:
        overrides = (*overrides, f"rollout.servers.api_key_file={json.dumps(str(api_key_file))}")
    whole = load_config(config, overrides, check_files=False, fetch=Fetch.ALL if own_weights else Fetch.INPUTS)
    experiment, key = replica_with_cache_budget(whole), server_key(whole.rollout.servers.api_key_file)
    folders = [*weights_folders(whole), *(weights_dir or ())]
    words = ["-m", "mindgspo.cli", "serve", str(config)]
    words += [word for override in overrides for word in ("--set", override)]
    words += [word for folder in weights_dir or () for word in ("--weights-dir", str(folder))]
    words += ["--own-weights"] * own_weights

    def work(listener: socket.socket | None) -> int:
        with activity("starting"):
            from mindgspo.rollout import server  # MindSpore comes with it

        def tell() -> None:
            assert listener is not None, "only the rank that listens tells"
            print(f"serving at http://{host}:{listener.getsockname()[1]}", flush=True)

        record = base_record(whole.model, whole.seed) if whole.sends_adapters else None
        base = None if record is None else server.Base(whole.model, whole.seed, base_digest(record))
        server.serve(experiment, listener, key=key, folders=folders, ready=tell, base=base, own_weights=own_weights)
        return 0

    code = start_serving(work, experiment, words, host=host, port=port, cards=cards, logs=logs, has_key=key is not None)
    if code:
        raise typer.Exit(code)
