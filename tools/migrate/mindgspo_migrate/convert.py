"""From foreign files to an experiment's YAML and a report, for `mindgspo convert config`.

Nothing is executed or downloaded, and nothing but the files named is read.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mindgspo.config import load_config
from mindgspo.config.load import load_mapping
from mindgspo.config.messages import section_of
from mindgspo.config.schema import ExperimentConfig
from mindgspo.config.yaml_dialect import parse_document
from mindgspo.errors import ConfigError
from mindgspo.planner import most_slots
from mindgspo_migrate import mindformers, mindrlhf, mindspeed, trl, verl
from mindgspo_migrate.experiment import Experiment
from mindgspo_migrate.models import take_end_tokens, take_model_folder
from mindgspo_migrate.sources import Source, read_source
from mindgspo_migrate.tables import Finding, Row, Status, Table, one_line, shown

TABLES: dict[str, Table] = {suite.TABLE.name: suite.TABLE for suite in (mindformers, mindrlhf, mindspeed, trl, verl)}
_LONGEST = 1000  # characters of a reason
# How a missing key is given on the command line.
_EXAMPLES = {
    "data.train": ": --set data.train.format=verl --set data.train.path=FILE (docs/configuration.md lists the formats)",
    "data.eval": ": --set data.eval.format=verl --set data.eval.path=FILE",
    "model": ": --set model.path=FOLDER takes its sizes from the folder's config.json",
    "tokenizer.path": ": --set tokenizer.path=FOLDER",
    "environment.path": ": --set environment.path=FILE.py:CLASS, which answers turns (docs/environments.md)",
    "algorithm.name": ": --set algorithm.name=gspo, or another; the file may name one, but not so that it can be read",
    "algorithm.distillation.teachers": ": --set 'algorithm.distillation.teachers=[{path: FOLDER}]', or url: ADDRESS",
    "trainer.schedule": ": --set trainer.schedule=one_step_off, or bounded; plans.infer.cards names the cards",
}
# Neither changes the memory that a run takes; without them no experiment is whole.
_STAND_INS = {
    "data.train": {"format": "arithmetic"},
    "data.eval": {"format": "arithmetic", "split": "test"},
    "tokenizer.path": "tokenizer",
    "algorithm.name": "gspo",
    "trainer.schedule": "sync",
    "environment.path": "file.py:Class",
}
_ORDER = (
    Status.UNKNOWN,
    Status.UNREADABLE,
    Status.NOT_IMPLEMENTED,
    Status.ADJUSTED,
    Status.ASSUMED,
    Status.NOT_NEEDED,
    Status.MAPPED,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """yaml: the experiment. findings: what became of every key. refused: lines of this project's own check, without the
    files. missing: keys that no file gives and that must be set. rows: lines of the tables that said something."""

    suite: str
    yaml: str
    findings: Sequence[Finding]
    refused: Sequence[str]
    missing: Sequence[str]
    rows: Sequence[Row]


def convert(paths: Sequence[Path], suite: str | None = None, overrides: Iterable[str] = ()) -> Conversion:
    """The experiment that the files describe. suite: which table reads them; None: told from their keys.

    Several files: MindFormers' finetune and predict YAML, MindRLHF's YAML and the MindFormers files that it names, or
    MindSpeed-RL's YAML and the file of its model.
    Raises ConfigError for a file that cannot be read, or an override that is none.
    """
    sources = [read_source(path, suite if number == 0 else None) for number, path in enumerate(paths)]
    experiment = Experiment()
    name = _fill(sources, experiment)
    experiment.override(overrides)
    take_model_folder(experiment)
    take_end_tokens(experiment)
    _assume_slots(experiment)
    title = [f"Converted by mindgspo convert config from {' and '.join(path.name for path in paths)}."]
    refused, missing = _checked(experiment.yaml(title))
    unsaid = experiment.unsaid()
    refused = [line for line in refused if line.partition(":")[0] not in unsaid]
    missing += unsaid
    title += [f"Still to be set: {', '.join(missing)}."] if missing else []
    return Conversion(
        suite=name,
        yaml=experiment.yaml(title),
        findings=experiment.findings,
        refused=refused,
        missing=missing,
        rows=experiment.used,
    )


def _fill(sources: Sequence[Source], experiment: Experiment) -> str:
    suites = [source.suite for source in sources]
    if suites == ["verl"]:
        verl.fill(sources[0], experiment)
    elif suites == ["trl"]:
        trl.fill(sources[0], experiment)
    elif set(suites) == {"mindformers"} and len(suites) <= 2:
        mindformers.fill(sources, experiment)
    elif set(suites) == {"mindspeed"} and len(suites) <= 2:
        mindspeed.fill(sources, experiment)
    elif suites.count("mindrlhf") == 1 and set(suites) <= {"mindrlhf", "mindformers"}:
        mindrlhf.fill(sorted(sources, key=lambda source: source.suite != "mindrlhf"), experiment)
    else:
        raise ConfigError(
            f"{', '.join(str(source.path) for source in sources)}: {' and '.join(suites)} do not go together; give one "
            "of verl or TRL, or a finetune and a predict file of MindFormers, or one of MindRLHF with the MindFormers "
            "files that it names, or one of MindSpeed-RL with the file of its model"
        )
    return "mindrlhf" if "mindrlhf" in suites else suites[0]


def _assume_slots(experiment: Experiment) -> None:
    """As many sequences at once as fit, where no file says how many and the rest is known."""
    if experiment.get("rollout.slots") is not None or experiment.get("model.hidden_size") is None:
        return
    mapping = parse_document(experiment.yaml(()))
    mapping.get("algorithm", {}).pop("distillation", None)  # the teachers' folders, which may be elsewhere
    for key, value in _STAND_INS.items():
        section, _, name = key.rpartition(".")
        if section == "environment" and section not in mapping:
            continue
        place = mapping.setdefault(section, {})
        place[name] = place.get(name) or value
    try:
        config = load_mapping("experiment", mapping, check_files=False)
    except ConfigError:
        return
    if (slots := most_slots(config)) != config.rollout.slots:
        experiment.assume("rollout.slots", slots, "no file says how many", "the most that fit, as `plan` counts")


def _checked(text: str) -> tuple[list[str], list[str]]:
    """(lines that this project refuses, keys that are missing) of a file with this text; paths need not exist."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "experiment.yaml")
        path.write_text(text, encoding="utf-8")
        try:
            load_config(path, check_files=False)
        except ConfigError as error:
            lines = [line.strip() for line in str(error).splitlines()[1:]]
        else:
            return [], []
    missing = [line.partition(":")[0] for line in lines if ": missing; " in line]
    refused = [line for line in lines if ": missing; " not in line]
    return refused, [key for one in missing for key in _required_of(one)]


