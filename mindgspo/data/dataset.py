"""Reading a prepared data set through MindSpore's MindDataset.

What enters: a folder made by prepare and the tokenizer of this run. What leaves: `PromptDataset`, prompts by
index, in memory. Called by trainer/build.py and the command line.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mindgspo.data.dataset_info import DatasetInfo, read_info
from mindgspo.data.mindrecord import read_records
from mindgspo.data.prompts import FORMATS_WITH_INSTRUCTION
from mindgspo.data.verify import verify_files
from mindgspo.errors import DataError
from mindgspo.tokenization import Tokenizer
from mindgspo.types import Prompt

if TYPE_CHECKING:
    from mindgspo.config.data import DataSection


class PromptDataset:
    """The prompts of one folder; `dataset[i].index == i`."""

    def __init__(self, prompts: tuple[Prompt, ...], info: DatasetInfo) -> None:
        self._prompts = prompts
        self.info = info

    def __len__(self) -> int:
        return len(self._prompts)

    def __getitem__(self, index: int) -> Prompt:
        return self._prompts[index]

    def __iter__(self) -> Iterator[Prompt]:
        return iter(self._prompts)


def open_dataset(
    folder: Path, tokenizer: Tokenizer, data: DataSection | None = None, *, max_rows: int | None = None
) -> PromptDataset:
    """Load a prepared data set into memory; max_rows: at most so many of its rows, from the start.

    Raises DataError as `check_folder`, and for a file with other rows than dataset.json says.
    """
    info = check_folder(folder, tokenizer, data)
    prompts = tuple(read_records(folder))
    if len(prompts) != info.counts.rows_out or any(prompt.index != i for i, prompt in enumerate(prompts)):
        raise DataError(
            f"{folder}: holds {len(prompts)} rows, dataset.json says {info.counts.rows_out}; prepare again with --force"
        )
    return PromptDataset(prompts[:max_rows], info)


def check_folder(folder: Path, tokenizer: Tokenizer, data: DataSection | None = None) -> DatasetInfo:
    """dataset.json of a folder that is whole and fits this run, without MindSpore.

    data: if given, its prompt settings are checked against those the folder was made with: prompts must fit
    max_prompt_length, and a system prompt, prefix or suffix, where one is set, must be the folder's.
    Raises DataError: missing folder or file, another tokenizer, settings that contradict the folder.
    """
    info = read_info(folder)
    verify_files(folder, info)
    if info.tokenizer.fingerprint != tokenizer.fingerprint:
        raise DataError(
            f"{folder}: was made with another tokenizer, {info.tokenizer.name} ({info.tokenizer.fingerprint[:12]}), "
            f"than this run's, {tokenizer.name} ({tokenizer.fingerprint[:12]}; files and EOS/pad choice count). Use "
            "that tokenizer, or prepare the data again"
        )
    if data is not None:
        _check_settings(folder, info, data)
    return info


def _check_settings(folder: Path, info: DatasetInfo, data: DataSection) -> None:
    if info.lengths.max > data.max_prompt_length:
        raise DataError(
            f"{folder}: its longest prompt has {info.lengths.max} tokens, data.max_prompt_length is "
            f"{data.max_prompt_length}: raise it to {info.lengths.max}, or prepare the data again"
        )
    for key, wanted, made in (
        ("system_prompt", data.system_prompt, info.prompt.system_prompt),
        ("instruction_prefix", data.instruction_prefix or None, info.prompt.instruction_prefix or None),
        ("instruction_suffix", data.instruction_suffix or None, info.prompt.instruction_suffix or None),
    ):
        ignored = key != "system_prompt" and info.source.format in FORMATS_WITH_INSTRUCTION
        if wanted is not None and wanted != made and not ignored:
            raise DataError(
                f"{folder}: was made with data.{key} {made!r}, the configuration says {wanted!r}: remove the "
                "setting, or prepare the data again"
            )
