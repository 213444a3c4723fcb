"""SmolLM2-135M and what a run of examples/smollm2 exports, against transformers: log-probs of published solutions, and
greedy answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from running import PROJECT, mindgspo

from mindgspo.evaluation.generate import GenerateOptions, generate_completions

torch = pytest.importorskip("torch", reason="needs the `parity` extra")
transformers = pytest.importorskip("transformers", reason="needs the `parity` extra")

pytestmark = [pytest.mark.parity, pytest.mark.slow]

FOLDERS = (PROJECT / "examples/smollm2/model", PROJECT / "runs/smollm2-boxed/export")
NUM_ROWS, MAX_TOKENS, MAX_NEW_TOKENS = 50, 384, 64
TIE = 1e-3  # between the logits of the two likeliest tokens


@pytest.fixture(scope="module", params=FOLDERS, ids=("published", "trained"))
def folder(request: pytest.FixtureRequest) -> Path:
    if not request.param.is_dir():
        pytest.skip(f"needs {request.param}; see examples/smollm2/README.md")
    return request.param


@pytest.fixture(scope="module")
def theirs(folder: Path):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval(), transformers.AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def rows(shared_rows: Callable[[str], list[dict]]) -> list[dict]:
    return shared_rows("gsm8k/test.jsonl")[:NUM_ROWS]


def logits_of(model, ids: list[int]) -> np.ndarray:
    """[tokens, vocabulary], float64."""
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].double().numpy()


def test_log_probs_of_published_solutions(folder: Path, theirs, rows: list[dict], tmp_path: Path) -> None:
    model, tokenizer = theirs
    ids = [tokenizer(f"{row['question']}\n{row['answer']}")["input_ids"][:MAX_TOKENS] for row in rows]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"ids": one}) + "\n" for one in ids))
    done = mindgspo("logprobs", folder, "--input", file, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for one, line in zip(ids, done.stdout.splitlines(), strict=True):
        logits = logits_of(model, one)[:-1]
        highest = logits.max(axis=1, keepdims=True)
        log_probs = logits - highest - np.log(np.exp(logits - highest).sum(axis=1, keepdims=True))
        expected = log_probs[np.arange(len(one) - 1), one[1:]]
        np.testing.assert_allclose(json.loads(line)["logprobs"], expected, rtol=0, atol=1e-4)


def test_greedy_answers_part_at_ties_alone(folder: Path, theirs, rows: list[dict]) -> None:
    model, tokenizer = theirs
    options = GenerateOptions(temperature=0.0, max_new_tokens=MAX_NEW_TOKENS)
    ours = generate_completions(folder, [row["question"] for row in rows], options)
    ties = 0
    for row, found in zip(rows, ours, strict=True):
        talk = [{"role": "user", "content": row["question"]}]
        text = tokenizer.apply_chat_template(talk, tokenize=False, add_generation_prompt=True)
        prompt = tokenizer(text)["input_ids"]
        with torch.no_grad():
            answer = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=MAX_NEW_TOKENS)[0]
        expected = answer[len(prompt) :].tolist()
        said = found.completions[0].ids.tolist()
        parting = next((i for i, (a, b) in enumerate(zip(said, expected, strict=False)) if a != b), None)
        if parting is None:
            assert len(said) == len(expected), row["question"]
            continue
        second, first = np.sort(logits_of(model, prompt + expected[:parting])[-1])[-2:]
        print(f"tie of {first - second:.1e} at token {parting}: {row['question'][:60]}")
        assert first - second < TIE, row["question"]
        ties += 1
    assert ties < NUM_ROWS / 4
