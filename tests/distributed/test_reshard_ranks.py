"""Reshards over real workers: bit-exact, no byte too many, within the bucket; and what must not go unnoticed does not.

One launch of 8 workers carries out all pairs of plans, one after the other.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from reshard_in_numpy import received_bytes, sent_bytes
from running import run_workers

from mindgspo.parallel.collectives.shared_memory import SLOT_BYTES
from mindgspo.parallel.plans.layout import Layout

sys.path.append(str(Path(__file__).parent / "workers"))

from reshard_cases import FLIPS, GATHERS, MODELS, NUM_WORKERS, ODD_RANKS, PAIRS, PROOF, WHOLE_TENSORS, Pair

WORKER = Path(__file__).parent / "workers" / "reshard_pairs.py"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the workers left behind. told: by rank."""

    folder: Path
    told: list[dict]

    def slices(self, case: str, rank: int) -> dict[str, np.ndarray]:
        with np.load(self.folder / f"{case}_{rank}.npz") as slices:
            return dict(slices)

    def of(self, case: str) -> list[dict]:
        """What the ranks were told of a pair."""
        return [told["pairs"][case] for told in self.told]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    folder = tmp_path_factory.mktemp("reshards")
    for name, tensors in WHOLE_TENSORS.items():
        np.savez(folder / f"{name}.npz", **tensors)
    job = {
        "models": {name: model.model_dump() for name, model in MODELS.items()},
        "pairs": [pair.entry() for pair in PAIRS],
        "gathers": [pair.entry() for pair in GATHERS],
        "proof": PROOF.entry(),
        "flips": FLIPS,
        "odd_ranks": ODD_RANKS,
    }
    (folder / "job.json").write_text(json.dumps(job))
    run_workers(WORKER, folder, NUM_WORKERS)
    told = [json.loads((folder / f"rank_{rank}.json").read_text()) for rank in range(NUM_WORKERS)]
    return Outcome(folder=folder, told=told)


def assert_slices(
    found: Mapping[str, np.ndarray], whole: Mapping[str, np.ndarray], layouts: Mapping[str, Layout], rank: int
) -> None:
    """Bit for bit what the layouts give this rank."""
    held = {name: layout.slice_of(rank) for name, layout in layouts.items() if layout.slice_of(rank) is not None}
    assert found.keys() == held.keys()
    for name, block in held.items():
        assert (found[name].dtype, found[name].shape) == (np.float32, block.shape)
        wrong = np.argwhere(found[name].view(np.int32) != whole[name][block.index].view(np.int32))
        assert wrong.size == 0, f"{name} on rank {rank}: {len(wrong)} elements, first {wrong[0]}"


