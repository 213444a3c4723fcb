"""Requires that sampler and trainer compute the same log-probs, bit for bit (`trainer.require_exact_logprobs`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from mindspore import nn

from mindgspo.batches.rows import packed_tokens
from mindgspo.errors import TrainingError
from mindgspo.models.trace import TracedModule, is_traceable, trace_graph
from mindgspo.models.transformer import Transformer
from mindgspo.rollout.trace import SamplerForm, SamplerTrace
from mindgspo.text import counted, shorten
from mindgspo.types import Batch, BoolArray, Float32Array, Response


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedToken:
    """A token of a batch, with its log-probs."""

    batch: Batch
    sample: int
    """Row of the batch's [N, K] arrays."""
    slot: int
    sampler: np.float32
    trainer: np.float32


def units_between(one: np.float32, other: np.float32) -> int:
    """Steps from one float32 to the next that lie between two of them: units in the last place. -0 is the one right
    below 0."""
    return abs(_place_of(one) - _place_of(other))


def _place_of(value: np.float32) -> int:
    bits = int(value.view(np.int32))
    return bits if bits >= 0 else -(bits & 0x7FFFFFFF) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactLogProbs:
    """Compares the log-probs of a step. every: steps from one comparison to the next. locate: says where sampler and
    trainer part for a token whose log-probs differ."""

    every: int
    locate: Callable[[ComparedToken], str]

    def is_due(self, step: int) -> bool:
        """Whether a step, counted from 1, is compared."""
        return (step - 1) % self.every == 0

    def require(
        self,
        batches: Sequence[Batch],
        trainer_logp_NK: Sequence[Float32Array],
        responses: Sequence[Response],
        *,
        step: int,
        version: int,
        graph: str = "scoring pass",
    ) -> int:
        """Compare the tokens that weights of version `version` drew, and return their number. Raises TrainingError if
        one differs.

        trainer_logp_NK: of each batch; anything may stand in masked slots. responses: of the step, by
        `Batch.samples_N`. graph: of the trainer, which computed them.
        """
        num_compared, differing = 0, []
        for batch, logp_NK in zip(batches, trainer_logp_NK, strict=True):
            mask_NK = batch.mask_NK & drawn_by(version, batch, responses)
            num_compared += int(mask_NK.sum())
            is_other_NK = mask_NK & (batch.rollout_logp_NK.view(np.int32) != logp_NK.view(np.int32))
            differing += [
                ComparedToken(
                    batch=batch,
                    sample=sample,
                    slot=slot,
                    sampler=np.float32(batch.rollout_logp_NK[sample, slot]),
                    trainer=np.float32(logp_NK[sample, slot]),
                )
                for sample, slot in np.argwhere(is_other_NK).tolist()
            ]
        if differing:
            first = min(differing, key=lambda one: (one.batch.samples_N[one.sample], one.slot))
            response = responses[first.batch.samples_N[first.sample]]
            units = counted(units_between(first.sampler, first.trainer), "unit")
            raise TrainingError(
                f"step {step}: {len(differing):,} of {counted(num_compared, 'token')} have other log-probs in the "
                f"trainer ({graph}) than in the sampler, and trainer.require_exact_logprobs allows no bit. First: "
                f"prompt {response.prompt_index}, response {response.sample_index}, token {first.slot} (id "
                f"{first.batch.targets_NK[first.sample, first.slot]}): sampler {first.sampler:.9g}, trainer "
                f"{first.trainer:.9g}, {units} in the last place apart. {self._where(first)}"
            )
        return num_compared

    def _where(self, token: ComparedToken) -> str:
        try:
            return self.locate(token)
        except Exception as error:  # whatever MindSpore raises where a device cannot run the modules one by one
            return f"The operator is not named: {type(error).__name__}: {shorten(' '.join(str(error).split()), 200)}"


def drawn_by(version: int, batch: Batch, responses: Sequence[Response]) -> BoolArray:
    """bool [N, K], tokens that weights of this version drew. responses: by `Batch.samples_N`."""
    drawn_NK = np.zeros(batch.mask_NK.shape, np.bool_)
    for sample, number in enumerate(batch.samples_N.tolist()):
        if number >= 0:
            response = responses[number]
            versions = response.weight_version if response.token_versions is None else response.token_versions
            drawn_NK[sample, : response.length] = versions == version
    return drawn_NK


def where_they_part(policy: nn.Cell, form: SamplerForm, token: ComparedToken) -> str:
    """Run the token's sequence through the modules of both sides, and name the first whose outputs differ. policy: the
    trainer's, with the weights that were compared. All earlier modules are equal for all tokens up to this one."""
    if not is_traceable(policy):
        return "The operator is not named, because the weights are split over processes; one process names it"
    assert isinstance(policy.model, Transformer)
    batch, sample = token.batch, token.sample
    slots = batch.predict_P[batch.place_NK[sample, : token.slot + 1]]  # where its tokens are predicted
    positions = batch.positions_RT.reshape(-1)[slots]
    start, stop = slots[0] - positions[0], slots[-1] + 1
    ids_L = batch.ids_RT.reshape(-1)[start : stop + 1]
    fed = packed_tokens(batch).place_M[start:stop] if policy.is_packed else np.arange(start, stop)
    trainer = {
        name: TracedModule(operator, outputs[sample, : slots.size] if name == "log_probs" else outputs[fed])
        for name, (operator, outputs) in trace_graph(policy, batch).items()
    }
    sampler = SamplerTrace(policy.model, form, num_columns=ids_L.size)
    # As a prompt that is answered, and as a sequence that was pre-empted or continued right before the token.
    beginnings = dict.fromkeys((int(positions[0]) + 1, ids_L.size - 1))
    for num_prefilled, by_halves in product(beginnings, sampler.forms):
        decoded = sampler.run(ids_L, num_prefilled=num_prefilled, by_halves=by_halves)
        if (found := _first_difference(decoded, trainer, positions, first=num_prefilled - 1)) is not None:
            return found
    return (
        "The sampler's operators compute the trainer's log-prob from the trained weights, so other weights drew this "
        "response: look at how weights reach generation (reshard.verify=full), and at their version"
    )


def _first_difference(
    sampler: Mapping[str, TracedModule], trainer: Mapping[str, TracedModule], positions: np.ndarray, *, first: int
) -> str | None:
    """The first module of the trainer whose outputs are not the sampler's, in words; None if all are equal.

    positions: of the tokens that predict, to which the trainer's log-probs belong; its other outputs are of all
    positions. first: position of the sampler's first output.
    """
    equal, operators = "", []
    for name, module in trainer.items():
        operators.append(module.operator)
        if name not in sampler:
            continue
        if name == "log_probs":
            is_decoded = positions >= first
            found, wanted = sampler[name].outputs[positions[is_decoded] - first], module.outputs[is_decoded]
        else:
            found, wanted = sampler[name].outputs, module.outputs[first:]
        if ((found.view(np.int32) != wanted.view(np.int32)) & ~np.isnan(found)).any():
            ours, theirs = sampler[name].operator, ", ".join(dict.fromkeys(operators))
            by = f"{ours} of the sampler, {theirs} of the trainer"
            if ours == theirs:
                by = f"{ours} in both graphs, which fuse or tile it differently"
            before = f"; {equal} before it is equal, bit for bit" if equal else ""
            return f"They part at {name}: {by}{before}"
        equal, operators = name, []
    return None
