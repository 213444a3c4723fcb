"""Showing a prepared data set to people: its facts, and rows with the exact prompt text.

What enters: a folder. What leaves: text. Called by `mindgspo data inspect`. No tokenizer is needed.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

from mindgspo.data.dataset_info import FILE_NAME, read_info
from mindgspo.data.mindrecord import read_records
from mindgspo.data.verify import verify_files
from mindgspo.types import Prompt


def inspect_dataset(folder: Path, num_rows: int = 3) -> str:
    """Facts of dataset.json and the first `num_rows` rows.

    Raises DataError if the folder is not whole; every file's sha256 is compared.
    """
    info = read_info(folder)
    verify_files(folder, info, hashes=True)
    prompt = info.prompt
    lines = [
        f"{folder} (schema version {info.schema_version})",
        _visible(info.account()),
        f"settings   system_prompt {prompt.system_prompt!r}, instruction_prefix {prompt.instruction_prefix!r}, "
        f"instruction_suffix {prompt.instruction_suffix!r}, truncation {prompt.truncation}, seed {info.seed}",
        f"files      {', '.join(facts.name for facts in info.files)}: sizes and sha256 as in {FILE_NAME}",
    ]
    for row in itertools.islice(read_records(folder), num_rows):
        lines += ["", *row_lines(row)]
    return "\n".join(lines)


def row_lines(row: Prompt) -> list[str]:
    """One row as lines of text."""
    return [
        f"--- row {row.index}: {row.ids.size} tokens, data_source {_visible(row.data_source)}",
        _visible(row.text),
        f"--- answer: {_visible(row.answer)}",
        f"--- solution: {_visible(row.solution) or '(none)'}",
        f"--- extra_info: {_visible(json.dumps(dict(row.extra_info), ensure_ascii=False))}",
    ]


def _visible(text: str) -> str:
    """Control characters as escapes: data is untrusted and could otherwise steer the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)
