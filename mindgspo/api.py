"""The project in Python: train, read a run, generate, score. Importing this imports no MindSpore."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from mindgspo.config import ExperimentConfig, load_config
from mindgspo.errors import ConfigError, DataError, RunFolderError, TrainingError
from mindgspo.text import closest, listed, shorten

if TYPE_CHECKING:
    from mindgspo.checkpoint.runs import RunOverview
    from mindgspo.evaluation.generate import Generated
    from mindgspo.evaluation.inputs import PromptText
    from mindgspo.evaluation.log_probs import ScoredResponse
    from mindgspo.rewards import RewardFunction
    from mindgspo.trainer.from_python import Overrides
    from mindgspo.types import Int32Array


def train(
    config: str | PathLike[str] | Mapping[str, object],
    overrides: Overrides = (),
    *,
    reward: RewardFunction | str | Sequence[RewardFunction | str] | None = None,
    callbacks: Sequence[object] = (),
    data: Iterable[Mapping[str, object]] | None = None,
    eval_data: Iterable[Mapping[str, object]] | None = None,
    overwrite: bool = False,
) -> Run:
    """Run an experiment to its end, as `mindgspo run` does, and return the run.

    config: its YAML file, or a whole experiment as a mapping; paths in a mapping count from the current folder.
    reward: takes the place of reward.functions: a function with the signature of docs/rewards.md, or a list of
        functions and names. It is called in this process, so that it may be a lambda or a closure. Exceptions, invalid
        values and calls beyond reward.workers.timeout_s cost their response only, as for a function in a file; but
        nothing limits its memory or ends C code that does not return, a crash ends the run, outside the main thread
        there is no time limit, and a resumed run does not notice that the function has changed.
    callbacks: objects with any of the methods on_step(record), on_evaluation(record), with a `MetricsRecord` after each
        line of metrics.jsonl, and on_end(run). The first two may return "stop": the run saves a checkpoint and ends,
        and resume=auto continues it. An exception ends it likewise, as a TrainingError.
    data, eval_data: rows in place of data.train and data.eval, kept in the run folder. They are read in the format set
        there if that is one of files, else by their keys: prompt, answer, solution and data_source, if present; others
        become extra_info.
    overwrite: move an existing run folder aside.

    Starts several processes if the plans need them; function objects and callbacks need plans of one process. Raises
    the errors of `mindgspo.errors`; what was saved stays, and resume=auto continues from it.

    Example: train("examples/arithmetic/gspo.yaml", {"trainer.max_steps": 4, "run_dir": "runs/short"}).summary
    """
    from mindgspo.trainer.callbacks import call_at_end
    from mindgspo.trainer.from_python import python_request
    from mindgspo.trainer.start import ClusterOptions, start

    rows = {"data": data, "eval_data": eval_data}
    request, run_dir = python_request(config, overrides, reward, callbacks, rows, overwrite=overwrite)
    if code := start(request, ClusterOptions()):
        raise TrainingError(f"the run ended with exit code {code}; its logs are in {run_dir / 'logs'}")
    run = Run.load(run_dir)
    call_at_end(callbacks, run)
    return run


def generate(model: str | PathLike[str], prompts: Sequence[PromptText], **options: Any) -> list[Generated]:
    """Answers to prompts, in their order: `.text` of the first one, `.completions` of all with ids and log-probs.

    model: an exported folder, a run, or a step of one. prompts: texts or conversations. options: the fields of
    `mindgspo.evaluation.generate.GenerateOptions`, e.g. temperature, top_p, max_new_tokens, num_samples, seed. Raises
    the errors of `mindgspo.errors`.

    Example: generate("runs/arithmetic-gspo", ["Tom had 30 coins and lost 12. How many are left?"])[0].text
    """
    from pydantic import TypeAdapter, ValidationError

    from mindgspo.evaluation.generate import GenerateOptions, generate_completions

    _check_is_list("prompts", prompts)
    try:
        GenerateOptions(**options)
    except TypeError as error:  # a name that is no option
        known = GenerateOptions.__dataclass_fields__
        (wrong, *_) = (name for name in options if name not in known)
        raise ConfigError(
            f"{wrong}: no option of generate{_hint(wrong, known)}; options: {', '.join(known)}"
        ) from error
    try:
        chosen = TypeAdapter(GenerateOptions).validate_python(options)  # numbers of numpy become Python's
    except ValidationError as error:
        wrong, said = str(error.errors()[0]["loc"][0]), error.errors()[0]["msg"]
        raise ConfigError(f"{wrong}: {said[:1].lower()}{said[1:]}, got {shorten(repr(options[wrong]))}") from None
    return list(generate_completions(Path(model), prompts, chosen))


def score(
    model: str | PathLike[str],
    prompts: Sequence[PromptText],
    responses: Sequence[str | Int32Array],
    *,
    is_raw: bool = False,
) -> list[ScoredResponse]:
    """Log-probs of each response's tokens after its prompt, float32, at temperature 1, unfiltered.

    model, prompts: as for `generate`.
    responses: one per prompt, as text, or as the ids that `generate` returns, which include the final EOS token.
    is_raw: prompts are text to continue; no chat template is applied.
    Raises the errors of `mindgspo.errors`.

    Example: score("runs/arithmetic-gspo", ["1+2="], ["3"])[0].logprobs.sum()
    """
    from mindgspo.evaluation.log_probs import score_responses

    _check_is_list("prompts", prompts)
    _check_is_list("responses", responses)
    return score_responses(Path(model), prompts, responses, is_raw=is_raw)


def _check_is_list(name: str, value: object) -> None:
    """Reject one text or one conversation in place of the list: it would be taken for a list of letters or messages."""
    if isinstance(value, str | Mapping) or (isinstance(value, Sequence) and value and isinstance(value[0], Mapping)):
        raise DataError(
            f"{name}: expected a list, got one {'text' if isinstance(value, str) else 'conversation'}; "
            f"write [{name.removesuffix('s')}]"
        )
    if not isinstance(value, Sequence | np.ndarray):
        raise DataError(f"{name}: expected a list, got {type(value).__name__}")


def _hint(name: str, known: Collection[str]) -> str:
    """The end of a message about an unknown name: those that hold it, else the nearest, else some of them."""
    holding = [one for one in known if name and name in one]
    near = holding or [one for one in [closest(name, known)] if one]
    return f"; did you mean {listed(near, 4)}?" if near else f"; names: {listed(list(known))}"


@dataclass(frozen=True, slots=True)
class MetricSeries:
    """The values of one metric. steps: int64 [S], not necessarily all. values: float64 [S]."""

    steps: NDArray[np.int64]
    values: NDArray[np.float64]


class Metrics(dict[str, MetricSeries]):
    """Series by the names of docs/metrics.md, in the order in which they were first written."""

    def __missing__(self, name: str) -> MetricSeries:
        raise KeyError(f"{name}: no such metric in this run{_hint(name, self)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One response that a run wrote down."""

    step: int
    prompt_index: int
    sample: int | str
    """Its number among the responses to its prompt, or "greedy"."""
    prompt: str
    response: str
    answer: str
    verdict: str
    score: float | None
    """None if the reward abstained."""
    extracted: str | None
    """The answer found in the response; None if there is none."""
    length: int
    finish_reason: str
    advantage: float | None
    """None for held-out problems."""
    set_name: str | None
    """Name of the set, for held-out problems."""
    record: Mapping[str, object]
    """The whole line of the file."""


