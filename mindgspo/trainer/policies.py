"""Log-probs of a step's responses under the old and the reference policy, and the reference policy itself.

The reference of a KL term is the policy as it is when reinforcement learning begins, or a copy that follows it. It
changes when a step begins to score: policy and reference are both in memory then, so that no swap moves anything for
it, and nothing has been scored with the new policy yet.

A moving average of the policy's weights is kept over the plans of both models:

    ref <- ref + (1 - decay) * (policy - ref)        = decay * ref + (1 - decay) * policy

element by element in float32: 1 - decay is rounded once, then the difference, the product and the sum are. So the plans
do not show in the result, and a reference that equals the policy stays what it is. A change of less than half a unit in
the last place of a weight (2^-25 to 2^-24 of it) is lost: with a decay near 1 and a small learning rate let the average
move seldom, with a smaller decay.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from mindspore import Parameter

from mindgspo.checkpoint.store import Retention, newest_checkpoint, open_checkpoint, save_checkpoint
from mindgspo.config import ModelSection
from mindgspo.config.algorithm import ReferenceSection
from mindgspo.config.schema import ReshardSection, SwapSection
from mindgspo.errors import CheckpointError
from mindgspo.models.model import Model
from mindgspo.models.names import parameter_shapes, trained_shapes
from mindgspo.models.policy import build_model
from mindgspo.models.scoring import PolicyScorer, TokenScores
from mindgspo.models.weights import load_tensors, master_layouts, master_views, share_parameters
from mindgspo.parallel.plans.placement import Placement
from mindgspo.parallel.platform.cluster import first_rank_first, path_for_all
from mindgspo.parallel.platform.parameter_memory import commit_values, values_of
from mindgspo.reshard.resharder import Resharder
from mindgspo.rollout.weight_transfer import WeightTransfer, weights_as_numpy
from mindgspo.swap.states import Phase
from mindgspo.swap.swap import Swap
from mindgspo.tensor_files.tensors import TensorSource
from mindgspo.trainer.batches import MiniBatches, flattened, regrouped
from mindgspo.trainer.routing_transfer import RoutingTransfer
from mindgspo.types import Float32Array, ScoredGroup


class ReferencePolicy:
    """A second copy of the model under a plan of its own, never trained; or, with adapters, at most a second set of
    them on the policy's frozen weights. Stateful where it follows the policy. `scorer` must not be used before
    `freeze`, `restore` or `load`; it divides batches among this plan's replicas.

    version: of the weights; where it is a moving average, the same average of the policy's versions.
    """

    def __init__(
        self,
        section: ModelSection,
        place: Placement,
        *,
        temperature: float,
        changes: ReferenceSection | None = None,
        reshard: ReshardSection | None = None,
        swap: Swap | None = None,
        base_of: Model | None = None,
    ) -> None:
        """section: without adapters where these are off in the reference policy. changes: when it follows the
        policy. reshard: how weights come from the policy's plan. swap: moves the weights when they are saved or
        loaded. base_of: the policy, if its slices are those of `place`: what it does not train is not held again."""
        self._section, self._reshard = section, reshard or ReshardSection()
        self._changes = changes or ReferenceSection()
        self._swap = swap or Swap(SwapSection(), None)
        self._model = build_model(section, place)
        self._own: Collection[str] | None = None
        """Names of the parameters that it holds itself; None: all."""
        if base_of is not None:
            self._own = trained_shapes(base_of.config).keys() & parameter_shapes(section).keys()
            share_parameters(self._model, base_of, but=self._own)
        self.scorer = PolicyScorer(self._model, temperature=temperature)
        self.version = 0.0
        self._steps_at_change = 0
        self._is_filled = False
        self._transfer: WeightTransfer | None = None
        self._average: MovingAverage | None = None

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The weights, of this rank, that it holds itself."""
        return tuple(one for one in self._model.get_parameters() if self._own is None or one.name in self._own)

    @property
    def is_frozen(self) -> bool:
        """Whether it never changes, so that a run saves it once."""
        return self._changes.mode == "frozen"

    def freeze(self, policy: Model, folder: Path, *, version: int) -> None:
        """Take the policy's weights of version `version`, slice by slice. A frozen reference is saved in `folder` for a
        resumed run; one that follows the policy is part of every checkpoint. All ranks call it."""
        self._take(policy, version)
        self._is_filled = True
        if not self.is_frozen:
            return
        weights, state = weights_as_numpy(policy, self._section, among=self._own), {"version": version}
        first_rank_first(
            lambda: save_checkpoint(
                folder, step=0, parameters=weights, optimizer={}, state=state, keep=Retention(last=1)
            )
        )

    def restore(self, folder: Path) -> None:
        """Load the frozen weights that `freeze` saved; a reference that follows the policy came with the checkpoint.
        Raises CheckpointError if nothing complete is left of either."""
        if self._is_filled and not self.is_frozen:
            return
        path = path_for_all(lambda: newest_checkpoint(folder)) if self.is_frozen else None
        if path is None:
            raise CheckpointError(
                f"{folder}: the reference policy of this run is missing; without it the KL term has nothing to compare "
                "with. Restore the folder, or start the run again with --overwrite (it moves the run folder aside)"
            )
        with open_checkpoint(path) as saved:
            load_tensors(self._model, self._section, saved.parameters, among=self._own)
            self.version, self._is_filled = float(saved.state.get("version", 0)), True

    def follow(self, policy: Model | None, *, steps_done: int, version: int) -> None:
        """Change as configured, once for this number of steps of the run. All ranks call it, in a phase in which both
        sets of weights are in memory. version: of the policy's weights."""
        changes = self._changes
        if self.is_frozen or steps_done == self._steps_at_change:
            return
        assert policy is not None, "a moving reference follows a policy"
        assert changes.every is not None, "config is not resolved"
        if steps_done % changes.every:
            return
        if changes.mode == "sync":
            self._take(policy, version)
        else:
            self._approach(policy, version)
        self._steps_at_change = steps_done

    def _take(self, policy: Model, version: int) -> None:
        if self._own is None or self._own:
            if self._transfer is None:
                self._transfer = WeightTransfer(
                    policy, self._model, self._section, self._reshard, from_masters=True, among=self._own
                )
            self._transfer.push(version)
        self.version = float(version)

    def _approach(self, policy: Model, version: int) -> None:
        decay = self._changes.decay
        assert decay is not None, "config is not resolved"
        if self._average is None:
            self._average = MovingAverage(policy, self._model, self._section, self._reshard)
        self._average.mix(decay)
        self.version += (1 - decay) * (version - self.version)

    def state(self) -> dict[str, float]:
        """State for a checkpoint, beside the weights."""
        return {"version": self.version, "steps_at_change": self._steps_at_change}

    def arrays(self) -> dict[str, np.ndarray]:
        """Copies of the whole weights on rank 0; see `weights_as_numpy`."""
        with self._swap.phase(Phase.SCORE):
            return weights_as_numpy(self._model, self._section, among=self._own)

    def load(self, state: Mapping[str, Any], arrays: TensorSource) -> None:
        """Continue from what `state` and `arrays` returned."""
        with self._swap.phase(Phase.SCORE):
            load_tensors(self._model, self._section, arrays, among=self._own)
        self.version, self._steps_at_change = float(state["version"]), int(state["steps_at_change"])
        self._is_filled = True


