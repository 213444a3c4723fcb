"""Teachers: whose log-probs a token gets, what they add to advantages, and which folders are refused."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from mindgspo.batches.rows import TrainingSample, lay_out
from mindgspo.config import load_config
from mindgspo.config.data import TokenizerSection
from mindgspo.config.distillation import DistillationSection, TeacherSection
from mindgspo.errors import ConfigError, TokenizerError
from mindgspo.models.scoring import TokenScores
from mindgspo.tokenization import check_same_vocabulary, load_tokenizer
from mindgspo.tokenization.files import VOCAB, arithmetic_files
from mindgspo.trainer.advantages import _taught
from mindgspo.trainer.teachers import Teacher, Teachers
from mindgspo.types import Batch

EXPERIMENT = """
experiment: taught
model: {vocab_size: 384, hidden_size: 16, intermediate_size: 32, num_hidden_layers: 1, num_attention_heads: 2,
  num_key_value_heads: 1, max_position_embeddings: 64}
data:
  train:
  - {format: arithmetic, split: train, max_rows: 8, name: sums}
  - {format: arithmetic, split: dev, max_rows: 8, name: others}
  eval: {format: arithmetic, split: test, max_rows: 2}
  max_prompt_length: 32
rollout: {prompts_per_step: 4, num_generations: 3, max_new_tokens: 12, slots: 12}
algorithm: {distillation: {teachers: [{path: teacher}]}}
trainer: {max_steps: 1, prompts_per_mini_batch: 2, samples_per_micro_batch: 6, length_multiple: 64}
"""
SIZES = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": 384, "hidden_size": 32,
    "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": True,
    "hidden_act": "silu", "torch_dtype": "float32",
}  # fmt: skip


class FixedScorer:
    """Log-prob `value` for every token; counts the batches it is asked about."""

    def __init__(self, value: float) -> None:
        self.value, self.asked = value, 0

    def score(self, batches: list[Batch]) -> list[TokenScores]:
        self.asked += len(batches)
        return [
            TokenScores(logp_NK=np.where(one.mask_NK, np.float32(self.value), 0), entropy_NK=one.old_logp_NK)
            for one in batches
        ]


def teacher(value: float, *sources: str, weight: float = 1.0) -> Teacher:
    section = TeacherSection(path=Path("none"), sources=sources, weight=weight)
    return Teacher(section=section, model=SimpleNamespace(), scorer=FixedScorer(value))


@pytest.fixture
def batches() -> list[Batch]:
    """Responses number 0 to 3 of 1 to 4 tokens, old log-prob -1, two in a micro-batch; longest first."""
    samples = [
        TrainingSample(
            prompt_ids=np.array([1], np.int32), response_ids=np.full(number + 1, 2, np.int32),
            rollout_logp=np.full(number + 1, -1, np.float32), number=number,
        ) for number in range(4)
    ]  # fmt: skip
    laid_out = lay_out(samples, samples_per_micro_batch=2, length_multiple=1, pad_id=0)
    return [replace(one, old_logp_NK=np.where(one.mask_NK, np.float32(-1), 0)) for one in laid_out]


def by_number(batches: list[Batch], arrays: list[np.ndarray]) -> dict[int, list[float]]:
    return {
        int(number): array[row, one.mask_NK[row]].tolist()
        for one, array in zip(batches, arrays, strict=True)
        for row, number in enumerate(one.samples_N)
    }


def test_a_source_is_taught_by_the_teachers_that_name_it_else_by_those_that_name_none(batches):
    teachers = Teachers(teachers=(teacher(-2.0, "sums"), teacher(-3.0)))
    found = by_number(batches, teachers.log_probs(batches, ["sums", "words", "sums", "words"]))
    assert found == {0: [-2.0], 1: [-3.0] * 2, 2: [-2.0] * 3, 3: [-3.0] * 4}


def test_several_teachers_of_a_source_are_a_mixture(batches):
    teachers = Teachers(teachers=(teacher(np.log(0.8), weight=3), teacher(np.log(0.4), weight=1)))
    for row in by_number(batches, teachers.log_probs(batches, ["any"] * 4)).values():
        np.testing.assert_allclose(np.exp(row), 0.75 * 0.8 + 0.25 * 0.4, rtol=1e-6)


def test_a_source_without_a_teacher_is_untaught_and_costs_nothing(batches):
    teachers = Teachers(teachers=(teacher(-2.0, "sums"),))
    found = by_number(batches, teachers.log_probs(batches, ["words", "words", "sums", "words"]))
    assert found[2] == [-2.0] * 3 and np.isnan(found[0] + found[1] + found[3]).all()
    assert teachers.teachers[0].scorer.asked == 1, "the other micro-batch has nothing to be scored"


@pytest.mark.parametrize(("with_rewards", "expected"), [
    (True, [[0.5 * -1 + 7], [7, 7], [0.5 * -1 + 7] * 3, [7] * 4]), (False, [[-0.5], [0, 0], [-0.5] * 3, [0] * 4]),
])  # fmt: skip
def test_the_gap_to_the_teacher_is_added_to_the_advantages(batches, with_rewards, expected):
    teachers = Teachers(teachers=(teacher(-2.0, "sums"),))
    logp = teachers.log_probs(batches, ["sums", "words", "sums", "words"])
    section = DistillationSection(teachers=(TeacherSection(path=Path("none")),), coef=0.5, with_rewards=with_rewards)
    advantages = tuple(np.full(number + 1, 7, np.float32) for number in range(4))
    found, metrics = _taught(section, advantages, batches, logp)
    assert [row.tolist() for row in found] == expected
    assert metrics == {"distillation/taught_share": 0.4, "distillation/kl": 1.0}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A teacher's folder without weights, beside an experiment."""
    path = tmp_path / "teacher"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(SIZES))
    for name, content in arithmetic_files().contents.items():
        (path / name).write_bytes(content)
    (tmp_path / "taught.yaml").write_text(EXPERIMENT)
    return path


