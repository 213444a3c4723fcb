"""Models and data sets by their names on Hugging Face or ModelScope: fetched into the hub's own cache, at one commit.

Qwen/Qwen3-0.6B, Qwen/Qwen3-0.6B@<revision>, modelscope:Qwen/Qwen3-0.6B; of a data set, its file follows:
openai/gsm8k/main/train-00000-of-00001.parquet. The hubs' own libraries fetch, so their variables for caches, mirrors,
tokens and working offline apply. Only safetensors, JSON, tokenizer and data files are taken: no code, no pickles.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cache
from glob import escape
from pathlib import Path
from typing import Any

import yaml

from mindgspo.config.messages import config_error
from mindgspo.config.yaml_dialect import parse_document
from mindgspo.errors import ConfigError
from mindgspo.io import check_free_space, decoded, make_folder, read_bytes, write_file
from mindgspo.text import LOCAL_FOLDERS, listed, shorten

KINDS = {"model": "model", "tokenizer": "model", "algorithm": "model", "data": "dataset", "warmup": "dataset"}
"""What a `path` names on a hub, by the section of the experiment that it stands in."""
REVISIONS = "MINDGSPO_HUB_REVISIONS"
"""Environment variable: the commits that the launcher has fetched, as JSON {name: commit}."""
ROW_SUFFIXES = (".jsonl", ".parquet", ".json", ".csv", ".tsv")

_PART = r"[A-Za-z0-9][\w.-]*"
_NAME = re.compile(rf"(modelscope:)?({_PART}/{_PART}?)(?:@([\w.-]+))?((?:/[\w+=.-]+)*)", re.ASCII)
_SNAPSHOT = re.compile(
    rf"/(model|dataset)s(?:--|/)({_PART}?)--({_PART})/snapshots/([\w.-]+)((?:/[\w+=.-]+)*)", re.ASCII
)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SMALL = re.compile(r"[\w-][\w.-]*\.(json|jinja|model)|(vocab|merges)\.txt", re.ASCII)
_WEIGHTS = re.compile(r"(model|adapter_model)[\w.-]*\.safetensors", re.ASCII)
_DATA = re.compile(r"[\w+=-][\w+=.-]*(/[\w+=-][\w+=.-]*)*\.(jsonl|parquet)", re.ASCII)
_MOST_SMALL_BYTES, _MOST_FILES = 1 << 30, 2000


class Fetch(IntEnum):
    """How much of what an experiment names is fetched."""

    SIZES = 1
    """config.json, tokenizer and the like of models whose sizes are not in the experiment."""
    INPUTS = 2
    """And data."""
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
        """The repository without revision and file."""
        return f"{self.kind} {replace(self, revision='', file='')}"

    @property
    def folder(self) -> Path:
        """Where the hub's cache has this revision, if at all."""
        between = "--" if self.hub == "huggingface" else "/"
        name = f"{self.kind}s{between}{self.repo.replace('/', '--')}"
        return _cache(self.hub) / name / "snapshots" / (self.revision or "main")

    @property
    def ref(self) -> Path:
        """The file of the cache that says which commit a branch or tag was when it was last asked for."""
        return self.folder.parents[1] / "refs" / (self.revision or "main")

    def cached(self) -> HubName | None:
        """This name at the commit that the cache has for it, without asking the hub."""
        found = replace(self, revision=self.ref.read_text("ascii").strip()) if self.ref.is_file() else self
        return found if _COMMIT.fullmatch(found.revision) and found.folder.is_dir() else None


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


def with_hub_folders(source: str, mapping: Mapping[str, Any], fetch: Fetch) -> dict[str, Any]:
    """The mapping of an experiment with the folders and files of the caches in place of names on hubs, which are
    fetched first. A run that goes on, and the processes of a launch, have the commits that it began with.

    source: its name in errors. Raises ConfigError: no such repository, private, not reachable, not in the cache, no
    room, a package that is missing.
    """
    fetched = json.loads(os.environ.get(REVISIONS, "{}"))
    pinned, model = {**_of_earlier_run(mapping), **fetched}, mapping.get("model")

    def found(key: str, name: HubName) -> str:
        if not name.revision and name.key in pinned:
            name = replace(name, revision=pinned[name.key])
        try:
            known = name.cached()
            is_wanted = fetch >= (Fetch.INPUTS if name.kind == "dataset" else Fetch.SIZES)
            is_known = fetch is Fetch.SIZES and isinstance(model, Mapping) and "vocab_size" in model
            if is_wanted and not is_known and (name.key not in fetched or known is None):
                name = _fetched(name, with_weights=fetch is Fetch.ALL and not key.startswith("tokenizer."))
            else:
                name = known or name
            return str(name.folder / name.file)
        except ImportError:
            fix = f"pip install 'mindgspo[{name.hub}]', or give a folder"
            line = f"{key}: {name}: no such folder here, and its package for fetching from {name.hub} is missing; {fix}"
            raise config_error(source, [line]) from None
        except ConfigError as error:
            raise config_error(source, [f"{key}: {error}"]) from None

    return _replaced(mapping, found)


