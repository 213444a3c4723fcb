"""Pydantic's errors as lines a user can act on: full path, rule, given value, nearest fix."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Annotated, Any, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from mindgspo.config.data import LISTED_SOURCES, NAMED_SOURCES, ONE_SOURCE
from mindgspo.config.schema import ExperimentConfig
from mindgspo.config.section import Section
from mindgspo.errors import ConfigError
from mindgspo.text import closest, did_you_mean, either, shorten

_EXPECTED = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "a text",
    "path_type": "a path",
    "tuple_type": "a list, e.g. [a, b]",
    "dict_type": "a mapping, e.g. {a: b}",
    "model_type": "a section with keys of its own",
    "model_attributes_type": "a section with keys of its own",
}

_BOUNDS = {
    "greater_than": (">", "gt"),
    "greater_than_equal": (">=", "ge"),
    "less_than": ("<", "lt"),
    "less_than_equal": ("<=", "le"),
}

_MOST_LINES = 20

_NAME_THEM_ALL = (
    "give that one a name, too: data.eval: {NAME: {format: ..., ...}, ...} (--set data.eval=null first drops what the "
    "file says)"
)

_SENTENCE_END = re.compile(r"(?<!\be\.g)(?<!\bi\.e)\. ")

# Other names of a value.
_SYNONYMS = {("device", name): "Ascend" for name in ("npu", "ascend910", "ascend910b")}

_SHORT_DTYPES = {
    **dict.fromkeys(("fp16", "half", "f16"), "float16"),
    **dict.fromkeys(("bf16", "bfp16"), "bfloat16"),
    **dict.fromkeys(("fp32", "float", "f32"), "float32"),
}

# Top-level sections of other suites, each with the suite and what is converted of it.
_FOREIGN_SECTIONS = {
    "actor_rollout_ref": ("verl", "script"),
    **dict.fromkeys(("rl_config", "actor_config", "generate_config"), ("MindRLHF or MindSpeed-RL", "file")),
    "megatron_training": ("MindSpeed-RL", "file"),
    **dict.fromkeys(("runner_config", "parallel_config"), ("MindFormers", "file")),
}

# Values that other suites have and this one has not, with the reason.
_NOT_BUILT = {("estimator", "gae"): "it needs a value model, which this suite does not train"}


def schema_problems(error: ValidationError, root: type[Section] = ExperimentConfig) -> list[str]:
    """One line per problem, unknown keys first: a misspelt key often explains a missing one. root: what the file is."""
    details = [one for one in error.errors(include_url=False) if not _follows_from_another(one)]
    details.sort(key=lambda one: one["type"] != "extra_forbidden")
    details = _without_second_forms(details)
    more = [f"and {len(details) - _MOST_LINES:,} more"] if len(details) > _MOST_LINES else []
    return [f"{shorten(_dotted(one['loc']), 200)}: {_sentence(one, root)}" for one in details[:_MOST_LINES]] + more


def config_error(source: str, problems: list[str]) -> ConfigError:
    """The error that lists all problems of a file, one per line."""
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return ConfigError("\n  ".join([f"{source}: {count}", *problems]))


def known_keys(section: type[Section] = ExperimentConfig, prefix: str = "") -> Iterator[tuple[str, str]]:
    """(full dotted path, text) of every key of the schema, in its order."""
    for name, field in section.model_fields.items():
        yield prefix + name, field.description or ""
        below = section_of(section, name)
        if below is not None:
            yield from known_keys(below, f"{prefix}{name}.")


def section_of(section: type[Section], name: str) -> type[Section] | None:
    """The class of the subsection at key `name`, None if the key holds a value. Of a key that holds a section or
    several by name, the class of one."""
    annotation = section.model_fields[name].annotation
    return next((found for option in (annotation, *get_args(annotation)) if (found := _section_in(option))), None)


def listed_section(section: type[Section], name: str) -> type[Section] | None:
    """The class of the entries of a list of sections at key `name`, None if the key holds no such list."""
    for option in get_args(section.model_fields[name].annotation):
        entries = get_args(option)[0] if get_origin(option) is Annotated else option
        if get_origin(entries) is tuple and (found := _section_in(get_args(entries)[0])) is not None:
            return found
    return None


def _section_in(annotation: Any) -> type[Section] | None:
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    return annotation if isinstance(annotation, type) and issubclass(annotation, Section) else None


def _without_second_forms(details: list[ErrorDetails]) -> list[ErrorDetails]:
    """A value that may be a word or a path fails as both, but that is one problem."""
    words = {one["loc"][:-1] for one in details if one["type"] == "literal_error"}
    return [one for one in details if not (one["loc"] and _is_path(one["loc"][-1]) and one["loc"][:-1] in words)]


def _is_path(step: int | str) -> bool:
    """Pydantic names the forms of a union after its own functions; this one means a path."""
    return isinstance(step, str) and step.startswith("lax-or-strict[")


def _follows_from_another(detail: ErrorDetails) -> bool:
    """Pydantic calls a list too short when its only entry is wrong, which is a line of its own already."""
    context = detail.get("ctx", {})
    return detail["type"] == "too_short" and len(detail["input"]) >= context["min_length"]


def _sentence(detail: ErrorDetails, root: type[Section]) -> str:
    kind, given, context = detail["type"], detail["input"], detail.get("ctx", {})
    if kind == "extra_forbidden" and ONE_SOURCE in detail["loc"] and isinstance(given, dict):
        return "a set of held-out problems beside the keys of a single one; " + _NAME_THEM_ALL
    if kind == "extra_forbidden":
        return f"unknown key; {_unknown_key_fix(detail['loc'], root)}"
    if kind == "missing":
        return f"missing; {_description(detail['loc'], root)}"
    if kind in _EXPECTED:
        return f"expected {_EXPECTED[kind]}, got {_shown(given)}"
    if kind in _BOUNDS:
        sign, key = _BOUNDS[kind]
        bound = context[key]
        return f"must be {sign} {f'{bound:,}' if isinstance(bound, int) else f'{bound:g}'}, got {_shown(given)}"
    if kind == "literal_error":
        options = context["expected"]
        if _is_form(detail["loc"][-1]):
            return f"expected {options.replace(' or ', ', ')} or a path, got {_shown(given)}"
        return f"expected {options}, got {_shown(given)}{_hint(str(detail['loc'][-1]), given, options)}"
    if kind == "too_short":
        return f"needs at least {context['min_length']} entry, got {_shown(given)}"
    if kind == "string_pattern_mismatch":
        return f"must match {context['pattern']} (a folder is named after it), got {_shown(given)}"
    return f"{detail['msg'][0].lower()}{detail['msg'][1:]}, got {_shown(given)}"


def _shown(value: Any) -> str:
    """The value as the user may have written it, cut to one short line."""
    if value is None:
        return "null (nothing)"
    shown = repr(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return shorten(shown)


def _dotted(location: tuple[int | str, ...]) -> str:
    """("reward", "weights", 0) -> "reward.weights[0]"."""
    hidden = (ONE_SOURCE, NAMED_SOURCES, LISTED_SOURCES, "[key]")
    shown = (step for step in location if step not in hidden and not _is_form(step))
    dotted = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in shown)
    return dotted.removeprefix(".") or "the file"


def _is_form(step: int | str) -> bool:
    """Whether a step of a location is pydantic's name for a form of a union."""
    return _is_path(step) or str(step).startswith("literal[")


