"""Whole training steps whose responses come out of a feed, against the same steps with an engine."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from timed_service import TimedService, VirtualClock

# There is no model: the version is all that is handed over.
NO_WEIGHTS = SimpleNamespace(push_weights=lambda version, load: load(Path("weights"), version))


@pytest.fixture
def feed_it(load, prompts):
    """feed_it(trainer, script, schedule, staleness): the trainer with responses from a service on a virtual clock, and
    the service."""

    def change(trainer, script, schedule: str, staleness: int, **service):
        from mindgspo.rollout.protocol import training_sampling
        from mindgspo.rollout.service import ServiceEngine
        from mindgspo.trainer.feed import Feed
        from mindgspo.trainer.schedules import FedEngine
        from mindgspo.trainer.step import WeightSync

        clock = VirtualClock()
        timed = TimedService(script, clock=clock, sleep=clock.sleep, **{"slots": 4, **service})
        sampling = training_sampling(trainer.rollout, trainer.seed, step=0)
        feed = Feed(
            timed,
            lambda number: [prompts[index] for index in trainer.report.stream.take(number)],
            sampling,
            batch_size=trainer.rollout.prompts_per_step,
            max_staleness=staleness,
            is_strict=schedule == "one_step_off",
            total_steps=trainer.total_steps,
            clock=clock,
        )
        engine = FedEngine(feed, NO_WEIGHTS, ServiceEngine(timed), prompts, sampling)
        fed = replace(
            trainer,
            take_prompts=engine.take_prompts,
            engine=engine,
            weights=WeightSync(engine=engine, swap=trainer.swap),
            report=replace(trainer.report, fed=engine),
            settings=load(f"trainer.schedule={schedule}", f"trainer.max_staleness={staleness}").trainer,
        )
        fed.weights.push()
        return fed, timed

    return change


def trained(trainer) -> list[tuple]:
    """All that the update backend was given."""
    return [
        tuple(getattr(batch, name).tolist() for name in batch.__slots__ if getattr(batch, name) is not None
              and isinstance(getattr(batch, name), np.ndarray))
        for batches in trainer.updater.batches for batch in batches
    ]  # fmt: skip


REFILL = (
    "algorithm.filter_groups.metric=reward", "algorithm.filter_groups.refill=true",
    "algorithm.filter_groups.when_short=train",
)  # fmt: skip


COMPARED = re.compile("critic|sampling|samples/(?!begun|waiting)")


@pytest.mark.parametrize("schedule", ["one_step_off", "bounded"])
@pytest.mark.parametrize("overrides", [(), REFILL], ids=["plain", "refill"])
def test_without_staleness_every_step_is_that_of_sync(make_trainer, feed_it, answer, schedule, overrides) -> None:
    """Also where some prompts give no signal, and others are drawn in their place."""

    def script(prompt, sample: int):
        is_right = sample == 0 or prompt.index % 3 == 1
        return answer(prompt.answer if is_right else "9" * (1 + prompt.index % 4))

    found = []
    for fed in (False, True):
        trainer = make_trainer(script, *overrides)
        if fed:
            trainer, _ = feed_it(trainer, script, schedule, 0, token_s=1.5)
        results = [trainer.train_step(step) for step in (1, 2, 3)]
        indexes = [[group.prompt.index for group in result.groups] for result in results]
        metrics = [{k: v for k, v in result.metrics.items() if COMPARED.match(k)} for result in results]
        # The fakes' log-probs differ (-1, minus the version), so the sampler's are left out.
        found.append((indexes, metrics, [batch[:8] for batch in trained(trainer)]))
    assert found[0] == found[1]


@pytest.mark.parametrize(("schedule", "behind", "drew"), [("one_step_off", [0, 1, 1], 2), ("bounded", [0, 1, 0], 4)])
def test_one_step_behind(make_trainer, feed_it, one_of_two_right, schedule, behind, drew) -> None:
    """Training takes no time on this clock: bounded cuts the third batch before its first token, so that the weights
    after the second step draw all of it."""
    trainer = make_trainer(one_of_two_right)
    trainer, service = feed_it(trainer, one_of_two_right, schedule, 1, slots=100)
    results = [trainer.train_step(step) for step in (1, 2, 3)]
    assert [result.metrics["staleness/token_mean"] for result in results] == behind
    assert [result.metrics["samples/waiting"] for result in results] == [8, 8, 0]
    assert [result.metrics["samples/begun"] for result in results] == [16, 8, 0]
    versions = [{response.weight_version for group in result.groups for response in group.responses}
                for result in results]  # fmt: skip
    assert service.loaded == [0, 2, 4, 6] and versions == [{0}, {0}, {drew}]


def test_an_evaluation_while_the_feed_runs(make_trainer, feed_it, one_of_two_right, prompts) -> None:
    from mindgspo.rollout.protocol import Purpose, RandomStream, SamplingSettings

    trainer = make_trainer(one_of_two_right)
    trainer, service = feed_it(trainer, one_of_two_right, "bounded", 1, slots=3, token_s=2.0)
    trainer.train_step(1)
    stream = RandomStream(seed=1, purpose=Purpose.EVALUATION, step=1)
    settings = SamplingSettings(num_samples=1, temperature=0.0, max_new_tokens=16, stream=stream)
    rollout = trainer.engine.generate(prompts[:3], settings, weight_version=2)
    assert [response.ids.tolist() for (response,) in rollout.responses] == [one_of_two_right(p, 0) for p in prompts[:3]]
    result = trainer.train_step(2)
    assert result.metrics["samples/trained"] == 8
    assert any(request.prefix.size for request in service.submitted), "the feed had nothing running"


def test_a_run_empties_no_folder_but_its_own(load, tmp_path: Path) -> None:
    from mindgspo.rollout.weights_folder import weights_folders

    def folder(run: str, *overrides: str) -> Path:
        return weights_folders(load(f"run_dir={tmp_path / run}", *overrides))[-1]

    shared = f"rollout.servers.weights_dir={tmp_path / 'shared'}"
    assert folder("a/run") == tmp_path / "a" / "run" / "rollout_weights"
    assert folder("a/run", shared).parent == tmp_path / "shared", "which may hold what others need"
    assert folder("a/run", shared) == folder("a/run", shared), "so that what a killed run left is found again"
    assert folder("a/run", shared) != folder("b/run", shared)


def test_ranks_without_a_connection_to_the_servers_push_weights_as_well() -> None:
    """Rank 0 alone has somebody to tell."""
    from mindgspo.trainer.schedules import pushing

    pushed, loaded = [], []
    service = SimpleNamespace(load_weights=lambda folder, version: loaded.append((folder, version)))
    others = SimpleNamespace(push_weights=lambda version, load: pushed.append(version))
    pushing(NO_WEIGHTS, service)(7)
    pushing(others, None)(7)
    assert (pushed, loaded) == ([7], [(Path("weights"), 7)])
