"""Samples of one mini-batch -> the numpy rows of its micro-batches.

What enters: prompt and response ids. What leaves: `types.Batch`es that share their global denominators, still without
the log-probs and advantages that the trainer fills in by `scattered`. Called by the trainer's step and warm-up. One
sample per row; rows of similar length share a micro-batch, so that little padding is computed, and every length is
rounded up, so that few graphs are compiled.

Legend: N samples of a micro-batch (= rows R), T token slots per row, P predicted tokens, K response-token slots.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mindgspo.types import Batch, Float32Array, Int32Array


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSample:
    """One response to be trained on. rollout_logp: float32, the sampler's log-probs of `response_ids`. number: >= 0,
    the caller's own, kept in `Batch.samples_N`."""

    prompt_ids: Int32Array
    response_ids: Int32Array
    rollout_logp: Float32Array
    number: int

    @property
    def length(self) -> int:
        """Tokens of prompt and response."""
        return self.prompt_ids.size + self.response_ids.size


def lay_out(
    samples: Sequence[TrainingSample],
    *,
    samples_per_micro_batch: int,
    length_multiple: int,
    pad_id: int,
) -> list[Batch]:
    """Micro-batches of exactly `samples_per_micro_batch` rows, longest samples first.

    The last one is filled up with rows without a real token. old_logp, ref_logp and advantages are 0, corrections 1.
    Longest first, so that a lack of memory shows in the first micro-batch.
    """
    assert samples, "a mini-batch without samples"
    num_tokens = sum(sample.response_ids.size for sample in samples)
    by_length = sorted(samples, key=lambda sample: (-sample.length, -sample.response_ids.size))
    return [
        _rows(part, samples_per_micro_batch, length_multiple, pad_id, len(samples), num_tokens)
        for part in _parts(by_length, samples_per_micro_batch)
    ]


def _parts(samples: Sequence[TrainingSample], size: int) -> Iterator[Sequence[TrainingSample]]:
    for start in range(0, len(samples), size):
        yield samples[start : start + size]


def _rows(
    samples: Sequence[TrainingSample],
    num_rows: int,
    multiple: int,
    pad_id: int,
    num_sequences: int,
    num_tokens: int,
) -> Batch:
    row_length = round_up(max(sample.length for sample in samples), multiple)
    num_slots = round_up(max(sample.response_ids.size for sample in samples), multiple)
    ids_RT = np.full((num_rows, row_length), pad_id, dtype=np.int32)
    positions_RT = np.zeros((num_rows, row_length), dtype=np.int32)
    segments_RT = np.zeros((num_rows, row_length), dtype=np.int32)
    # Without packing there is a prediction for every slot of every response: P = N * K.
    predict_NK = np.zeros((num_rows, num_slots), dtype=np.int32)
    targets_NK = np.zeros((num_rows, num_slots), dtype=np.int32)
    mask_NK = np.zeros((num_rows, num_slots), dtype=np.bool_)
    rollout_logp_NK = np.zeros((num_rows, num_slots), dtype=np.float32)
    samples_N = np.full(num_rows, -1, dtype=np.int32)
    for row, sample in enumerate(samples):
        prompt, length, count = sample.prompt_ids.size, sample.length, sample.response_ids.size
        ids_RT[row, :prompt], ids_RT[row, prompt:length] = sample.prompt_ids, sample.response_ids
        positions_RT[row, :length] = np.arange(length)
        segments_RT[row, :length] = 1
        # Response token k stands at column prompt + k and is predicted one column earlier.
        predict_NK[row, :count] = row * row_length + prompt - 1 + np.arange(count)
        targets_NK[row, :count], mask_NK[row, :count] = sample.response_ids, True
        rollout_logp_NK[row, :count], samples_N[row] = sample.rollout_logp, sample.number
    return Batch(
        ids_RT=ids_RT,
        positions_RT=positions_RT,
        segments_RT=segments_RT,
        predict_P=predict_NK.reshape(-1),
        targets_P=targets_NK.reshape(-1),
        place_NK=np.arange(mask_NK.size, dtype=np.int32).reshape(mask_NK.shape),
        mask_NK=mask_NK,
        samples_N=samples_N,
        rollout_logp_NK=rollout_logp_NK,
        old_logp_NK=np.zeros_like(rollout_logp_NK),
        ref_logp_NK=np.zeros_like(rollout_logp_NK),
        advantages_NK=np.zeros_like(rollout_logp_NK),
        correction_NK=np.ones_like(rollout_logp_NK),
        num_sequences=num_sequences,
        num_tokens=num_tokens,
    )


def gathered(batches: Iterable[Batch], arrays_NK: Iterable[Float32Array], num_samples: int) -> list[Float32Array]:
    """The rows of the batches' arrays by sample number, each cut to its real tokens; empty for numbers in no batch."""
    rows = [np.zeros(0, np.float32)] * num_samples
    for batch, array_NK in zip(batches, arrays_NK, strict=True):
        for row, number in enumerate(batch.samples_N):
            if number >= 0:
                rows[number] = array_NK[row, batch.mask_NK[row]]
    return rows


def scattered(batch: Batch, rows: Sequence[Float32Array]) -> Float32Array:
    """The reverse: rows by sample number -> an array [N, K] of the batch, 0 where masked."""
    array_NK = np.zeros(batch.mask_NK.shape, np.float32)
    for row, number in enumerate(batch.samples_N):
        if number >= 0:
            array_NK[row, batch.mask_NK[row]] = rows[number]
    return array_NK


def round_up(length: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is at least `length`."""
    return -(-length // multiple) * multiple


def evened(batches: Sequence[Batch]) -> list[Batch]:
    """The same batches, all padded to the most rows, samples, predictions and slots among them, to be stacked."""
    rows, width = np.max([batch.ids_RT.shape for batch in batches], axis=0)
    samples, slots = np.max([batch.mask_NK.shape for batch in batches], axis=0)
    predictions = max(batch.predict_P.size for batch in batches)
    return [
        _padded(batch, {"_RT": (rows, width), "_NK": (samples, slots), "_P": (predictions,), "_N": (samples,)})
        for batch in batches
    ]


def filler_like(batch: Batch) -> Batch:
    """The same rows without a real token, for a graph that wants a fixed number of batches."""
    return replace(batch, mask_NK=np.zeros_like(batch.mask_NK), samples_N=np.full_like(batch.samples_N, -1))


def _padded(batch: Batch, shapes: Mapping[str, tuple[int, ...]]) -> Batch:
    """shapes: by the end of an array's name."""
    own, width = batch.ids_RT.shape[1], shapes["_RT"][1]
    arrays = {}
    for name in batch.__slots__:
        shape = shapes.get(name[name.rfind("_") :])
        if shape is not None:
            array = getattr(batch, name)
            more = [(0, wanted - size) for wanted, size in zip(shape, array.shape, strict=True)]
            arrays[name] = np.pad(array, more, constant_values=-1 if name == "samples_N" else 0)
    # Indices into the flattened rows, which are longer now.
    arrays["predict_P"] = arrays["predict_P"] // own * width + arrays["predict_P"] % own
    return replace(batch, **arrays)