class Samples(Sequence[Sample]):
    """The samples of a file, which may be long: every loop and every index reads it again, line by line."""

    def __init__(self, path: Path) -> None:
        """path: samples.jsonl or validation.jsonl; no samples if absent."""
        self._path = path

    def __iter__(self) -> Iterator[Sample]:
        """Raises RunFolderError, naming file and line, for what is no line of such a file."""
        return _samples(self._path)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> list[Sample]: ...
    def __getitem__(self, index: int | slice) -> Sample | list[Sample]:
        if isinstance(index, slice) or index < 0:
            return list(self)[index]
        for sample in islice(self, index, None):
            return sample
        raise IndexError(f"sample {index}: {self._path} holds {len(self)}")


class Run(PathLike):
    """Content of a run folder, also of a running one; read on first access, and then kept."""

    def __init__(self, path: Path) -> None:
        """See `load`."""
        self.path = path

    def __repr__(self) -> str:
        return f"Run.load({str(self.path)!r})"

    def __fspath__(self) -> str:
        """Its folder: `generate` and `score` accept a run in place of its model."""
        return str(self.path)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Run:
        """The run in a folder. Raises RunFolderError if there is none."""
        from mindgspo.metrics.files import METRICS_FILE, RUN_FILE

        folder = Path(path)
        if not any((folder / name).is_file() for name in (RUN_FILE, METRICS_FILE)):
            raise RunFolderError(f"{folder}: no run folder; it has neither {RUN_FILE} nor {METRICS_FILE}")
        return cls(folder)

    @cached_property
    def metrics(self) -> Metrics:
        """The series of all metrics. Raises RunFolderError while there is none, and for a damaged file."""
        from mindgspo.metrics.run_folder import read_run

        record = read_run(self.path, with_samples=False)
        found = ((name, record.series(name)) for name in record.names())
        return Metrics(
            (name, MetricSeries(np.array(series.steps, np.int64), np.array(series.values, np.float64)))
            for name, series in found
        )

    @cached_property
    def summary(self) -> Mapping[str, object]:
        """summary.json: accuracies, steps, seconds, ...; empty while the run has not ended."""
        from mindgspo.metrics.files import read_summary

        return read_summary(self.path)

    @cached_property
    def config(self) -> ExperimentConfig:
        """The settings, with all defaults. Raises ConfigError."""
        from mindgspo.metrics.files import CONFIG_FILE

        return load_config(self.path / CONFIG_FILE, check_files=False)

    @property
    def overview(self) -> RunOverview:
        """Current state, step, accuracy and diagnosis, as `mindgspo runs` shows them."""
        from mindgspo.checkpoint.runs import overview

        return overview(self.path)

    @property
    def samples(self) -> Samples:
        """The logged training responses (logging.groups_per_step)."""
        from mindgspo.metrics.files import SAMPLES_FILE

        return Samples(self.path / SAMPLES_FILE)

    @property
    def validation(self) -> Samples:
        """The logged answers to held-out problems (eval.logged_problems)."""
        from mindgspo.metrics.files import VALIDATION_FILE

        return Samples(self.path / VALIDATION_FILE)


def _samples(path: Path) -> Iterator[Sample]:
    """Raises RunFolderError, naming file and line, for what is no line of such a file."""
    from mindgspo.metrics.files import read_records

    for number, record in enumerate(read_records(path), start=1):
        try:
            yield Sample(
                step=int(record["step"]),
                prompt_index=int(record["prompt_index"]),
                sample=record["sample"] if "sample" in record else record["sample_index"],
                prompt=str(record["prompt"]),
                response=str(record["response"]),
                answer=str(record["answer"]),
                verdict=str(record["verdict"]),
                score=record.get("score"),
                extracted=record.get("extracted"),
                length=int(record["length"]),
                finish_reason=str(record["finish_reason"]),
                advantage=record.get("advantage"),
                set_name=record.get("set"),
                record=record,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise RunFolderError(f"{path}, line {number}: no sample ({type(error).__name__}: {error})") from error
