"""The folder that `mindgspo eval --out` leaves: eval.json and generations.jsonl.

What enters: a path, then records and a report. What leaves: the whole folder or none. Called by the command line.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from mindgspo.errors import ConfigError
from mindgspo.io import fsync_tree, remove_leftovers, temporary_path, write_json
from mindgspo.metrics.files import json_line

REPORT = "eval.json"
GENERATIONS = "generations.jsonl"


class MeasureFolder:
    """Filled aside in a `with` statement and renamed by `finish`; removed where that is never reached."""

    def __init__(self, path: Path) -> None:
        self._path, self._aside = path, temporary_path(path.absolute())
        self._generations: BinaryIO | None = None

    def __enter__(self) -> MeasureFolder:
        """Raises ConfigError where the folder is there already, or cannot be made."""
        self._refuse_taken()
        with self._named_errors():
            self._aside.parent.mkdir(parents=True, exist_ok=True)
            remove_leftovers(self._aside.parent, self._path.name)
            self._aside.mkdir()
            self._generations = (self._aside / GENERATIONS).open("wb")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._generations is not None:
            with suppress(OSError):  # a full disk, once more; the file goes anyway
                self._generations.close()
        shutil.rmtree(self._aside, ignore_errors=True)

    def write(self, records: Iterable[Mapping[str, object]]) -> None:
        """Append lines to generations.jsonl. Raises ConfigError where the disk is full."""
        assert self._generations is not None, "written outside of the with statement"
        with self._named_errors():
            self._generations.writelines(map(json_line, records))

    def finish(self, report: Mapping[str, object]) -> None:
        """Write eval.json and give the folder its name. Raises ConfigError where somebody else took it meanwhile."""
        assert self._generations is not None, "finished outside of the with statement"
        with self._named_errors():
            self._generations.close()
            write_json(self._aside / REPORT, report)
            fsync_tree(self._aside)
        self._refuse_taken()
        with self._named_errors():
            os.rename(self._aside, self._path)

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ConfigError(f"--out {self._path}: cannot be written ({error}); choose another folder") from error

    def _refuse_taken(self) -> None:
        is_empty = self._path.is_dir() and not any(self._path.iterdir())
        if self._path.is_symlink() or (self._path.exists() and not is_empty):
            raise ConfigError(f"--out {self._path}: is there already and is not overwritten; choose another folder")
