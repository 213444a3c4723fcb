"""What a checkpoint remembers of the run's inputs: other tokenizers and data are refused, other reward files told."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from mindgspo.config import TokenizerSection
from mindgspo.errors import CheckpointError
from mindgspo.tokenization import load_tokenizer
from mindgspo.trainer.resume_checks import check_fingerprints, fingerprints

REWARD = "def score(data_source, solution_str, ground_truth, extra_info):\n    return 1.0\n"


@pytest.fixture
def make(load, tmp_path: Path):
    """make(): fingerprints of an experiment with a tokenizer and a reward file of its own."""
    load_tokenizer(TokenizerSection()).save(tmp_path / "tokenizer")
    (tmp_path / "reward.py").write_text(REWARD)

    def made(digest: str = "aa", num_rows: int = 7):
        config = load(f'reward.functions=["{tmp_path}/reward.py:score"]')
        tokenizer = load_tokenizer(TokenizerSection(path=tmp_path / "tokenizer"))
        return json.loads(json.dumps(fingerprints(config, tokenizer, [None] * num_rows, digest=digest)))

    return made


def check(saved, ours, *, weights_only: bool = False) -> list[str]:
    return check_fingerprints(saved, ours, where="step_00000004", weights_only=weights_only)


def test_equal_inputs_are_silent_and_missing_ones_told(make) -> None:
    assert check(make(), make()) == []
    (line,) = check(None, make())
    assert "nothing is compared" in line


def test_another_tokenizer_is_refused_with_what_differs(make, tmp_path: Path) -> None:
    saved = make()
    path = next((tmp_path / "tokenizer").glob("*.json"))
    path.write_text(path.read_text() + " ")
    for weights_only in (False, True):
        with pytest.raises(CheckpointError) as caught:
            check(saved, make(), weights_only=weights_only)
        assert f"{path.name}: another content" in str(caught.value) and "tokenizer.path" in str(caught.value)
    larger = copy.deepcopy(saved)
    larger["tokenizer"] |= {"tokens": 9000, "eos_ids": [1, 2]}
    larger["tokenizer"]["files"]["merges.txt"] = "00"
    with pytest.raises(CheckpointError) as caught:
        check(larger, saved)
    for said in ("tokens: 9000 there", "EOS ids: [1, 2] there", "merges.txt: "):
        assert said in str(caught.value)


def test_other_rows_are_refused_and_a_changed_reward_file_is_told(make, tmp_path: Path) -> None:
    saved, ours = make(), make(digest="bb", num_rows=9)
    with pytest.raises(CheckpointError, match=r"other rows of data.train \(7, here 9"):
        check(saved, ours)
    assert check(saved, ours, weights_only=True) == []
    saved = make()
    (tmp_path / "reward.py").write_text(REWARD.replace("1.0", "0.5"))
    (line,) = check(saved, make())
    assert "reward.score is not the file any more" in line
    assert check(saved, make(), weights_only=True) == []
