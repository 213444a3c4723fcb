"""The sections `tokenizer`, `data` and `eval`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from mindgspo.config.section import Section

DataFormat = Literal[
    "gsm8k", "verl", "dapo", "math", "aime", "dianjin", "columns", "mindrlhf", "arithmetic", "prepared"
]
ONE_SOURCE, NAMED_SOURCES, LISTED_SOURCES = "<one>", "<named>", "<listed>"
"""Tags of the forms of `data.eval` and `data.train`, which pydantic puts into the places of its complaints."""
SetName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")]
PositiveInt = Annotated[int, Field(ge=1, le=65_536)]
OVERALL = "val-core/acc/mean@1"
"""The accuracy over all problems of all sets, one answer each: greedy, unless eval.do_sample."""
CHANGE = "val-core/acc/change"
"""Its change since the first evaluation of the run."""
OVERALL_REWARD = "val-core/reward/mean@1"
"""The mean reward of the same answers: the weighted sum that training uses."""
REWARD_CHANGE = "val-core/reward/change"
"""Its change since the first evaluation of the run."""
LEAST_TEMPERATURE, LEAST_TOP_P = 1e-3, 1e-6
"""Bounds of what is drawn. Below, float32 may have no number for logits / temperature, nor for the mass of a token."""


class ColumnsSection(Section):
    """Which columns of a file hold what, for the format `columns`. A dot reaches into nested columns:
    reward_model.ground_truth."""

    prompt: str
    """Column of the question: text, or a list of {role, content} messages."""
    answer: str
    """Column of the gold answer: text or a number."""
    solution: str | None = None
    """Column of the worked solution, which the supervised warm-up learns from."""
    data_source: str | None = None
    """Column whose text names the data source of each row."""
    data_source_name: str | None = None
    """One name for all rows instead of a column; reward.functions=[auto] and metrics go by it."""
    extra_info: tuple[str, ...] = ()
    """Further columns, kept for your own reward function as extra_info."""


class DataSourceSection(Section):
    """One data set: raw rows that are prepared on first use, or a folder prepared before."""

    format: DataFormat
    r"""gsm8k: rows {question, answer with '#### n'}. verl: rows {data_source, prompt, ability, reward_model,
    extra_info}. dapo: the same, put into DAPO's prompt where it is bare. math: MATH, MATH-lighteval, MATH-500:
    {problem, solution with \boxed{}, answer}. aime: {problem, answer}. dianjin: DianJin-R1-Data, {instruction, output}.
    columns: any rows, see `columns`. mindrlhf: the MindRecord of MindRLHF's rlhf_data.py. arithmetic: generated.
    prepared: a folder made by `mindgspo data prepare`."""
    path: Path | None = None
    """File (*.jsonl, *.parquet, MindRLHF's MindRecord), or a prepared folder, or a file on a hub, such as
    openai/gsm8k/main/train-00000-of-00001.parquet; not set for arithmetic."""
    columns: ColumnsSection | None = None
    """Which columns hold what; for the format `columns` only."""
    dedup: bool = False
    """Keep only the first of equal prompts, and none of those whose gold answers differ. Counted either way."""
    split: Literal["train", "dev", "test"] = "train"
    """Arithmetic only: which split to generate. The splits are disjoint by construction."""
    operation: Literal["+", "-"] | None = None
    """Arithmetic only: sums (+) or differences (-) alone. None: both."""
    max_rows: int | None = Field(default=None, ge=1)
    """Use at most this many rows, from the start (arithmetic: how many to generate). None: all."""
    forgotten_carries: float = Field(default=0.0, ge=0, le=1)
    """Share of the carries (and borrows) that the worked solutions of generated arithmetic rows forget, as a
    careless teacher would. Gold answers stay right, so reinforcement learning can outdo its demonstrations."""


class MixedSourceSection(DataSourceSection):
    """One entry where data.train is a list of sources, from which each step draws in proportion to their weights. It
    has the keys of a single source, and these two."""

    name: SetName | None = None
    """Its name in metrics, messages and the run folder. None: its format. The reward function is chosen by each row's
    data_source, as without a list."""
    weight: float | None = Field(default=None, gt=0)
    """Its share of the prompts, relative to the other sources' weights: 3 beside 1 is three prompts of four, however
    many rows there are. None (in every source): its number of rows, so that all rows are drawn equally often, as if
    they came from one file; verl and TRL concatenate theirs."""


class CurriculumSection(Section):
    """Rows that the policy always or never solves rest for some epochs, and others are drawn in their place. Measured
    is the share of right answers in a row's latest group."""

    min_pass_rate: float = Field(default=0.0, ge=0, lt=1)
    """A row rests if at most this share of its answers is right. 0: no answer at all."""
    max_pass_rate: float = Field(default=1.0, gt=0, le=1)
    """A row rests if at least this share of its answers is right. 1: every answer; with large groups less may do."""
    max_rest_epochs: int = Field(default=7, ge=1, le=255)
    """Most epochs of its source for which a row rests before it is tried again: 1 after the first such group, then 3,
    7, 15, ... after 2, 3, 4, ... of them in a row. 7: a policy that improves meets every row again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSource:
    """A source of a mixture whose rows are counted.

    Example: TrainSource(name="gsm8k", num_rows=7473, share=Fraction(3, 4))
    """

    name: str
    num_rows: int
    share: Fraction
    """Of the prompts that are drawn; the shares of a mixture add up to 1."""


def _train_form(value: Any) -> str:
    return LISTED_SOURCES if isinstance(value, (list, tuple)) else ONE_SOURCE


TrainSources = Annotated[
    Annotated[DataSourceSection, Tag(ONE_SOURCE)]
    | Annotated[tuple[MixedSourceSection, ...], Field(min_length=1), Tag(LISTED_SOURCES)],
    Discriminator(_train_form),
]


def _form(value: Any) -> str:
    """A source is known by its keys, whatever else stands beside them; names of sets are none of these."""
    is_named = isinstance(value, Mapping) and value and not value.keys() & DataSourceSection.model_fields.keys()
    return NAMED_SOURCES if is_named else ONE_SOURCE


EvalSources = Annotated[
    Annotated[DataSourceSection, Tag(ONE_SOURCE)] | Annotated[dict[SetName, DataSourceSection], Tag(NAMED_SOURCES)],
    Discriminator(_form),
]


class DataSection(Section):
    """Data sets and how a row becomes a prompt."""

    train: TrainSources
    """Prompts for reinforcement learning (and rows for the supervised warm-up, if they hold solutions): one source, or
    a list of several, from which each step draws in proportion to their weights, e.g.
    [{format: gsm8k, path: ..., weight: 3}, {format: math, path: ..., weight: 1}] (verl: train_files)."""
    eval: EvalSources
    """Held-out problems for accuracy before, during and after: one source, or several by names of your own, e.g.
    {gsm8k: {format: gsm8k, path: ...}, aime: {format: aime, path: ...}}. Metrics go by these names (verl:
    val_files)."""
    system_prompt: str | None = None
    """System message put before the question. None: what the chat template does by itself."""
    instruction_prefix: str = ""
    """Text put before the question; as instruction_suffix."""
    instruction_suffix: str = ""
    """Text appended to the question, e.g. how to write the final answer (verl and dapo rows bring theirs)."""
    max_prompt_length: int = Field(ge=1)
    """Longest prompt in tokens, chat template included; with rollout.max_new_tokens it must fit
    model.max_position_embeddings."""
    truncation: Literal["error", "left", "right", "middle", "drop"] = "error"
    """Action on a longer prompt: stop, cut at that side, or drop the row; counted in dataset.json."""
    shuffle: bool = True
    """Draw prompts in an order seeded by `seed` and the epoch; false: file order."""
    curriculum: CurriculumSection | None = None
    """Draw by measured pass rate. None: every row is drawn once per epoch (verl: data.sampler)."""

    @property
    def train_sources(self) -> tuple[DataSourceSection, ...]:
        """The sources of training prompts."""
        return (self.train,) if isinstance(self.train, DataSourceSection) else self.train

    @property
    def train_names(self) -> tuple[str, ...]:
        """Names of the sources of a list; empty if there is none."""
        return () if isinstance(self.train, DataSourceSection) else tuple(one.name or one.format for one in self.train)

    def mixture(self, num_rows: Sequence[int]) -> tuple[TrainSource, ...]:
        """The sources of a list with their shares; empty if there is none. num_rows: of each source."""
        if isinstance(self.train, DataSourceSection):
            return ()
        # By its decimals, so that 0.3 beside 0.7 is exactly three of ten.
        weights = [
            Fraction(rows) if one.weight is None else Fraction(str(one.weight))
            for one, rows in zip(self.train, num_rows, strict=True)
        ]
        return tuple(
            TrainSource(name=name, num_rows=rows, share=weight / sum(weights))
            for name, rows, weight in zip(self.train_names, num_rows, weights, strict=True)
        )

    @property
    def names_eval_sets(self) -> bool:
        """Whether the held-out problems come as sets with names."""
        return not isinstance(self.eval, DataSourceSection)

    @property
    def eval_sets(self) -> dict[str, DataSourceSection]:
        """The sets of held-out problems by name; a single source that has none is called eval."""
        return {"eval": self.eval} if isinstance(self.eval, DataSourceSection) else dict(self.eval)


class TokenizerSection(Section):
    """Which tokenizer, and which of its tokens end or pad a sequence. Nothing is guessed."""

    path: Path | None = None
    """Folder with vocab.json + merges.txt, or tokenizer.json, or one sentencepiece *.model; with
    tokenizer_config.json for the chat template; or a name on a hub, as in model.path. Not set: model.path, if a
    tokenizer lies there. None: the small byte-level BPE built for the arithmetic task (refused for rows from files)."""
    eos_tokens: tuple[str, ...] = Field(default=("<|im_end|>", "<|endoftext|>"), min_length=1)
    """Tokens that end a response; the first one is appended to supervised answers."""
    pad_token: str = "<|endoftext|>"
    """Token written into padded slots. It is never trained on and never searched for."""


class StopSection(Section):
    """When a run ends before its last step. It then has its export and its report, and counts as finished."""

    patience: int | None = Field(default=None, ge=1)
    """Evaluations in a row that bring no improvement of eval.best_metric, after which the run ends. Accuracy wavers by
    some points from one evaluation to the next, so 1 stops almost any run. None: never."""
    min_delta: float = Field(default=0.0, ge=0)
    """Least improvement that counts, in units of eval.best_metric, over the value of the last one that did: 0.01 is one
    point of accuracy. 0: any."""
    on_collapse: bool = False
    """End the run when the diagnosis after an evaluation says that it lost what it had: the held-out figure fell below
    that of the first evaluation by more than the 95 % interval, or the entropy below 5 % of that of the first step."""

    @property
    def is_on(self) -> bool:
        """Whether anything ends the run early."""
        return self.patience is not None or self.on_collapse


class EvalSection(Section):
    """Accuracy on the held-out problems."""

    before: bool = True
    """Evaluate before the first step, too, so that there is something to compare with (verl: val_before_train; TRL:
    eval_on_start). After the last step there is always an evaluation."""
    every: int | None = Field(default=None, ge=1)
    """Steps between evaluations. None: only before the first and after the last step (verl: test_freq; TRL:
    eval_steps)."""
    num_samples: int = Field(default=1, ge=1, le=65_536)
    """Samples per problem for mean@n, pass@k, maj@k and best@k, beside its one greedy answer; 1: that answer alone
    (verl: val_kwargs.n)."""
    do_sample: bool = False
    """Draw the one answer of num_samples=1 instead of taking the likeliest tokens (verl: val_kwargs.do_sample)."""
    pass_at_k: tuple[PositiveInt, ...] = Field(default=(1,), min_length=1)
    """Values of k for which pass@k, and from 2 on maj@k and best@k, are reported; each at most num_samples."""
    temperature: float = Field(default=1.0, ge=LEAST_TEMPERATURE)
    """Temperature of what is drawn (verl: val_kwargs.temperature)."""
    top_p: float | None = Field(default=None, ge=LEAST_TOP_P, le=1)
    """As rollout.top_p, for what is drawn. None: rollout.top_p (verl: val_kwargs.top_p)."""
    top_k: int | None = Field(default=None, ge=0)
    """As rollout.top_k, for what is drawn. None: rollout.top_k (verl: val_kwargs.top_k)."""
    best_metric: str | None = None
    """Metric by which the best evaluation is chosen; the higher the better; val-core/aime/acc/mean@16, say, for one set
    or data source (TRL: metric_for_best_model). None: val-core/acc/mean@1, the accuracy over all problems;
    val-core/reward/mean@1, their mean reward, where reward.functions names your own and none that verifies answers."""
    stop: StopSection = StopSection()
    """Whether evaluations end the run early; by default they do not."""
    logged_problems: int | None = Field(default=8, ge=0)
    """Problems of each set whose answers are written to validation.jsonl at each evaluation, from the start. None: all
    (verl: log_val_generations)."""
