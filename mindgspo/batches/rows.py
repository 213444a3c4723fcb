"""Samples in rows -> the numpy arrays of a micro-batch.

Batches share their global denominators, still without the log-probs and advantages that the trainer fills in by
`scattered`. In the plain layout, `lay_out`, every row holds one sample; rows of similar length share a micro-batch, so
that little padding is computed, and every length is rounded up, so that few graphs are compiled.

Legend: R rows, T token slots per row, N samples, K slots per sample for its trained tokens, P predicted tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mindgspo.types import Batch, BoolArray, ExpertArray, Float32Array, Int32Array


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSample:
    """One response to be trained on.

    Example: TrainingSample(prompt_ids=np.int32([5, 9]), response_ids=np.int32([7, 2]),
    rollout_logp=np.float32([-0.1, -0.7]), number=0)
    """

    prompt_ids: Int32Array
    """int32, tokens of the prompt."""
    response_ids: Int32Array
    """int32, tokens of the response, EOS included if one was sampled."""
    rollout_logp: Float32Array
    """float32, the sampler's log-probs of the tokens that are trained."""
    number: int
    """The caller's own number, from 0; kept in `Batch.samples_N`."""
    actions: BoolArray | None = None
    """bool, which of `response_ids` the policy sampled; the others condition and are never trained. None: all."""
    turns: Int32Array | None = None
    """int32, number of the turn of each token that is trained, from 0; None unless the loss reads it."""

    @property
    def length(self) -> int:
        """Tokens of prompt and response."""
        return self.prompt_ids.size + self.response_ids.size

    @property
    def trained(self) -> NDArray[np.int64]:
        """Places in `response_ids` of the tokens that are trained, ascending."""
        return np.arange(self.response_ids.size) if self.actions is None else np.flatnonzero(self.actions)

    @property
    def num_trained(self) -> int:
        """Number of tokens that are trained."""
        return self.response_ids.size if self.actions is None else int(self.actions.sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSize:
    """Shape of a micro-batch: R rows of T token slots, N samples of K response-token slots, P predictions.

    predictions: None if every slot of every response has one of its own, P = N * K.
    """

    rows: int
    row_length: int
    samples: int
    slots: int
    predictions: int | None = None


def lay_out(
    samples: Sequence[TrainingSample],
    *,
    samples_per_micro_batch: int,
    length_multiple: int,
    pad_id: int,
    keeps_order: bool = False,
) -> list[Batch]:
    """Micro-batches of exactly `samples_per_micro_batch` rows of one sample, longest samples first.

    The last one is filled up with rows without a real token. old_logp, ref_logp and advantages are 0, corrections 1.
    Longest first, so that a lack of memory shows in the first micro-batch. keeps_order: in the order given instead,
    which keeps samples of one prompt together.
    """
    whole, ordered = denominators(samples), samples if keeps_order else longest_first(samples)
    parts = [
        ordered[start : start + samples_per_micro_batch] for start in range(0, len(ordered), samples_per_micro_batch)
    ]
    sizes = [unpacked_size(part, samples_per_micro_batch, length_multiple) for part in parts]
    return [batch_of([[one] for one in part], size, pad_id, whole) for part, size in zip(parts, sizes, strict=True)]


def longest_first(samples: Sequence[TrainingSample]) -> list[TrainingSample]:
    """Sort by length, then by the number of trained tokens, then in the order given."""
    return sorted(samples, key=lambda sample: (-sample.length, -sample.num_trained))


def unpacked_size(samples: Sequence[TrainingSample], num_rows: int, multiple: int) -> BatchSize:
    """Size of a micro-batch with one sample per row."""
    return BatchSize(
        rows=num_rows,
        row_length=round_up(max(sample.length for sample in samples), multiple),
        samples=num_rows,
        slots=round_up(max(sample.num_trained for sample in samples), multiple),
    )


def denominators(samples: Sequence[TrainingSample]) -> tuple[int, int]:
    """Sequences and trained tokens of a mini-batch, by which its loss is divided."""
    assert samples, "a mini-batch without samples"
    return len(samples), sum(sample.num_trained for sample in samples)


def batch_of(rows: Sequence[Sequence[TrainingSample]], size: BatchSize, pad_id: int, whole: tuple[int, int]) -> Batch:
    """Samples in rows, which may be fewer or shorter than those of `size`. whole: `denominators` of the mini-batch."""
    num_slots, num_predictions = size.samples * size.slots, size.predictions
    is_dense = num_predictions is None
    ids_RT = np.full((size.rows, size.row_length), pad_id, dtype=np.int32)
    positions_RT, segments_RT = np.zeros_like(ids_RT), np.zeros_like(ids_RT)
    predict_P = np.zeros(num_slots if num_predictions is None else num_predictions, dtype=np.int32)
    targets_P = np.zeros_like(predict_P)
    place_NK = np.arange(num_slots, dtype=np.int32) if is_dense else np.zeros(num_slots, dtype=np.int32)
    place_NK = place_NK.reshape(size.samples, size.slots)
    mask_NK = np.zeros(place_NK.shape, dtype=np.bool_)
    rollout_logp_NK = np.zeros(place_NK.shape, dtype=np.float32)
    has_turns = any(sample.turns is not None for samples in rows for sample in samples)
    turns_NK = np.zeros(place_NK.shape, dtype=np.int32) if has_turns else None
    samples_N = np.full(size.samples, -1, dtype=np.int32)
    number, first = 0, 0
    for row, samples in enumerate(rows):
        start = 0
        for segment, sample in enumerate(samples, start=1):
            answer, end = start + sample.prompt_ids.size, start + sample.length
            trained, count = sample.trained, sample.num_trained
            ids_RT[row, start:answer], ids_RT[row, answer:end] = sample.prompt_ids, sample.response_ids
            positions_RT[row, start:end], segments_RT[row, start:end] = np.arange(sample.length), segment
            place_NK[number, :count] = np.arange(count) + (number * size.slots if is_dense else first)
            # Response token i stands at column answer + i and is predicted one column earlier.
            predict_P[place_NK[number, :count]] = row * size.row_length + answer - 1 + trained
            targets_P[place_NK[number, :count]] = sample.response_ids[trained]
            rollout_logp_NK[number, :count], mask_NK[number, :count] = sample.rollout_logp, True
            if turns_NK is not None:
                turns_NK[number, :count] = sample.turns
            samples_N[number] = sample.number
            number, first, start = number + 1, first + count, end
    return Batch(
        ids_RT=ids_RT,
        positions_RT=positions_RT,
        segments_RT=segments_RT,
        predict_P=predict_P,
        targets_P=targets_P,
        place_NK=place_NK,
        mask_NK=mask_NK,
        samples_N=samples_N,
        rollout_logp_NK=rollout_logp_NK,
        old_logp_NK=np.zeros_like(rollout_logp_NK),
        ref_logp_NK=np.zeros_like(rollout_logp_NK),
        advantages_NK=np.zeros_like(rollout_logp_NK),
        correction_NK=np.ones_like(rollout_logp_NK),
        num_sequences=whole[0],
        num_tokens=whole[1],
        turns_NK=turns_NK,
    )


class PackedTokens(NamedTuple):
    """The tokens of a batch that are computed, without padding, and where its predictions are made.

    Samples with equal prompts share one, if their experts are equal, too. The last trained token of a response predicts
    nothing; it is left out, with an observation behind it.
    """

    ids_1M: Int32Array
    """As many slots as the batch has; tokens in use come first."""
    positions_1M: Int32Array
    segments_E2: Int32Array
    """By sequence an earlier one that it continues, -1 for none, and where it ends among the tokens; E = 2 N, the end
    of the last one again for sequences that are not there."""
    predict_P: Int32Array
    """As in `Batch`; -1 if the prediction is not read."""
    place_M: np.ndarray
    """int64 [R * T], the position of each of the batch's tokens among those in use; -1 for tokens that are left out."""


def packed_tokens(batch: Batch) -> PackedTokens:
    """Lay a batch out for kernels, which compute only tokens that are in use."""
    ids_M, positions_M = batch.ids_RT.reshape(-1), batch.positions_RT.reshape(-1)
    by_prompt: dict[bytes, list[int]] = {}
    last_of_prompt_N = batch.predict_P[batch.place_NK[:, 0]]  # responses begin with a trained token
    counts_N = batch.mask_NK.sum(axis=1)
    experts_MX = None if batch.experts_RTX is None else batch.experts_RTX.reshape(ids_M.size, -1)
    for sample in np.flatnonzero(counts_N):
        last = last_of_prompt_N[sample]
        prompt = slice(last - positions_M[last], last + 1)
        routed = b"" if experts_MX is None else experts_MX[prompt].tobytes()
        by_prompt.setdefault(ids_M[prompt].tobytes() + routed, []).append(sample)
    sources, segments, predict_P, end = [], [], np.full_like(batch.predict_P, -1), 0
    place_M = np.full(ids_M.size, -1, np.int64)
    for samples in by_prompt.values():
        last = last_of_prompt_N[samples[0]]
        prefix, is_shared = len(segments), len(samples) > 1
        sources.append(np.arange(last - positions_M[last], last + 1))
        prompt_places = np.arange(end, end + sources[-1].size)
        end += sources[-1].size
        if is_shared:
            segments.append((-1, end))
        for sample in samples:
            places = batch.place_NK[sample, : counts_N[sample]]
            first = last_of_prompt_N[sample] + 1
            stop = batch.predict_P[places[-1]] + 1
            sources.append(np.arange(first, stop))
            place_M[first - prompt_places.size : first] = prompt_places
            place_M[first:stop] = np.arange(end, end + stop - first)
            predict_P[places] = place_M[batch.predict_P[places]]
            end += stop - first
            segments.append((prefix if is_shared else -1, end))
    segments_E2 = np.full((2 * batch.samples_N.size, 2), (-1, end), np.int32)
    segments_E2[: len(segments)] = np.reshape(segments, (-1, 2))
    used = np.concatenate([np.zeros(0, np.int64), *sources])
    ids_1M, positions_1M = np.zeros((2, 1, ids_M.size), np.int32)
    ids_1M[0, :end], positions_1M[0, :end] = ids_M[used], positions_M[used]
    return PackedTokens(ids_1M, positions_1M, segments_E2, predict_P, place_M)


def in_one_row(batch: Batch, size: BatchSize) -> Batch:
    """Put the samples into one row of the length of all of `size`'s, and padded to its other sizes: for kernels, which
    skip padding, so that batches of all lengths share one graph. Lengths above `size` stay as they are, except for the
    number of samples: more than those of `size` are padded to twice as many, or four times, and so on."""
    samples, slots = size.samples, max(size.slots, batch.mask_NK.shape[1])
    while samples < batch.samples_N.size:
        samples *= 2
    segments_M = batch.segments_RT.reshape(-1)
    real = np.flatnonzero(segments_M)
    row_length = max(size.rows * size.row_length, real.size)
    predictions = max(size.predictions or size.samples * size.slots, batch.predict_P.size)
    shapes = {"_NK": (samples, slots), "_P": (predictions,), "_N": (samples,)}
    ids_RT, positions_RT, segments_RT = np.zeros((3, 1, row_length), np.int32)
    ids_RT[0, : real.size] = batch.ids_RT.reshape(-1)[real]
    positions_RT[0, : real.size] = batch.positions_RT.reshape(-1)[real]
    segments_RT[0, : real.size] = np.cumsum(positions_RT[0, : real.size] == 0)
    new_place_M = np.maximum(np.cumsum(segments_M > 0, dtype=np.int32) - 1, 0)
    rows = {"ids_RT": ids_RT, "positions_RT": positions_RT, "segments_RT": segments_RT}
    return _padded(replace(batch, predict_P=new_place_M[batch.predict_P], **rows), shapes)


def gathered(batches: Iterable[Batch], arrays_NK: Iterable[np.ndarray], num_samples: int) -> list[np.ndarray]:
    """The rows of the batches' arrays by sample number, each cut to its real tokens; empty for numbers in no batch."""
    rows: list[np.ndarray] = [np.zeros(0, np.float32)] * num_samples
    for batch, array_NK in zip(batches, arrays_NK, strict=True):
        for row, number in enumerate(batch.samples_N):
            if number >= 0:
                rows[number] = array_NK[row, batch.mask_NK[row]]
    return rows


def scattered(batch: Batch, rows: Sequence[Float32Array]) -> Float32Array:
    """The reverse of `gathered`: rows by sample number -> an array [N, K] of the batch, 0 where masked."""
    array_NK = np.zeros(batch.mask_NK.shape, np.float32)
    for row, number in enumerate(batch.samples_N):
        if number >= 0:
            array_NK[row, batch.mask_NK[row]] = rows[number]
    return array_NK


def round_up(length: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is at least `length`."""
    return -(-length // multiple) * multiple


def evened(batches: Sequence[Batch]) -> list[Batch]:
    """Pad all batches to the most rows, samples, predictions and slots among them, so that they stack."""
    rows, width = np.max([batch.ids_RT.shape for batch in batches], axis=0)
    samples, slots = np.max([batch.mask_NK.shape for batch in batches], axis=0)
    predictions = max(batch.predict_P.size for batch in batches)
    shapes = {
        "_RT": (rows, width),
        "_RTX": (rows, width),
        "_NK": (samples, slots),
        "_NKA": (samples, slots),
        "_P": (predictions,),
        "_N": (samples,),
    }
    return [_padded(batch, shapes) for batch in batches]


def filler_like(batch: Batch) -> Batch:
    """A batch of the same shape without a real token, for a graph that needs a fixed number of batches."""
    return replace(batch, mask_NK=np.zeros_like(batch.mask_NK), samples_N=np.full_like(batch.samples_N, -1))


def in_rounds(batches: Sequence[Batch], replicas: int, experts: ExpertArray | None = None) -> Sequence[Batch]:
    """Arrange batches in rounds of one per replica, for replicas that compute them together.

    The batches of a round are padded to one shape, and the last round is filled up with batches without a real token.
    experts: [0, X], the routing of those, where routing is replayed.
    """
    filler = filler_like(batches[-1])
    if experts is not None:
        filler = replace(filler, experts_RTX=np.zeros((*filler.ids_RT.shape, experts.shape[1]), experts.dtype))
    filled = [*batches, *[filler] * (-len(batches) % replicas)]
    return [batch for start in range(0, len(filled), replicas) for batch in evened(filled[start : start + replicas])]


class PredictionParts(NamedTuple):
    """Predictions by the part of the tokens in which they are made."""

    predict: Int32Array
    """[parts, P], among the own part's tokens."""
    targets: Int32Array
    """[parts, P]."""
    place_NK: Int32Array
    """Place of a slot's prediction among all parts'."""


def predictions_in_parts(batch: Batch, predict_P: Int32Array, count: int, *, unread: int = 0) -> PredictionParts:
    """Predictions by rank, for ranks that split the flattened tokens of a batch into `count` equal runs.

    predict_P: like that of the batch, but an index among the tokens of the graph, which has equally many.
    unread: what `predict` holds where nothing is predicted; a part has room for any share.
    """
    run, rest = divmod(batch.ids_RT.size, count)
    assert rest == 0, f"{batch.ids_RT.size} tokens in {count} runs"
    places = batch.place_NK[batch.mask_NK]
    tokens, room = predict_P[places], min(predict_P.size, run)
    part = tokens // run
    if np.bincount(part, minlength=1).max() > room:  # siblings predict from one token, the last of their prompt
        room = predict_P.size
    in_order = np.argsort(part, kind="stable")
    first = np.searchsorted(part[in_order], np.arange(count))
    new_places = np.empty_like(places)
    new_places[in_order] = part[in_order] * room + np.arange(places.size) - first[part[in_order]]
    predict, targets = np.full(count * room, unread, np.int32), np.zeros(count * room, np.int32)
    predict[new_places], targets[new_places] = tokens % run, batch.targets_P[places]
    place_NK = np.zeros_like(batch.place_NK)
    place_NK[batch.mask_NK] = new_places
    return PredictionParts(predict.reshape(count, room), targets.reshape(count, room), place_NK)


def _padded(batch: Batch, shapes: Mapping[str, tuple[int, ...]]) -> Batch:
    """shapes: of the first axes, by the end of an array's name; others stay."""
    own = batch.ids_RT.shape[1]
    width = shapes["_RT"][1] if "_RT" in shapes else own
    arrays = {}
    for name in batch.__slots__:
        shape, array = shapes.get(name[name.rfind("_") :]), getattr(batch, name)
        if shape is not None and array is not None:
            more = [(0, wanted - size) for wanted, size in zip(shape, array.shape, strict=False)]
            more += [(0, 0)] * (array.ndim - len(more))
            arrays[name] = np.pad(array, more, constant_values=-1 if name == "samples_N" else 0)
    # Indices into the flattened rows, which are longer now.
    arrays["predict_P"] = arrays["predict_P"] // own * width + arrays["predict_P"] % own
    return replace(batch, **arrays)
