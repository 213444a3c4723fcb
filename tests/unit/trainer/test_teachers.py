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
from mindgspo.config import dump_config, load_config
from mindgspo.config.data import TokenizerSection
from mindgspo.config.distillation import DistillationSection, TeacherSection
from mindgspo.errors import ConfigError, TokenizerError
from mindgspo.models.scoring import TokenScores
from mindgspo.tokenization import check_same_vocabulary, load_tokenizer
from mindgspo.tokenization.files import VOCAB, arithmetic_files
from mindgspo.trainer.advantages import _taught
from mindgspo.trainer.resume_checks import check_same_experiment
from mindgspo.trainer.teachers import Teacher, Teachers, with_likeliest
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
    """Log-prob `value` for every token, and for ids 3 and 4 where the likeliest are asked for; counts the batches it
    is asked about."""

    def __init__(self, value: float) -> None:
        self.value, self.asked = value, 0
        self.samples: set[int] = set()

    def score(self, batches: list[Batch]) -> list[TokenScores]:
        self.asked += len(batches)
        self.samples |= {int(n) for one in batches for n in one.samples_N[one.mask_NK.any(axis=1)]}
        return [
            TokenScores(
                logp_NK=np.where(one.mask_NK, np.float32(self.value), 0), entropy_NK=one.old_logp_NK,
                top_ids_NKA=np.zeros((*one.mask_NK.shape, 2), np.int32) + np.int32([3, 4]),
                top_logp_NKA=np.full((*one.mask_NK.shape, 2), np.float32(self.value)),
            ) for one in batches
        ]  # fmt: skip


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


def scores_of(teachers: Teachers, batches: list[Batch], sources: list[str]) -> list[np.ndarray]:
    found = teachers.scores(batches, sources)
    assert all(one.top_ids_NKA is None and one.top_logp_NKA is None for one in found), "nobody asked for them"
    return [one.logp_NK for one in found]


def by_number(batches: list[Batch], arrays: list[np.ndarray]) -> dict[int, list[float]]:
    return {
        int(number): array[row, one.mask_NK[row]].tolist()
        for one, array in zip(batches, arrays, strict=True)
        for row, number in enumerate(one.samples_N)
    }


def test_a_source_is_taught_by_the_teachers_that_name_it_else_by_those_that_name_none(batches):
    teachers = Teachers(teachers=(teacher(-2.0, "sums"), teacher(-3.0)))
    found = by_number(batches, scores_of(teachers, batches, ["sums", "words", "sums", "words"]))
    assert found == {0: [-2.0], 1: [-3.0] * 2, 2: [-2.0] * 3, 3: [-3.0] * 4}
    assert [one.scorer.samples for one in teachers.teachers] == [{0, 2}, {1, 3}], "each is asked for its own"


def test_several_teachers_of_a_source_are_a_mixture(batches):
    teachers = Teachers(teachers=(teacher(np.log(0.8), weight=3), teacher(np.log(0.4), weight=1)))
    for row in by_number(batches, scores_of(teachers, batches, ["any"] * 4)).values():
        np.testing.assert_allclose(np.exp(row), 0.75 * 0.8 + 0.25 * 0.4, rtol=1e-6)


def test_a_source_without_a_teacher_is_untaught_and_costs_nothing(batches):
    teachers = Teachers(teachers=(teacher(-2.0, "sums"),))
    found = by_number(batches, scores_of(teachers, batches, ["words", "words", "sums", "words"]))
    assert found[2] == [-2.0] * 3 and np.isnan(found[0] + found[1] + found[3]).all()
    assert teachers.teachers[0].scorer.asked == 1, "the other micro-batch has nothing to be scored"


@pytest.mark.parametrize(("with_rewards", "expected"), [
    (True, [[0.5 * -1 + 7], [7, 7], [0.5 * -1 + 7] * 3, [7] * 4]), (False, [[-0.5], [0, 0], [-0.5] * 3, [0] * 4]),
])  # fmt: skip
def test_the_gap_to_the_teacher_is_added_to_the_advantages(batches, with_rewards, expected):
    teachers = Teachers(teachers=(teacher(-2.0, "sums"),))
    scores = teachers.scores(batches, ["sums", "words", "sums", "words"])
    section = DistillationSection(teachers=(TeacherSection(path=Path("none")),), coef=0.5, with_rewards=with_rewards)
    advantages = tuple(np.full(number + 1, 7, np.float32) for number in range(4))
    found, metrics = _taught(section, advantages, batches, scores)
    assert [row.tolist() for row in found] == expected
    assert metrics == {"distillation/taught_share": 0.4, "distillation/kl": 1.0}


