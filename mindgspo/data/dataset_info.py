"""dataset.json: the inputs of a prepared data set, what became of every row, and the columns of its file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from mindgspo.errors import DataError

FILE_NAME = "dataset.json"
RECORD_NAME = "prompts.mindrecord"
DROPPED_NAME = "dropped.jsonl"
SCHEMA_VERSION = 2
COLUMNS = {
    "index": "int64: row number in this data set, from 0 on",
    "prompt_ids": "int32 [L]: token ids of the chat-formatted prompt, after truncation",
    "prompt_text": "string: the text that was tokenized; of a truncated prompt, what its ids decode to",
    "answer": "string: gold answer",
    "data_source": "string: the name that chooses the reward",
    "solution": "string: worked solution, empty where the source has none",
    "extra_info": "string: a JSON object",
}


class Facts(BaseModel):
    """Part of dataset.json."""

    model_config = ConfigDict(frozen=True)


class SourceFacts(Facts):
    """The source of the rows."""

    format: str
    path: str | None
    sha256: str
    split: str | None
    max_rows: int | None
    columns: Mapping[str, object] | None
    """The mapping of the format `columns`."""
    dedup: bool
    seed: int | None
    """Only for generated rows."""


class TokenizerFacts(Facts):
    """The tokenizer, including its chat template, and the version of the rendering that made the ids."""

    name: str
    fingerprint: str
    rendering: int = 1


class PromptFacts(Facts):
    """The settings by which rows became prompts; lengths in tokens. tools: JSON schemas given to the chat template."""

    system_prompt: str | None
    instruction_prefix: str
    instruction_suffix: str
    max_prompt_length: int
    truncation: str
    tools: tuple[Mapping[str, object], ...] = ()


class RowCounts(Facts):
    """rows_in = rows_out + the sum of dropped (by reason). truncated counts rows of rows_out, by side; nulled counts
    values of their extra_info that JSON cannot express, by kind."""

    rows_in: int
    rows_out: int
    truncated: Mapping[str, int]
    dropped: Mapping[str, int]
    nulled: Mapping[str, int] = {}


class RepeatedPrompt(Facts):
    """Places ("file:line") of a prompt and of a later row that asks the same."""

    first: str
    again: str


class ConflictingPrompt(Facts):
    """A prompt that occurs with different gold answers: place i says answer i."""

    places: tuple[str, ...]
    answers: tuple[str, ...]


class DuplicateFacts(Facts):
    """Equal prompts among the rows that are not dropped for another reason, whether dedup then dropped them or not.

    repeated_rows: rows whose prompt occurred before. conflicting_prompts: prompts that occur with different answers,
    their rows counted as repeated too. conflicting_letter_by_letter: those of them that disagree already where the
    prompts are the same text, as a comparison of bytes would find. Prompts are equal if their messages are, whitespace
    aside; answers if they are the same text, number, formula or choice of letters. Examples: the first few of each.
    """

    repeated_rows: int
    conflicting_prompts: int
    conflicting_letter_by_letter: int
    repeated_examples: tuple[RepeatedPrompt, ...]
    conflicting_examples: tuple[ConflictingPrompt, ...]


class LengthFacts(Facts):
    """Prompt lengths in tokens: of the stored prompts, and the longest before truncation or dropping."""

    min: int
    mean: float
    max: int
    max_before_truncation: int


class FileFacts(Facts):
    """One file of the folder; size in bytes."""

    name: str
    size: int
    sha256: str


class DatasetInfo(Facts):
    """The whole of dataset.json. seed: the one prepare was called with."""

    schema_version: int
    source: SourceFacts
    tokenizer: TokenizerFacts
    prompt: PromptFacts
    counts: RowCounts
    duplicates: DuplicateFacts
    lengths: LengthFacts
    files: tuple[FileFacts, ...]
    columns: Mapping[str, str]
    seed: int

    model_config = ConfigDict(extra="forbid")

    def account(self) -> str:
        """The fate of the rows, in a few lines for people."""
        counts, lengths = self.counts, self.lengths
        truncated = (
            ", ".join(f"{n} {'in' if side == 'middle' else 'on'} the {side}" for side, n in counts.truncated.items())
            or "none"
        )
        nulled = ", ".join(f"{n} x {kind}" for kind, n in counts.nulled.items())
        dropped = ", ".join(f"{n}: {reason}" for reason, n in counts.dropped.items()) or "none"
        return "\n".join(
            [
                f"source     {self.source.path or f'arithmetic {self.source.split}'} ({self.source.format})",
                f"tokenizer  {self.tokenizer.name} ({self.tokenizer.fingerprint[:12]})",
                f"rows       {counts.rows_in} in, {counts.rows_out} out",
                f"dropped    {dropped}{f' (listed in {DROPPED_NAME})' if counts.dropped else ''}",
                *self._duplicate_lines(),
                f"truncated  {truncated}",
                *([f"nulled     {nulled} (of extra_info: JSON has nothing for them)"] if nulled else []),
                f"tokens     {lengths.min} to {lengths.max} per prompt, {lengths.mean:.1f} on average; limit "
                f"{self.prompt.max_prompt_length}, longest before truncation {lengths.max_before_truncation}",
            ]
        )

    def _duplicate_lines(self) -> list[str]:
        found = self.duplicates
        if not found.repeated_rows:
            return ["duplicates none"]
        fate = "dropped" if self.source.dedup else "kept; dedup drops them"
        exact = found.conflicting_letter_by_letter
        aside = f", {exact} of them letter by letter" if exact < found.conflicting_prompts else ""
        return [
            f"duplicates {found.repeated_rows} rows whose prompt occurred before, {found.conflicting_prompts} prompts "
            f"with conflicting answers{aside} ({fate})",
            *(
                f"           {self._short(one.again)} asks the same as {self._short(one.first)}"
                for one in found.repeated_examples[:SHOWN]
            ),
            *(f"           conflict: {self._conflict(one)}" for one in found.conflicting_examples[:SHOWN]),
        ]

    def _conflict(self, one: ConflictingPrompt) -> str:
        pairs = list(zip(one.places, one.answers, strict=True))[:SHOWN]
        return "; ".join(f"{self._short(place)} says {answer!r}" for place, answer in pairs)

    def _short(self, place: str) -> str:
        """A place without the source's folder, which stands in the first line."""
        path = self.source.path
        return place if path is None else place.replace(path, Path(path).name, 1)