def _required_of(key: str) -> list[str]:
    """The keys that must be set where `key` is missing: itself, or those that a section cannot do without."""
    section = section_of(ExperimentConfig, key) if "." not in key else None
    if section is None or key == "model":
        return [key]
    return [f"{key}.{name}" for name, field in section.model_fields.items() if field.is_required()]


def report_lines(conversion: Conversion) -> Iterator[str]:
    """What must be set, what is refused, then every key of the source under what became of it, then the count."""
    names_files = len({finding.file for finding in conversion.findings if finding.file}) > 1
    if conversion.missing:
        yield f"still to be set ({len(conversion.missing)}): no file says so; use --set or write it into the result"
        yield from (f"  {key}{_EXAMPLES.get(key, '')}" for key in conversion.missing)
    if conversion.refused:
        yield f"refused here ({len(conversion.refused)}): the result holds what the files say; change it"
        yield from (f"  {one_line(line, _LONGEST)}" for line in conversion.refused)
    for status in _ORDER:
        found = [finding for finding in conversion.findings if finding.status is status]
        if found:
            yield f"{status.value} ({len(found)})"
            yield from (f"  {line}" for line in _lines(found, names_files=names_files))
    counts = Counter(finding.status for finding in conversion.findings)
    parts = [f"{counts[status]} {status.value}" for status in reversed(_ORDER) if counts[status]]
    yield f"{TABLES[conversion.suite].title}: {', '.join(parts)}"


def _lines(found: list[Finding], *, names_files: bool) -> Iterator[str]:
    """One line per finding; those of a file with the same reason, and without keys here, share one."""
    by_reason: dict[tuple[str, str], list[Finding]] = {}
    for finding in found:
        by_reason.setdefault((finding.file, one_line(finding.text, _LONGEST)), []).append(finding)
    for (file, reason), group in by_reason.items():
        start = f"{one_line(file)}: " if names_files and file else ""
        end = f": {reason}" if reason else ""
        if reason and not any(finding.targets for finding in group):
            yield f"{start}{', '.join(map(_key, group))}{end}"
        else:
            for finding in group:
                targets = f" -> {', '.join(finding.targets)}" if finding.targets else ""
                yield f"{start}{_key(finding)}{targets}{end}"


def _key(finding: Finding) -> str:
    value = shown(finding.value)
    return f"{one_line(finding.source)}{f' = {value}' if value else ''}"
