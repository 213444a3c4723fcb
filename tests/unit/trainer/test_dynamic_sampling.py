"""Dynamic sampling with a scripted engine: draws, the batch, what is left over, and the account of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from episodes import episode_of

from mindgspo.config import ModelSection
from mindgspo.data.stream import PromptStream
from mindgspo.errors import ConfigError, TrainingError
from mindgspo.evaluation.datasets import check_distinct_prompts
from mindgspo.parallel.plans.placement import ALONE
from mindgspo.tensor_files.tensors import ArraySource
from mindgspo.trainer.dynamic_sampling import LeftoverBuffer
from mindgspo.trainer.routing_transfer import RoutingTransfer
from mindgspo.types import Routing, ScoredGroup

REFILL = ("algorithm.filter_groups.metric=reward", "algorithm.filter_groups.refill=true")


@pytest.fixture
def mixed(answer) -> Callable[..., object]:
    """mixed(*indices): the siblings of these prompts differ; those of the others are all right."""
    return lambda *indices: (
        lambda prompt, sample: answer("999" if sample and prompt.index in indices else prompt.answer)
    )


def draw_samples(trainer, step: int):
    """The samples of a step that is not trained."""
    batch = trainer.open_batch(step)
    while num_prompts := batch.missing:
        batch.add(*trainer.sample(num_prompts, step=step, draw=batch.num_draws))
    return batch.close()


def indices(groups) -> list[int]:
    return [group.prompt.index for group in groups]


def test_prompts_are_drawn_until_the_batch_is_full_and_no_more_than_that_asks_for(make_trainer, mixed) -> None:
    # 4 groups are wanted. 0..3 give one; a share of 1/4 asks for 3 / (1/4) = 12, at most 4: 4..7 give one more; then
    # 2 / (2/8) = 8, at most 4: 0..3 once more; then 4..7.
    trainer = make_trainer(mixed(1, 6), *REFILL)
    samples = draw_samples(trainer, 1)
    assert (samples.num_draws, samples.num_with_signal, samples.num_earlier) == (4, 4, 0)
    assert indices(samples.groups[:4]) == [1, 6, 1, 6]
    assert sorted(indices(samples.groups)) == sorted([*range(8), *range(8)])
    assert (samples.selection.reasons, samples.counters.prefilled_prompts) == ((*[None] * 8, *["zero_signal"] * 24), 16)
    # The first 4 give 3, so one is missing: 1 / (3/4) = 1.3, two are drawn, and the second of them is beyond.
    trainer = make_trainer(mixed(0, 1, 2, 4, 5), *REFILL)
    samples = draw_samples(trainer, 1)
    assert indices(samples.groups) == [0, 1, 2, 4, 5, 3]
    assert samples.selection.reasons == (*[None] * 8, "surplus", "surplus", "zero_signal", "zero_signal")
    assert trainer.report.stream.take(1) == [6]


def test_a_step_trains_full_mini_batches_and_accounts_for_everything(make_trainer, mixed) -> None:
    trainer = make_trainer(mixed(0, 1, 2, 4, 5), *REFILL)
    result = trainer.train_step(1)
    metrics = result.metrics
    names = ("generated", "trained", "filtered", "filtered/zero_signal", "dropped", "dropped/surplus")
    assert [metrics[f"samples/{name}"] for name in names] == [12, 8, 2, 2, 2, 2]
    assert [len(batches[0].samples_N) and batches[0].num_sequences for batches in trainer.updater.batches] == [4, 4]
    assert (metrics["sampling/num_gen_batches"], metrics["sampling/prompts"]) == (2, 6)
    assert metrics["sampling/signal_share"] == pytest.approx(5 / 6)
    assert (metrics["sampling/all_correct_share"], metrics["sampling/none_correct_share"]) == (pytest.approx(1 / 6), 0)
    assert metrics["reward/zero_signal_group_ratio"] == pytest.approx(1 / 6), "the group beyond the batch has a signal"
    # Trained: 4 right, 4 wrong. Generated: 7 right, 5 wrong.
    assert metrics["sampling/score_shift"] == pytest.approx(0.5 - 7 / 12)
    assert (metrics["critic/score/mean"], metrics["training/epoch"]) == (pytest.approx(7 / 12), 6 / 8)


def test_earlier_groups_come_first_fill_a_batch_and_expire(make_trainer, mixed, prompts) -> None:
    trainer = make_trainer(mixed(0, 1, 2, 4, 5, 6, 7), *REFILL, "algorithm.filter_groups.keep_surplus_steps=1")
    first = trainer.train_step(1)
    assert (first.metrics["samples/kept"], first.metrics["sampling/groups_waiting"]) == (2, 1)
    second = trainer.train_step(2)
    assert indices(second.groups)[:4] == [5, 6, 7, 0]
    assert [response.weight_version for response in second.groups[0].responses] == [0, 0]
    metrics = second.metrics
    assert [metrics[f"samples/{name}"] for name in ("generated", "earlier", "trained")] == [6, 2, 8]
    assert (metrics["sampling/groups_earlier"], metrics["samples/filtered"]) == (1, 0)
    trainer = make_trainer(mixed(0, 1, 2, 4, 5), *REFILL, "algorithm.filter_groups.keep_surplus_steps=2")
    draw_samples(trainer, 1)
    assert (len(trainer.leftovers), trainer.leftovers.num_expired) == (1, 0)
    assert trainer.leftovers.take(4, step=4) == []
    assert (len(trainer.leftovers), trainer.leftovers.num_expired) == (0, 1)
    trainer = make_trainer(
        mixed(*range(8)), *REFILL, "algorithm.filter_groups.prompts_per_draw=8",
        "algorithm.filter_groups.keep_surplus_steps=1",
    )  # fmt: skip
    trainer.train_step(1)
    result = trainer.train_step(2)
    assert indices(result.groups) == [4, 5, 6, 7]
    metrics = result.metrics
    assert [metrics[f"samples/{name}"] for name in ("generated", "earlier", "trained")] == [0, 8, 8]
    assert (metrics["sampling/num_gen_batches"], metrics["rollout/busy_slot_share"]) == (0, 0)


def test_a_prompt_that_comes_twice_in_a_step_is_answered_anew(make_trainer, mixed) -> None:
    from scripted_engine import ScriptedEngine

    asked, script = [], mixed(1, 6)

    class Listening(ScriptedEngine):
        def generate(self, prompts, settings, *, weight_version):
            asked.append(([prompt.index for prompt in prompts], settings.stream))
            return super().generate(prompts, settings, weight_version=weight_version)

    trainer = make_trainer(script, *REFILL, engine=Listening(script))
    draw_samples(trainer, 1)
    assert [drawn for drawn, _ in asked] == [[0, 1, 2, 3], [4, 5, 6, 7]] * 2
    draws = [stream.uniforms(1, 0, 4).tolist() for _, stream in asked]
    assert len({tuple(draw) for draw in draws}) == 4, "four draws, four streams"


@pytest.mark.parametrize(("when_short", "trained", "updates"), [("train", 4, 1), ("skip", 0, 0)])
def test_a_batch_that_stays_short(make_trainer, mixed, when_short: str, trained: int, updates: int) -> None:
    trainer = make_trainer(
        mixed(0, 5), *REFILL, "algorithm.filter_groups.max_num_gen_batches=2",
        f"algorithm.filter_groups.when_short={when_short}",
    )  # fmt: skip
    metrics = trainer.train_step(1).metrics
    assert (metrics["samples/trained"], metrics["actor/updates"]) == (trained, updates)
    assert metrics.get("samples/dropped/short", 0) == 4 - trained
    assert (metrics["sampling/num_gen_batches"], metrics["samples/generated"]) == (2, 16)


def test_a_batch_that_stays_short_is_kept_or_stops_the_run(make_trainer, mixed) -> None:
    trainer = make_trainer(
        mixed(0, 5), *REFILL, "algorithm.filter_groups.max_num_gen_batches=1",
        "algorithm.filter_groups.when_short=skip", "algorithm.filter_groups.keep_surplus_steps=3",
        "algorithm.filter_groups.prompts_per_draw=4",
    )  # fmt: skip
    trained = [trainer.train_step(step).metrics["samples/trained"] for step in (1, 2, 3, 4)]
    # 0; 5; 0; 5 are found one by one: the fourth fills the batch.
    assert trained == [0, 0, 0, 8]
    trainer = make_trainer(
        mixed(0, 5), *REFILL, "algorithm.filter_groups.max_num_gen_batches=2",
        "algorithm.filter_groups.when_short=stop",
    )  # fmt: skip
    with pytest.raises(TrainingError, match="step 1: after 2 draws 2 of 4 groups have a signal in reward") as raised:
        trainer.train_step(1)
    assert "when_short=train" in str(raised.value)
    assert trainer.updater.batches == []


def test_the_filter_compares_what_it_is_told_to(make_trainer, answer) -> None:
    """The answers of 0 and 1 differ in the length penalty alone, those of 2 and 3 in being right."""
    long = answer("9 9 9 9 9")

    def script(prompt, sample):
        if prompt.index % 4 < 2:
            return [long, answer("999")][sample]
        return answer([prompt.answer, "999"][sample])

    functions = ("reward.functions=[gsm8k, length]",)
    found = {}
    for metric in ("reward", "accuracy", "gsm8k", "length"):
        trainer = make_trainer(script, f"algorithm.filter_groups.metric={metric}", *functions)
        reasons = draw_samples(trainer, 1).selection.reasons
        found[metric] = [reasons[2 * place] is None for place in range(4)]
    assert found["accuracy"] == found["gsm8k"] == [False, False, True, True]
    assert found["length"][:2] == found["reward"][:2] == [True, True]
    assert found["reward"] == [True] * 4


def test_the_rollout_is_gone_through_several_times(make_trainer, mixed) -> None:
    trainer = make_trainer(mixed(*range(8)), "trainer.epochs_per_rollout=3")
    metrics = trainer.train_step(1).metrics
    assert (metrics["actor/updates"], metrics["samples/trained"], trainer.weights.version) == (6, 8, 6)
    first, second = trainer.updater.batches[:2], trainer.updater.batches[2:4]
    assert all(one is other for one, other in zip(first, second, strict=True))
    # 3 steps of 6 updates: the rate rises over 9 of 18.
    assert trainer.updater.rates == pytest.approx([1e-3 * number / 9 for number in range(1, 7)])


MIXTURE = ModelSection(
    architecture="qwen3_moe", vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=3,
    num_attention_heads=4, num_key_value_heads=2, num_experts=256, num_experts_per_tok=2, moe_intermediate_size=16,
)  # fmt: skip


def with_routing(group: ScoredGroup) -> ScoredGroup:
    """With random experts for every token: 2 in each of 3 layers, those of the prompt once."""
    sizes = (group.prompt.ids.size - 1, *(response.ids.size for response in group.responses))
    rng = np.random.default_rng(group.prompt.index)
    prompt_LX, *experts = (rng.integers(0, 256, (size, 6)).astype(np.uint8) for size in sizes)
    routings = [Routing(prompt_LX=prompt_LX, response_LX=response_LX) for response_LX in experts]
    responses = zip(group.responses, routings, strict=True)
    return replace(group, responses=tuple(replace(response, routing=routing) for response, routing in responses))


def with_episode(group: ScoredGroup) -> ScoredGroup:
    """With a second turn behind an observation of two tokens, in the first response only."""
    first, *others = group.responses
    ids = np.concatenate([first.ids, [5, 6, 7]]).astype(np.int32)
    episode = episode_of((0, first.ids.size), (ids.size - 1, ids.size), info={"moves": 2.0}, reward=0.5)
    logprobs = np.append(first.logprobs, np.float32(-3))
    return replace(group, responses=(replace(first, ids=ids, logprobs=logprobs, episode=episode), *others))


@pytest.mark.parametrize("is_routed", [False, True])
def test_waiting_groups_survive_a_stop(make_trainer, mixed, prompts, tmp_path, is_routed: bool) -> None:
    settings = (*REFILL, "algorithm.filter_groups.prompts_per_draw=8", "algorithm.filter_groups.keep_surplus_steps=2")
    trainer = make_trainer(mixed(0, 1, 2, 4, 5, 6, 7), *settings)
    draw_samples(trainer, 1)
    transfer = RoutingTransfer(ALONE, MIXTURE) if is_routed else None
    buffer, other = (LeftoverBuffer(2, prompts, transfer) for _ in range(2))
    assert buffer.arrays() == {}
    waiting = trainer.leftovers.take(9, step=2)
    waiting[0] = replace(waiting[0], group=with_episode(waiting[0].group))
    buffer.put([replace(one, group=with_routing(one.group) if is_routed else one.group) for one in waiting])
    state, arrays = buffer.state(), buffer.arrays()
    assert json.loads(json.dumps(state, allow_nan=False)) == state and ("experts" in arrays) == is_routed
    other.load(json.loads(json.dumps(state)), ArraySource(arrays, path=tmp_path))
    assert other.state() == state and len(other) == 3
    for one, two in zip(buffer.take(9, step=2), other.take(9, step=2), strict=True):
        assert (one.step, one.baseline, one.group.prompt.index) == (two.step, two.baseline, two.group.prompt.index)
        assert one.group.scores == two.group.scores
        for ours, theirs in zip(one.group.responses, two.group.responses, strict=True):
            assert ours.ids.tolist() == theirs.ids.tolist() and ours.ids.dtype == theirs.ids.dtype
            np.testing.assert_array_equal(ours.logprobs, theirs.logprobs)
            assert (ours.finish_reason, ours.weight_version) == (theirs.finish_reason, theirs.weight_version)
            assert ours.episode == theirs.episode
            if is_routed:
                assert theirs.routing.prompt_LX.dtype == theirs.routing.response_LX.dtype == np.uint8
                np.testing.assert_array_equal(ours.routing.whole, theirs.routing.whole)


def test_the_stream_goes_on_where_draws_ended_and_no_draw_exceeds_the_data(make_trainer, mixed, prompts, load) -> None:
    trainer = make_trainer(mixed(1, 6), *REFILL, stream=PromptStream(len(prompts), 3))
    draw_samples(trainer, 1)
    whole = PromptStream(len(prompts), 3)
    whole.take(trainer.report.stream.state().position + 8 * trainer.report.stream.state().epoch)
    assert trainer.report.stream.take(3) == whole.take(3)
    config = load(*REFILL, "algorithm.filter_groups.prompts_per_draw=9")
    check_distinct_prompts(config, 9)
    with pytest.raises(ConfigError, match=r"prompts_per_draw: 9 different prompts cannot be drawn from 8 rows"):
        check_distinct_prompts(config, 8)
