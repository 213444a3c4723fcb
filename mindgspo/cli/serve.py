"""The command that serves completions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from mindgspo.cli.options import ConfigArgument, EmulateOption, SetOption, emulated_overrides


def serve(
    config: ConfigArgument,
    set_: SetOption = None,
    host: Annotated[str, typer.Option(help="Address to listen at. Whoever reaches it may ask.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0 takes a free one.")] = 8000,
    cards: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="4,5", help="Cards of the replica, by default those that DEVICE_ID says, or the first."),
    ] = None,
    logs: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Folder for the logs of several ranks; by default serve/<experiment>."),
    ] = None,
    emulate_ascend: EmulateOption = False,
) -> None:
    """Serve completions over HTTP, for trainers that run elsewhere.

    This is one replica of an experiment's infer plan. It begins without weights and gets them from its trainer
    (docs/rollout_servers.md). Ctrl-C ends it.
    """
    from mindgspo.config import load_config
    from mindgspo.launch.serving import start_serving
    from mindgspo.planner import replica_with_cache_budget

    overrides = emulated_overrides(emulate_ascend, set_)
    experiment = replica_with_cache_budget(load_config(config, overrides, check_files=False))
    words = ["-m", "mindgspo.cli", "serve", str(config), "--host", host, "--port", str(port)]
    words += [word for override in overrides for word in ("--set", override)]

    def work() -> int:
        from mindgspo.rollout.serve import serve as serve_replica  # MindSpore comes with it

        serve_replica(experiment, host=host, port=port, ready=lambda found: _tell(host, found))
        return 0

    code = start_serving(work, experiment, words, host=host, port=port, cards=cards, logs=logs)
    if code:
        raise typer.Exit(code)


def _tell(host: str, port: int) -> None:
    print(f"serving at http://{host}:{port}", flush=True)
