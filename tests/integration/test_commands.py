"""`mindgspo eval` and `mindgspo logprobs` as a user starts them, on the export of a run and on other models."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from running import mindgspo, succeeded, tree, write_model

from mindgspo.config import ModelSection, TokenizerSection
from mindgspo.config.huggingface_config import huggingface_config
from mindgspo.models.names import weight_shapes
from mindgspo.tokenization import load_tokenizer


def last_line(done) -> dict:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_an_experiments_own_accuracy_is_found_again(finished_run, tmp_path: Path) -> None:
    before = tree(finished_run.folder)
    export = finished_run.root / "export"
    said = last_line(mindgspo("eval", export, "--config", finished_run.config, cwd=tmp_path))
    summary = json.loads((finished_run.root / "summary.json").read_text())
    lines = [json.loads(line) for line in (finished_run.root / "metrics.jsonl").read_text().splitlines()]
    assert (said["model"], said["problems"], said["accuracy"]) == (str(export), 6, summary["accuracy_after"])
    (result,) = said["results"]
    assert result["greedy"]["acc/mean@1"]["value"] == lines[-1]["val-core/openai/gsm8k/acc/mean@1"]
    sampled = result["sampled"]
    assert sampled["acc/pass@2"]["value"] >= sampled["acc/maj@2"]["value"] == sampled["acc/mean@2"]["value"]
    assert tree(finished_run.folder) == before and not list(tmp_path.iterdir()), "eval writes nothing unasked"


def test_the_same_rows_give_the_same_figures_without_any_yaml(finished_run, tmp_path: Path) -> None:
    """The folder alone tells model, tokenizer, stop tokens and longest response; batch sizes change nothing."""
    export = finished_run.root / "export"
    by_config = last_line(mindgspo("eval", export, "--config", finished_run.config, cwd=tmp_path))
    out = tmp_path / "out"
    data = ["--data", finished_run.folder / "held_out.jsonl", "--data", "arithmetic", "--max-rows", 6]
    options = ["--num-samples", 2, "--pass-at-k", "1,2", "--instruction-suffix", "", "--batch", 3, "--out", out]
    done = mindgspo("eval", export, *data, *options, cwd=tmp_path)
    said = last_line(done)
    own, generated = said["results"]
    for kind in ("greedy", "sampled"):
        assert own[kind] == by_config["results"][0][kind]
    assert (own["data"], own["format"]) == ("held_out.jsonl", "gsm8k")
    assert (generated["data"], generated["problems"]) == ("arithmetic", 6)
    assert done.stdout.splitlines()[0].split()[:2] == ["data", "problems"]
    assert json.loads((out / "eval.json").read_text()) == said
    records = [json.loads(line) for line in (out / "generations.jsonl").read_text().splitlines()]
    assert len(records) == 2 * 6 * (1 + 2)
    correct = [row for row in records if row["temperature"] == 0 and row["verdict"] == "correct"]
    assert len(correct) == round(said["accuracy"] * said["problems"])
    again = mindgspo("eval", export, "--data", "arithmetic", "--out", out, cwd=tmp_path)
    assert again.returncode == 1 and "is not overwritten" in again.stderr
    assert json.loads((out / "eval.json").read_text()) == said


def test_mistakes_are_said_before_the_weights_are_read(finished_run, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(finished_run.root / "export", folder)
    (folder / "model.safetensors").write_bytes(b"not read")
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"question": "pens " * 80, "answer": "#### 1"}) + "\n")
    for arguments, said in (
        (["--data", "arithmetic", "--max-new-tokens", 60], "64 positions, but the longest prompt of arithmetic has"),
        (["--data", rows], "leave longer prompts out with --set data.truncation=drop"),
        (["--data", "arithmetic", "--data", tmp_path / "none.jsonl"], "nor a file that is there"),
    ):
        done = mindgspo("eval", folder, *arguments, "--out", tmp_path / "out", cwd=tmp_path)
        assert done.returncode == 1 and said in done.stderr and done.stdout == ""
    done = mindgspo("eval", folder, "--data", "arithmetic", "--out", tmp_path / "out", cwd=tmp_path)
    assert done.returncode == 1 and "model.safetensors" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "rows.jsonl"], "nothing half-written"


@pytest.mark.shared_data
def test_named_data_on_a_random_model_with_the_real_tokenizer(finished_run, shared_data: Path, tmp_path: Path) -> None:
    tokenizer = shared_data / "qwen2.5-tokenizer"
    section = ModelSection(vocab_size=151_936, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
                           num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=1024,
                           tie_word_embeddings=True)  # fmt: skip
    model = tmp_path / "model"
    write_model(model, finished_run.config, lambda weights: _replaced(weights, section))
    (model / "config.json").write_text(json.dumps(huggingface_config(section, eos_ids=[151_643], pad_id=151_643)))
    arguments = ["--data", "gsm8k", "--data", "math500", "--data-dir", shared_data, "--max-rows", 20]
    options = ["--tokenizer", tokenizer, "--num-samples", 2, "--max-new-tokens", 8, "--out", tmp_path / "out"]
    said = last_line(mindgspo("eval", model, *arguments, *options, cwd=tmp_path))
    assert [(result["data"], result["problems"]) for result in said["results"]] == [("gsm8k", 20), ("math500", 20)]
    assert said["settings"]["eos_tokens"] == ["<|endoftext|>", "<|im_end|>"]
    assert said["results"][0]["greedy"]["acc/mean@1"] == pytest.approx(
        {"value": 0, "low": 0, "high": 0.161125}, abs=1e-6
    )
    with (tmp_path / "out" / "generations.jsonl").open() as lines:
        first = json.loads(next(lines))
    assert first["prompt"].endswith('the final number after "####".<|im_end|>\n<|im_start|>assistant\n')
    assert first["answer"] == "18"


def _replaced(weights: dict, section: ModelSection) -> None:
    """Small random weights of `section` in place of those that are there."""
    import numpy as np

    random = np.random.default_rng(0)
    weights.clear()
    for name, shape in weight_shapes(section).items():
        weights[name] = np.float32(0.05) * random.standard_normal(shape, dtype=np.float32)


TEXT = "Tom has 3 pens.<|im_end|>"


@pytest.fixture(scope="module")
def scored(finished_run, tmp_path_factory) -> tuple[list[list[int]], list[dict], str]:
    """Ids of all rows, the command's lines, and its standard error. The third row is the first of the second."""
    random = np.random.default_rng(3)
    rows = [random.integers(0, 384, size).tolist() for size in (1, 40, 64)]
    rows.append(rows[1][:17])
    file = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    lines = [*({"ids": row} for row in rows), {"text": TEXT}]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = succeeded("logprobs", finished_run.root / "export", "--input", file, cwd=file.parent)
    rows.append(load_tokenizer(TokenizerSection()).encode(TEXT))
    return rows, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def test_one_json_line_per_row_in_order_and_nothing_else(scored) -> None:
    rows, lines, errors = scored
    assert errors == ""
    assert [set(line) for line in lines] == [{"logprobs", "next"}] * len(rows)
    assert [len(line["logprobs"]) for line in lines] == [len(row) - 1 for row in rows]
    assert lines[0]["logprobs"] == []
    assert all(value < 0 for line in lines for value in line["logprobs"])


def test_a_row_does_not_see_its_future(scored) -> None:
    _, lines, _ = scored
    assert lines[3]["logprobs"] == pytest.approx(lines[1]["logprobs"][:16], abs=1e-5)


def test_one_bad_row_stops_before_anything_is_printed(finished_run, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"ids": [1, 2]}\n{"ids": [1, 384]}\n')
    done = mindgspo("logprobs", finished_run.root / "export", "--input", file, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"error: {file}, line 2: id 384 is outside the vocabulary, 0 to 383\n"
