"""Command line of `mindgspo eval` -> one `EvalTask` per data set, its configuration checked like any other.

Runs before MindSpore is imported. A `--set` overrides an option.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mindgspo.config import ColumnsSection, ExperimentConfig, ModelSection, PlansSection, load_config, load_mapping
from mindgspo.config.data import DataFormat
from mindgspo.config.rules import eval_sources
from mindgspo.data.benchmarks import NAMES, NUM_GENERATED_ROWS, Benchmark, find_benchmark
from mindgspo.errors import ConfigError
from mindgspo.evaluation.inputs import default_length, read_model_folder
from mindgspo.tokenization.tokenizer import read_object, tokenizer_section_of


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalTask:
    """One data set to evaluate on."""

    label: str
    """Name of the data set in tables."""
    config: ExperimentConfig
    """Configuration whose data.eval is this one set."""
    any_length: bool
    """Whether prompts may be as long as the model's positions allow, whatever data.max_prompt_length says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalOptions:
    """Options of the command line under the names that they have there; None: not given."""

    num_samples: int | None = None
    pass_at_k: tuple[int, ...] | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_new_tokens: int | None = None
    max_rows: int | None = None
    seed: int | None = None
    batch: int | None = None
    device: str | None = None
    tokenizer: Path | None = None
    eos_tokens: tuple[str, ...] = ()
    system_prompt: str | None = None
    instruction_suffix: str | None = None

    def overrides(self, eval_keys: Sequence[str] = ("data.eval",)) -> list[str]:
        """The options as "section.key=value". eval_keys: of the data sets that are measured."""
        ks = self.pass_at_k if self.pass_at_k is not None or self.num_samples is None else (self.num_samples,)
        values = {
            "eval.num_samples": self.num_samples,
            "eval.pass_at_k": None if ks is None else list(ks),
            "eval.temperature": self.temperature,
            "eval.top_p": self.top_p,
            "rollout.max_new_tokens": self.max_new_tokens,
            **{f"{key}.max_rows": self.max_rows for key in eval_keys},
            "seed": self.seed,
            "rollout.slots": self.batch,
            "device": self.device,
            "tokenizer.path": None if self.tokenizer is None else str(self.tokenizer),
            "tokenizer.eos_tokens": list(self.eos_tokens) or None,
            "data.system_prompt": self.system_prompt,
            "data.instruction_suffix": self.instruction_suffix,
        }
        return [f"{key}={json.dumps(value)}" for key, value in values.items() if value is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataChoice:
    """Data sets as --data names them."""

    texts: Sequence[str]
    """Values of --data: names or paths, e.g. ("gsm8k", "rows.jsonl")."""
    folder: Path | None = None
    """Folder in which names are looked up."""
    format: DataFormat | None = None
    """Format of the files among them."""
    columns: ColumnsSection | None = None
    """Columns of the files among them, for the format "columns"."""


def tasks_of_experiment(model_dir: Path, path: Path, options: EvalOptions, overrides: Sequence[str]) -> list[EvalTask]:
    """The held-out sets of an experiment, measured as it would measure them, on the model of `model_dir`.

    Raises ConfigError, also where the model's positions are too few; WeightsError for a folder that is no model.
    """
    found = read_model_folder(model_dir)
    keys = [key for key, _ in eval_sources(load_config(path, overrides, check_files=False))]
    config = load_config(path, [*options.overrides(keys), *overrides])
    longest = config.data.max_prompt_length + config.rollout.max_new_tokens
    if longest > found.max_position_embeddings:
        raise ConfigError(
            f"{model_dir}: {found.max_position_embeddings} positions, but data.max_prompt_length + "
            f"rollout.max_new_tokens = {longest}; lower one of them with --set"
        )
    _refuse_unused(options, config)
    model = found.model_copy(update={"dtype": config.model.dtype})
    config = config.model_copy(update={"model": model, "plans": PlansSection()})
    return [
        EvalTask(
            label=name if config.data.names_eval_sets else config.experiment,
            config=config.model_copy(update={"data": config.data.model_copy(update={"eval": source})}),
            any_length=False,
        )
        for name, source in config.data.eval_sets.items()
    ]


def tasks_of_data(
    model_dir: Path, choice: DataChoice, options: EvalOptions, overrides: Sequence[str]
) -> list[EvalTask]:
    """One task per data set, without any YAML.

    Raises WeightsError for a folder that is no model, DataError for data that are not there, TokenizerError,
    ConfigError.
    """
    model = read_model_folder(model_dir)
    benchmarks = _benchmarks(choice)
    tokenizer = tokenizer_section_of(model_dir, options.tokenizer or model_dir, options.eos_tokens)
    sections = {
        "experiment": "eval",
        "model": model.model_dump(mode="json"),
        "tokenizer": tokenizer.model_dump(mode="json"),
        "rollout": {
            "prompts_per_step": 1,
            "num_generations": 2,
            "max_new_tokens": _longest_response(model_dir, model, options.max_new_tokens),
            "slots": 32,
        },
        "trainer": {"max_steps": 1, "prompts_per_mini_batch": 1, "samples_per_micro_batch": 1},
    }
    texts = [*options.overrides(), *overrides]
    tasks = []
    for one in benchmarks:
        config = load_mapping(f"--data {one.label}", {**sections, **_data_sections(one, choice.columns)}, texts)
        tasks.append(EvalTask(label=one.label, config=config, any_length=True))
    _refuse_unused(options, tasks[0].config)
    return tasks


def _benchmarks(choice: DataChoice) -> list[Benchmark]:
    """The data sets of --data, each under a label of its own."""
    texts, format = choice.texts, choice.format
    if (format == "columns") != (choice.columns is not None):
        raise ConfigError("--format columns and --columns map.yaml go together: the file says which column holds what")
    found = [find_benchmark(text, folder=choice.folder, format=format) for text in texts]
    sources = [(one.path, one.format) for one in found]
    for number, source in enumerate(sources):
        if source in sources[:number]:
            raise ConfigError(f"--data {texts[number]}: is there twice; name each data set once")
    if format is not None and all(text.partition("=")[0] in NAMES for text in texts):
        raise ConfigError(f"--format {format}: a named data set has its own; give the file's path instead of a name")
    labels = [one.label for one in found]
    return [
        one if labels.count(one.label) == 1 else replace(one, label=text)
        for one, text in zip(found, texts, strict=True)
    ]


def _data_sections(benchmark: Benchmark, columns: ColumnsSection | None) -> dict[str, Any]:
    source: dict[str, Any] = {"format": benchmark.format}
    if benchmark.path is not None:
        source["path"] = str(benchmark.path)
    if benchmark.format == "arithmetic":
        source |= {"split": "test", "max_rows": NUM_GENERATED_ROWS}
    if benchmark.format == "columns" and columns is not None:
        source["columns"] = columns.model_dump(mode="json")
    return {
        "data": {
            "train": {"format": "arithmetic"},  # never read; an experiment has one
            "eval": source,
            "max_prompt_length": 1,  # its place is taken by what the rows need
            "instruction_suffix": benchmark.instruction_suffix,
        },
        "reward": {"functions": [benchmark.function]},
    }


def _longest_response(model_dir: Path, model: ModelSection, given: int | None) -> int:
    positions = model.max_position_embeddings
    if given is None:
        named = default_length(model, read_object(model_dir / "generation_config.json"))
        return named if named < positions else default_length(model, {})
    if given >= positions:
        raise ConfigError(
            f"--max-new-tokens {given}: {model_dir} has {positions} positions for prompt and response together; give "
            f"less than {positions}"
        )
    return given


def _refuse_unused(options: EvalOptions, config: ExperimentConfig) -> None:
    """Refuse settings of samples where answers are greedy."""
    unused = "temperature" if options.temperature is not None else "top-p" if options.top_p is not None else None
    if unused and config.eval.num_samples == 1 and not config.eval.do_sample:
        raise ConfigError(
            f"--{unused}: greedy answers do not depend on it, and eval.num_samples is 1; add e.g. --num-samples 8, "
            "or --set eval.do_sample=true"
        )
