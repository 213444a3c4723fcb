"""The experiment that a conversion puts together: values with their origins, findings for the report, the YAML text.

A suite's module fills an `Experiment` from its table (`apply`) and works out what several keys decide together; the
plans of equal cards, which all suites share, are worked out here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from pydantic_core import PydanticUndefined

from mindgspo.config.load import with_overrides
from mindgspo.config.messages import known_keys, section_of
from mindgspo.config.schema import ExperimentConfig
from mindgspo.config.section import Section
from mindgspo.config.yaml_dialect import parse_document, write_document
from mindgspo.text import divisors
from mindgspo_migrate.sources import Source
from mindgspo_migrate.tables import (
    Finding,
    Outcome,
    Row,
    Settings,
    Status,
    Table,
    dotted,
    name_of_file,
    one_line,
)

TRAIN, INFER = "plans.train", "plans.infer"
SIZES = ("data_parallel", "model_parallel", "pipeline_stage", "context_parallel", "expert_parallel")
_MOST_PROMPTS = 1_000_000  # of a step, as rollout.prompts_per_step has them
_ORDER = {key: number for number, (key, _) in enumerate(known_keys())}


class Value(NamedTuple):
    """A value and where it came from, as the comment beside it says."""

    value: Any
    origin: str


@dataclass(slots=True, kw_only=True)
class Experiment:
    """values: by dotted key here. findings: in the order they came up. used: rows that said something. end_token_ids:
    by dotted key, ids whose names the tokenizer has, and the key they stand under."""

    values: dict[str, Value] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    used: list[Row] = field(default_factory=list)
    end_token_ids: dict[str, tuple[Sequence[int], str]] = field(default_factory=dict)

    def apply(self, table: Table, source: Source, *, with_defaults: bool = True) -> Settings:
        """Every key of the file becomes a finding, and a value where it has one here; then the suite's defaults."""
        reading = source.reading
        settings = Settings(table, reading, source.name)
        self.findings += [replace(finding, file=source.name) for finding in reading.findings]
        for key, value in reading.values.items():
            row = table.find(key)
            if row is None:
                close = table.closest(key)
                text = f"did you mean {close}?" if close else ""
                self.report(Status.UNKNOWN, key, value, text, file=source.name)
            else:
                self._take(row, value, row.outcome(value, settings), source=key, file=source.name)
        for row in table.rows if with_defaults else ():
            if not row.has_default or row.source in settings or row.source in reading.unread_keys:
                continue
            if reading.unread_words:
                text = f"may stand in {reading.unread_words[0]}, which is not read, so its default is not assumed"
                self.report(Status.UNREADABLE, row.source, "", text, targets=(), file=source.name)
            else:
                self._take_default(row, row.outcome(row.default, settings))
        return settings

    def _take(self, row: Row, value: Any, outcome: Outcome, *, source: str, file: str) -> None:
        self.used.append(row)
        self.set(outcome.values, source)
        is_set = outcome.status in (Status.MAPPED, Status.ADJUSTED)
        targets = (tuple(outcome.values) or row.targets) if is_set else ()
        self.report(outcome.status, source, value, outcome.text, targets=targets, file=file)

    def _take_default(self, row: Row, outcome: Outcome) -> None:
        """What another suite does where a key is not given. Said only where this project would do something else."""
        for target, value in outcome.values.items():
            if target not in self.values and value != schema_default(target):
                self.assume(target, value, f"{row.source}, its default", outcome.text)
        if outcome.status is Status.NOT_IMPLEMENTED:
            self.report(outcome.status, row.source, row.default, f"its default; {outcome.text}")

    def assume(self, target: str, value: Any, origin: str, text: str = "") -> None:
        """A value that the files do not say."""
        self.set({target: value}, f"assumed: {origin}")
        self.report(Status.ASSUMED, target, value, f"{origin}; {text}" if text else origin)

    def set(self, values: Mapping[str, Any], origin: str) -> None:
        """Values, and the key or rule that they follow from."""
        self.values.update({target: Value(value, origin) for target, value in values.items()})

    def assume_device(self, why: str) -> None:
        """Where no file says it, or says another: what this project is for."""
        if self.get("device") is None:
            self.assume("device", "Ascend", why, "this project runs on Ascend or CPU; set device=CPU for a CPU")

    def assume_rounding(self) -> None:
        """What the check of the ratio has to allow."""
        if self.get("model.dtype") == "bfloat16":
            self.assume("trainer.max_ratio_error", 2e-3, "model.dtype is bfloat16", "its own rounding")

    def name_after(self, source: Source) -> None:
        """Where no key names the experiment."""
        if self.get("experiment") is None:
            self.assume("experiment", name_of_file(source.name), "the name of the file")

    def leave_open(self, target: str, why: str) -> None:
        """A value that the files may hold, but not so that it can be read; the result is refused until it is set."""
        self.values[target] = Value(None, f"to be set: {why}")

    def unsaid(self) -> list[str]:
        """The keys that were left open."""
        return [key for key, value in self.values.items() if value.origin.startswith("to be set: ")]

    def set_from(self, settings: Settings, key: str, target: str, value: Any) -> None:
        """The value that `key` gives, or its default there, which is said where this project would do something
        else."""
        if key in settings:
            self.set({target: value}, key)
        elif value != schema_default(target):
            self.assume(target, value, f"{key}, its default")

    def report(
        self, status: Status, source: str, value: Any, text: str, *, targets: tuple[str, ...] = (), file: str = ""
    ) -> None:
        """A line of the report."""
        found = Finding(status=status, source=source, value=value, targets=targets, text=text, file=file)
        self.findings.append(found)

    def get(self, target: str, otherwise: Any = None) -> Any:
        """The value so far."""
        return self.values[target].value if target in self.values else otherwise

    def count(self, target: str) -> int:
        """The value so far as a count; 1 where it is none."""
        value = self.get(target, 1)
        return value if isinstance(value, int) and value > 0 else 1

    # Plans

    def cards(self, plan: str) -> int:
        """Cards of a plan."""
        product = 1
        for name in SIZES[:4]:
            product *= self.count(f"{plan}.{name}")
        return product

    def drop_what_has_no_effect(self) -> None:
        """Takes out of the train plan what its own sizes make void; this project refuses such entries."""
        for name, sizes, why in (
            ("optimizer_shard", ("data_parallel", "context_parallel"), "one replica keeps all moments"),
            ("overlap_grad_reduce", ("data_parallel", "context_parallel"), "one replica has all gradients"),
            ("use_seq_parallel", ("model_parallel",), "nothing splits the sequence"),
        ):
            key = f"{TRAIN}.{name}"
            if self.get(key) and all(self.count(f"{TRAIN}.{size}") == 1 for size in sizes):
                self.report(Status.ADJUSTED, key, self.get(key), f"left out: {sizes[0]} is 1, so {why}")
                del self.values[key]
        key = f"{TRAIN}.micro_batch_num"
        if self.count(f"{TRAIN}.pipeline_stage") == 1 and self.get(key, 1) != 1:
            why = "left out: it counts between pipeline stages, and there is one"
            self.report(Status.ADJUSTED, key, self.get(key), why)
            del self.values[key]

    def fill_replicas(self, plan: str, cards: int, block: int, origin: str) -> int:
        """Replicas of a plan, each of `block` cards; returns their number."""
        replicas = max(1, cards // block)
        key = f"{plan}.data_parallel"
        self.set({key: replicas}, f"{origin} = {cards} / {block}")
        if cards % block:
            self.report(Status.NOT_IMPLEMENTED, key, replicas, f"{cards} cards are no multiple of {block}")
        return replicas

    def split_experts_of_generation(self, settings: Settings, key: str) -> None:
        """Experts that vLLM has whole on its ranks: here on those of a replica, so over all of its slices."""
        parts, slices = settings.size(key), self.count(f"{INFER}.model_parallel")
        if parts == 1:
            return
        if slices > 1:
            names = {"expert_parallel": slices, "expert_tensor_parallel": 1}
            self.set({f"{INFER}.{name}": size for name, size in names.items()}, key)
        if parts != slices:
            why = f"{slices}: a replica has all experts, split over its slices; set {INFER}.model_parallel for more"
            self.report(Status.ADJUSTED, key, parts, why)

    def assume_micro_batches(self) -> None:
        """Where stages train and no file counts the micro-batches between them."""
        stages = self.count(f"{TRAIN}.pipeline_stage")
        if stages > 1:
            why = "all micro-batches of an update go through the stages there"
            self.assume(f"{TRAIN}.micro_batch_num", stages, why, "the smallest legal number; more idle less")

    def assume_infer_plan(self) -> None:
        """Where no plan of generation is given: the slices of the train plan, its stages as replicas."""
        if any(key.startswith(f"{INFER}.") for key in self.values):
            return
        slices = self.count(f"{TRAIN}.model_parallel")
        for name, value in (("data_parallel", self.cards(TRAIN) // slices), ("model_parallel", slices)):
            self.assume(f"{INFER}.{name}", value, "no plan of generation is given", "the cards of the train plan")

    def spread_infer_plan(self) -> None:
        """Replicas of generation fill the cards of the train plan, which both plans share."""
        cards, given = self.cards(TRAIN), self.cards(INFER)
        one_replica = given // self.count(f"{INFER}.data_parallel")
        if cards != given and cards % one_replica == 0:
            key = f"{INFER}.data_parallel"
            why = f"both plans share the {cards} cards of the train plan; replicas work alike"
            self.report(Status.ADJUSTED, key, self.get(key, 1), f"{cards // one_replica}: {why}")
            self.set({key: cards // one_replica}, "the train plan's cards")

    def fill_mini_batch(self, prompts: int, group: int, samples: int, multiple: int, origin: str) -> None:
        """Prompts of an update: the divisor of `prompts` whose groups are nearest to the `samples` of one there, and
        a multiple of those of a pass on all cards."""
        counts = divisors(prompts) if prompts <= _MOST_PROMPTS else []
        legal = [count for count in counts if count * group % multiple == 0]
        chosen = min(legal or [prompts], key=lambda count: abs(count * group - samples))
        key = "trainer.prompts_per_mini_batch"
        self.set({key: chosen}, origin)
        if chosen * group != samples:
            why = f"an update there takes {samples} responses; here whole groups: {chosen} x {group} = {chosen * group}"
            self.report(Status.ADJUSTED, key, f"{samples} / {group}", why)

    # The YAML file

    def override(self, overrides: Iterable[str]) -> None:
        """Values of `--set`. Raises ConfigError for one that is not `a.b=value`."""
        for override in overrides:
            for target, value in dotted(with_overrides({}, [override])):
                for key in [one for one in self.values if one.startswith(f"{target}.") or target.startswith(f"{one}.")]:
                    del self.values[key]  # a section in place of one value, or one value in place of a section
                self.values[target] = Value(value, "--set")

    def yaml(self, title: Iterable[str]) -> str:
        """The file: title lines as comments, then each value with its origin; sections in the schema's order."""
        mapping: dict[str, Any] = {}
        for key in sorted(self.values, key=lambda key: _ORDER.get(key, len(_ORDER))):
            *above, leaf = key.split(".")
            place = mapping
            for step in above:
                place = place.setdefault(step, {})
            place[leaf] = self.values[key].value
        lines = [*(f"# {one_line(line)}" for line in title), *self._lines(mapping, "", 0)]
        text = "\n".join(lines) + "\n"
        assert parse_document(text) == mapping, "the file does not say what was converted"
        return text

    def _lines(self, mapping: Mapping[str, Any], above: str, depth: int) -> Iterator[str]:
        indent = "  " * depth
        origins = [one_line(self.values[f"{above}{key}"].origin) for key in mapping if f"{above}{key}" in self.values]
        last = ""  # the origin that stands on a line of its own above the values it is shared by
        for key, value in mapping.items():
            if f"{above}{key}" not in self.values:
                if depth == 0:
                    yield ""
                yield f"{indent}{key}:"
                yield from self._lines(value, f"{above}{key}.", depth + 1)
                continue
            origin = one_line(self.values[f"{above}{key}"].origin)
            block = write_document({key: value}).splitlines()
            if origin != last and len(block) == 1 and len(block[0]) + len(origin) < 110 and origins.count(origin) <= 2:
                yield f"{indent}{block[0]} # {origin}"
                continue
            if origin != last:
                yield f"{indent}# {origin}"
                last = origin
            yield from (f"{indent}{line}" for line in block)


def schema_default(target: str) -> Any:
    """What this project does where a dotted key is not given; None where it must be."""
    *above, leaf = target.split(".")
    section: type[Section] | None = ExperimentConfig
    for step in above:
        section = section_of(section, step)
        assert section is not None, f"{target}: there is no section {step}"
    default = section.model_fields[leaf].default
    return None if default is PydanticUndefined else default
