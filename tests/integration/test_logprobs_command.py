"""`mindgspo logprobs` on the export of a real run: its output format, and its numbers against transformers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mindgspo.config import TokenizerSection
from mindgspo.tokenization import load_tokenizer

TEXT = "Tom has 3 pens.<|im_end|>"


@pytest.fixture(scope="module")
def scored(finished_run, mindgspo, tmp_path_factory) -> tuple[list[list[int]], list[dict], str]:
    """Ids of all rows, the command's lines, and its standard error. The third row is the first of the second."""
    random = np.random.default_rng(3)
    rows = [random.integers(0, 384, size).tolist() for size in (1, 40, 64)]
    rows.append(rows[1][:17])
    file = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    lines = [*({"ids": row} for row in rows), {"text": TEXT}]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = mindgspo("logprobs", finished_run.root / "export", "--input", file, cwd=file.parent)
    assert done.returncode == 0, done.stderr
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


@pytest.mark.parity
def test_transformers_gives_the_same_numbers(finished_run, scored) -> None:
    torch = pytest.importorskip("torch", reason="extra `parity` is not installed")
    transformers = pytest.importorskip("transformers", reason="extra `parity` is not installed")
    export = finished_run.root / "export"
    model = transformers.AutoModelForCausalLM.from_pretrained(export)
    tokenizer = transformers.AutoTokenizer.from_pretrained(export)
    rows, lines, _ = scored
    assert tokenizer(TEXT)["input_ids"] == rows[-1]
    for ids, line in zip(rows, lines, strict=True):
        with torch.no_grad():
            logp = torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1)
        expected = [float(logp[position, token]) for position, token in enumerate(ids[1:])]
        assert line["logprobs"] == pytest.approx(expected, abs=1e-4)
        assert line["next"] == int(logp[-1].argmax())


def test_one_bad_row_stops_before_anything_is_printed(finished_run, mindgspo, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"ids": [1, 2]}\n{"ids": [1, 384]}\n')
    done = mindgspo("logprobs", finished_run.root / "export", "--input", file, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"error: {file}, line 2: id 384 is outside the vocabulary, 0 to 383\n"
