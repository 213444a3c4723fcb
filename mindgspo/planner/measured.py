"""Peak memory that MindSpore's allocator reported in a dry run: a JSON file per graph and rank."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindgspo.config import ExperimentConfig
from mindgspo.config.model import FAMILIES
from mindgspo.config.section import Section
from mindgspo.io import read_json, write_json

_FOLDER = "memory"
# Sections that determine graphs; of `model`, everything except the place of its weights.
_SECTIONS = ("model", "plans", "algorithm", "rollout")
_KEYS = {
    "data": ("max_prompt_length",),
    "trainer": ("samples_per_micro_batch", "max_tokens_per_micro_batch", "packing", "length_multiple"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPeak:
    """Peak memory of one call of one graph on one rank."""

    fingerprint: str
    """Fingerprint of the configuration."""
    graph: str
    """"train", "reference", "prefill", ..."""
    rank: int
    world_size: int
    mindspore: str
    """MindSpore's version."""
    allocated: int
    """Bytes of all tensors at the peak."""
    reserved: int
    """Bytes of the blocks that the allocator had taken for them."""


def fingerprint(config: ExperimentConfig, graph: str) -> str:
    """16 digits that are equal for all configurations that have this graph. Defaults do not count, so a new setting
    that is not used changes nothing; nor does the cache's budget count for graphs without a cache."""
    said = _said(config)
    content = {section: said.get(section, {}) for section in _SECTIONS}
    if graph not in ("prefill", "decode"):
        content["rollout"].pop("cache_gb", None)
    content["model"].pop("path", None)
    if FAMILIES[config.model.architecture].has_attention_bias is not None:  # filled in from the family
        content["model"].pop("attention_bias", None)
    if "tokens_per_sync" in content["rollout"]:  # the name that stored fingerprints have
        content["rollout"]["tokens_per_look"] = content["rollout"].pop("tokens_per_sync")
    for section, keys in _KEYS.items():
        content[section] = {key: value for key, value in said.get(section, {}).items() if key in keys}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _said(section: Section) -> dict[str, Any]:
    """Values other than their defaults; a switch whose default is derived and which is off counts as none."""
    said = {}
    for key, value in section.model_dump(mode="json", exclude_defaults=True).items():
        inner = getattr(section, key)
        if value is not False or type(section).model_fields[key].default is not None:
            said[key] = _said(inner) if isinstance(inner, Section) else value
    return said


def store_peak(folder: Path, peak: MeasuredPeak) -> None:
    """folder: of the dry run. An earlier measurement of this graph and rank is replaced."""
    path = folder / _FOLDER / f"{peak.graph}_{peak.rank}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, dataclasses.asdict(peak))


def stored_peaks(folder: Path, config: ExperimentConfig) -> list[MeasuredPeak]:
    """Peaks in a dry run's folder that belong to the configuration, by graph and rank; files of others are left out."""
    found = [peak for peak in _read(folder) if peak.fingerprint == fingerprint(config, peak.graph)]
    return sorted(found, key=lambda peak: (peak.graph, peak.rank))


def _read(folder: Path) -> Iterator[MeasuredPeak]:
    for path in (folder / _FOLDER).glob("*.json"):
        try:
            yield MeasuredPeak(**read_json(path))
        except (OSError, ValueError, TypeError):  # not ours, or of another version: as if it were not there
            continue
