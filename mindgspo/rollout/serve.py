"""`mindgspo serve`: one replica of an experiment's infer plan, as a completion server."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from mindgspo.config import ExperimentConfig
from mindgspo.models.policy import build_model
from mindgspo.parallel.platform import worker_process
from mindgspo.parallel.platform.cluster import infer_place, start_device
from mindgspo.rollout.build import native_engine
from mindgspo.rollout.completions import Limits
from mindgspo.rollout.protocol import SamplingFilter
from mindgspo.rollout.server import CompletionServer
from mindgspo.rollout.server_key import ServerKey
from mindgspo.rollout.weight_transfer import hold_in_compute_type
from mindgspo.tokenization import load_tokenizer


def serve(
    config: ExperimentConfig,
    listener: socket.socket | None,
    *,
    key: ServerKey | None,
    folders: Sequence[Path],
    ready: Callable[[], None],
) -> None:
    """Serve until a signal ends this process; on all ranks of the replica.

    config: see `replica_config`. The others: see `CompletionServer.run`. Raises the errors of `mindgspo.errors`,
    OSError where it cannot listen.
    """
    start_device(config)
    tokenizer = load_tokenizer(config.tokenizer, config.model.vocab_size)
    model = build_model(config.model, infer_place(config))
    hold_in_compute_type(model)
    limits = Limits(
        name=config.experiment,
        vocab_size=config.model.vocab_size,
        max_prompt_length=config.data.max_prompt_length,
        max_new_tokens=config.rollout.max_new_tokens,
        max_samples=max(config.rollout.num_generations, config.eval.num_samples),
        most_requests=max(1024, 4 * config.rollout.slots),
        sampling_filter=SamplingFilter(config.rollout.top_k, config.rollout.top_p),
        records_experts=bool(config.rollout.record_experts),
    )
    engine = native_engine(config, model, tokenizer)
    server = CompletionServer(engine, model, config.model, limits, verify=config.reshard.verify)
    if not worker_process.is_launched():
        # No exception: raised in a callback of Python or MindSpore it would be lost.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: server.stop())
    server.run(listener, key=key, folders=folders, ready=ready)
