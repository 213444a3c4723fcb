"""What a model's folder says: sizes from config.json, names of end tokens. Where a file only names a model, its sizes
are those of model_configs/, if the name is known, also where its letters and digits stand in another spelling; a name
that is not in the table is not guessed at.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mindgspo
from mindgspo.config.load import read_layers
from mindgspo.errors import MindGSPOError
from mindgspo_migrate.experiment import Experiment, schema_default
from mindgspo_migrate.tables import Status, dotted, local_path

_FOLDER = Path(mindgspo.__file__).resolve().parents[1] / "model_configs"
_HUB_NAME = re.compile(r"\w[\w.-]*/[\w.-]+")  # a path such as ./Qwen3-8B is none

# Last part of a path or of a hub's name -> file of model_configs/, and what is different in that variant.
KNOWN: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    **{
        f"Qwen2.5-{name}": (f"qwen2_5_{name.lower().replace('.', '_')}", {})
        for name in ("0.5B", "1.5B", "3B", "7B", "32B")
    },
    **{
        f"Qwen2.5-{name}-Instruct": (
            f"qwen2_5_{name.lower().replace('.', '_')}",
            {"max_position_embeddings": 32768},
        )
        for name in ("0.5B", "1.5B", "3B", "7B", "32B")
    },
    **{f"Qwen3-{name}": (f"qwen3_{name.lower().replace('.', '_')}", {}) for name in ("0.6B", "4B", "8B", "32B")},
    "Qwen2.5-Math-7B": ("qwen2_5_7b", {"max_position_embeddings": 4096, "rope_theta": 10000.0}),
    "Qwen3-30B-A3B": ("qwen3_30b_a3b", {}),
    "Qwen3-30B": ("qwen3_30b_a3b", {}),  # the one Qwen3 of 30B
    "Qwen3-30B-A3B-Base": ("qwen3_30b_a3b", {"max_position_embeddings": 32768}),
    "Qwen3-30B-A3B-Instruct-2507": (
        "qwen3_30b_a3b",
        {"max_position_embeddings": 262144, "rope_theta": 10000000.0},
    ),
    "Llama-3.1-8B": ("llama3_1_8b", {}),
    **{name: ("glm4_9b", {}) for name in ("GLM-4-9B-0414", "GLM-Z1-9B-0414")},
    "GLM-4.5-Air": ("glm4_5_air", {}),
    **{name: ("moonlight_16b_a3b", {}) for name in ("Moonlight-16B-A3B", "Moonlight-16B-A3B-Instruct")},
}


def _spelling(name: str) -> str:
    """A name without what people leave out or write otherwise: Qwen25_3B is Qwen2.5-3B."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


_BY_SPELLING: Mapping[str, str] = {_spelling(name): name for name in KNOWN}
assert len(_BY_SPELLING) == len(KNOWN), "two known models have one spelling"

_QWEN_TOKENS = {151643: "<|endoftext|>", 151645: "<|im_end|>"}
"""Of Qwen2, Qwen2.5 and Qwen3."""
_QWEN_FAMILIES = ("qwen2", "qwen3", "qwen3_moe")
_EOS, _PAD = "tokenizer.eos_tokens", "tokenizer.pad_token"
_MOST_BYTES = 100_000_000  # of a JSON file beside a tokenizer


def is_local(path: str) -> bool:
    """Whether a model's path is a folder here, or can only be one, and not a name on a hub."""
    return Path(local_path(path)).is_dir() or not _HUB_NAME.fullmatch(path)


def sizes_of(path: str) -> tuple[Mapping[str, Any], str] | None:
    """(keys below `model`, where they are from) of a model's path or hub name; None if neither is known."""
    folder = Path(local_path(path))
    if (folder / "config.json").is_file():
        return _from_folder(folder)
    given = Path(path).name
    name = _BY_SPELLING.get(_spelling(given))
    if name is None or not (file := _FOLDER / f"{KNOWN[name][0]}.yaml").is_file():
        return None
    sizes = {key: value for key, value in read_layers(file, ())["model"].items() if key not in ("path", "dtype")}
    origin = f"model_configs/{file.name}, by the name {given}"
    return dict(dotted({**sizes, **KNOWN[name][1]})), origin if given == name else f"{origin}, taken for {name}"


