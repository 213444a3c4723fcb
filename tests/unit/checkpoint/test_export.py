"""The Hugging Face export: what is in it, and what it may replace."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mindgspo.checkpoint import export_huggingface
from mindgspo.errors import CheckpointError
from mindgspo.tensor_files import read_safetensors


class FakeTokenizer:
    """Writes one file, or fails as a full disk would."""

    def __init__(self, error: OSError | None = None) -> None:
        self.error = error

    def save(self, folder: Path) -> None:
        (folder / "tokenizer.json").write_text("{}")
        if self.error:
            raise self.error


def export(folder: Path, value: float, run_id: str | None = "run-1", tokenizer: FakeTokenizer | None = None) -> None:
    export_huggingface(
        folder,
        tensors={"w": np.full(2, value, np.float32)},
        model_config={"model_type": "qwen2", "torch_dtype": "float32"},
        generation_config={"eos_token_id": [1, 2]},
        tokenizer=tokenizer or FakeTokenizer(),
        run_id=run_id,
    )


def test_all_files_are_there(tmp_path: Path) -> None:
    export(tmp_path / "run" / "export", 1.0)
    folder = tmp_path / "run" / "export"
    assert {"model.safetensors", "config.json", "generation_config.json", "tokenizer.json"} <= {
        entry.name for entry in folder.iterdir()
    }
    np.testing.assert_array_equal(read_safetensors(folder)["w"], [1, 1])
    assert json.loads((folder / "config.json").read_text())["model_type"] == "qwen2"
    assert json.loads((folder / "generation_config.json").read_text()) == {"eos_token_id": [1, 2]}


def test_the_same_run_replaces_its_export_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    export(tmp_path / "export", 1.0)
    export(tmp_path / "export", 2.0)
    assert read_safetensors(tmp_path / "export")["w"][0] == 2
    assert [entry.name for entry in tmp_path.iterdir()] == ["export"]


def test_an_empty_folder_may_be_filled(tmp_path: Path) -> None:
    (tmp_path / "export").mkdir()
    export(tmp_path / "export", 1.0)
    assert read_safetensors(tmp_path / "export")["w"][0] == 1


@pytest.mark.parametrize("second", ["run-2", None])
def test_an_export_of_another_run_is_kept(tmp_path: Path, second: str | None) -> None:
    export(tmp_path / "export", 1.0)
    with pytest.raises(CheckpointError, match="already there.*so it is not replaced"):
        export(tmp_path / "export", 2.0, run_id=second)
    assert read_safetensors(tmp_path / "export")["w"][0] == 1


def test_without_a_run_nothing_is_ever_replaced(tmp_path: Path) -> None:
    export(tmp_path / "export", 1.0, run_id=None)
    with pytest.raises(CheckpointError, match="not replaced"):
        export(tmp_path / "export", 2.0, run_id=None)


def test_foreign_files_are_kept(tmp_path: Path) -> None:
    (tmp_path / "export").mkdir()
    (tmp_path / "export" / "thesis.txt").write_text("years of work")
    with pytest.raises(CheckpointError, match="export: already there and no export of this run"):
        export(tmp_path / "export", 1.0)
    assert (tmp_path / "export" / "thesis.txt").read_text() == "years of work"


def test_a_failure_half_way_keeps_the_old_export(tmp_path: Path) -> None:
    export(tmp_path / "export", 1.0)
    with pytest.raises(CheckpointError, match="could not be exported.*No space left"):
        export(tmp_path / "export", 2.0, tokenizer=FakeTokenizer(OSError(28, "No space left on device")))
    assert read_safetensors(tmp_path / "export")["w"][0] == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["export"]
