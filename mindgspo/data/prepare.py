"""Preparing a data set: rows of a source -> prompts -> a folder with a MindRecord file and dataset.json.

What enters: the sections of the configuration and a tokenizer. What leaves: a folder and its `DatasetInfo`.
Called by trainer/build.py, `mindgspo data prepare` and tools/prepare_data.py.

The folder is written beside its final place and renamed when complete, so a reader sees all of it or nothing,
and an existing folder is never overwritten.
"""

from __future__ import annotations

import logging
import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from mindgspo.data.account import RowAccount
from mindgspo.data.dataset_info import (
    COLUMNS,
    FILE_NAME,
    SCHEMA_VERSION,
    DatasetInfo,
    FileFacts,
    PromptFacts,
    SourceFacts,
    TokenizerFacts,
    differences,
    read_info,
    write_info,
)
from mindgspo.data.mindrecord import write_records
from mindgspo.data.source_files import sha256_of
from mindgspo.data.sources import Source, open_source
from mindgspo.data.verify import verify_files
from mindgspo.errors import DataError
from mindgspo.tokenization import Tokenizer

if TYPE_CHECKING:
    from mindgspo.config.schema import DataSection, DataSourceSection

logger = logging.getLogger(__name__)


def prepare_dataset(
    source: DataSourceSection,
    data: DataSection,
    tokenizer: Tokenizer,
    out_dir: Path,
    *,
    seed: int,
    force: bool = False,
) -> DatasetInfo:
    """Make the prepared data set `out_dir`, or reuse it if it was made of exactly the same inputs.

    Of `data`, only the prompt settings are read (system_prompt, instruction_suffix, max_prompt_length,
    truncation). The suffix does not apply to verl rows, which bring their own messages; a system prompt does,
    where a row has none. seed: draws generated rows; files do not depend on it. force: an existing `out_dir`
    is moved aside to `<out_dir>.old-<n>` once the new one is complete.

    Raises DataError: a source that is missing, malformed, empty or has a row without an answer; prompts
    longer than allowed under truncation "error"; an `out_dir` that holds something else.
    """
    opened = open_source(source, seed)
    facts = _prompt_facts(source, data)
    if _is_taken(out_dir) and not force:
        return _reuse(out_dir, opened, tokenizer, facts)
    aside = out_dir.parent / f".{out_dir.name}.tmp-{uuid.uuid4().hex[:8]}"
    aside.mkdir(parents=True)
    try:
        info = _write(opened, facts, tokenizer, aside, seed)
        if force and _is_taken(out_dir):
            _move_aside(out_dir)
        try:
            aside.rename(out_dir)
        except OSError:
            # Another process prepared the same folder in the meantime; anything else is a real failure.
            if not out_dir.is_dir():
                raise
            return _reuse(out_dir, opened, tokenizer, facts)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return info


def _is_taken(out_dir: Path) -> bool:
    """Whether something is there that must not be touched; an empty folder is not."""
    return out_dir.exists() and not (out_dir.is_dir() and not any(out_dir.iterdir()))


def _prompt_facts(source: DataSourceSection, data: DataSection) -> PromptFacts:
    """The settings as they take effect."""
    suffix = data.instruction_suffix
    if source.format == "verl" and suffix:
        logger.warning("data.instruction_suffix is not used for %s: verl rows bring their own messages", source.path)
        suffix = ""
    return PromptFacts(
        system_prompt=data.system_prompt,
        instruction_suffix=suffix,
        max_prompt_length=data.max_prompt_length,
        truncation=data.truncation,
    )


def _source_facts(opened: Source) -> SourceFacts:
    section = opened.section
    return SourceFacts(
        format=section.format,
        path=str(section.path) if section.path else None,
        sha256=opened.sha256,
        split=section.split if section.format == "arithmetic" else None,
        max_rows=section.max_rows,
        seed=opened.seed,
    )


def _tokenizer_facts(tokenizer: Tokenizer) -> TokenizerFacts:
    return TokenizerFacts(name=tokenizer.name, fingerprint=tokenizer.fingerprint)


def _reuse(out_dir: Path, opened: Source, tokenizer: Tokenizer, facts: PromptFacts) -> DatasetInfo:
    """dataset.json of a folder made of the same inputs; DataError naming every difference otherwise."""
    info = read_info(out_dir)
    changed = differences(info, _source_facts(opened), _tokenizer_facts(tokenizer), facts)
    if changed:
        raise DataError(
            f"{out_dir}: was prepared from other inputs and is not overwritten:\n  "
            + "\n  ".join(changed)
            + "\nChoose another folder, or prepare with force, which moves this one aside"
        )
    verify_files(out_dir, info)
    return info


def _write(opened: Source, facts: PromptFacts, tokenizer: Tokenizer, folder: Path, seed: int) -> DatasetInfo:
    account = RowAccount(facts)
    write_records(account.prompts(opened, tokenizer), folder)
    account.check(opened)
    info = DatasetInfo(
        schema_version=SCHEMA_VERSION,
        source=_source_facts(opened),
        tokenizer=_tokenizer_facts(tokenizer),
        prompt=facts,
        counts=account.counts(),
        lengths=account.length_facts(),
        files=tuple(
            FileFacts(name=path.name, size=path.stat().st_size, sha256=sha256_of(path))
            for path in sorted(folder.iterdir())
        ),
        columns=COLUMNS,
        seed=seed,
    )
    write_info(info, folder)
    for file in info.files:
        # MindSpore writes files for their owner only; give them the rights that any other file here gets.
        shutil.copymode(folder / FILE_NAME, folder / file.name)
    return info


def _move_aside(out_dir: Path) -> None:
    number = 1
    while (old := out_dir.with_name(f"{out_dir.name}.old-{number}")).exists():
        number += 1
    out_dir.rename(old)