SHOWN = 3
"""Examples of each kind of duplicate that `account` prints."""


def write_info(info: DatasetInfo, folder: Path) -> None:
    """Write dataset.json into a folder that no process reads yet."""
    (folder / FILE_NAME).write_bytes(info.model_dump_json(indent=2).encode() + b"\n")


def read_info(folder: Path) -> DatasetInfo:
    """Read dataset.json. Raises DataError: no folder, no such file in it, malformed, other version."""
    path = folder / FILE_NAME
    if not folder.is_dir():
        what = "is a file, not a prepared data set" if folder.exists() else "no such prepared data set"
        raise DataError(f"{folder}: {what}; make one with `mindgspo data prepare`")
    if not path.is_file():
        raise DataError(
            f"{folder}: holds no {FILE_NAME}, so it is no prepared data set (or an unfinished copy); choose another "
            "folder, or prepare with --force, which moves this one aside"
        )
    content = path.read_bytes()
    _check_version(path, content)
    try:
        return DatasetInfo.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise DataError(
            f"{path}: {place or 'file'}: {first['msg']}; prepare again with --force, which moves this one aside"
        ) from error


def _check_version(path: Path, content: bytes) -> None:
    """Comes first: a file of another version lacks fields, which would give a misleading error."""
    try:
        version = json.loads(content)["schema_version"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return  # the complaint about the whole file says more
    if version != SCHEMA_VERSION:
        raise DataError(
            f"{path}: schema_version is {version!r}, this release reads {SCHEMA_VERSION}. Prepare the raw rows again, "
            "into another folder or with --force, which moves this one aside"
        )


def differences(old: DatasetInfo, source: SourceFacts, tokenizer: TokenizerFacts, prompt: PromptFacts) -> list[str]:
    """The inputs in which a prepared data set differs from those given, one "name: was X, now Y" each.

    Names and paths do not count: the same bytes in another place are the same input. Nor does the version of the
    rendering: data prepared by an earlier one stays as it is, so that its runs can continue.
    """
    return [
        f"{section}.{key}: was {getattr(getattr(old, section), key)!r}, now {value!r}"
        for section, facts in (("source", source), ("tokenizer", tokenizer), ("prompt", prompt))
        for key, value in facts
        if key not in ("path", "name", "rendering") and getattr(getattr(old, section), key) != value
    ]
