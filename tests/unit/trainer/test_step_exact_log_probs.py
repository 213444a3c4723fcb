"""Steps that require bit-equal log-probs, with a scripted sampler of log-prob -1: counted where equal, else stopped."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from mindgspo.errors import TrainingError

SAMPLER = "algorithm.old_log_probs=sampler"
NEXT = float(np.nextafter(np.float32(-1), np.float32(0)))


@pytest.fixture
def make(make_trainer, one_of_two_right, fakes):
    """make(*overrides, scored=, updated=): a trainer whose scoring pass and updates find these log-probs."""

    def requiring(*overrides: str, scored: float = -1.0, updated: float = -1.0, every: int = 1, **fields: object):
        from mindgspo.trainer.exact_log_probs import ExactLogProbs

        trainer = make_trainer(
            one_of_two_right, *overrides, old_policy=fakes.scorer(lambda ids: np.full(ids.shape, scored)),
            updater=fakes.updater(logp=updated), **fields,
        )  # fmt: skip
        exact = ExactLogProbs(every=every, locate=lambda token: f"It is token {token.slot} of {token.sample}.")
        return dataclasses.replace(trainer, exact=exact)

    return requiring


@pytest.mark.parametrize("overrides", [(), (SAMPLER,)])
def test_every_trained_token_is_compared_and_nothing_else_changes(make, overrides) -> None:
    trainer = make(*overrides)
    metrics = dict(trainer.train_step(1).metrics)
    without = dataclasses.replace(make(*overrides), exact=None).train_step(1).metrics
    measured = ("timing", "perf/")
    assert {name: value for name, value in without.items() if not name.startswith(measured)} == {
        name: value for name, value in metrics.items()
        if not name.startswith(measured) and name != "training/exact_logprobs_tokens"
    }  # fmt: skip
    tokens = sum(int(batch.mask_NK.sum()) for batches in trainer.updater.batches for batch in batches)
    assert metrics.pop("training/exact_logprobs_tokens") == tokens > 0
    assert ("actor/entropy" in metrics) == (not overrides), "the scoring pass is for the comparison alone"


def test_steps_in_between_are_not_compared(make) -> None:
    trainer = make("trainer.max_steps=7", every=3)
    compared = ["training/exact_logprobs_tokens" in trainer.train_step(step).metrics for step in range(1, 8)]
    assert compared == [True, False, False, True, False, False, True]
    off = make(scored=NEXT, every=3)
    off.train_step(2)
    with pytest.raises(TrainingError):
        off.train_step(4)


def test_one_bit_stops_before_the_first_update(make) -> None:
    trainer = make(SAMPLER, scored=NEXT)
    with pytest.raises(TrainingError) as error:
        trainer.train_step(5)
    assert trainer.updater.calls == 0
    said = str(error.value)
    assert said.startswith(
        "step 5: 44 of 44 tokens have other log-probs in the trainer (scoring pass) than in the sampler, "
    ), said
    assert "First: prompt 0, response 0, token 0 (id " in said, said
    assert "sampler -1, trainer -0.99999994, 1 unit in the last place apart. It is token 0 of " in said, said


def test_a_difference_is_told_even_if_its_operator_cannot_be_found(make) -> None:
    def fail(token: object) -> str:
        raise RuntimeError("a card has\nno such kernel")

    trainer = make(scored=NEXT)
    trainer = dataclasses.replace(trainer, exact=dataclasses.replace(trainer.exact, locate=fail))
    with pytest.raises(TrainingError, match="44 of 44 tokens .* not named: RuntimeError: a card has no such kernel"):
        trainer.train_step(1)


def test_the_graph_of_the_first_update_is_compared_too(make, fakes) -> None:
    with pytest.raises(TrainingError, match=r"in the trainer \(graph of the first update\) than in the sampler"):
        make(updated=NEXT).train_step(1)


def test_what_earlier_weights_drew_is_left_out(make) -> None:
    from mindgspo.trainer.exact_log_probs import drawn_by

    trainer = make()
    trainer.train_step(1)
    batch = trainer.updater.batches[0][0]
    number = int(batch.samples_N.max())
    sample = int(np.flatnonzero(batch.samples_N == number)[0])
    length = int(batch.mask_NK[sample].sum())

    @dataclasses.dataclass
    class Drawn:
        weight_version: int
        length: int
        token_versions: np.ndarray | None = None

    responses = [Drawn(weight_version=6, length=batch.mask_NK.shape[1])] * (number + 1)
    responses[number] = Drawn(
        weight_version=6, length=length, token_versions=np.array([6] * (length - 1) + [7], np.int32)
    )
    drawn_NK = drawn_by(7, batch, responses)
    assert drawn_NK.sum() == 1 and drawn_NK[sample, length - 1]
    assert (drawn_by(6, batch, responses) & batch.mask_NK).sum() == batch.mask_NK.sum() - 1


@pytest.mark.parametrize(("one", "other", "units"), [
    (1.0, np.nextafter(np.float32(1), np.float32(2)), 1), (-0.0, 0.0, 1), (-1e-45, 1e-45, 3), (-2.0, -1.0, 1 << 23),
])  # fmt: skip
def test_units_in_the_last_place(one: float, other: float, units: int) -> None:
    from mindgspo.trainer.exact_log_probs import units_between

    assert (
        units_between(np.float32(one), np.float32(other)) == units == units_between(np.float32(other), np.float32(one))
    )
