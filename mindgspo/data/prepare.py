"""Preparing a data set: rows of a source -> prompts -> a folder with a MindRecord file and dataset.json.

    rows -> chunk files of tokenized rows -> account (what is dropped and why) -> MindRecord file, read back -> folder

Everything is collected in `<out>.partial-<key>`, flushed to disk and renamed: a reader sees all of it or nothing, an
existing folder is never overwritten, and an interrupted preparation continues from its chunks.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mindgspo.data.account import GoldCheck, judge_rows
from mindgspo.data.dataset import verify_files, verify_records, warn_of_rendering, write_prompt_records
from mindgspo.data.dataset_info import (
    COLUMNS,
    DROPPED_NAME,
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
from mindgspo.data.output_folder import (
    OutputError,
    PartialFolder,
    check_out_dir,
    is_taken,
    named_os_errors,
    partial_path,
    partials_of_others,
)
from mindgspo.data.rendering import Chunk, is_whole_chunk, prompt_facts, read_chunks, write_chunks
from mindgspo.data.sources import Source, open_source, sha256_of
from mindgspo.errors import DataError, TokenizerError
from mindgspo.io import check_free_space, fsync, fsync_tree
from mindgspo.progress import RowProgress
from mindgspo.rewards.registry import gold_is_readable
from mindgspo.text import listed
from mindgspo.tokenization import RENDERING, Tokenizer

if TYPE_CHECKING:
    from mindgspo.config.data import DataSection, DataSourceSection

logger = logging.getLogger(__name__)

CHUNK_ROWS = 1024
_WORKERS_FROM_CHUNKS = 4  # fewer are done before a worker has loaded its tokenizer
_MOST_WORKERS = 16
_RECORDS_PER_CHUNKS = 2  # bytes of MindRecord and its index per byte of chunks: 1.85 with short prompts


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inputs:
    """Everything that the content of a data set depends on, as facts."""

    source: SourceFacts
    tokenizer: TokenizerFacts
    prompt: PromptFacts

    def key(self, chunk_rows: int) -> str:
        """Key in the name of chunks made from these inputs. Decisions made after tokenizing do not enter it."""
        source = self.source.model_copy(update={"dedup": False}).model_dump()
        tokenizer = [self.tokenizer.fingerprint, self.tokenizer.rendering]
        # Without tools as before there were any, so that an interrupted preparation is found again.
        prompt = self.prompt.model_dump(exclude_defaults=True)
        facts = [SCHEMA_VERSION, chunk_rows, source, *tokenizer, prompt]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:12]


def prepare_dataset(
    source: DataSourceSection,
    data: DataSection,
    tokenizer: Tokenizer,
    out_dir: Path,
    *,
    seed: int,
    tools: Sequence[Mapping[str, object]] = (),
    force: bool = False,
    is_readable: GoldCheck = gold_is_readable,
    workers: int | None = None,
    chunk_rows: int = CHUNK_ROWS,
    show_progress: bool = True,
) -> DatasetInfo:
    """Make the prepared data set `out_dir`, or reuse it if it was made of exactly the same inputs.

    Of `data`, only the prompt settings are read (system_prompt, instruction_prefix and _suffix, max_prompt_length,
    truncation). Prefix and suffix do not apply to verl and dapo rows, which bring their own; a system prompt does, if a
    row has none. seed: draws generated rows; files do not depend on it. tools: JSON schemas that the chat template
    presents. force: an existing `out_dir` is moved aside to `<out_dir>.old-<n>` once the new one is complete.
    is_readable: rows whose gold answer it calls unreadable are dropped, as are those whose answer its own repetition
    does not meet. The result does not depend on the others:
    workers, child processes that tokenize (None: one per processor; small data needs one); chunk_rows, as many rows as
    an interruption can cost each of them; show_progress, a bar on stderr if that is a terminal.

    Raises DataError: a source that is missing, malformed, empty or has a row without an answer; prompts
    longer than allowed under truncation "error"; an `out_dir` that holds something else. What was tokenized is kept for
    the next call only if neither the rows nor the settings are at fault.
    """
    check_out_dir(out_dir)
    opened = open_source(source, seed, tokenizer)
    inputs = _Inputs(
        source=_source_facts(opened),
        tokenizer=TokenizerFacts(name=tokenizer.name, fingerprint=tokenizer.fingerprint, rendering=RENDERING),
        prompt=prompt_facts(source, data, tools),
    )
    _warn_of_unused(source, data, inputs.prompt)
    key = inputs.key(chunk_rows)
    if is_taken(out_dir) and not force:
        info = _reuse(out_dir, inputs)
        warn_of_rendering(out_dir, info)
        if partial_path(out_dir, key).is_dir():
            PartialFolder(out_dir, key).close(keep=False)
        return info
    with named_os_errors(out_dir):
        partial = PartialFolder(out_dir, key)
    keep = True
    try:
        with named_os_errors(out_dir), RowProgress(is_wanted=show_progress) as progress:
            paths = _render_chunks(
                opened,
                inputs.prompt,
                tokenizer,
                partial,
                progress,
                workers=default_workers() if workers is None else workers,
                chunk_rows=chunk_rows,
            )
            size = sum(path.stat().st_size for path in paths)
            check_free_space(
                out_dir, _RECORDS_PER_CHUNKS * size, OutputError, "make room there, or choose another disk"
            )
            ready = partial.empty_ready()
            info = _write(opened, inputs, paths, ready, progress, seed=seed, is_readable=is_readable)
            info = _put_in_place(ready, out_dir, inputs, info, force=force)
        keep = False
        for path in partials_of_others(out_dir, partial.path):
            why = "left by an interrupted preparation of other inputs"
            progress.note(f"{path}: {why}; remove it unless that one is to go on")
    except OutputError:
        raise
    except (DataError, TokenizerError):
        keep = False
        raise
    finally:
        partial.close(keep=keep)
    return info


def default_workers() -> int:
    """One per processor that this process may use, within reason."""
    return min(len(os.sched_getaffinity(0)), _MOST_WORKERS)


def _render_chunks(
    opened: Source,
    facts: PromptFacts,
    tokenizer: Tokenizer,
    partial: PartialFolder,
    progress: RowProgress,
    *,
    workers: int,
    chunk_rows: int,
) -> list[Path]:
    """The chunk files of all rows, in order: chunks that an earlier attempt finished are reused, the rest is tokenized.
    The files do not depend on `workers`."""
    paths: list[Path] = []
    rows_found = 0

    def unfinished() -> Iterator[Chunk]:
        nonlocal rows_found
        rows = opened.parsed()
        while part := list(itertools.islice(rows, chunk_rows)):
            paths.append(partial.chunk(len(paths)))
            if is_whole_chunk(paths[-1], len(part)):
                rows_found += len(part)
            else:
                yield Chunk(path=paths[-1], rows=part)

    chunks = unfinished()
    first = list(itertools.islice(chunks, _WORKERS_FROM_CHUNKS))
    all_chunks = itertools.chain(first, chunks)
    if rows_found:
        progress.note(f"going on with {partial.path}: {rows_found} rows were tokenized before")
    advance = progress.stage("tokenize", opened.count)
    advance(rows_found)
    count = 1 if len(first) < _WORKERS_FROM_CHUNKS else workers
    for rows in write_chunks(all_chunks, facts, tokenizer, count=count):
        advance(rows)
    return paths


def _source_facts(opened: Source) -> SourceFacts:
    section = opened.section
    return SourceFacts(
        format=section.format,
        path=str(section.path) if section.path else None,
        sha256=opened.sha256,
        split=section.split if section.format == "arithmetic" else None,
        max_rows=section.max_rows,
        columns=None if section.columns is None else section.columns.model_dump(mode="json"),
        dedup=section.dedup,
        seed=opened.seed,
    )


def _warn_of_unused(source: DataSourceSection, data: DataSection, facts: PromptFacts) -> None:
    for key in ("instruction_prefix", "instruction_suffix"):
        if getattr(data, key) != getattr(facts, key):
            logger.warning("data.%s is not used for %s: %s rows bring their own", key, source.path, source.format)


def _reuse(out_dir: Path, inputs: _Inputs) -> DatasetInfo:
    """dataset.json of a folder made of the same inputs; DataError naming every difference otherwise."""
    info = read_info(out_dir)
    changed = differences(info, inputs.source, inputs.tokenizer, inputs.prompt)
    if changed:
        raise DataError(
            f"{out_dir}: was prepared from other inputs and is not overwritten:\n  "
            + "\n  ".join(changed)
            + "\nChoose another folder, or prepare with --force, which moves this one aside"
        )
    verify_files(out_dir, info)
    return info


def _write(
    opened: Source,
    inputs: _Inputs,
    paths: list[Path],
    folder: Path,
    progress: RowProgress,
    *,
    seed: int,
    is_readable: GoldCheck,
) -> DatasetInfo:
    """Fill `folder` from the chunks, and read it back to compare."""
    dedup = inputs.source.dedup
    rows = read_chunks(paths)
    account = judge_rows(rows, inputs.prompt, label=opened.label, dedup=dedup, is_readable=is_readable)
    if account.unchecked:
        names = listed([repr(name) for name in account.unchecked], 5)
        logger.warning("no reward function is known for data_source %s: gold answers were not checked", names)
    num_rows = account.counts.rows_out
    write_prompt_records(progress.watched("write", account.prompts(read_chunks(paths)), num_rows), folder)
    verify_records(folder, progress.watched("read back", account.prompts(read_chunks(paths)), num_rows), num_rows)
    if account.reasons:
        with (folder / DROPPED_NAME).open("w", encoding="utf-8") as file:
            for row in account.dropped(read_chunks(paths)):
                file.write(json.dumps(asdict(row), ensure_ascii=False) + "\n")
    info = DatasetInfo(
        schema_version=SCHEMA_VERSION,
        source=inputs.source,
        tokenizer=inputs.tokenizer,
        prompt=inputs.prompt,
        counts=account.counts,
        duplicates=account.duplicates,
        lengths=account.lengths,
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


def _put_in_place(ready: Path, out_dir: Path, inputs: _Inputs, info: DatasetInfo, *, force: bool) -> DatasetInfo:
    fsync_tree(ready)
    if force and is_taken(out_dir):
        names = (out_dir.with_name(f"{out_dir.name}.old-{number}") for number in itertools.count(1))
        out_dir.rename(next(name for name in names if not name.exists()))
    try:
        ready.rename(out_dir)
    except OSError:
        # Another process prepared the same folder in the meantime; anything else is a real failure.
        if not out_dir.is_dir():
            raise
        return _reuse(out_dir, inputs)
    fsync(out_dir.parent)
    return info
