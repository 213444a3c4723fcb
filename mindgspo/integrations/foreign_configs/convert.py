"""From foreign files to an experiment's YAML and a report.

What enters: paths, and overrides. What leaves: `Conversion`: the YAML's text, and one finding per key of the source,
per assumption and per rule of this project that the result breaks. Nothing is executed or downloaded, and nothing but
the files named is read. Called by the command `mindgspo convert config`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mindgspo.config import load_config
from mindgspo.config.messages import section_of
from mindgspo.config.schema import ExperimentConfig
from mindgspo.errors import ConfigError
from mindgspo.integrations.foreign_configs import mindformers, mindrlhf, verl
from mindgspo.integrations.foreign_configs.document import place_overrides, written
from mindgspo.integrations.foreign_configs.draft import Draft
from mindgspo.integrations.foreign_configs.reading import Finding
from mindgspo.integrations.foreign_configs.sources import Source, read_source
from mindgspo.integrations.foreign_configs.table import Row, Table

TABLES: dict[str, Table] = {table.name: table for table in (mindformers.TABLE, mindrlhf.TABLE, verl.TABLE)}


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

    Several files: MindFormers' finetune and predict YAML, or MindRLHF's YAML and the MindFormers files that it names.
    Raises ConfigError for a file that cannot be read, or an override that is none.
    """
    sources = [read_source(path, suite if number == 0 else None) for number, path in enumerate(paths)]
    draft = Draft()
    name = _fill(sources, draft)
    place_overrides(draft, overrides)
    title = [f"Converted by mindgspo convert config from {' and '.join(path.name for path in paths)}."]
    refused, missing = _judged(written(draft, title))
    title += [f"Still to be set: {', '.join(missing)}."] if missing else []
    return Conversion(
        suite=name,
        yaml=written(draft, title),
        findings=draft.findings,
        refused=refused,
        missing=missing,
        rows=draft.used,
    )


def _fill(sources: Sequence[Source], draft: Draft) -> str:
    suites = [source.suite for source in sources]
    if suites[0] == "verl" and len(suites) == 1:
        verl.fill(sources[0].reading, sources[0].name, draft)
    elif set(suites) == {"mindformers"} and len(suites) <= 2:
        mindformers.fill(sources, draft)
    elif suites.count("mindrlhf") == 1 and set(suites) <= {"mindrlhf", "mindformers"}:
        mindrlhf.fill(sorted(sources, key=lambda source: source.suite != "mindrlhf"), draft)
    else:
        raise ConfigError(
            f"{', '.join(str(source.path) for source in sources)}: {' and '.join(suites)} do not go together; give one "
            "of verl, or a finetune and a predict file of MindFormers, or one of MindRLHF with the MindFormers files "
            "that it names"
        )
    return "mindrlhf" if "mindrlhf" in suites else suites[0]


def _judged(text: str) -> tuple[list[str], list[str]]:
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
