"""A training step without a model: scripted answers, and fakes that remember what they were given."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from thread_ranks import over_ranks  # noqa: F401 (a fixture)

from mindgspo.algorithms.kl_control import KLController
from mindgspo.config import ExperimentConfig, RewardSection, TokenizerSection, load_config
from mindgspo.data.stream import PromptStream
from mindgspo.errors import NonFiniteError
from mindgspo.metrics import Timers, unknown_names
from mindgspo.rewards import Candidate, Scorer
from mindgspo.tokenization import Tokenizer, load_tokenizer
from mindgspo.types import Batch, FinishReason, Prompt, Response, Score, StepResult, Verdict

EXPERIMENT = """
experiment: scripted
model:
  vocab_size: 384
  hidden_size: 32
  intermediate_size: 64
  num_hidden_layers: 2
  num_attention_heads: 4
  num_key_value_heads: 2
  max_position_embeddings: 96
data:
  train: {format: arithmetic, split: train}
  eval: {format: arithmetic, split: test, max_rows: 16}
  max_prompt_length: 32
rollout:
  prompts_per_step: 4
  num_generations: 2
  max_new_tokens: 16
optimizer:
  lr: 1e-3
  warmup_ratio: 0.5
trainer:
  max_steps: 3
  prompts_per_mini_batch: 2
  samples_per_micro_batch: 2
  length_multiple: 16
"""


class FakeScorer:
    """Entropy 0.5 for every real token, and the log-prob that `logp` makes of the tokens' ids."""

    def __init__(self, logp: Callable[[np.ndarray], np.ndarray] = lambda ids: np.full(ids.shape, -1.25)) -> None:
        self._logp = logp

    def score(self, batches: Sequence[Batch]) -> list:
        from mindgspo.models.scoring import TokenScores

        return [
            TokenScores(
                logp_NK=np.where(batch.mask_NK, self._logp(batch.targets_NK), 0).astype(np.float32),
                entropy_NK=np.where(batch.mask_NK, np.float32(0.5), np.float32(0)),
            )
            for batch in batches
        ]


class FakeReference:
    """A reference policy that gives its log-probs by a function of the tokens' ids, and follows nobody."""

    version = 0.0

    def __init__(self, logp: Callable[[np.ndarray], np.ndarray]) -> None:
        self.scorer = FakeScorer(logp)

    def follow(self, policy: object, *, steps_done: int, version: int) -> None:
        pass


@dataclass
class FakeUpdater:
    """Remembers batches, learning rates and KL coefficients. Update number n reports the ratio error
    `ratio_errors[n]`, or 0, and the mean KL `kls[n]`, or 0. The calls numbered `nonfinite` (from 1) are refused.
    All tokens have the log-prob `logp`; `entropy` is their mean entropy."""

    ratio_errors: Sequence[float] = ()
    kls: Sequence[float] = ()
    nonfinite: Sequence[int] = ()
    logp: float = -1.25
    entropy: float | None = None
    updates: int = 0
    calls: int = 0
    batches: list[Sequence[Batch]] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    kl_coefs: list[float] = field(default_factory=list)

    def step(self, batches: Sequence[Batch], lr: float, *, kl_coef: float = 0.0):
        from mindgspo.algorithms.optim.updater import UpdateResult

        self.calls += 1
        if self.calls in self.nonfinite:
            raise NonFiniteError(f"update {self.updates + 1}: the loss of micro-batch 1 of 2 is nan")
        error, kl = (dict(enumerate(given)).get(self.updates, 0.0) for given in (self.ratio_errors, self.kls))
        self.updates += 1
        self.batches.append(batches)
        self.rates.append(lr)
        self.kl_coefs.append(kl_coef)
        metrics = {
            "pg_loss": 0.5, "kl_loss": 2 * kl, "kl": kl, "pg_clipfrac_seq": 0.25, "pg_clipfrac_lower": 0.125,
            "log_ratio_max": error, "log_ratio_min": -error, "ratio_error_max": error,
        }  # fmt: skip
        logp = tuple(np.where(batch.mask_NK, np.float32(self.logp), np.float32(np.nan)) for batch in batches)
        return UpdateResult(loss=0.75, grad_norm=2.0, entropy=self.entropy, metrics=metrics, telemetry=(), logp_NK=logp)