def by_name(pairs: list[Pair]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("pair", pairs, ids=[pair.name for pair in pairs])


@by_name([*PAIRS, Pair(**{**vars(PROOF), "name": "afterwards"})])
def test_every_rank_gets_its_slices_bit_for_bit(outcome: Outcome, pair: Pair):
    for rank in range(NUM_WORKERS):
        assert_slices(outcome.slices(pair.name, rank), WHOLE_TENSORS[pair.model], pair.layouts("destination"), rank)


@by_name(PAIRS)
def test_no_byte_too_many_and_no_buffer_too_large(outcome: Outcome, pair: Pair):
    plan = pair.plan()
    received, sent, lacking = received_bytes(plan), sent_bytes(plan), plan.lacking_bytes()
    for rank, told in enumerate(outcome.of(pair.name)):
        for report in (told["first"], told["second"]):
            assert report["received"] == lacking[rank] == received[rank]
            assert report["sent"] == sent[rank]
            assert report["peak_buffer"] <= min(pair.bucket_bytes, SLOT_BYTES)
            assert (report["peak_buffer"] == 0) == (rank not in received and rank not in sent)


@by_name(PAIRS)
def test_all_ranks_walk_through_the_same_steps(outcome: Outcome, pair: Pair):
    plan = pair.plan()
    steps = [list(step.parameters) for step in plan.steps]
    for told in outcome.of(pair.name):
        assert told["digest"] == plan.digest()
        assert told["steps"] == 2 * steps


@by_name(PAIRS)
def test_all_ranks_find_the_same_hashes(outcome: Outcome, pair: Pair):
    hashes = [told["hashes"] for told in outcome.of(pair.name)]
    assert hashes == NUM_WORKERS * [hashes[0]]
    assert list(hashes[0]) == list(WHOLE_TENSORS[pair.model])
    # A norm that no plan splits is one block.
    norm = WHOLE_TENSORS[pair.model]["model.norm.weight"]
    if not pair.moments:
        assert hashes[0]["model.norm.weight"] == hashlib.sha256(hashlib.sha256(norm).digest()).hexdigest()


def test_bytes_by_hand(outcome: Outcome):
    # A table of 96 x 32 floats of which every rank holds a quarter; the rest of the model stays as it is.
    reports = [told["second"] for told in outcome.of("table to whole")]
    assert [report["received"] for report in reports] == 8 * [96 * 32 * 4 * 3 // 4]
    # Ranks 0 to 3 hold everything that the stages of 1 x 4 x 2 need, and so do their replicas 4 to 7.
    reports = [told["second"] for told in outcome.of("stages for replicas")]
    assert [report["received"] + report["sent"] for report in reports] == 8 * [0]
    # Ranks 4 to 7 have nothing of two stages' weights before, and all of the second stage's afterwards; stages are
    # ranks 0 to 1 and 2 to 3 before, 0 to 3 and 4 to 7 afterwards.
    layer = 2 * 32 + 2 * (32 * 32 // 2) + 32 // 2 + 2 * (8 * 32 + 8) // 2 + 3 * (48 * 32 // 2)
    table, norm = 96 * 32, 32
    received = [told["second"]["received"] for told in outcome.of("more replicas")]
    lacking = [4 * (2 * layer + table), 4 * (2 * layer + norm + table // 2)]
    assert received == [*2 * [0], *2 * lacking[:1], *4 * lacking[1:]]


def test_equal_layouts_move_nothing_and_copy_nothing_where_arrays_are_shared(outcome: Outcome):
    for shared, own in zip(outcome.of("equal, shared"), outcome.of("equal, not shared"), strict=True):
        assert {shared["second"][key] for key in ("received", "sent", "copied", "peak_buffer")} == {0}
        assert {own["second"][key] for key in ("received", "sent", "peak_buffer")} == {0}
    for rank, own in enumerate(outcome.of("equal, not shared")):
        slices = outcome.slices("equal, not shared", rank)
        assert own["second"]["copied"] == sum(array.nbytes for array in slices.values()) > 0


def test_what_a_rank_gets_is_copied_or_received(outcome: Outcome):
    for pair in PAIRS:
        if not pair.shared:
            for rank, told in enumerate(outcome.of(pair.name)):
                slices = outcome.slices(pair.name, rank)
                report = told["second"]
                assert report["copied"] + report["received"] == sum(array.nbytes for array in slices.values())


@by_name(GATHERS)
def test_rank_0_gathers_whole_tensors(outcome: Outcome, pair: Pair):
    found = outcome.slices(pair.name, 0)
    whole = WHOLE_TENSORS[pair.model]
    assert found.keys() == whole.keys()
    for name, array in found.items():
        assert array.tobytes() == whole[name].tobytes(), name
    assert [told["gathers"][pair.name] for told in outcome.told[1:]] == 7 * [[]]


def test_some_moments_are_split_and_some_stay_whole():
    layouts = GATHERS[1].layouts("source")
    assert {bool(layout.remark) for layout in layouts.values()} == {False, True}


def test_sound_slices_are_accepted(outcome: Outcome):
    for told in outcome.told:
        assert (told["proof"][0], told["proof"][-1]) == (None, None)


@pytest.mark.parametrize("number", range(len(FLIPS)))
def test_one_flipped_bit_is_noticed_by_all_ranks(outcome: Outcome, number: int):
    names = FLIPS[number]["parameters"]
    assert len(outcome.told[0]["proof"]) == len(FLIPS) + 2
    answers = {told["proof"][1 + number] for told in outcome.told}
    assert len(answers) == 1
    answer = str(answers.pop())
    total = len(WHOLE_TENSORS["untied"])
    assert answer.startswith(f"WeightsError: after the reshard {len(names)} of {total} compared parameters differ")
    told = answer.split(": ", 2)[2].split(";")[0].split(", ")
    assert sorted(told) == sorted(names)


NORM = "model.layers.0.input_layernorm.weight"


@pytest.mark.parametrize(("kind", "side", "said"), [
    ("missing", "destination", f"{NORM} has shape none (missing), the plan says (32,)"),
    ("unexpected", "source",
        "model.layers.9.mlp.up_proj.weight has shape (4,), the plan says none (not on this rank)"),
    ("shape", "destination", f"{NORM} has shape (3,), the plan says (32,)"),
    # A kept slice would be converted on the way, and everything else be misread.
    ("type", "destination", f"{NORM} is float64; it must be float32"),
])  # fmt: skip
def test_slices_that_do_not_fit_are_refused(outcome: Outcome, kind: str, side: str, said: str):
    for rank, told in enumerate(outcome.told):
        assert told["refusals"][kind] == f"WeightsError: {side} of a reshard, rank {rank}: {said}"


@pytest.mark.parametrize("number", range(len(ODD_RANKS)))
def test_ranks_that_planned_differently_are_told_so(outcome: Outcome, number: int):
    odd = ODD_RANKS[number]
    others = [odd] if odd else list(range(1, NUM_WORKERS))
    for told in outcome.told:
        answer = told["disagreements"][number]
        assert answer.startswith(f"WeightsError: ranks {others} have planned another reshard than rank 0")