def problems(folder: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as error:
        load_config(
            folder.parent / "taught.yaml", [f"algorithm.distillation.teachers=[{{path: {folder}}}]", *overrides]
        )
    return str(error.value)


def test_a_folder_that_fits_is_accepted(folder):
    config = load_config(folder.parent / "taught.yaml", [f"algorithm.distillation.teachers=[{{path: {folder}}}]"])
    assert config.algorithm.distillation.teachers[0].path == folder


@pytest.mark.parametrize(("sizes", "overrides", "message"), [
    ({"vocab_size": 380}, (), "has vocab_size 380 and the policy 384"),
    ({"max_position_embeddings": 40}, (), "has 40 positions for prompts and responses of up to 44 tokens"),
    ({"model_type": "bert"}, (), r"algorithm.distillation.teachers\[0\].path: "),
    ({"num_attention_heads": 3, "hidden_size": 48, "num_key_value_heads": 3},
     ("plans.train.model_parallel=2", "plans.infer.model_parallel=2", "model.num_key_value_heads=2"),
     r"algorithm.distillation.teachers\[0\].plan.model_parallel: 2 does not split the model evenly \(3 attention"),
    ({}, ("algorithm.ratio_over=turn",), "algorithm.distillation: every token has an advantage of its own"),
    ({}, ("algorithm.distillation.with_rewards=false", "algorithm.filter_groups.metric=reward"),
     "leaves out groups by their rewards"),
])  # fmt: skip
def test_what_does_not_fit_is_one_line(folder, sizes, overrides, message):
    (folder / "config.json").write_text(json.dumps(SIZES | sizes))
    lines = [line for line in problems(folder, *overrides).splitlines() if "distillation" in line]
    assert len(lines) == 1 and re.search(message, lines[0]), lines


def test_a_source_that_is_none_is_named_with_the_nearest(folder):
    teachers = f"algorithm.distillation.teachers=[{{path: {folder}, sources: [sum]}}]"
    assert "sum is no source of data.train (sums, others); did you mean 'sums'?" in problems(folder, teachers)


def test_a_missing_folder_is_named(folder):
    found = problems(folder, "algorithm.distillation.teachers=[{path: nowhere}]")
    assert "algorithm.distillation.teachers[0].path: " in found and "does not exist" in found


def test_vocabularies_are_compared_token_by_token(folder):
    tokenizer = load_tokenizer(TokenizerSection())
    check_same_vocabulary(tokenizer, folder)
    vocab = json.loads((folder / VOCAB).read_text())
    one, other = (token for token, id in vocab.items() if id in (5, 6))
    vocab[one], vocab[other] = vocab[other], vocab[one]
    (folder / VOCAB).write_text(json.dumps(vocab))
    with pytest.raises(TokenizerError, match="its vocabulary is not that of .*: id 5 is .* there and .* here"):
        check_same_vocabulary(tokenizer, folder)
    for path in folder.iterdir():
        if path.name != "config.json":
            path.unlink()
    check_same_vocabulary(tokenizer, folder)  # nothing to compare
