"""Settings of LoRA that suites share: which projections their names mean, and what adapters here do not do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mindgspo_migrate.tables import Outcome, Row, Settings, adjusted, mapped, not_implemented, not_needed, number, texts

_ATTENTION, _MLP = ("q_proj", "k_proj", "v_proj", "o_proj"), ("gate_proj", "up_proj", "down_proj")
# Names of Hugging Face, MindFormers' cells, and Megatron, whose joint matrices have one A for all their parts.
_PROJECTIONS: Mapping[str, tuple[str, ...]] = {
    **{name: (name,) for name in (*_ATTENTION, *_MLP)},
    **dict(zip(("wq", "wk", "wv", "wo"), ((name,) for name in _ATTENTION), strict=True)),
    **dict(zip(("linear_q", "linear_k", "linear_v", "linear_proj"), ((name,) for name in _ATTENTION), strict=True)),
    **dict(zip(("w1", "w3", "w2"), ((name,) for name in _MLP), strict=True)),
    **dict(zip(("linear_fc1_gate", "linear_fc1_up", "linear_fc2"), ((name,) for name in _MLP), strict=True)),
    **dict.fromkeys(("linear_qkv", "w_qkv", "qkv_proj"), _ATTENTION[:3]),
    **dict.fromkeys(("linear_fc1", "w_gate_hidden", "gate_up_proj"), _MLP[:2]),
}
_OF_PEFT = ["q_proj", "v_proj"]  # where no name is given, for the families here
_EVERY = ("all-linear", "all_linear")
# What patterns of names may consist of here: no classes, counts or looks ahead, and no number of a layer.
_PATTERN = re.compile(r"[\w.*^$()\\/\s-]*")
_NO_DROPOUT = "adapters drop nothing: the sampler would have to drop the same values as the trainer"


def lora_targets(value: Any, settings: Settings, row: Row) -> Outcome:
    """`model.lora.targets` of a list of names, or of patterns such as ".*wq|.*wv"; of null those of PEFT."""
    names = texts(_OF_PEFT if value is None else value)
    entries = [one.strip() for entry in names for one in re.split(r"[|,]", entry) if one.strip()]
    found, unknown = set(), []
    for entry in entries:
        words = re.findall(r"\w+", entry) if _PATTERN.fullmatch(entry) else []
        if entry in _EVERY:
            found.update(_ATTENTION + _MLP)
        elif words and words[-1] in _PROJECTIONS and not any(word.isdigit() for word in words):
            found.update(_PROJECTIONS[words[-1]])
        else:
            unknown.append(entry)
    targets = [name for name in _ATTENTION + _MLP if name in found]
    for word, names in (("attention", _ATTENTION), ("mlp", _MLP)):
        if found.issuperset(names):
            targets = [word, *(name for name in targets if name not in names)]
    targets = ["all"] if {"attention", "mlp"} <= set(targets) else targets
    values = {row.target: targets} if targets else {}
    if unknown:
        why = f"no projection that has adapters here: {', '.join(unknown)}; list projections in model.lora.targets"
        return replace(not_implemented(why), values=values)
    return mapped(values)


def lora_dropout(value: Any, settings: Settings, row: Row) -> Outcome:
    return not_implemented(_NO_DROPOUT) if value is not None and number(value) else not_needed("none, as here")


def lora_init(value: Any, settings: Settings, row: Row) -> Any:
    """How A is drawn."""
    if str(value).lower() in ("kaiming", "he_uniform", "heuniform"):
        return "kaiming"
    if str(value).lower() in ("normal", "gaussian"):
        return adjusted({row.target: "gaussian"}, "with the standard deviation 1 / rank")
    return not_implemented("model.lora.init is kaiming or gaussian")


FUNCTIONS: Mapping[str, Any] = {function.__name__: function for function in (lora_dropout, lora_init, lora_targets)}
"""What tables name under `read`."""
