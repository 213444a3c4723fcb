"""Schedules in which generation does not wait for training: the responses of a step come out of a `Feed`.

    sync           draw(s)  train(s)  weights(s)   draw(s+1)  train(s+1)  ...
    one_step_off   draw(s)  train(s)  weights(s)   ...        servers: responses of s+1, with the weights before s
    bounded        draw(s)  train(s)  weights(s)   ...        servers: never stop; new weights between two tokens

`Trainer.train_step` is the same page in all of them. Rank 0 has the feed, and tells the others what a step draws.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mindgspo.checkpoint.adapted import base_digest
from mindgspo.config import ExperimentConfig
from mindgspo.data.stream import PromptOrder
from mindgspo.models.model import Model
from mindgspo.parallel.collectives.host import exchange
from mindgspo.parallel.collectives.replicas import pack_arrays, unpack_arrays
from mindgspo.parallel.platform import runtime
from mindgspo.parallel.platform.cluster import is_first
from mindgspo.rollout.build import build_engine, remote_engine
from mindgspo.rollout.episodes import EpisodeService
from mindgspo.rollout.player import OpenEnvironment
from mindgspo.rollout.protocol import Purpose, Rollout, RolloutEngine, SamplingSettings, training_sampling
from mindgspo.rollout.service import CompletionService, ServiceEngine, tokens_counted
from mindgspo.rollout.weight_transfer import ServedWeights, WeightTransfer
from mindgspo.rollout.weights_folder import claim_weights_folder, weights_folders
from mindgspo.swap.states import Holding
from mindgspo.swap.swap import Swap
from mindgspo.tensor_files.tensors import TensorSource
from mindgspo.tokenization import Tokenizer
from mindgspo.trainer.feed import Feed
from mindgspo.trainer.partial_responses import PartialGroup, PromptsByIndex, arrays_of, describe, restore
from mindgspo.types import Prompt, Response

if TYPE_CHECKING:
    from mindgspo.rollout.http_service import HTTPService


class FedEngine:
    """Implements `RolloutEngine` with a feed; stateful. A step trains the prompts whose responses have come: it takes
    them, then asks for their responses. Evaluations ask `engine`, and whatever the feed has running makes way.

    feed: on rank 0, None on the others.
    prompts: those of training, by index.
    """

    def __init__(
        self,
        feed: Feed | None,
        weights: ServedWeights,
        engine: RolloutEngine,
        prompts: PromptsByIndex,
        sampling: SamplingSettings,
    ) -> None:
        self._feed, self._weights, self._engine = feed, weights, engine
        self._prompts, self._sampling = prompts, sampling
        self._taken: list[PartialGroup] = []

    def take_prompts(self, num_prompts: int, step: int) -> list[Prompt]:
        """Return the next prompts of training whose responses have come; waits for them. Routing stays on rank 0."""
        groups = [] if self._feed is None else self._feed.draw(num_prompts, step=step)
        if runtime.world_size() > 1:
            message = b"" if self._feed is None else _message(groups)
            (message,) = exchange(message, senders=(0,))
            if self._feed is None:
                groups = self._told(message)
        self._taken = groups
        return [group.prompt for group in groups]

    def generate(self, prompts: Sequence[Prompt], settings: SamplingSettings, *, weight_version: int) -> Rollout:
        """See `RolloutEngine`; in training, of the prompts that were taken last. The feed knows which weights drew
        what."""
        if settings.stream.purpose is Purpose.EVALUATION:
            with nullcontext() if self._feed is None else self._feed.paused():
                return self._engine.generate(prompts, settings, weight_version=weight_version)
        assert [prompt.index for prompt in prompts] == [group.prompt.index for group in self._taken]
        responses = tuple(group.responses(settings.temperature) for group in self._taken)
        return Rollout(responses=responses, counters=tokens_counted(responses))

    def load_weights(self, version: int) -> None:
        """Let generation go on with the trained weights."""
        self._weights.push_weights(version, self._tell)
        self._engine.load_weights(version)

    def _tell(self, folder: Path, version: int) -> None:
        assert self._feed is not None, "rank 0 alone has servers"
        self._feed.push_weights(folder, version)

    def metrics(self, trained: Sequence[Response], *, seconds: float) -> dict[str, float]:
        """See `Feed.metrics`; rank 0 has them."""
        return {} if self._feed is None else self._feed.metrics(trained, seconds=seconds)

    def state(self) -> dict[str, Any]:
        """See `Stateful`; rank 0 has it."""
        return {} if self._feed is None else self._feed.state()

    def arrays(self) -> dict[str, np.ndarray]:
        """See `Stateful`."""
        return {} if self._feed is None else self._feed.arrays()

    def load(self, state: Mapping[str, Any], arrays: TensorSource) -> None:
        """See `Stateful`."""
        if self._feed is not None:
            self._feed.load(state, arrays, self._prompts)

    def _told(self, message: bytes) -> list[PartialGroup]:
        ((header, *arrays),) = unpack_arrays(message)
        described = json.loads(header.tobytes())
        tokens = dict(zip(described["names"], arrays, strict=True))
        return restore(described["groups"], tokens, stream=self._sampling.stream, prompts=self._prompts)


def _message(groups: Sequence[PartialGroup]) -> bytes:
    arrays = arrays_of(groups, with_routing=False)
    header = json.dumps({"groups": describe(groups), "names": list(arrays)}).encode()
    return pack_arrays([(np.frombuffer(header, np.uint8), *arrays.values())])


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """Parts of an experiment that generate responses."""

    engine: RolloutEngine
    """Generates in training and in evaluations."""
    take_prompts: Callable[[int, int], list[Prompt]]
    """See `Trainer`."""
    fed: FedEngine | None = None
    """The engine, where it has a feed."""
    transfer: WeightTransfer | ServedWeights | None = None
    """Brings the engine its weights, where it has its own."""
    service: HTTPService | None = None
    """Connection to the servers that generate, on rank 0 if there are any."""

    @property
    def served(self) -> ServedWeights | None:
        """The weights of these servers, on rank 0."""
        return self.transfer if self.service is not None and isinstance(self.transfer, ServedWeights) else None


def pushing(weights: ServedWeights, service: CompletionService | None) -> Callable[[int], None]:
    """Return the function that sends the weights of a version to the servers; all ranks call it.

    service: connection to the servers, on rank 0.
    """

    def load(folder: Path, version: int) -> None:
        assert service is not None, "rank 0 alone has servers"
        service.load_weights(folder, version)

    return lambda version: weights.push_weights(version, load)


def build_generation(
    config: ExperimentConfig,
    model: Model,
    tokenizer: Tokenizer,
    swap: Swap,
    train_set: PromptsByIndex,
    stream: PromptOrder,
    total_steps: int,
    environment: OpenEnvironment | None = None,
    base: Mapping[str, Any] | None = None,
) -> Generation:
    """Generation on the cards that train, or by servers. stream: the order in which `train_set` is trained.
    environment: see `build_engine`. base: see `base_record`."""

    def take_prompts(number: int, step: int) -> list[Prompt]:
        return [train_set[index] for index in stream.take(number)]

    if not config.has_servers:
        built = build_engine(config, model, tokenizer, swap, environment)
        swap.register(Holding.ROLLOUT_WEIGHTS, built.model.get_parameters())
        swap.register(Holding.KV_CACHE, built.cache, keeps_content=False)
        return Generation(engine=built.engine, take_prompts=take_prompts, transfer=built.transfer)
    from mindgspo.rollout.http_service import open_service  # the HTTP library is not needed otherwise

    service = open_service(config, tokenizer) if is_first() else None
    digest = base_digest(base) if base is not None and config.sends_adapters else None
    *_, folder = folders = weights_folders(config)
    if service is not None:
        folder = claim_weights_folder(folders, config.model, only_trained=digest is not None)
    weights = ServedWeights(model, config.model, folder, base=digest)
    asked: CompletionService | None = service
    if service is not None and environment is not None:
        asked = EpisodeService(service, environment, tokenizer)
    told = None if asked is None else ServiceEngine(asked)
    if config.trainer.schedule == "sync":
        engine = remote_engine(told, pushing(weights, service))
        return Generation(engine=engine, take_prompts=take_prompts, transfer=weights, service=service)
    sampling = training_sampling(config.rollout, config.seed, step=0)
    engine, feed = remote_engine(told, lambda version: None), None
    if asked is not None:
        feed = Feed(
            asked,
            lambda number: [train_set[index] for index in stream.take(number)],
            sampling,
            batch_size=config.rollout.prompts_per_step,
            max_staleness=config.staleness,
            is_strict=config.trainer.schedule == "one_step_off",
            total_steps=total_steps,
        )
    fed = FedEngine(feed, weights, engine, train_set, sampling)
    return Generation(engine=fed, take_prompts=fed.take_prompts, fed=fed, transfer=weights, service=service)
