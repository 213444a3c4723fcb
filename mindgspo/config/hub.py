"""Models and data sets by their names on Hugging Face or ModelScope: fetched into the hub's own cache, at one commit.

Qwen/Qwen3-0.6B, Qwen/Qwen3-0.6B@<revision>, modelscope:Qwen/Qwen3-0.6B; of a data set, its file follows:
openai/gsm8k/main/train-00000-of-00001.parquet. The hubs' own libraries fetch, so their variables for caches, mirrors,
tokens and working offline apply. Only safetensors, JSON, tokenizer and data files are taken: no code, no pickles.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cache
from glob import escape
from itertools import islice
from pathlib import Path
from typing import Any

from mindgspo.config.messages import config_error
from mindgspo.errors import ConfigError
from mindgspo.io import check_free_space, parse_json, read_lines
from mindgspo.text import LOCAL_FOLDERS, listed, shorten

KINDS = {"model": "model", "tokenizer": "model", "algorithm": "model", "data": "dataset", "warmup": "dataset"}
"""What a `path` names on a hub, by the section of the experiment that it stands in."""
REVISIONS = "MINDGSPO_HUB_REVISIONS"
"""Environment variable: the commits that the launcher has fetched, as JSON, see `hub_revisions`."""
ROW_SUFFIXES = (".jsonl", ".parquet", ".json", ".csv", ".tsv")

_PART = r"[A-Za-z0-9][\w.-]*"
_NAME = re.compile(rf"(modelscope:)?({_PART}/{_PART}?)(?:@([\w.-]+))?((?:/[\w+=.-]+)*)", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SMALL = re.compile(r"[\w-][\w.-]*\.(json|jinja|model)|(vocab|merges)\.txt", re.ASCII)
_WEIGHTS = re.compile(r"(model|adapter_model)[\w.-]*\.safetensors", re.ASCII)
_DATA = re.compile(r"[\w+=-][\w+=.-]*(/[\w+=-][\w+=.-]*)*\.(jsonl|parquet)", re.ASCII)
_MOST_FILES = 20_000

_names: dict[str, str] = {}
"""Names at their commits of the folders and files that this process has found in the caches."""
_revisions: dict[str, str] = {}
"""Commits of the names that this process has fetched, as experiments write them."""


class Fetch(IntEnum):
    """How much of what an experiment names is fetched."""

    SIZES = 1
    """config.json, tokenizer and the like of models whose sizes are not in the experiment."""
    INPUTS = 2
    """And of every model, and data."""
    ALL = 3
    """And weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HubName:
    """A repository on a hub, or one file of it."""

    hub: str
    """huggingface or modelscope."""
    kind: str
    """model or dataset."""
    repo: str
    """owner/name."""
    revision: str = ""
    """Branch, tag or commit; empty: the default branch."""
    file: str = ""

    def __str__(self) -> str:
        prefix, revision = "modelscope:" * (self.hub == "modelscope"), f"@{self.revision}" * bool(self.revision)
        return f"{prefix}{self.repo}{revision}{'/' * bool(self.file)}{self.file}"

    @property
    def key(self) -> str:
        """Kind, repository and revision, as a key of `hub_revisions`."""
        return f"{self.kind} {replace(self, file='')}"


def parse_name(text: str, kind: str) -> HubName | None:
    """The name on a hub that a text has the form of."""
    found = _NAME.fullmatch(text)
    if found is None or ".." in text or "--" in found[2] or (kind == "model" and found[4]):
        return None
    hub = "modelscope" if found[1] else "huggingface"
    return HubName(hub=hub, kind=kind, repo=found[2], revision=found[3] or "", file=found[4][1:])


def is_hub_name(text: str, section: str, folder: Path) -> bool:
    """Whether a `path` of a section names a repository. What lies in `folder` is a path, and so is what begins with a
    folder there, or with a usual name of one. modelscope: always names one."""
    if section not in KINDS or (name := parse_name(text, KINDS[section])) is None:
        return False
    owner, own = name.repo.split("/")
    is_path = owner in LOCAL_FOLDERS or (folder / owner).exists() or (not name.file and own.endswith(ROW_SUFFIXES))
    return name.hub == "modelscope" or not is_path