@pytest.mark.parametrize("with_rewards", [True, False])
def test_the_likeliest_tokens_of_a_teacher_go_to_the_loss_and_not_to_the_advantages(batches, with_rewards):
    teachers = Teachers(teachers=(teacher(np.log(0.2), "sums"), teacher(np.log(0.3), "words")), top_k=2)
    scores = teachers.scores(batches, ["sums", "none", "sums", "words"])
    filled = with_likeliest([batches[:1], batches[1:]], scores)
    ids = by_number(batches, [one.teacher_ids_NKA for mini_batch in filled for one in mini_batch])
    logp = by_number(batches, [one.teacher_logp_NKA for mini_batch in filled for one in mini_batch])
    assert ids == {0: [[3, 4]], 1: [[-1, -1]] * 2, 2: [[3, 4]] * 3, 3: [[3, 4]] * 4}
    np.testing.assert_allclose(np.exp(logp[2] + logp[3]), [[0.2, 0.2]] * 3 + [[0.3, 0.3]] * 4, rtol=1e-6)
    assert all((one.top_ids_NKA[~batch.mask_NK] == -1).all() for batch, one in zip(batches, scores, strict=True))
    section = DistillationSection(
        teachers=(TeacherSection(path=Path("none")),), loss="top_k", top_k=2, with_rewards=with_rewards
    )
    found, metrics = _taught(section, tuple(np.full(number + 1, 7, np.float32) for number in range(4)), batches, scores)
    assert [set(row.tolist()) for row in found] == [{7.0 if with_rewards else 0.0}] * 4
    gaps = [np.log(0.2) + 1] * 4 + [np.log(0.3) + 1] * 4
    assert metrics == {
        "distillation/taught_share": 0.8, "distillation/kl": pytest.approx(-np.mean(gaps)),
        "distillation/top_k_mass": pytest.approx(np.mean([0.4] * 4 + [0.6] * 4)),
    }  # fmt: skip


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
    ({}, ("algorithm.distillation.loss=top_k", "algorithm.distillation.top_k=385"),
     "algorithm.distillation.top_k: 385 of a vocabulary of 384 tokens; nearest legal: 384$"),
])  # fmt: skip
def test_what_does_not_fit_is_one_line(folder, sizes, overrides, message):
    (folder / "config.json").write_text(json.dumps(SIZES | sizes))
    lines = [line for line in problems(folder, *overrides).splitlines() if "distillation" in line]
    assert len(lines) == 1 and re.search(message, lines[0]), lines


@pytest.mark.parametrize(("teacher", "overrides", "message"), [
    ("{}", (), r"teachers\[0\]: neither path nor url is given; set path to a model's folder, or url to"),
    ("{path: FOLDER, url: 'http://one:8000'}", (), r"teachers\[0\]: both path and url are given; set path"),
    ("{url: one}", (), r"teachers\[0\].url: 'one' is no address of a server"),
    ("{url: 'http://me:secret@one'}", (), "that of one has a user, .* give a key by .*teachers.0..api_key_file"),
    ("{url: 'http://one', plan: {}}", (), r"teachers\[0\].plan: a server has cards of its own; remove it"),
    ("{path: FOLDER, api: vllm}", (), r"teachers\[0\].api: is read with url alone; remove it"),
    ("{url: 'http://one'}", ("rollout.temperature=0.7",),
     r"teachers\[0\].url: .* at temperature 1 only, and rollout.temperature is 0.7; set it to 1, or"),
])  # fmt: skip
def test_a_teacher_has_a_folder_or_a_server(folder, teacher, overrides, message):
    text = f"algorithm.distillation.teachers=[{teacher.replace('FOLDER', str(folder))}]"
    lines = [line for line in problems(folder, text, *overrides).splitlines() if "distillation" in line]
    assert len(lines) == 1 and re.search(message, lines[0]), lines
    assert "secret" not in lines[0]


def test_the_servers_of_teachers_may_move(folder):
    """Between a run and its continuation; what they teach may not change."""

    def of(teacher):
        text = f"algorithm.distillation.teachers=[{{{teacher}}}]"
        return load_config(folder.parent / "taught.yaml", [text], check_files=False)

    saved = folder.parent / "config.yaml"
    saved.write_text(dump_config(of("url: 'http://one:8000'")))
    check_same_experiment(of("url: 'http://other:9000', api_key_file: key"), saved)
    with pytest.raises(ConfigError, match=r"teachers\[0\].weight: 2.0, the run has 1.0"):
        check_same_experiment(of("url: 'http://one:8000', weight: 2"), saved)


def test_a_source_that_is_none_is_named_with_the_nearest(folder):
    teachers = f"algorithm.distillation.teachers=[{{path: {folder}, sources: [sum]}}]"
    assert "sum is no source of data.train (sums, others); did you mean 'sums'?" in problems(folder, teachers)


def test_the_likeliest_tokens_need_one_teacher_of_a_source(folder):
    def found(*sources: str) -> str:
        teachers = ", ".join(f"{{path: {folder}, sources: [{one}]}}" for one in sources)
        return problems(folder, f"algorithm.distillation.teachers=[{teachers}]", "algorithm.distillation.loss=top_k")

    assert "algorithm.distillation.teachers: 2 teach sums, and loss top_k takes one" in found("sums", "'others', sums")
    assert "teachers: 2 teach the sources that none names, and loss" in found("", "")
    pair = f"algorithm.distillation.teachers=[{{path: {folder}}}, {{path: {folder}, sources: [sums]}}]"
    config = load_config(folder.parent / "taught.yaml", [pair, "algorithm.distillation.loss=top_k"])
    assert config.algorithm.teacher_top_k == 64 and not config.algorithm.has_taught_advantages


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
