"""Rows for `mindgspo logprobs`: what is read, what is refused, and that a score is a function of its row alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from mindspore import Tensor
from small_plans import drawn_model

from mindgspo.config import ModelSection, TokenizerSection
from mindgspo.errors import DataError, TokenizerError
from mindgspo.evaluation.log_probs import read_id_rows
from mindgspo.models.scoring import padded_length, score_rows
from mindgspo.parallel.ops.device import attention_segments, takes_packed
from mindgspo.tokenization import load_tokenizer

SECTION = ModelSection(
    vocab_size=97, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, max_position_embeddings=80, initializer_range=0.3,
)  # fmt: skip


def rows_of(folder: Path, text: str, section: ModelSection = SECTION) -> list[list[int]]:
    path = folder / "rows.jsonl"
    path.write_text(text, encoding="utf-8")
    return [row.tolist() for row in read_id_rows(path, section, folder)]


@pytest.mark.parametrize(("line", "said"), [
    ("{ids: [1]}", "not JSON"), ("", "not JSON"), ("[1, 2]", "expected a JSON object, got list"),
    ("[" * 100_000, "not JSON"), ('{"id": [1]}', 'expected either "ids" or "text", got neither'),
    ('{"ids": [1], "text": "a"}', "got ids, text"), ('{"ids": []}', "no ids"),
    ('{"ids": 5}', "must be a list of whole numbers"), ('{"ids": [1.0]}', "must be a list of whole numbers"),
    ('{"ids": [true]}', "must be a list of whole numbers"),
    ('{"ids": [97]}', "id 97 is outside the vocabulary, 0 to 96"),
    ('{"ids": [3, -1]}', "id -1 is outside the vocabulary"),
    ('{"ids": [99999999999999999999]}', "outside the vocabulary"),
    ('{"ids": [' + ", ".join(["3"] * 81) + "]}", "81 ids, the model has 80 positions"),
    ('{"text": 5}', '"text" must be a text, got int'), ('{"text": ""}', "no ids"),
    ('{"text": "\\ud800"}', "half of a surrogate pair"), ('{"text": "<|im_end|>"}', "id 378 is outside the vocabulary"),
], ids=range(18))  # fmt: skip
def test_an_unusable_line_is_named(line: str, said: str, tmp_path: Path) -> None:
    load_tokenizer(TokenizerSection()).save(tmp_path)
    with pytest.raises(DataError) as caught:
        rows_of(tmp_path, '{"ids": [1]}\n' + line + "\n")
    assert str(caught.value).startswith(f"{tmp_path / 'rows.jsonl'}, line 2: ") and said in str(caught.value)


def test_what_is_read_and_what_holds_no_rows(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere.jsonl: cannot be read"):
        read_id_rows(tmp_path / "nowhere.jsonl", SECTION, tmp_path)
    with pytest.raises(DataError, match="is empty"):
        rows_of(tmp_path, "")
    with pytest.raises(TokenizerError, match="holds no tokenizer"):
        rows_of(tmp_path, '{"ids": [1]}\n{"text": "a"}')
    assert rows_of(tmp_path, '{"ids": [0, 96]}\n{"ids": [5], "note": "kept by the user"}') == [[0, 96], [5]]
    assert rows_of(tmp_path, '{"ids": [1]}\r\n') == [[1]]
    assert rows_of(tmp_path, '{"ids": [' + ", ".join(["3"] * 80) + "]}") == [[3] * 80]
    tokenizer = load_tokenizer(TokenizerSection())
    tokenizer.save(tmp_path)
    section = SECTION.model_copy(update={"vocab_size": 379})
    text = "Tom has 3 pens.<|im_end|>"
    assert rows_of(tmp_path, '{"text": "' + text + '"}', section) == [tokenizer.encode(text)]


def test_few_row_lengths_are_compiled() -> None:
    assert [padded_length(n, 32768) for n in (1, 64, 65, 128, 1000, 1024, 1025, 2048, 32768)] == [
        *(64, 64, 128, 128, 1024, 1024, 2048, 2048, 32768)
    ]
    assert [padded_length(n, 80) for n in (1, 64, 65, 80)] == [64, 64, 80, 80]
    assert padded_length(2999, 3000) == 3000
    assert len({padded_length(n, 32768) for n in range(1, 32769)}) == 36


def test_scores_equal_the_full_logits_whatever_stands_beside(cpu_runtime: None) -> None:
    """70 rows of up to 64 ids: more than one call, the last one filled up. Judged by the softmax of all logits."""
    model = drawn_model(SECTION, seed=4)
    random = np.random.default_rng(0)
    rows = [random.integers(0, 97, 1 + number % 64).astype(np.int32) for number in range(70)]
    scores = score_rows(model, rows)
    ids_RT = np.zeros((70, 64), np.int32)
    for number, row in enumerate(rows):
        ids_RT[number, : row.size] = row
    positions_RT = np.tile(np.arange(64, dtype=np.int32), (70, 1))
    segments = Tensor(attention_segments(np.ones_like(ids_RT), is_packed=takes_packed(model)))
    hidden = model(Tensor(ids_RT), Tensor(positions_RT), segments).asnumpy().astype(np.float64)
    logits_RTV = (hidden @ model.output_weight().asnumpy().T).reshape(70, 64, 97)
    logp_RTV = logits_RTV - np.log(np.exp(logits_RTV).sum(-1, keepdims=True))
    for number, (row, score) in enumerate(zip(rows, scores, strict=True)):
        expected = logp_RTV[number, np.arange(row.size - 1), row[1:]]
        np.testing.assert_allclose(score.logprobs, expected, atol=2e-5)
        assert score.next_id == logits_RTV[number, row.size - 1].argmax()
    assert len({score.next_id for score in scores}) > 5, "the model must not say one thing only"