def hub_path(path: Path, section: str = "model", fetch: Fetch = Fetch.ALL) -> Path:
    """A path of the command line; if it is a name on a hub instead, the folder or file of the cache, fetched first.

    Raises ConfigError as `with_hub_folders`.
    """
    if not is_hub_name(str(path), section, Path.cwd()):
        return path
    return Path(with_hub_folders("", {section: {"path": str(path)}}, fetch)[section]["path"])


def with_hub_folders(source: str, mapping: Mapping[str, Any], fetch: Fetch) -> dict[str, Any]:
    """The mapping of an experiment with the folders and files of the caches in place of names on hubs, which are
    fetched first. A run that goes on, and the processes of a launch, have the commits that it began with. A name that
    need not be fetched stays where the cache does not have it.

    source: its name in errors; empty: neither it nor the key is named. Raises ConfigError: no such repository, private,
    not reachable, not in the cache, no room, a package that is missing.
    """
    launched = parse_json(os.environ.get(REVISIONS, "{}"))
    pinned = cache(lambda: {**_of_earlier_run(mapping), **launched})  # read if there is a name
    model = mapping.get("model")
    has_sizes = isinstance(model, Mapping) and "vocab_size" in model

    def found(key: str, kind: str, text: str) -> str:
        name = parse_name(text, kind)
        if name is None:
            return text
        at = replace(name, revision=pinned().get(name.key, name.revision))
        is_wanted = fetch >= (Fetch.INPUTS if kind == "dataset" or has_sizes else Fetch.SIZES)
        try:
            hub = _hub(name)
            folder = hub.cached(at) if name.key in launched or not is_wanted else None
            if folder is None and is_wanted:
                is_whole = fetch is Fetch.ALL or key == "model.lora.path"
                folder = _fetched(hub, at, is_whole and not key.startswith("tokenizer."))
        except ConfigError as error:
            if not is_wanted:
                return text
            raise (config_error(source, [f"{key}: {error}"]) if source else error) from None
        if folder is None:
            return text
        if is_wanted:
            _revisions[name.key] = folder.name
        _names[path := str(folder / at.file)] = str(replace(at, revision=folder.name))
        return path

    return _replaced(mapping, found)