def _section_at(location: tuple[int | str, ...], root: type[Section]) -> type[Section]:
    """The section that a key location (without the key itself) leads to."""
    section, steps = root, iter(location)
    for number, step in enumerate(steps):
        if step == NAMED_SOURCES:
            next(steps, None)  # a name of the user's
        if step in (ONE_SOURCE, NAMED_SOURCES, LISTED_SOURCES) or isinstance(step, int):
            continue
        is_listed = LISTED_SOURCES in location[number + 1 : number + 2]
        below = (listed_section if is_listed else section_of)(section, str(step))
        assert below is not None, f"pydantic reported a key below the value at {location}"
        if get_origin(section.model_fields[str(step)].annotation) is dict:
            next(steps, None)  # a name of the user's
        section = below
    return section


def _unknown_key_fix(location: tuple[int | str, ...], root: type[Section]) -> str:
    """The closest sibling and the same key in other sections; failing both, the key that another suite calls by this
    name; failing that, a similar key in another section."""
    key, siblings = str(location[-1]), list(_section_at(location[:-1], root).model_fields)
    if len(location) == 1 and key in _FOREIGN_SECTIONS:
        suite, what = _FOREIGN_SECTIONS[key]
        return f"a section of {suite}; `mindgspo convert config FILE --out NEW.yaml` converts its {what}"
    prefix = _dotted(location[:-1]) + "." if location[:-1] else ""
    beside = closest(key, siblings)
    candidates = (
        ([prefix + beside] if beside else []) + _paths_ending_in(key, root)
        or _paths_known_as(key, root)
        or _paths_close_to(key, root)
    )
    if candidates:
        return f"did you mean {either(candidates[:3])}?"
    return f"keys here: {', '.join(siblings)}"


def _paths_ending_in(leaf: str, root: type[Section]) -> list[str]:
    return [path for path, _ in known_keys(root) if path.rpartition(".")[2] == leaf]


def _paths_known_as(key: str, root: type[Section]) -> list[str]:
    """The texts of the schema name other suites' words as `(verl: train_batch_size; TRL: ...)`."""
    word = re.compile(rf"(?:verl|TRL|MindRLHF): {re.escape(key)}\b")
    return [path for path, text in known_keys(root) if word.search(" ".join(text.split()))]


def _paths_close_to(leaf: str, root: type[Section]) -> list[str]:
    leaves = sorted({path.rpartition(".")[2] for path, _ in known_keys(root)})
    close = closest(leaf, leaves)
    return _paths_ending_in(close, root) if close else []


def _hint(key: str, given: Any, expected: str) -> str:
    """Why there is no such value, or which one is similar; "" if neither is known."""
    if (key, str(given)) in _NOT_BUILT:
        return f"; {_NOT_BUILT[key, str(given)]}"
    if (key, str(given).lower()) in _SYNONYMS:
        return f"; write {_SYNONYMS[key, str(given).lower()]}"
    options = [option.strip(" '") for part in expected.split(" or ") for option in part.split(",")]
    meant = _SHORT_DTYPES.get(str(given).lower(), str(given))
    same = [option for option in options if option.lower() == meant.lower()]
    return f"; did you mean {same[0]!r}?" if same else did_you_mean(given, options)


def _description(location: tuple[int | str, ...], root: type[Section]) -> str:
    """First sentence of the field's text."""
    field = _section_at(location[:-1], root).model_fields[str(location[-1])]
    assert field.description, f"{_dotted(location)} has no description"
    return _SENTENCE_END.split(" ".join(field.description.split()))[0].rstrip(".")