def hub_names(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping of an experiment with names at their commits in place of folders of the caches."""

    def named(value: str) -> str:
        found = _SNAPSHOT.search(value)
        if found is None:
            return value
        hub = "huggingface" if f"{found[1]}s--" in found[0] else "modelscope"
        name = HubName(hub=hub, kind=found[1], repo=f"{found[2]}/{found[3]}", revision=found[4], file=found[5][1:])
        try:
            return str(name) if str(name.folder / name.file) == value else value
        except ImportError:
            return value

    def walk(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: walk(below) for key, below in value.items()}
        if isinstance(value, list):
            return [walk(one) for one in value]
        return named(value) if isinstance(value, str) and "/snapshots/" in value else value

    return {key: walk(value) if key in KINDS else value for key, value in mapping.items()}


def hub_revisions(mapping: Mapping[str, Any]) -> dict[str, str]:
    """{repository: commit} of the names in the mapping of an experiment, see `hub_names`."""
    found: dict[str, str] = {}

    def note(key: str, name: HubName) -> str:
        found[name.key] = name.revision
        return str(name)

    _replaced(mapping, note)
    return {key: revision for key, revision in found.items() if revision}


def _replaced(mapping: Mapping[str, Any], new: Callable[[str, HubName], str]) -> dict[str, Any]:
    """The mapping with `new(dotted key, name)` in place of every name on a hub."""

    def walk(value: Any, key: str, kind: str) -> Any:
        if isinstance(value, Mapping):
            return {name: walk(below, f"{key}.{name}", kind) for name, below in value.items()}
        if isinstance(value, list):
            return [walk(one, f"{key}[{number}]", kind) for number, one in enumerate(value)]
        name = parse_name(value, kind) if isinstance(value, str) and key.endswith(".path") else None
        return value if name is None else new(key, name)

    return {key: walk(value, key, KINDS[key]) if key in KINDS else value for key, value in mapping.items()}


def _of_earlier_run(mapping: Mapping[str, Any]) -> dict[str, str]:
    """The commits of the run that the experiment continues or starts from."""
    resume = mapping.get("resume", "never")
    if not isinstance(resume, str) or resume == "never":
        return {}
    own = Path(str(mapping.get("run_dir") or Path("runs") / str(mapping.get("experiment"))))
    start = (own if resume == "auto" else Path(resume)).expanduser()
    files = (folder / "config.yaml" for folder in (start, *start.parents[:2]))
    saved = next((file for file in files if file.is_file()), None)
    try:
        document = None if saved is None else parse_document(decoded(read_bytes(saved, 1 << 20)))
        return hub_revisions(document) if isinstance(document, Mapping) else {}
    except (OSError, ValueError, yaml.YAMLError):
        return {}  # reading the configuration itself says it


@cache
def _fetched(name: HubName, *, with_weights: bool) -> HubName:
    """The name at a commit whose files lie in the cache. Raises ConfigError."""
    hub = _HuggingFace() if name.hub == "huggingface" else _ModelScope()
    try:
        commit, sizes = hub.files(name)
        if not _COMMIT.fullmatch(commit):
            raise ConfigError(
                f"{name}: the hub names no commit for it, but {shorten(repr(commit))}; name one as @commit"
            )
        at = replace(name, revision=commit)
        at, wanted = _wanted(at, sizes, with_weights)
        missing = [file for file in wanted if not (at.folder / file).is_file()]
        num_bytes = sum(sizes[file] for file in missing)
        check_free_space(
            _cache(at.hub), num_bytes, ConfigError, f"set {hub.cache_variable} to a folder on a larger disk"
        )
        if missing:
            print(f"fetching {at}: {len(missing)} files, {num_bytes:,} bytes", file=sys.stderr, flush=True)
            hub.fetch(at, missing)
    except ConfigError:
        raise
    except (OSError, ValueError, hub.error) as error:  # ValueError: of a name that the library refuses
        status = getattr(getattr(error, "response", None), "status_code", None) or getattr(error, "status_code", None)
        if status is None and (known := name.cached()) is not None:
            return known  # of an earlier time: the hub cannot be asked
        raise ConfigError(f"{name}: {_reason(name, hub, error, status)}") from None
    lacking = [file for file in wanted if not (at.folder / file).is_file()]
    if lacking:
        raise ConfigError(f"{at}: {listed(lacking)} did not arrive in {at.folder}; try again")
    if name.revision != commit:
        make_folder(name.ref.parent)
        write_file(name.ref, commit.encode())
    return at


def _wanted(name: HubName, sizes: Mapping[str, int], with_weights: bool) -> tuple[HubName, list[str]]:
    """The name, of a data set with its file, and the files to fetch."""
    if name.kind == "dataset":
        files = sorted(file for file in sizes if _DATA.fullmatch(file))
        if not name.file and len(files) == 1:
            name = replace(name, file=files[0])
        if name.file not in files:
            there = (
                f"name one of its files, e.g. {listed([replace(name, file=file, revision='') for file in files], 4)}"
            )
            what = f"has no {name.file}" if name.file else "is a data set of several files"
            raise ConfigError(f"{name}: {what}; {there if files else 'it has no *.jsonl or *.parquet'}")
        return name, [name.file]
    small = [file for file in sizes if _SMALL.fullmatch(file)]
    large = next((file for file in small if sizes[file] > _MOST_SMALL_BYTES), None)
    if large is not None:
        raise ConfigError(f"{name}: {large} has {sizes[large]:,} bytes; at most {_MOST_SMALL_BYTES:,} are read")
    wanted = small + [file for file in sizes if with_weights and _WEIGHTS.fullmatch(file)]
    if len(wanted) > _MOST_FILES:
        raise ConfigError(f"{name}: {len(wanted):,} files; at most {_MOST_FILES:,} are fetched")
    if with_weights and wanted == small:
        raise ConfigError(
            f"{name}: has no model*.safetensors; pickled weights are never loaded, give another repository"
        )
    return name, wanted


def _reason(name: HubName, hub: _HuggingFace | _ModelScope, error: Exception, status: int | None) -> str:
    text = shorten(" ".join(str(error).split()), 200)
    if "Offline" in type(error).__name__:
        return (
            f"not in the cache {_cache(name.hub)}, and HF_HUB_OFFLINE is set; fetch it once without, or give a folder"
        )
    if "Gated" in type(error).__name__ or status == 403:
        return f"access is restricted; ask for it on the page of the repository, then {hub.login}"
    if "Revision" in type(error).__name__:
        return f"has no revision {name.revision}; name a branch, tag or commit that it has"
    if status in (401, 404):
        where = f"no such folder here, and no such {name.kind} at {hub.endpoint}, or a private one"
        return f"{where}; check the name, or {hub.login}"
    if status is not None:
        return f"{hub.endpoint} answers with status {status} ({text}); try again later"
    return f"no such folder here, and {hub.endpoint} cannot be reached ({text}); set {hub.mirror_variable} to a mirror"


def _cache(hub: str) -> Path:
    """Raises ImportError."""
    if hub == "huggingface":
        from huggingface_hub import constants

        return Path(constants.HF_HUB_CACHE).expanduser().absolute()
    from modelscope_hub.config import HubConfig  # pyright: ignore[reportMissingImports] - an extra

    return Path(HubConfig().cache_dir).absolute()


class _HuggingFace:
    cache_variable, mirror_variable, login = "HF_HOME", "HF_ENDPOINT", "log in with `hf auth login` or HF_TOKEN"

    def __init__(self) -> None:
        import httpx
        from huggingface_hub import HfApi

        self._api = HfApi()
        self.endpoint, self.error = self._api.endpoint, httpx.HTTPError

    def files(self, name: HubName) -> tuple[str, dict[str, int]]:
        """The commit, and {file: bytes}."""
        info = self._api.repo_info(
            name.repo, repo_type=name.kind, revision=name.revision or None, files_metadata=True, timeout=30
        )
        return info.sha or "", {one.rfilename: one.size or 0 for one in info.siblings or ()}

    def fetch(self, name: HubName, files: list[str]) -> None:
        """Into the cache."""
        patterns = [escape(file) for file in files]
        self._api.snapshot_download(name.repo, repo_type=name.kind, revision=name.revision, allow_patterns=patterns)


class _ModelScope:
    cache_variable, mirror_variable, login = "MODELSCOPE_CACHE", "MODELSCOPE_ENDPOINT", "set MODELSCOPE_API_TOKEN"

    def __init__(self) -> None:
        from modelscope_hub import HubApi  # pyright: ignore[reportMissingImports] - an extra
        from modelscope_hub.config import HubConfig  # pyright: ignore[reportMissingImports]
        from modelscope_hub.errors import HubError  # pyright: ignore[reportMissingImports]

        self._api = HubApi()
        self.endpoint, self.error = HubConfig().endpoint, HubError

    def files(self, name: HubName) -> tuple[str, dict[str, int]]:
        """The newest commit among those of its files, which has all of them as they are; and {file: bytes}."""
        rows = self._api.legacy.list_repo_files(name.repo, name.kind, revision=name.revision or "master")
        rows = [row for row in rows if row.get("Type") != "tree"]
        newest = max(rows, key=lambda row: row.get("CommittedDate") or 0, default={})
        commit = name.revision if _COMMIT.fullmatch(name.revision) else str(newest.get("Revision"))
        return commit, {str(row["Path"]): int(row.get("Size") or 0) for row in rows}

    def fetch(self, name: HubName, files: list[str]) -> None:
        """Into the cache."""
        patterns = [escape(file) for file in files]
        self._api.download_repo(
            name.repo, name.kind, revision=name.revision, local_dir=name.folder, allow_patterns=patterns
        )
