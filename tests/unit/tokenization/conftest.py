"""Files of small tokenizers, and the real one where it is present."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mindgspo.config.data import TokenizerSection
from mindgspo.tokenization import Tokenizer, load_tokenizer

QWEN = Path(__file__).resolve().parents[3] / ".." / "shared" / "data" / "qwen2.5-tokenizer"


@pytest.fixture(scope="session")
def qwen_folder() -> Path:
    if not QWEN.is_dir():
        pytest.skip(f"{QWEN} is absent: the Qwen2.5 tokenizer lies beside the project")
    return QWEN


@pytest.fixture(scope="session")
def qwen(qwen_folder: Path) -> Tokenizer:
    return load_tokenizer(TokenizerSection(path=qwen_folder))


@pytest.fixture(scope="session")
def builtin() -> Tokenizer:
    return load_tokenizer(TokenizerSection())


@pytest.fixture
def small_folder(builtin: Tokenizer, tmp_path: Path) -> Path:
    """A folder with vocab.json, merges.txt and tokenizer_config.json, for tests that spoil one of them."""
    folder = tmp_path / "small"
    builtin.save(folder)
    return folder


@pytest.fixture
def edit_config(small_folder: Path):
    """Change fields of small_folder's tokenizer_config.json; a value of None removes the field."""

    def edit(**fields: object) -> Path:
        path = small_folder / "tokenizer_config.json"
        config = json.loads(path.read_text())
        for name, value in fields.items():
            config[name] = value
            if value is None:
                del config[name]
        path.write_text(json.dumps(config))
        return small_folder

    return edit
