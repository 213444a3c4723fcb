"""Small sources and sections, and their preparation."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from mindgspo.config.data import DataSection, DataSourceSection, TokenizerSection
from mindgspo.data.dataset_info import DatasetInfo
from mindgspo.data.prepare import prepare_dataset
from mindgspo.tokenization import Tokenizer, load_tokenizer

OPTIONS = {"seed", "tools", "force", "is_readable", "workers", "chunk_rows", "show_progress"}
GSM8K_ROWS = [{"question": "Tom has 2 pens and buys 3 more. How many now?", "answer": "2+3=<<2+3=5>>5 pens\n#### 5"},
              {"question": "小明有4个苹果。", "answer": "It is 1,000.\n#### 1,000"},
              {"question": "Short?", "answer": "#### -7"}]  # fmt: skip


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return load_tokenizer(TokenizerSection())


@pytest.fixture(scope="session")
def shared_data() -> Path:
    folder = Path(__file__).resolve().parents[3] / ".." / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"{folder} is absent: the real data sets lie beside the project")
    return folder


@pytest.fixture
def jsonl(tmp_path: Path) -> Callable[..., Path]:
    """jsonl(rows, name): a file of these rows."""

    def write(rows: Iterable[dict], name: str = "rows.jsonl") -> Path:
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (tmp_path / name).write_text(text, encoding="utf-8", errors="surrogatepass")
        return tmp_path / name

    return write


@pytest.fixture
def gsm8k_file(jsonl) -> Path:
    return jsonl(GSM8K_ROWS, "gsm8k.jsonl")


@pytest.fixture
def gsm8k(gsm8k_file: Path) -> DataSourceSection:
    return DataSourceSection(format="gsm8k", path=gsm8k_file)


@pytest.fixture
def settings():
    """Make a data section of which only the prompt settings matter."""

    def make(**fields: object) -> DataSection:
        source = DataSourceSection(format="arithmetic")
        return DataSection(**{"train": source, "eval": source, "max_prompt_length": 200, **fields})

    return make


@pytest.fixture
def prepare(tokenizer: Tokenizer, settings, tmp_path: Path):
    """Prepare a source as `out`; other fields are prompt settings or options of `prepare_dataset`."""

    def make(
        source: DataSourceSection,
        out: Path = tmp_path / "out",
        *,
        data: DataSection | None = None,
        using: Tokenizer = tokenizer,
        **fields: object,
    ) -> DatasetInfo:
        options = {name: fields.pop(name) for name in OPTIONS & fields.keys()}
        return prepare_dataset(source, data or settings(**fields), using, out, **{"seed": 1, **options})

    return make
