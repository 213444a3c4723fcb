"""A file of conformance cases -> checked `Case`s.

A case holds inputs, the definition of a loss, and what a peer's own function made of them. Files come from strangers:
strict JSON, nothing is run, and every name, rank, shape and mask is checked. A key `peer` or `peer_raw`, or one that
resembles none of the format's, is informative and ignored.

    B  responses    T  response-token slots, as the conformance format calls them
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, ConfigDict, Field, PlainValidator, create_model
from pydantic_core import PydanticCustomError

from mindgspo.errors import DataError
from mindgspo.text import closest
from mindgspo_conformance.definitions import OverlongConfig, loss_config
from mindgspo_conformance.strict import Strict, hint, read_model, type_name

Float64Array = NDArray[np.float64]
KINDS = ("policy_loss", "kl", "agg", "advantage", "reward_norm", "overlong")
# Kinds that MindSpore cells take part in.
KINDS_OF_CELLS = ("policy_loss", "kl", "agg")

# 2,000 times the size of the usual file of a thousand cases is a wrong file, not a large one.
LARGEST_FILE = 1 << 30
SHOWN_PROBLEMS = 10
NOT_FINITE = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Inputs, a mathematical definition, and what a peer's own function made of them.

    name: scenario/recipe/source. kind: one of KINDS. source: the function that was run. config: the definition, as in
    the file. inputs, expected: arrays by their names in the file; a number of the file is an array of rank 0.
    metrics: expected averages by name. edge_margin: distance of the closest ratio from a clip threshold, inf where
    the file has none.
    """

    name: str
    kind: str
    source: str
    config: Mapping[str, Any]
    inputs: Mapping[str, Float64Array]
    expected: Mapping[str, Float64Array]
    metrics: Mapping[str, float] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    edge_margin: float = float("inf")

    @property
    def correction(self) -> Float64Array | None:
        """The weights against the mismatch of sampler and trainer [B, T]; None without any. TRL's VESPO multiplies
        those of masked slots, too: they are folded into a row's first real token."""
        weights = self.inputs.get("rollout_is_weights")
        if weights is None or self.config.get("surrogate") != "vespo":
            return weights
        folded, real = np.where(self.inputs["mask"] == 1, weights, 1.0), self.inputs["mask"] == 1
        for row in np.flatnonzero(real.any(axis=1)):
            folded[row, real[row].argmax()] *= weights[row, ~real[row]].prod()
        return folded

    @property
    def peer(self) -> str:
        """The project whose function was run and its version: the source up to the colon, without a date."""
        return re.sub(r", \d{4}-\d\d-\d\d\b", "", self.source.partition(": ")[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Each None: all cases. source, name: a part of it, in capitals or not. kind: exactly one of KINDS."""

    source: str | None = None
    kind: str | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        if self.kind is not None and self.kind not in KINDS:
            raise DataError(f"--kind: unknown {self.kind!r}{hint(self.kind, KINDS)}")

    def select(self, path: Path, cases: Sequence[Case]) -> list[Case]:
        """The cases that pass all filters. Raises DataError if there is none, with what one might have meant."""
        chosen = [case for case in cases if self._passes(case)]
        if not chosen:
            given = {f"--{key}": getattr(self, key) for key in ("source", "kind", "name")}
            options = " ".join(f"{option} {value!r}" for option, value in given.items() if value is not None)
            kinds = ", ".join(dict.fromkeys(case.kind for case in cases))
            sources = ", ".join(dict.fromkeys(case.peer for case in cases))
            raise DataError(
                f"{path}: none of {len(cases)} cases has {options}; kinds here: {kinds}; sources here: {sources}"
            )
        return chosen

    def _passes(self, case: Case) -> bool:
        return (
            (self.kind is None or case.kind == self.kind)
            and (self.source is None or self.source.casefold() in case.source.casefold())
            and (self.name is None or self.name.casefold() in case.name.casefold())
        )


def shape_text(array: Float64Array) -> str:
    """[4, 6] of an array, "a number" for rank 0."""
    return str(list(array.shape)) if array.ndim else "a number"


def _wrong(rule: str, at: str = "") -> PydanticCustomError:
    return PydanticCustomError("array", "{rule}", {"rule": rule, "at": at})


def _number(value: Any, at: str = "") -> float:
    """A number, or one of the three texts that stand for one."""
    if isinstance(value, str) and value in NOT_FINITE:
        return NOT_FINITE[value]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        given = repr(value[:40]) if isinstance(value, str) else type_name(value)
        raise _wrong(f'expected a number, "nan", "inf" or "-inf", got {given}', at)
    try:
        return float(value)
    except OverflowError as error:
        raise _wrong(f"a whole number of {len(str(value))} digits is beyond float64", at) from error


_RANK_WORDS = {0: "a number", 1: "a list [B]", 2: "a matrix [B, T]"}


def _array(value: Any, *ranks: int) -> Float64Array:
    """float64 array from a number, a list of numbers, or a list of lists of one length: no text, null or boolean."""
    if not isinstance(value, list):
        array = np.asarray(_number(value))
    elif not any(isinstance(entry, list) for entry in value):
        array = np.asarray([_number(entry, f"[{i}]") for i, entry in enumerate(value)], dtype=np.float64)
    else:
        for i, row in enumerate(value):
            if not isinstance(row, list):
                raise _wrong("a number among lists; expected rows of numbers", f"[{i}]")
            if len(row) != len(value[0]):
                raise _wrong(f"rows differ in length: row 0 has {len(value[0])}, row {i} has {len(row)}")
        rows = [[_number(entry, f"[{i}, {j}]") for j, entry in enumerate(row)] for i, row in enumerate(value)]
        array = np.asarray(rows, dtype=np.float64)
    if array.ndim not in ranks:
        wanted = " or ".join(_RANK_WORDS[rank] for rank in ranks)
        raise _wrong(f"expected {wanted}, got rank {array.ndim}, shape {shape_text(array)}")
    if array.size == 0:
        raise _wrong(f"is empty, shape {shape_text(array)}")
    return array


def _zeros_and_ones(mask: Float64Array) -> Float64Array:
    other = np.argwhere(~np.isin(mask, (0.0, 1.0)))
    if other.size:
        row, slot = other[0]
        raise _wrong(f"expected 0 or 1, got {mask[row, slot]:g}", f"[{row}, {slot}]")
    return mask


Number = Annotated[float, PlainValidator(lambda value: _number(value))]
Scalar = Annotated[Float64Array, PlainValidator(lambda value: _array(value, 0))]
Vector = Annotated[Float64Array, PlainValidator(lambda value: _array(value, 1))]
Matrix = Annotated[Float64Array, PlainValidator(lambda value: _array(value, 2))]
PerResponseOrToken = Annotated[Float64Array, PlainValidator(lambda value: _array(value, 1, 2))]
Mask = Annotated[Matrix, AfterValidator(_zeros_and_ones)]
_TYPES = {
    **dict.fromkeys(("loss", "pg_loss", "kl_loss"), Scalar),
    **dict.fromkeys(("rewards", "group", "reward_baselines", "reward_weights", "lengths", "penalty"), Vector),
    **dict.fromkeys(("logp", "old_logp", "ref_logp", "sampling_logp", "rollout_is_weights", "loss_mat"), Matrix),
    **dict.fromkeys(("values", "sum_pi_squared"), Matrix),
    **dict.fromkeys(("token_rewards", "rewards_per_func", "grad_logp", "grad_loss_mat", "kl_token", "returns"), Matrix),
    "advantages": PerResponseOrToken,
    **dict.fromkeys(("mask", "selected"), Mask),
}


def _model(name: str, needed: str, optional: str = "", **others: Any) -> type[Strict]:
    fields: dict[str, Any] = {key: (_TYPES[key], ...) for key in needed.split()}
    fields |= {key: (_TYPES[key] | None, None) for key in optional.split()}
    return create_model(name, __base__=Strict, **fields, **others)


_METRICS = (
    "pg_clipfrac", "pg_clipfrac_lower", "clip_low", "clip_high", "clip_region", "cispo_clipfrac", "gmpo_clipped_Apos",
    "gmpo_clipped_Aneg", "ppo_kl", "kl",
)  # fmt: skip
_BY_WEIGHT = {f"{name}_{weighting}": (Number | None, None) for name in _METRICS for weighting in ("token", "seq")}
_Metrics = create_model("_Metrics", __base__=Strict, **_BY_WEIGHT)

INPUTS: Mapping[str, type[Strict]] = {
    "policy_loss": _model(
        "LossInputs", "logp old_logp advantages mask", "ref_logp rollout_is_weights sampling_logp selected"
    ),
    "kl": _model("KLInputs", "logp ref_logp mask", "old_logp"),
    "agg": _model("AggregationInputs", "loss_mat mask"),
    "advantage": _model(
        "AdvantageInputs",
        "",
        "rewards token_rewards mask group values reward_baselines old_logp ref_logp sum_pi_squared rollout_is_weights",
    ),
    "reward_norm": _model("RewardNormInputs", "", "rewards rewards_per_func reward_weights"),
    "overlong": _model("OverlongInputs", "lengths"),
}
EXPECTED: Mapping[str, type[Strict]] = {
    "policy_loss": _model("LossExpected", "loss grad_logp", "pg_loss kl_loss", metrics=(_Metrics, _Metrics())),
    "kl": _model("KLExpected", "loss grad_logp kl_token"),
    "agg": _model("AggregationExpected", "loss grad_loss_mat"),
    "advantage": _model("AdvantageExpected", "advantages", "returns"),
    "reward_norm": _model("RewardNormExpected", "advantages"),
    "overlong": _model("OverlongExpected", "penalty"),
}


def _one_line(text: str) -> str:
    if not text or not text.isprintable():
        raise _wrong(f"expected one line of printable text, got {text[:60]!r}")
    return text


class _Entry(Strict):
    """A case as it stands in the file; its parts are read once the kind is known."""

    model_config = ConfigDict(extra="ignore")

    name: Annotated[str, AfterValidator(_one_line)]
    kind: str
    source: Annotated[str, AfterValidator(_one_line)]
    config: dict[str, Any]
    inputs: dict[str, Any]
    expected: dict[str, Any]
    tags: list[str] = Field(default_factory=list)
    edge_margin: Number | None = None


# ----- reading


def read_cases(path: Path) -> list[Case]:
    """All cases of a JSON list, or of JSON Lines.

    Raises DataError for a file that is not strict JSON in UTF-8 (NaN and Infinity as bare words, a key twice in one
    object), and with one line per wrong case (the first 10), each naming file, case, key, the rule and what was given.
    """
    cases, problems = [], []
    for number, entry in enumerate(_entries(path), 1):
        try:
            cases.append(_case(entry))
        except DataError as error:
            name = entry.get("name") if isinstance(entry, dict) else None
            problems.append(f"{path}: case {repr(name) if isinstance(name, str) else f'number {number}'}: {error}")
    if problems:
        more = len(problems) - SHOWN_PROBLEMS
        shown = problems[:SHOWN_PROBLEMS] + ([f"... and {more} more wrong cases"] if more > 0 else [])
        raise DataError("\n".join(shown))
    return cases


def _case(entry: Any) -> Case:
    if not isinstance(entry, dict):
        raise DataError(f"expected an object with the keys {', '.join(_Entry.model_fields)}, got {type_name(entry)}")
    known = (*_Entry.model_fields, "peer", "peer_raw")
    for key in entry:
        close = None if key in known else closest(key, known)
        if close and close not in entry:
            raise DataError(f"{key}: unknown key; did you mean {close!r}?")
    read = read_model("", _Entry, entry)
    if read.kind not in KINDS:
        raise DataError(f"kind: unknown {read.kind!r}{hint(read.kind, KINDS)}")
    expected = _given(read_model("expected", EXPECTED[read.kind], read.expected))
    metrics = expected.pop("metrics", None)
    case = Case(
        name=read.name,
        kind=read.kind,
        source=read.source,
        config=read.config,
        inputs=_given(read_model("inputs", INPUTS[read.kind], read.inputs)),
        expected=expected,
        metrics={} if metrics is None else _given(metrics),
        tags=tuple(read.tags),
        edge_margin=float("inf") if read.edge_margin is None else read.edge_margin,
    )
    check_case(case)
    return case


def _given(model: Strict) -> dict[str, Any]:
    return {name: value for name, value in model if value is not None}


_DPPO = ("dppo_tv", "dppo_kl")
_NEEDED = {"clip_low": _DPPO, "clip_high": _DPPO, "clip_ratio_c": (*_DPPO, "fipo")}


def check_case(case: Case) -> None:
    """Raises DataError for an array that has not the rows of the inputs, or not the shape of the mask, and for an
    illegal definition."""
    _check_shapes(case)
    _check_definition(case)


def _check_shapes(case: Case) -> None:
    # reward_norm counts functions, not tokens, along its second axis.
    model = next((name for name in ("mask", "rewards", "rewards_per_func", "lengths") if name in case.inputs), None)
    if model is None:
        return
    shape = case.inputs[model].shape
    arrays = {f"inputs.{name}": array for name, array in case.inputs.items()}
    arrays |= {f"expected.{name}": array for name, array in case.expected.items()}
    for place, array in arrays.items():
        if array.ndim == 1 and place != "inputs.reward_weights" and array.shape[0] != shape[0]:
            raise DataError(f"{place}: {array.shape[0]} entries for {shape[0]} rows of inputs.{model}")
        if array.ndim == 2 and model == "mask" and array.shape != shape:
            raise DataError(f"{place}: shape {shape_text(array)}, but inputs.mask has {list(shape)}")


def _check_definition(case: Case) -> None:
    """The options of advantages and reward norms are left to the functions that read them: what an estimator does not
    know fails its case and not the file."""
    if case.kind == "overlong":
        read_model("config", OverlongConfig, case.config)
    if case.kind not in ("policy_loss", "kl", "agg"):
        return
    config, num_slots = loss_config(case.config), case.inputs["mask"].shape[1]
    if case.kind == "policy_loss":
        definition = config.definition(num_slots)
        if definition.aggregation.mode == "batch-mean" and definition.surrogate != "gmpo":
            raise DataError("config.loss_agg_mode: batch-mean is for surrogate gmpo, which has one loss per response")
        if definition.kl is not None and "ref_logp" not in case.inputs:
            raise DataError("inputs.ref_logp: missing; config.kl_type needs it")
        if definition.surrogate in ("clip_cov", "kl_cov") and "selected" not in case.inputs:
            raise DataError(f"inputs.selected: missing; config.surrogate {definition.surrogate} needs it")
        for key, surrogates in _NEEDED.items():
            if definition.surrogate in surrogates and getattr(definition, key) is None:
                raise DataError(f"config.{key}: missing; config.surrogate {definition.surrogate} needs it")
        return
    if case.kind == "kl":
        term = config.kl_term(num_slots)
        if term.importance_weight and "old_logp" not in case.inputs:
            raise DataError("inputs.old_logp: missing; config.kl_importance_weight needs it")
    config.aggregation(num_slots)
    if config.loss_agg_mode == "batch-mean":
        raise DataError("config.loss_agg_mode: batch-mean is for losses with one value per response")


def _entries(path: Path) -> list[Any]:
    try:
        size = path.stat().st_size
        if size > LARGEST_FILE:
            raise DataError(f"{path}: {size:,} bytes; a conformance file has at most {LARGEST_FILE:,}")
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text: byte {error.start} is 0x{error.object[error.start]:02x}") from error
    if text.lstrip(" \t\r\n").startswith("{"):
        # Not splitlines(): JSON texts may hold U+2028 and its like unescaped.
        return [_parsed(line, f"{path}:{number}") for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    entries = _parsed(text, str(path))
    if not isinstance(entries, list):
        raise DataError(f"{path}: expected a JSON list of cases, got {type_name(entries)}")
    if not entries:
        raise DataError(f"{path}: no cases: the list is empty")
    return entries


def _parsed(text: str, place: str) -> Any:
    def constant(word: str) -> NoReturn:
        raise DataError(f'{place}: {word} is not JSON; a number that is not finite is the text "nan", "inf" or "-inf"')

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise DataError(f"{place}: key {twice!r} stands twice in one object")
        return found

    try:
        return json.loads(text, parse_constant=constant, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise DataError(f"{place}: not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from error
    except RecursionError as error:
        raise DataError(f"{place}: lists or objects are nested too deeply") from error
    except ValueError as error:  # Python refuses to convert integers of more than 4300 digits
        raise DataError(f"{place}: a number cannot be read: {error}") from error