class AbstainingScorer:
    """The gsm8k reward, but None with Verdict.TIMEOUT where `abstains(candidate)` says so."""

    labels = ("auto",)

    def __init__(self, abstains: Callable[[Candidate], bool]) -> None:
        self._inner = Scorer(RewardSection())
        self._abstains = abstains

    def score(self, candidates: Sequence[Candidate]) -> list[Score]:
        scores = self._inner.score(candidates)
        return [
            replace(score, value=None, verdict=Verdict.TIMEOUT) if self._abstains(candidate) else score
            for candidate, score in zip(candidates, scores, strict=True)
        ]


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return load_tokenizer(TokenizerSection())


@pytest.fixture(scope="session")
def load(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., ExperimentConfig]:
    """load(*overrides): the scripted experiment with these overrides."""
    path = tmp_path_factory.mktemp("experiment") / "scripted.yaml"
    path.write_text(EXPERIMENT)
    return lambda *overrides: load_config(path, overrides)


@pytest.fixture(scope="session")
def prompts(tokenizer: Tokenizer) -> tuple[Prompt, ...]:
    """Eight sums of different lengths: 10+0, 11+11, 12+22, ...; half of another data source."""
    sums = [(10 + number, 11 * number) for number in range(8)]
    texts = [f"{'Tom has ' * (number % 3)}{a}+{b}?" for number, (a, b) in enumerate(sums)]
    return tuple(
        Prompt(
            index=number, ids=np.array(tokenizer.encode(text), np.int32), text=text, answer=str(a + b),
            data_source=("arithmetic", "openai/gsm8k")[number % 2],
            solution=f"{a}+{b}={a + b}\n#### {a + b}",
        )
        for number, (text, (a, b)) in enumerate(zip(texts, sums, strict=True))
    )  # fmt: skip


@pytest.fixture(scope="session")
def answer(tokenizer: Tokenizer) -> Callable[[str], list[int]]:
    """answer("7"): the ids of "#### 7" with its EOS."""
    return lambda text: [*tokenizer.encode(f"#### {text}"), tokenizer.eos_ids[0]]


@pytest.fixture
def one_of_two_right(answer):
    """The first sibling is right, the second one says 999."""
    return lambda prompt, sample: answer(prompt.answer if sample == 0 else "999")


@pytest.fixture
def model(cpu_runtime: None, load):
    """The scripted experiment's model with random weights."""
    from mindgspo.models.policy import build_model
    from mindgspo.models.weights import initialize_weights

    section = load().model
    model = build_model(section)
    initialize_weights(model, section, seed=1)
    return model


