"""Which file of a sharded checkpoint belongs to which rank.

What enters: a folder with rank_0, rank_1, ... or with files whose names bear a rank (qwen_rank_0-10_2.ckpt). What
leaves: one file per rank, all of one save, and lines that say what was taken and what was not. Called by
`stored_checkpoint`. MindSpore takes the last name of a rank's folder by spelling, so that 9 comes after 10 and ranks
may come from different saves; here the newest save that all ranks have is taken, by number.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mindgspo.errors import CheckpointError

SUFFIXES = (".safetensors", ".ckpt")
_RANK_FOLDER = re.compile(r"rank_(\d+)")
_RANK_IN_NAME = re.compile(r"rank_?(\d+)")
# What MindSpore puts behind a name: <epoch>_<step>.
_SAVE = re.compile(r"-(\d+)_(\d+)$")
_LISTED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFiles:
    """files: by rank, from 0 up without a gap. notes: what was taken and what was passed over, for people."""

    files: Mapping[int, Path]
    notes: tuple[str, ...]


def is_sharded(folder: Path) -> bool:
    """Whether files of ranks lie here."""
    return any(_rank_of(entry) is not None for entry in folder.iterdir())


def pick_rank_files(folder: Path, *, prefix: str = "", used: Collection[str] = ()) -> RankFiles:
    """The files of all ranks. prefix: only files whose names begin with it. used: other files that are not passed over.

    Raises CheckpointError: a rank between others is missing or has no file, no save that all ranks have, several kinds
    of files between which nothing decides.
    """
    by_rank = _tensor_files(folder, prefix)
    ranks = sorted(by_rank)
    missing = [rank for rank in range(ranks[-1] + 1) if not by_rank.get(rank)]
    if missing:
        raise CheckpointError(
            f"{folder}: rank{_s(missing)} {_shortened(missing)} of 0 to {ranks[-1]} {_have(missing)} no tensor file "
            f"({_kinds(prefix)}); copy the missing files into rank_{missing[0]}, ..."
        )
    keys = {rank: {key: path for path in paths for key in _keys(path, rank)} for rank, paths in by_rank.items()}
    common = sorted(set.intersection(*(set(keyed) for keyed in keys.values())), key=_by_save)
    if not common:
        raise CheckpointError(
            f"{folder}: no file name is common to the ranks 0 to {ranks[-1]}, e.g. {_example(by_rank)}; all ranks must "
            "come from one save: move what does not belong here away"
        )
    families = sorted({_family(key) for key in common})
    if len(families) > 1:
        raise CheckpointError(
            f"{folder}: {' and '.join(families)} are there for every rank, and nothing says which is meant; move one "
            "away, or name it with --prefix"
        )
    chosen = {rank: keyed[common[-1]] for rank, keyed in sorted(keys.items())}
    return RankFiles(files=chosen, notes=tuple(_notes(folder, common[-1], chosen, by_rank, used)))


def _tensor_files(folder: Path, prefix: str) -> dict[int, list[Path]]:
    """By rank what ends as tensor files do; a rank's folder without any gives an empty list."""
    found: dict[int, list[Path]] = {}
    for entry in sorted(folder.iterdir()):
        rank = _rank_of(entry)
        if rank is None:
            continue
        within = sorted(entry.iterdir()) if entry.is_dir() else [entry]
        files = [path for path in within if path.suffix in SUFFIXES and path.is_file()]
        found.setdefault(rank, []).extend(path for path in files if path.name.startswith(prefix))
    if not any(found.values()):
        raise CheckpointError(f"{folder}: its ranks have no tensor files ({_kinds(prefix)})")
    return found


def _rank_of(entry: Path) -> int | None:
    if entry.is_dir():
        match = _RANK_FOLDER.fullmatch(entry.name)
    else:
        match = _RANK_IN_NAME.search(entry.stem) if entry.suffix in SUFFIXES else None
    return int(match[1]) if match else None


def _keys(path: Path, rank: int) -> set[str]:
    """The names under which a file may be the same save as other ranks' files: as it is, and with the rank as `*`."""
    keys = {path.name, re.sub(rf"rank_?{rank}(?!\d)", "rank_*", path.name)}
    own_number = re.fullmatch(rf"(.*?[^\d]|){rank}", path.stem)
    if own_number and not _SAVE.search(path.stem):
        keys.add(f"{own_number[1]}*{path.suffix}")
    return keys


def _by_save(key: str) -> tuple[object, ...]:
    """Order of saves of one family: by epoch and step, as numbers; those with neither first."""
    save = _SAVE.search(Path(key).stem)
    return (_family(key), *((int(save[1]), int(save[2])) if save else (-1, -1)), key)


def _family(key: str) -> str:
    """A key without epoch and step. `a_*` and `a_0` of a single rank are one family."""
    path = Path(key)
    return re.sub(r"(\*|\d+)$", "*", _SAVE.sub("", path.stem)) + path.suffix


def _notes(
    folder: Path, key: str, chosen: Mapping[int, Path], by_rank: Mapping[int, list[Path]], used: Collection[str]
) -> Iterable[str]:
    where = "rank_*/" if any(path.parent != folder for path in chosen.values()) else ""
    yield f"source   {folder}: {len(chosen)} rank{_s(chosen)}, {where}{key}"
    others = [path for rank, paths in by_rank.items() for path in paths if path != chosen[rank]]
    if others:
        names = _shortened([str(path.relative_to(folder)) for path in others])
        yield f"ignored  {len(others)} older or incomplete save file{_s(others)}: {names}"
    rest = [
        str(path.relative_to(folder))
        for path in sorted({one for rank in chosen.values() for one in (*rank.parent.iterdir(), *folder.iterdir())})
        if path.is_file() and path.suffix not in SUFFIXES and path.name not in used
    ]
    if rest:
        yield f"ignored  {len(rest)} other file{_s(rest)}: {_shortened(rest)}"


def _example(by_rank: Mapping[int, list[Path]]) -> str:
    return ", ".join(f"rank {rank} has {by_rank[rank][-1].name}" for rank in sorted(by_rank)[:2])


def _kinds(prefix: str) -> str:
    return ", ".join(f"{prefix}*{suffix}" for suffix in SUFFIXES)


def _shortened(names: Iterable[object]) -> str:
    shown = [str(name) for name in names]
    more = f", ... ({len(shown)})" if len(shown) > _LISTED else ""
    return ", ".join(shown[:_LISTED]) + more


def _s(items: object) -> str:
    return "" if len(items) == 1 else "s"  # type: ignore[arg-type]


def _have(items: list[int]) -> str:
    return "has" if len(items) == 1 else "have"