def take_sizes(experiment: Experiment, key: str, path: str, *, fill: bool = False) -> None:
    """The sizes of the model that `key` of a foreign file names. fill: only those that are not set yet."""
    try:
        found = sizes_of(path)
    except ValueError as error:
        experiment.report(Status.UNREADABLE, key, path, str(error))
        return
    if found is None:
        return
    sizes, origin = {f"model.{name}": value for name, value in found[0].items()}, found[1]
    experiment.set({name: sizes[name] for name in sizes if not fill or name not in experiment.values}, origin)
    if ", taken for " in origin:
        experiment.report(Status.ASSUMED, "model.*", "", f"{origin}; config.json of model.path is what counts")


def _from_folder(folder: Path) -> tuple[Mapping[str, Any], str] | None:
    from mindgspo.config.huggingface_config import read_model_section

    try:
        section = read_model_section(folder)
    except MindGSPOError as error:
        raise ValueError(str(error)) from error
    sizes = section.model_dump(mode="json", exclude={"path", "dtype"}, exclude_unset=True)
    return dict(dotted(sizes)), f"{folder / 'config.json'}"


def take_model_folder(experiment: Experiment) -> None:
    """The sizes in config.json of `model.path` count, whatever a foreign file says: they describe the weights."""
    path = experiment.get("model.path")
    if not path:
        return
    try:
        found = sizes_of(str(path))
    except ValueError as error:
        experiment.report(Status.UNREADABLE, "model.path", path, str(error))
        return
    sizes, origin = found if found is not None else ({}, "")
    is_folder = (Path(str(path)).expanduser() / "config.json").is_file()
    for key, value in ((f"model.{name}", value) for name, value in sizes.items()):
        given = experiment.values.get(key)
        if given is not None and (given.origin == "--set" or given.value == value or not is_folder):
            continue
        if given is not None:
            why = f"{value}, as {origin} says, which describes the weights"
            experiment.report(Status.ADJUSTED, key, given.value, why)
        experiment.set({key: value}, origin)


def take_end_tokens(experiment: Experiment) -> None:
    """The names of end tokens that a foreign file or the model's generation_config.json gives as ids."""
    ids = experiment.end_token_ids or _of_generation(experiment)
    path = experiment.get("tokenizer.path")
    names = _special_tokens(Path(str(path)).expanduser()) if path else {}
    if not names and experiment.get("model.architecture") in _QWEN_FAMILIES:
        names = _QWEN_TOKENS
    for target, (wanted, origin) in ids.items():
        unknown = [one for one in wanted if one not in names]
        if experiment.get(target) is not None:
            continue
        if unknown:
            why = f"ids {unknown} have no name in tokenizer.path; set {target}"
            experiment.report(Status.UNREADABLE, origin, wanted, why)
            continue
        found: Any = [names[one] for one in wanted]
        value = found if target == _EOS else found[0]
        if value != _plain(schema_default(target)):
            experiment.set({target: value}, origin)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _of_generation(experiment: Experiment) -> dict[str, tuple[Sequence[int], str]]:
    path = experiment.get("model.path") or experiment.get("tokenizer.path")
    content = _json(Path(str(path)).expanduser() / "generation_config.json") if path else {}
    found: dict[str, tuple[Sequence[int], str]] = {}
    for target, key in ((_EOS, "eos_token_id"), (_PAD, "pad_token_id")):
        ids = token_ids(content.get(key))
        if ids:
            found[target] = (ids, f"generation_config.json, {key}")
    return found


def token_ids(value: Any) -> list[int]:
    """One id, or a list of them; empty for anything else."""
    entries = value if isinstance(value, list) else [value]
    return entries if all(isinstance(one, int) and not isinstance(one, bool) for one in entries) else []


def _special_tokens(folder: Path) -> dict[int, str]:
    """Names by id of what tokenizer.json or tokenizer_config.json of a folder adds to the vocabulary."""
    added = _json(folder / "tokenizer.json").get("added_tokens")
    decoder = _json(folder / "tokenizer_config.json").get("added_tokens_decoder")
    entries = [(entry.get("id"), entry) for entry in (added if isinstance(added, list) else ()) if _is_token(entry)]
    named = decoder.items() if isinstance(decoder, dict) else ()
    entries += [(key, entry) for key, entry in named if _is_token(entry)]
    return {int(key): entry["content"] for key, entry in entries if re.fullmatch(r"\d{1,9}", str(key))}


def _is_token(entry: Any) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("content"), str)


def _json(path: Path) -> dict[str, Any]:
    try:
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return {}
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
