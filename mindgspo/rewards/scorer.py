"""Scores a batch of responses with the functions that the configuration names.

`start`, `check_rows` and `try_out` are called before any model loads, so that a row without a reward or a broken reward
file fails in the first seconds instead of after the first rollout.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import cast

from mindgspo.config.reward import AUTO, IN_PROCESS, SHAPERS, RewardSection, file_function, function_label, is_own
from mindgspo.errors import DataError, RewardError
from mindgspo.io import Closing
from mindgspo.rewards.functions.from_file import ABSTAINED
from mindgspo.rewards.functions.math import TASK as MATH_VERIFY_TASK
from mindgspo.rewards.registry import build_function, function_for, repeats_itself
from mindgspo.rewards.verification import Candidate, JobOutcome, Reply, RewardJob, Shaper, Verification, Verifier
from mindgspo.rewards.workers.in_process import PoolWithObjects, RewardFunction
from mindgspo.rewards.workers.pool import WorkerPool
from mindgspo.types import EpisodeEnd, Prompt, Score, Verdict

logger = logging.getLogger(__name__)

MAX_ROWS_NAMED = 5
_RUN_MATH_VERIFY = ("math", AUTO)


class Scorer(Closing):
    """Weighted sum of reward functions. It owns the worker processes: close it, or use it in a `with` statement.

    build: makes a function of a name; tests replace it.
    pool: runs jobs; tests replace it.
    objects: functions of this process by their entries in `reward.functions`.
    on_answer: called whenever a user's function or a worker process has answered.

    `has_own` says whether any function is a user's own, `has_verifier` whether any compares with the gold answer.
    `labels` are the names under which the entries of `reward.functions` are logged, in order ("auto" has none of its
    own).
    """

    def __init__(
        self,
        section: RewardSection,
        *,
        build: Callable[[str, RewardSection], Verifier | Shaper] = build_function,
        pool: WorkerPool | None = None,
        objects: Mapping[str, RewardFunction] | None = None,
        on_answer: Callable[[], None] = lambda: None,
    ) -> None:
        self._section = section
        self._weights = dict(zip(section.functions, section.resolved_weights, strict=True))
        self._build = build
        self._functions: dict[str, Verifier | Shaper] = {}
        self._pool = _worker_pool(section, objects or {}, on_answer) if pool is None else pool
        self._has_told = False
        self._quick: set[str] = set()
        self._told_of_dropped: set[str] = set()
        self.has_own = any(map(is_own, section.functions))
        self.has_verifier = any(text not in SHAPERS for text in section.functions)
        self.labels = tuple(map(function_label, section.functions))

    def close(self) -> None:
        """End the worker processes."""
        self._pool.close()

    def start(self) -> None:
        """Load the user's files in a worker process, check function objects. Raises RewardError if one is broken."""
        if self.has_own:
            self._pool.start()

    def check_rows(self, prompts: Sequence[Prompt]) -> None:
        """Raises DataError unless every row has a reward function and a gold answer that it can read.

        An unknown data_source stops at its first row; unreadable gold answers are listed with their number.
        """
        found = (self.unreadable(f"row {prompt.index}", prompt.data_source, prompt.answer) for prompt in prompts)
        unreadable = [problem for problem in found if problem is not None]
        if unreadable:
            shown = "; ".join(unreadable[:MAX_ROWS_NAMED])
            hidden = len(unreadable) - MAX_ROWS_NAMED
            more = f"; and {hidden} more" if hidden > 0 else ""
            raise DataError(
                f"{len(unreadable)} gold answers in {len(prompts)} rows cannot be read: {shown}{more}. "
                "Remove these rows, or name a reward function that fits them under reward.functions"
            )

    def check_source(self, where: str, data_source: str) -> None:
        """Raises DataError, naming `where`, for a row that "auto" finds no function for."""
        self._functions_of(data_source, where)

    def unreadable(self, where: str, data_source: str, gold: str) -> str | None:
        """The problem of a gold answer: `where` and the first verifier that cannot read it or does not pay its
        repetition.

        None if every verifier of the row does both. Raises DataError for a data_source without a function.
        """
        for name in self._functions_of(data_source, where):
            if name in SHAPERS:
                continue
            answer = f"{where} ({function_label(name)}): answer {gold[:80]!r}"
            if not self._verifier(name).can_read(gold):
                return answer
            if not repeats_itself(name, gold):
                return f"{answer}, which is not met by its own repetition"
        return None

    def try_out(self, candidates: Sequence[Candidate]) -> list[Score]:
        """Score a few candidates at the start of a run. Raises RewardError if a function fails on one of them: a
        function that fails on ordinary rows would fail throughout the run."""
        scores = self.score(candidates, logs_failures=False)
        for candidate, score in zip(candidates, scores, strict=True):
            if score.verdict in (Verdict.ERROR, Verdict.TIMEOUT) and score.message != ABSTAINED:
                raise RewardError(f"reward.functions: {score.message} (tried on row {candidate.index})")
        return scores

    def score(self, candidates: Sequence[Candidate], *, logs_failures: bool = True) -> list[Score]:
        """One Score per candidate, in input order.

        Score.value is the weighted sum; None (invalid) as soon as one function abstains or fails. The verdict and the
        extracted answer are those of the first verifier, or of the first that made the sample invalid. Without a
        verifier a positive value counts as correct.

        logs_failures: whether the first failure of a function is logged.
        """
        functions = [self._functions_of(candidate.data_source, f"row {candidate.index}") for candidate in candidates]
        found: list[dict[str, Verification]] = [{} for _ in candidates]
        pending: list[tuple[int, str, RewardJob]] = []
        for number, candidate in enumerate(candidates):
            for name in functions[number]:
                if name in SHAPERS or _failure_of(candidate):
                    continue
                try:
                    said = self._verifier(name).verify(candidate)
                except Exception as error:  # one broken sample must neither stop the run nor be paid as wrong
                    said = _failed(name, Verdict.ERROR, f"{type(error).__name__}: {error}")
                if isinstance(said, RewardJob):
                    pending.append((number, name, said))
                else:
                    found[number][name] = said
        replies = self._pool.run([job for _, _, job in pending])
        late = [job for (_, _, job), reply in zip(pending, replies, strict=True) if reply.outcome is JobOutcome.TIMEOUT]
        self._try_without_responses(late)
        for (number, name, job), reply in zip(pending, replies, strict=True):
            found[number][name] = self._concluded(name, job, reply)
        scores = [
            Score(value=None, verdict=Verdict.ERROR, message=failure)
            if (failure := _failure_of(candidate))
            else self._joined(candidate, weights, said)
            for candidate, weights, said in zip(candidates, functions, found, strict=True)
        ]
        if logs_failures:
            self._log_first_failure(candidates, scores)
        return scores

    def _try_without_responses(self, late: Sequence[RewardJob]) -> None:
        """Determines for each gold answer whether a job that timed out was slow because of the response."""
        if self._section.workers.on_timeout == "leave_out":
            return
        trials = {_key(job): job for job in late if job.when_late is not None and _key(job) not in self._quick}
        replies = self._pool.run([replace(job, arguments=job.without_response) for job in trials.values()])
        self._quick |= {key for key, reply in zip(trials, replies, strict=True) if reply.outcome is JobOutcome.DONE}

    def _concluded(self, name: str, job: RewardJob, reply: Reply) -> Verification:
        if reply.outcome is JobOutcome.TIMEOUT and job.when_late is not None and _key(job) in self._quick:
            return replace(job.when_late, message=f"{function_label(name)}: {reply.message}")
        if reply.outcome is not JobOutcome.DONE:
            return _failed(
                name, Verdict.TIMEOUT if reply.outcome is JobOutcome.TIMEOUT else Verdict.ERROR, reply.message
            )
        if reply.message and name not in self._told_of_dropped:
            self._told_of_dropped.add(name)
            logger.warning("%s: %s", function_label(name), reply.message)
        verification = job.conclude(reply.value)
        if verification.message and verification.message != ABSTAINED:
            return _failed(name, verification.verdict, verification.message)
        return verification

    def _log_first_failure(self, candidates: Sequence[Candidate], scores: Sequence[Score]) -> None:
        for candidate, score in zip(candidates, scores, strict=True):
            if not self._has_told and score.message and score.message != ABSTAINED:
                self._has_told = True
                effect = "is left out" if score.value is None else "counts as wrong"
                logger.warning(
                    "%s, on row %d; this response %s, as any more will", score.message, candidate.index, effect
                )

    def _joined(self, candidate: Candidate, weights: dict[str, float], said: dict[str, Verification]) -> Score:
        verifications = [said[name] for name in weights if name not in SHAPERS]
        first = verifications[0] if verifications else None
        values = {
            name: self._shaper(name).value(candidate, first.verdict if first else None)
            if name in SHAPERS
            else said[name].value
            for name in weights
        }
        known = {name: value for name, value in values.items() if value is not None}
        parts = {function_label(name): value for name, value in known.items()}
        extras = {
            f"{function_label(name)}/{key}": value
            for name, verification in said.items()
            for key, value in verification.extras.items()
        }
        invalid = [verification for verification in verifications if verification.value is None]
        total = None if invalid else sum(weight * known[name] for name, weight in weights.items())
        decisive = invalid[0] if invalid else first
        if decisive is None:
            is_paid = total is not None and total > 0
            return Score(value=total, verdict=Verdict.CORRECT if is_paid else Verdict.WRONG, parts=parts)
        return Score(
            value=total,
            verdict=decisive.verdict,
            extracted=decisive.extracted,
            parts=parts,
            extras=extras,
            message=decisive.message,
        )

    def _verifier(self, name: str) -> Verifier:
        return cast(Verifier, self._function(name))  # of a name that is not in SHAPERS

    def _shaper(self, name: str) -> Shaper:
        return cast(Shaper, self._function(name))  # of a name that is

    def _function(self, name: str) -> Verifier | Shaper:
        if name not in self._functions:
            self._functions[name] = self._build(name, self._section)
        return self._functions[name]

    def _functions_of(self, data_source: str, where: str) -> dict[str, float]:
        """Function -> weight for this row, "auto" resolved by its data source."""
        if AUTO not in self._weights:
            return self._weights
        resolved: dict[str, float] = {}
        for name, weight in self._weights.items():
            try:
                actual = function_for(data_source) if name == AUTO else name
            except DataError as error:
                raise DataError(f"{where}: {error}") from error
            resolved[actual] = resolved.get(actual, 0.0) + weight
        return resolved


def _failure_of(candidate: Candidate) -> str:
    """Why there is nothing to judge: the environment failed; "" where there is."""
    episode = candidate.episode
    return episode.message if episode is not None and episode.end is EpisodeEnd.FAILED else ""


def _failed(name: str, verdict: Verdict, message: str) -> Verification:
    return Verification(value=None, verdict=verdict, message=f"{function_label(name)}: {message}")


def _key(job: RewardJob) -> str:
    """Identity of a job without its response."""
    return json.dumps([job.task, dict(job.without_response)], sort_keys=True)


def _worker_pool(
    section: RewardSection, objects: Mapping[str, RewardFunction], on_answer: Callable[[], None]
) -> WorkerPool:
    """A pool, not yet started, for whatever the functions may hand over."""
    files = [file.task for file in map(file_function, section.functions) if file is not None]
    symbolic = any(name in _RUN_MATH_VERIFY for name in section.functions)
    own = {text: objects.get(text) for text in section.functions if text.startswith(IN_PROCESS)}
    tasks = [*files, *([MATH_VERIFY_TASK] if symbolic else [])]
    return PoolWithObjects(own, tasks, section.workers, on_answer)
