"""The native rollout engine: the host keeps slots busy, compiled graphs do the work.

It runs on the parameters of the model it was given, the trainer's own or a copy laid out for generating; who fills that
copy is not its business (`rollout.replicated`).

Legend: S slots, Q prompts of one prefill, L prompt columns.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from mindspore import Parameter, Tensor, nn

from mindgspo import faults
from mindgspo.data.rows import round_up
from mindgspo.parallel.collectives import GraphOfRanks
from mindgspo.parallel.device_ops import attention_segments
from mindgspo.parallel.runtime import paged_kernels
from mindgspo.rollout.cache import admission, slot_cache
from mindgspo.rollout.graphs import DecodeStep, Prefill, TokenSampler
from mindgspo.rollout.protocol import Purpose, Rollout, RolloutCounters, SamplingSettings
from mindgspo.rollout.slots import Admission, SlotTable
from mindgspo.types import Prompt


class NativeEngine:
    """Implements `RolloutEngine` with MindSpore graphs.

    num_slots: sequences decoded at once. prefill_width: prompts per prefill graph. max_prompt_length,
    max_new_tokens: bounds that size the cache. length_multiple: prompts are padded to a multiple of it. cache_dtype:
    None: the model's.
    """

    def __init__(
        self,
        model: nn.Cell,
        *,
        eos_ids: Collection[int],
        num_slots: int,
        prefill_width: int,
        max_prompt_length: int,
        max_new_tokens: int,
        length_multiple: int,
        cache_dtype: str | None = None,
        top_k: int = 0,
        top_p: float = 1.0,
    ) -> None:
        self._eos_ids = tuple(eos_ids)
        self._num_slots, self._prefill_width = num_slots, prefill_width
        self._max_new_tokens, self._length_multiple = max_new_tokens, length_multiple
        num_columns = round_up(max_prompt_length, length_multiple) + max_new_tokens
        self._cache = slot_cache(model, num_slots=num_slots, num_columns=num_columns, dtype=cache_dtype)
        team = model.place.model_ranks
        self._prefill = GraphOfRanks(Prefill(model, self._cache), team)
        self._admit = admission(self._cache)
        self._decode = GraphOfRanks(DecodeStep(model, self._cache, TokenSampler(top_k=top_k, top_p=top_p)), team)
        # Copying a few slots per graph keeps refilling cheap; a wider graph would mostly copy padding.
        self._admit_width = min(8, num_slots)
        self._weight_version: int | None = None

    @property
    def cache(self) -> tuple[Parameter, ...]:
        """Keys and values of all slots; nothing in them is needed between two calls of `generate`."""
        return tuple(self._cache.matrices)

    def load_weights(self, version: int) -> None:
        """Stamp the weights that the model's parameters hold now."""
        self._weight_version = version

    def generate(self, prompts: Sequence[Prompt], settings: SamplingSettings, *, weight_version: int) -> Rollout:
        """See `RolloutEngine`. The result depends on nothing but weights, prompts, settings and their stream."""
        assert weight_version == self._weight_version, (
            f"rollout with weights of version {self._weight_version}, trainer is at {weight_version}"
        )
        assert settings.max_new_tokens <= self._max_new_tokens, settings
        fault = "rollout" if settings.stream.purpose is Purpose.TRAINING else "eval"
        faults.reach(f"{fault}.before")
        table = SlotTable(
            prompts,
            settings,
            num_slots=self._num_slots,
            eos_ids=self._eos_ids,
            weight_version=weight_version,
        )
        greedy = settings.temperature == 0
        inverse_temperature_S = Tensor(
            np.full(self._num_slots, 1.0 if greedy else 1.0 / settings.temperature, np.float32)
        )
        greedy_S = Tensor(np.full(self._num_slots, greedy))
        store = _PromptStore(self._prefill, prompts, self._prefill_width, self._length_multiple)
        steps = busy = 0
        while not table.done:
            self._admit_waiting(table, store)
            busy += table.num_busy
            steps += 1
            with paged_kernels():
                ids_S, logprobs_S = self._decode(
                    Tensor(table.ids_S),
                    Tensor(table.positions_S),
                    Tensor(table.uniforms()),
                    inverse_temperature_S,
                    greedy_S,
                    Tensor(table.positions_S + np.int32(1)),
                )
            table.advance(ids_S.asnumpy(), logprobs_S.asnumpy())
            faults.reach(f"{fault}.inside")
        responses = table.responses()
        return Rollout(
            responses=responses,
            counters=RolloutCounters(
                prefilled_prompts=store.num_prefilled,
                decode_steps=steps,
                busy_slot_steps=busy,
                slot_steps=steps * self._num_slots,
                generated_tokens=sum(response.length for group in responses for response in group),
            ),
        )

    def _admit_waiting(self, table: SlotTable, store: _PromptStore) -> None:
        """Fill free slots; a prefill replaces the store only after all of its prompts' samples were admitted."""
        while admissions := table.admissions(self._admit_width):
            if admissions[0].prompt >= store.stop:
                store.prefill_next()
            admissions = [admitted for admitted in admissions if admitted.prompt < store.stop]
            for admitted in admissions:
                table.place(admitted)
            source_rows, target_rows = self._rows(admissions, store)
            with paged_kernels():
                self._admit(Tensor(source_rows), Tensor(target_rows), *store.prefilled)

    def _rows(self, admissions: Sequence[Admission], store: _PromptStore) -> tuple[np.ndarray, np.ndarray]:
        """Rows of the prefill and of the cache; repeats of the last admission fill the width."""
        padded = [*admissions, *[admissions[-1]] * (self._admit_width - len(admissions))]
        prompts = [admitted.prompt - store.start for admitted in padded]
        return self._cache.admission_rows(prompts, [admitted.slot for admitted in padded], store.num_columns)


class _PromptStore:
    """Keys and values of the prompts [start, stop), from the latest prefill."""

    def __init__(self, prefill: GraphOfRanks, prompts: Sequence[Prompt], width: int, length_multiple: int) -> None:
        self._prefill, self._prompts, self._width, self._multiple = prefill, prompts, width, length_multiple
        self.start = self.stop = self.num_prefilled = self.num_columns = 0
        self.prefilled: tuple[Tensor, ...] = ()

    def prefill_next(self) -> None:
        """Run the next prompts, at most `width`; unused rows of the graph repeat a one-token prompt."""
        self.start, self.stop = self.stop, min(self.stop + self._width, len(self._prompts))
        prompts = self._prompts[self.start : self.stop]
        self.num_columns = round_up(max(prompt.ids.size for prompt in prompts), self._multiple)
        shape = (self._width, self.num_columns)
        ids_QL, segments_QL = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
        for row, prompt in enumerate(prompts):
            ids_QL[row, : prompt.ids.size] = prompt.ids
            segments_QL[row, : prompt.ids.size] = 1
        positions_QL = np.tile(np.arange(self.num_columns, dtype=np.int32), (self._width, 1))
        segments = Tensor(attention_segments(segments_QL))
        self.prefilled = self._prefill(Tensor(ids_QL), Tensor(positions_QL), segments)
        self.num_prefilled += len(prompts)