class MovingAverage:
    """Planned once. Besides both sets of weights, it needs memory for one step of the reshard."""

    def __init__(self, policy: Model, averaged: Model, model: ModelSection, section: ReshardSection) -> None:
        self._policy, self._averaged = policy, averaged
        self._resharder = Resharder(
            master_layouts(model, policy),
            master_layouts(model, averaged),
            bucket_bytes=section.bucket_mb << 20,
            residency=self._mixed_after,
        )
        self._parameters: dict[str, Parameter] = {}
        self._arrived: dict[str, np.ndarray] = {}
        self._share = np.float32(0)

    def mix(self, decay: float) -> None:
        """Move the average by one step towards the policy."""
        self._share = np.float32(1 - decay)
        self._parameters = {parameter.name: parameter for parameter in self._averaged.get_parameters()}
        # Untouched before their step of the reshard, so they take no memory; freed after it.
        self._arrived = {
            name: np.empty(tuple(parameter.shape), np.float32) for name, parameter in self._parameters.items()
        }
        self._resharder.run(master_views(self._policy), self._arrived)
        assert not self._arrived, f"never arrived: {sorted(self._arrived)}"

    @contextmanager
    def _mixed_after(self, names: tuple[str, ...]) -> Iterator[None]:
        """Around a step of the reshard: mix the weights that it brought into the average."""
        yield
        for name in names:
            if name in self._arrived:
                self._mix_in(self._parameters[name], self._arrived.pop(name))

    def _mix_in(self, parameter: Parameter, policy: np.ndarray) -> None:
        average = values_of(parameter)
        policy -= average
        policy *= self._share
        average += policy
        commit_values(parameter, average)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyScores:
    """Scores mini-batches before their updates; on ranks with recorded routing where that routing is."""

    policy: Model | None
    """The transformer that is trained; a moving reference follows it."""
    scorer: PolicyScorer
    """Scores with the present weights."""
    old_log_probs: Literal["recompute", "sampler"]
    reference: ReferencePolicy | None
    """The policy that a KL term refers to; None without one."""
    routing: RoutingTransfer | None
    """Sends recorded routing to the ranks that train a sample; None if none is recorded or replayed."""
    records_experts: bool
    replays_old: bool
    """Whether updates replay the routing of the scoring pass (algorithm.router_replay=old)."""
    sharp_scorer: PolicyScorer | None = None
    """Scores with the present weights at half the temperature; None unless the advantages ask for energies."""

    def follow(self, step: int, version: int) -> None:
        """Move a moving reference policy one step towards the policy, whose weights have version `version`."""
        if self.reference is not None:
            self.reference.follow(self.policy, steps_done=step - 1, version=version)

    @property
    def reference_version(self) -> float | None:
        """Version of the reference policy's weights, counted in updates; None without one."""
        return None if self.reference is None else self.reference.version

    def with_routing(self, mini_batches: MiniBatches, groups: tuple[ScoredGroup, ...]) -> MiniBatches:
        """Return the batches with the routing that was recorded while sampling, if it was."""
        if self.routing is None or not self.records_experts:
            return mini_batches
        return self.routing.routed(mini_batches, groups)

    def expert_loads(self, generated: tuple[ScoredGroup, ...]) -> np.ndarray | None:
        """Return the tokens of these responses by layer and expert, [L, E]; None if routing is not recorded."""
        if self.routing is None or not self.records_experts:
            return None
        return self.routing.loads([response for group in generated for response in group.responses])

    def score(self, mini_batches: MiniBatches) -> tuple[MiniBatches, list[TokenScores]]:
        """Return the batches with old (and, for a KL term, reference) log-probs, and the old policy's scores.

        The old policy of all updates of a step is that of its present weights; with algorithm.old_log_probs=sampler
        the sampler's log-probs are used instead, and nothing is scored.
        """
        if not mini_batches:
            return [], []
        batches, old = flattened(mini_batches), []
        if self.old_log_probs == "sampler":
            batches = [replace(batch, old_logp_NK=batch.rollout_logp_NK) for batch in batches]
        else:
            old = self._score_old(mini_batches)
            batches = [replace(batch, old_logp_NK=found.logp_NK) for batch, found in zip(batches, old, strict=True)]
            if self.replays_old:
                assert self.routing is not None
                batches = [
                    replace(batch, experts_RTX=found.experts_RTX) for batch, found in zip(batches, old, strict=True)
                ]
                batches = flattened(self.routing.shared(regrouped(batches, mini_batches)))
        if self.reference is not None:
            scores = self.reference.scorer.score(batches)
            batches = [replace(batch, ref_logp_NK=found.logp_NK) for batch, found in zip(batches, scores, strict=True)]
        return regrouped(batches, mini_batches), old

    def energies(self, mini_batches: MiniBatches) -> list[Float32Array] | None:
        """1 - 2 p + sum_v p_v^2 of the response tokens [N, K], 0 where masked, by micro-batch in their order: the
        squared gradient of a token's log-prob by the logits over the temperature. None unless the advantages ask.

        p of the batches' old log-probs. The sum needs no distribution: with logits z and logsumexp l,
        log p = z_t - l(z) and at half the temperature log p' = 2 z_t - l(2 z), so that
        log sum_v p_v^2 = l(2 z) - 2 l(z) = 2 log p - log p'.
        """
        if self.sharp_scorer is None:
            return None
        energies = []
        for batch, sharp in zip(flattened(mini_batches), self.sharp_scorer.score(flattened(mini_batches)), strict=True):
            squares_NK = np.exp(2 * batch.old_logp_NK.astype(np.float64) - sharp.logp_NK)
            energies_NK = 1 - 2 * np.exp(batch.old_logp_NK.astype(np.float64)) + squares_NK
            # Not below 0 where rounding would be; no sum of squares is above 1.
            energies.append(np.where(batch.mask_NK, np.clip(energies_NK, 0, 2), 0).astype(np.float32))
        return energies

    def log_probs(self, mini_batches: MiniBatches) -> list[Float32Array]:
        """Return the trainer's log-probs of the batches that `score` returned, [N, K] each; with
        algorithm.old_log_probs=sampler this scores them."""
        if self.old_log_probs == "recompute":
            return [batch.old_logp_NK for batch in flattened(mini_batches)]
        return [found.logp_NK for found in self._score_old(mini_batches)]

    def _score_old(self, mini_batches: MiniBatches) -> list[TokenScores]:
        """Score all batches at once; where routing is recorded or replayed mini-batch by mini-batch, so that each is
        scored on the ranks that train it, which have its routing."""
        if self.routing is None:
            return self.scorer.score(flattened(mini_batches))
        return [score for batches in mini_batches for score in self.scorer.score(batches)]