def hub_names(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping of an experiment with names at their commits in place of folders of the caches."""
    return _replaced(mapping, lambda key, kind, text: _names.get(text, text))


def hub_revisions(mapping: Mapping[str, Any]) -> dict[str, str]:
    """{"model Qwen/Qwen3-0.6B": commit}: kind and name as the experiment writes it, of what was fetched for the
    experiment of this mapping, see `hub_names`."""
    return {key: commit for key, commit in _revisions.items() if f"@{commit}" in str(mapping)}


def _replaced(mapping: Mapping[str, Any], new: Callable[[str, str, str], str]) -> dict[str, Any]:
    """The mapping with `new(dotted key, kind, text)` in place of every path that may be on a hub."""

    def walk(value: Any, key: str, kind: str) -> Any:
        if isinstance(value, Mapping):
            return {name: walk(below, f"{key}.{name}", kind) for name, below in value.items()}
        if isinstance(value, list):
            return [walk(one, f"{key}[{number}]", kind) for number, one in enumerate(value)]
        return new(key, kind, value) if isinstance(value, str) and key.endswith(".path") else value

    return {key: walk(value, key, KINDS[key]) if key in KINDS else value for key, value in mapping.items()}


def _of_earlier_run(mapping: Mapping[str, Any]) -> dict[str, str]:
    """The commits that the run which the experiment continues or starts from began with, of its environment.jsonl."""
    resume = mapping.get("resume", "never")
    if not isinstance(resume, str) or resume == "never":
        return {}
    own = mapping.get("run_dir") or Path("runs", str(mapping.get("experiment")))
    start = Path(str(own) if resume == "auto" else resume).expanduser()
    files = [folder / "environment.jsonl" for folder in (start, *start.parents[:2])]
    file = next(filter(Path.is_file, files), Path(os.devnull))
    try:
        lines = [line for _, line in read_lines(file, ConfigError) if line.endswith(b"\n")]  # else a run was killed
        starts = [parse_json(line).get("hub", {}) for line in lines]
        return {key: commit for one in starts for key, commit in one.items() if _COMMIT.fullmatch(commit)}
    except (AttributeError, TypeError, OSError, ValueError) as error:
        raise ConfigError(f"{file}: cannot be read ({error}); remove the damaged line") from None


def _hub(name: HubName) -> _HuggingFace | _ModelScope:
    try:
        return _HuggingFace() if name.hub == "huggingface" else _ModelScope()
    except ImportError:
        raise ConfigError(f"{name}: no such folder here; to fetch it, pip install 'mindgspo[{name.hub}]'") from None


def _fetched(hub: _HuggingFace | _ModelScope, name: HubName, with_weights: bool) -> Path:
    """The folder of the cache that holds what the name needs. Raises ConfigError."""
    try:
        at, sizes = hub.look(name)
        wanted = _wanted(at, sizes, with_weights)
        there = hub.cached(at)
        missing = [file for file in wanted if there is None or not (there / file).is_file()]
        if there is None or missing:
            num_bytes = sum(sizes[file] for file in missing)
            check_free_space(hub.cache, num_bytes, ConfigError, f"set {hub.home} to a folder on a larger disk")
            there = hub.fetch(at, [escape(file) for file in missing])
        if lacking := [file for file in missing if not (there / file).is_file()]:
            raise ConfigError(f"{at}: {listed(lacking)} did not arrive in {there}; try again")
        return there
    except ConfigError:
        raise
    except (OSError, ValueError, *hub.errors) as error:  # ValueError: a name that the library refuses
        status = getattr(getattr(error, "response", None), "status_code", getattr(error, "status_code", None))
        if (status is None or status >= 500) and (known := hub.cached(name)) is not None:
            return known  # of an earlier time: the hub cannot be asked
        raise ConfigError(f"{name}: {_reason(name, hub, error, status)}") from None


def _wanted(name: HubName, sizes: Mapping[str, int], with_weights: bool) -> list[str]:
    """The files to fetch."""
    if not _COMMIT.fullmatch(name.revision) or len(sizes) > _MOST_FILES:
        raise ConfigError(f"{name}: {len(sizes):,} files; a commit of 1 to {_MOST_FILES:,} can be used, or a folder")
    if name.kind == "dataset":
        files = sorted(filter(_DATA.fullmatch, sizes))
        if name.file in files:
            return [name.file]
        some = listed([replace(name, file=file, revision="") for file in files], 4)
        fix = f"name one of its files, e.g. {some}" if files else "it has no *.jsonl or *.parquet"
        raise ConfigError(f"{name}: {f'has no {name.file}' if name.file else 'is a data set'}; {fix}")
    weights = list(filter(_WEIGHTS.fullmatch, sizes)) if with_weights else []
    if with_weights and not weights:
        raise ConfigError(f"{name}: has no model*.safetensors, and pickles are never loaded; give another repository")
    return [*filter(_SMALL.fullmatch, sizes), *weights]


def _reason(name: HubName, hub: _HuggingFace | _ModelScope, error: Exception, status: int | None) -> str:
    where, text = "no such folder here, and", shorten(" ".join(str(error).split()), 300)
    if status == 403:
        return f"access is restricted; ask for it on the page of the repository, then {hub.login}"
    if "RevisionNotFound" in type(error).__name__:
        return f"has no revision {name.revision}; name a branch, tag or commit that it has"
    if status in (401, 404):
        return f"{where} no such {name.kind} at {hub.endpoint}, or a private one; check the name, or {hub.login}"
    return f"{where} {hub.endpoint} cannot be reached ({text}); set {hub.mirror} to a mirror, or give a folder"


class _HuggingFace:
    home, mirror, login = "HF_HOME", "HF_ENDPOINT", "log in with `hf auth login` or HF_TOKEN"

    def __init__(self) -> None:
        """Raises ImportError."""
        from huggingface_hub import HfApi, RepoFile, constants
        from huggingface_hub.errors import (
            HTTPError,  # pyright: ignore[reportPrivateImportUsage] - of httpx or httpx2
            RevisionResolutionError,
        )

        self._api, self._file, self.errors = HfApi(), RepoFile, (HTTPError, RevisionResolutionError)
        self.endpoint, self.cache = self._api.endpoint, Path(constants.HF_HUB_CACHE)

    def look(self, name: HubName) -> tuple[HubName, dict[str, int]]:
        """The name at its commit, and {file: bytes}."""
        commit = self._api.resolve_revision(name.repo, repo_type=name.kind, revision=name.revision or None).resolved
        rows = self._api.list_repo_tree(name.repo, repo_type=name.kind, revision=commit, recursive=True)
        files = islice((row for row in rows if isinstance(row, self._file)), _MOST_FILES + 1)
        return replace(name, revision=commit), {file.path: file.size for file in files}

    def fetch(self, name: HubName, patterns: list[str]) -> Path:
        """The folder of the cache, whose name is the commit, with these files."""
        where: dict[str, Any] = {"repo_type": name.kind, "revision": name.revision}
        return Path(self._api.snapshot_download(name.repo, **where, allow_patterns=patterns))

    def cached(self, name: HubName) -> Path | None:
        """The folder of the cache at the commit, or the one that a branch was when the hub was last asked."""
        where: dict[str, Any] = {"repo_type": name.kind, "revision": name.revision or None, "local_files_only": True}
        try:
            return Path(self._api.snapshot_download(name.repo, **where, allow_patterns=[]))
        except (OSError, ValueError):
            return None


class _ModelScope:
    home, mirror, login = "MODELSCOPE_CACHE", "MODELSCOPE_ENDPOINT", "set MODELSCOPE_API_TOKEN"

    def __init__(self) -> None:
        """Raises ImportError."""
        from modelscope_hub import HubApi, HubConfig, HubError  # pyright: ignore[reportMissingImports] - an extra

        self._api, self.errors = HubApi(config := HubConfig()), (HubError,)
        self.endpoint, self.cache = config.endpoint, Path(config.cache_dir)

    def look(self, name: HubName) -> tuple[HubName, dict[str, int]]:
        """The name at the newest commit of its files, which has all of them as they are; and {file: bytes}."""
        rows = self._api.legacy.list_repo_files(name.repo, name.kind, revision=name.revision or "master")
        newest = max(rows, key=lambda row: row.get("CommittedDate") or 0, default={})
        at = name if _COMMIT.fullmatch(name.revision) else replace(name, revision=str(newest.get("Revision")))
        return at, {str(row["Path"]): int(row.get("Size") or 0) for row in rows if row.get("Type") != "tree"}

    def fetch(self, name: HubName, patterns: list[str]) -> Path:
        """The folder of the cache, whose name is the commit, with these files."""
        where: dict[str, Any] = {"revision": name.revision, "local_dir": self._snapshots(name) / name.revision}
        return Path(self._api.download_repo(name.repo, name.kind, **where, allow_patterns=patterns))

    def cached(self, name: HubName) -> Path | None:
        """The folder of the cache at the commit; of the default branch, the one last written."""
        folders = [one for one in self._snapshots(name).glob(name.revision or "*") if _COMMIT.fullmatch(one.name)]
        return max(folders, key=lambda one: one.stat().st_mtime, default=None)

    def _snapshots(self, name: HubName) -> Path:
        return self.cache / f"{name.kind}s" / name.repo.replace("/", "--") / "snapshots"