@pytest.fixture
def make_trainer(cpu_runtime: None, load, prompts, tokenizer, tmp_path: Path):
    """make_trainer(script, *overrides, **fields): a Trainer around a scripted engine, with its `run_config` and the
    `validation` of its run, on all prompts. All its metrics must be known. reward_scorer: the reward functions."""

    def make(script: Callable[[Prompt, int], Sequence[int]], *overrides: str, **changed: object):
        from scripted_engine import ScriptedEngine

        from mindgspo.config.schema import SwapSection
        from mindgspo.evaluation.evaluator import Evaluator, ResponseScorer
        from mindgspo.swap.swap import Swap
        from mindgspo.trainer.batches import batch_layout
        from mindgspo.trainer.dynamic_sampling import LeftoverBuffer
        from mindgspo.trainer.metrics import Speed, StepReport
        from mindgspo.trainer.policies import PolicyScores
        from mindgspo.trainer.step import Trainer, WeightSync
        from mindgspo.trainer.updates import UpdateGuard
        from mindgspo.trainer.validation import Validation

        config = load(*overrides)

        class CheckedTrainer(Trainer):
            run_config = config

            def train_step(self, step: int) -> StepResult:
                result = super().train_step(step)
                assert unknown_names(result.metrics) == []
                return result

            @functools.cached_property
            def validation(self) -> Validation:
                evaluator = Evaluator(
                    self.engine, self.reward, config.eval, max_new_tokens=config.rollout.max_new_tokens,
                    seed=config.seed, names_sets=config.data.names_eval_sets, swap=self.swap,
                )  # fmt: skip
                return Validation(evaluator, {"eval": prompts}, config.eval, timers=timers, decode=tokenizer.decode)

        section = config.algorithm
        stream = changed.get("stream") or PromptStream(len(prompts), config.seed, shuffle=False)
        old_log_probs = section.old_log_probs.replace("auto", "recompute")
        leftovers = LeftoverBuffer(section.filter_groups.keep_surplus_steps, prompts)
        timers, swap, model = Timers(), Swap(SwapSection(), None), changed.get("model")
        reward = ResponseScorer(changed.get("reward_scorer") or Scorer(config.reward), tokenizer)
        engine = changed.get("engine") or ScriptedEngine(script)
        layout = batch_layout(config, pad_id=tokenizer.pad_id)
        sections = {"algorithm": section, "rollout": config.rollout, "settings": config.trainer, "layout": layout}
        made = CheckedTrainer(
            take_prompts=lambda number, step: [prompts[index] for index in stream.take(number)],
            engine=engine, reward=reward,
            scorer=PolicyScores(
                policy=model, scorer=changed.get("old_policy") or FakeScorer(), old_log_probs=old_log_probs,
                reference=changed.get("reference"), routing=None, records_experts=False, replays_old=False,
            ),
            updater=changed.get("updater") or FakeUpdater(),
            weights=WeightSync(engine=engine, swap=swap),
            optimizer=config.optimizer, reward_functions=config.reward.functions, reward_weights=config.reward.weights,
            seed=config.seed, model=model, total_steps=config.trainer.max_steps, kl=KLController(section.kl),
            leftovers=leftovers, guard=UpdateGuard(settings=config.trainer, failures_dir=tmp_path / "failures"),
            report=StepReport(
                speed=changed.get("speed") or Speed(), timers=timers, fed=None, stream=stream, leftovers=leftovers,
                scores_old=old_log_probs == "recompute", **sections,
            ),
            dumps_dir=tmp_path / "dumps", timers=timers, swap=swap, **sections,
        )  # fmt: skip
        engine.load_weights(0)
        return made

    return make


@pytest.fixture
def evaluate():
    """evaluate(trainer, sets, step=...): an evaluation, all of whose metrics must be known."""

    def evaluation(trainer, sets, step: int):
        found = trainer.validation.evaluator.evaluate(sets, step, weight_version=trainer.weights.version)
        assert unknown_names(found.metrics) == []
        return found

    return evaluation


@pytest.fixture
def validate():
    """validate(trainer, log, progress)"""
    return lambda trainer, log, progress: trainer.validation.run(log, progress, weight_version=trainer.weights.version)


@pytest.fixture(scope="session")
def fakes():
    """The fakes' classes: test modules cannot import a conftest."""

    class Fakes:
        scorer, reference, updater, abstaining_scorer = FakeScorer, FakeReference, FakeUpdater, AbstainingScorer

    return Fakes


@pytest.fixture(scope="session")
def response() -> Callable[..., Response]:
    """response(ids, logprobs): a sampled response of prompt 0."""
    return lambda ids, logprobs: Response(
        prompt_index=0, sample_index=0, ids=np.array(ids, np.int32), logprobs=np.array(logprobs, np.float32),
        finish_reason=FinishReason.STOP, temperature=1.0, weight_version=0,
    )  # fmt: skip
