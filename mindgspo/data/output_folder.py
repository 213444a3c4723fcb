"""The folder that a data set is to become: whether it can be made, and what to say where it cannot.

What enters: the path as the user gave it. What leaves: nothing, or an error that names the path. Called by prepare.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mindgspo.errors import DataError


class OutputError(DataError):
    """The disk or the path is at fault, not the data: what is done stays for the next attempt."""


def is_taken(out_dir: Path) -> bool:
    """Whether something is there that must not be touched; an empty folder is not."""
    return out_dir.exists() and not (out_dir.is_dir() and not any(out_dir.iterdir()))


def check_out_dir(out_dir: Path) -> None:
    """Raise OutputError where no folder can be made: below a file, or in place of a link that leads nowhere or to an
    empty folder, which the finished folder could not replace."""
    with named_os_errors(out_dir):
        if out_dir.is_symlink() and not is_taken(out_dir):
            to = "an empty folder" if out_dir.exists() else "nothing"
            raise OutputError(f"{out_dir}: is a symbolic link to {to}; remove it, or name the folder itself")
        for folder in out_dir.parents:
            if folder.is_symlink() and not folder.exists():
                raise OutputError(f"{out_dir}: {folder} is a symbolic link to nothing; choose another folder")
            if folder.exists():
                if not folder.is_dir():
                    raise OutputError(f"{out_dir}: {folder} is a file, not a folder; choose another folder")
                return


@contextmanager
def named_os_errors(out_dir: Path) -> Iterator[None]:
    """What the system refuses (a full disk, no permission) as an OutputError with the path that it is about."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"{error.filename or out_dir}: {error.strerror or error}") from error
