"""Accuracy and pass@k from scripted answers."""

from __future__ import annotations

import pytest

from mindgspo.metrics import unknown_names


def test_accuracy_by_source_and_over_all(make_trainer, answer, prompts, tokenizer, evaluate, validation_of) -> None:
    """Prompts 0, 2, 4, 6 are arithmetic: two right, one wrong, one without an answer. The others are all right."""
    said = {2: answer("999"), 6: tokenizer.encode("Tom")}
    trainer = make_trainer(lambda prompt, sample: said.get(prompt.index, answer(prompt.answer)))
    evaluation = evaluate(trainer, {"eval": prompts}, step=3)
    assert evaluation.accuracy == 6 / 8 == validation_of(trainer).evaluator.greedy_accuracy(prompts, weight_version=0)
    metrics = evaluation.metrics
    assert unknown_names(metrics) == []
    assert (metrics["val-core/arithmetic/acc/mean@1"], metrics["val-core/openai/gsm8k/acc/mean@1"]) == (2 / 4, 1)
    assert metrics["val-aux/arithmetic/no_answer_ratio"] == 1 / 4
    assert not any("pass@" in name for name in metrics), "num_samples is 1: greedy only"
    assert [group.prompt.index for group in evaluation.sets[0].greedy] == list(range(8))
    assert {response.temperature for group in evaluation.sets[0].greedy for response in group.responses} == {0.0}


def test_a_response_that_was_cut_counts_as_cut(make_trainer, prompts, tokenizer, evaluate) -> None:
    trainer = make_trainer(lambda prompt, sample: tokenizer.encode("pens " * 30))
    metrics = evaluate(trainer, {"eval": prompts}, step=0).metrics
    assert metrics["val-aux/arithmetic/response_length/clip_ratio"] == 1
    assert metrics["val-aux/arithmetic/response_length/mean"] == 16


def test_pass_at_k_of_sampled_answers(make_trainer, answer, prompts, evaluate) -> None:
    """Of 4 samples one is right for arithmetic, none for gsm8k; the greedy answer (sample 0) is right in neither."""
    settings = ("eval.num_samples=4", "eval.pass_at_k=[1, 2, 4]")
    trainer = make_trainer(
        lambda prompt, sample: answer(prompt.answer if sample == 1 and prompt.data_source == "arithmetic" else "999"),
        *settings,
    )
    evaluation = evaluate(trainer, {"eval": prompts}, step=0)
    assert unknown_names(evaluation.metrics) == []
    assert evaluation.accuracy == 0
    found = {
        name: value
        for name, value in evaluation.metrics.items()
        if name.startswith("val-core/arithmetic/acc") and name[-1].isdigit()
    }
    assert found == pytest.approx(
        {
            "val-core/arithmetic/acc/mean@1": 0, "val-core/arithmetic/acc/mean@4": 0.25,
            "val-core/arithmetic/acc/pass@1": 0.25, "val-core/arithmetic/acc/pass@2": 0.5,
            "val-core/arithmetic/acc/pass@4": 1.0, "val-core/arithmetic/acc/maj@2": 0.25,
            "val-core/arithmetic/acc/maj@4": 0,
        }
    )  # fmt: skip
    assert evaluation.metrics["val-core/openai/gsm8k/acc/pass@4"] == 0
