"""Scores batches by a server that returns log-probs of given ids: `mindgspo serve` or vLLM.

    batch -> prompt and response of each sample -> POST /v1/completions with prompt_logprobs -> log-probs of its tokens

Rank 0 asks, and every rank gets the results. Answers are validated as those to other completion requests are. vLLM
takes prompt_logprobs from the logits as they are, whatever the request's temperature: they are those of temperature 1.

Legend: N samples, K response-token slots, A likeliest tokens, L ids of a row.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from mindgspo.config import ExperimentConfig, ParallelPlan
from mindgspo.config.distillation import TeacherSection
from mindgspo.errors import ConfigError, RolloutError
from mindgspo.models.scoring import TokenScores
from mindgspo.parallel.collectives.replicas import Arrays, Replicas
from mindgspo.parallel.plans.placement import Placement
from mindgspo.parallel.platform import heartbeat, runtime
from mindgspo.rollout.server_apis import LEAST_LOGPROB, MOST_LOGPROB, SERVER_APIS, Call
from mindgspo.rollout.server_connection import Server, ServiceOptions, open_session, parsed
from mindgspo.rollout.server_key import key_of_file, server_key
from mindgspo.text import shorten
from mindgspo.tokenization import Tokenizer
from mindgspo.types import Batch, Float32Array, Int32Array

Result = TypeVar("Result")
_AT_ONCE = 64  # rows that a server is asked for at once
_STARTS_WITHIN_S = 60.0
_ENTRY_BYTES, _MORE_BYTES = 256, 1 << 16  # of an answer: of each log-prob with its token's text, and of all else
_ROUNDING = 1e-3  # of a sum of probabilities
_UNKNOWN = "\ufffd"  # text of an id that is a part of a character


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRow:
    """What a server says of a row of L ids, from the second one on."""

    logprobs: Float32Array
    """float32 [L - 1], each given the ids before it."""
    top_ids: Int32Array
    """int32 [L - 1, A], the likeliest ids, the likeliest first; -1 beyond the vocabulary, and where there are fewer."""
    top_logprobs: Float32Array
    """float32 [L - 1, A]; 0 where the id is -1."""
    texts: tuple[str, ...]
    """Texts of the row's own ids."""
    weight_version: object
    """As the server reports it; None if it does not."""


class ServerScorer:
    """Scores as a `PolicyScorer` does; all ranks call it.

    url: the server's address. vocab_size: that of the policy. top_k: A, number of likeliest tokens per position.
    """

    def __init__(self, url: str, options: ServiceOptions, *, vocab_size: int, top_k: int = 0) -> None:
        self._url, self._options = url.rstrip("/"), options
        self._vocab_size, self._top_k = vocab_size, top_k
        self._version: object = None
        everyone = ParallelPlan(model_parallel=runtime.world_size())
        self._replicas = Replicas(Placement(plan=everyone, rank=runtime.rank()))

    def score(self, batches: Sequence[Batch]) -> list[TokenScores]:
        """One result per batch, without entropies. Samples without a real token are not asked for. Raises RolloutError
        for a server that fails, or an invalid answer."""
        found = self._asked(batches) if self._replicas.is_leader else []
        return [
            TokenScores(
                logp_NK=logp_NK,
                entropy_NK=np.zeros_like(logp_NK),
                top_ids_NKA=ids_NKA if self._top_k else None,
                top_logp_NKA=top_NKA if self._top_k else None,
            )
            for logp_NK, ids_NKA, top_NKA in self._replicas.collect(found, num_items=len(batches))
        ]

    def check_vocabulary(self, tokenizer: Tokenizer, longest: int) -> None:
        """Ask for the text of every id, in rows of `longest` tokens, so that the server shows as well that it takes the
        longest sequence. Raises ConfigError if an id has another text than in `tokenizer`, and RolloutError."""
        if not self._replicas.is_leader:
            return
        every = np.arange(self._vocab_size, dtype=np.int32)
        rows = np.resize(every, (-(-every.size // (longest - 1)), longest - 1))
        first = np.zeros(1, np.int32)  # the first id of a row has no log-prob, and no text
        for ids, served in zip(rows, self._served([np.append(first, row) for row in rows]), strict=True):
            self._version = served.weight_version
            for token, theirs in zip(ids.tolist(), served.texts, strict=True):
                ours = tokenizer.decode([token])
                if ours.strip() and _UNKNOWN not in ours + theirs and ours.strip() != theirs.strip():
                    one, other = (shorten(repr(text), 60) for text in (theirs, ours))
                    raise ConfigError(
                        f"{self._options.setting}: {self._url}: its vocabulary is not that of {tokenizer.name}: id "
                        f"{token} is {one} there and {other} here"
                    )

    def _asked(self, batches: Sequence[Batch]) -> list[Arrays]:
        """Log-probs [N, K] of each batch, likeliest ids [N, K, A] and their log-probs; 0, -1 and 0 where masked."""
        shapes = [batch.mask_NK.shape for batch in batches]
        found = [
            (
                np.zeros(shape, np.float32),
                np.full((*shape, self._top_k), -1, np.int32),
                np.zeros((*shape, self._top_k), np.float32),
            )
            for shape in shapes
        ]
        samples = [(b, int(n)) for b, batch in enumerate(batches) for n in np.flatnonzero(batch.mask_NK.any(axis=1))]
        rows = [sample_row(batches[b], n) for b, n in samples]
        for (b, n), (_, places), served in zip(samples, rows, self._served([ids for ids, _ in rows]), strict=True):
            if served.weight_version != self._version:
                raise RolloutError(
                    f"{self._url}: its weights have version {served.weight_version!r:.40} now, and had "
                    f"{self._version!r:.40} when the run started; a teacher does not change"
                )
            for array, values in zip(found[b], (served.logprobs, served.top_ids, served.top_logprobs), strict=True):
                array[n, batches[b].mask_NK[n]] = values[places]
        return found

    def _served(self, rows: Sequence[Int32Array]) -> list[ServedRow]:
        try:
            return _in_a_thread(self._all(rows))
        except RolloutError as error:
            raise RolloutError(self._options.hidden(str(error))) from error.__cause__

    # ---- in an event loop

    async def _all(self, rows: Sequence[Int32Array]) -> list[ServedRow]:
        async with open_session() as session:
            server = Server(self._url, self._options, session, None)
            free = asyncio.Semaphore(self._options.most_running)
            if self._version is None:
                await server.await_ready(time.monotonic() + _STARTS_WITHIN_S)

            async def ask(ids: Int32Array) -> ServedRow:
                async with free:
                    return await self._ask(server, ids)

            watch = asyncio.ensure_future(server.watch())
            asked = [asyncio.ensure_future(ask(ids)) for ids in rows]
            try:
                return await asyncio.gather(*asked)
            finally:
                for task in (watch, *asked):
                    task.cancel()
                await asyncio.gather(watch, *asked, return_exceptions=True)

    async def _ask(self, server: Server, ids: Int32Array) -> ServedRow:
        asked = {"prompt_logprobs": self._top_k, "max_tokens": 1, "return_token_ids": True}
        needs = f"; vLLM must be started with --max-logprobs {self._top_k} or more" if self._top_k else ""
        call = Call(path=self._options.api.completions, body={"prompt": ids.tolist(), **asked}, needs=needs)
        most_bytes = _MORE_BYTES + ids.size * (self._top_k + 2) * _ENTRY_BYTES
        content = await server.content(call, most_bytes)
        assert content is not None, "neither passes a status nor gives up"
        heartbeat.tick()
        return read_row(content, ids, top_k=self._top_k, vocab_size=self._vocab_size, what=f"{self._url}{call.path}")


def open_server_scorer(
    config: ExperimentConfig, teacher: TeacherSection, tokenizer: Tokenizer, key: str, *, top_k: int = 0
) -> ServerScorer:
    """Connect to a teacher's server and compare its vocabulary; on all ranks. key: the teacher's, for messages. Raises
    ConfigError and RolloutError."""
    assert teacher.url is not None, "a teacher on the cards that train"
    servers, secret = config.rollout.servers, None
    if teacher.api_key_file is not None:
        secret = key_of_file(teacher.api_key_file, f"{key}.api_key_file")
    elif not config.has_own_servers:  # theirs is made by the run
        secret = server_key(None)
    options = ServiceOptions(
        most_running=_AT_ONCE,
        timeout_s=servers.timeout_seconds,
        retries=servers.retries,
        api=SERVER_APIS[teacher.api],
        key=secret,
        silent_s=config.watch.min_seconds,
        setting=f"{key}.url",
    )
    scorer = ServerScorer(teacher.url, options, vocab_size=config.model.vocab_size, top_k=top_k)
    scorer.check_vocabulary(tokenizer, config.data.max_prompt_length + config.rollout.max_new_tokens)
    return scorer


def sample_row(batch: Batch, sample: int) -> tuple[Int32Array, NDArray[np.int64]]:
    """The ids of a sample from its first to its last trained token, and which of `ServedRow.logprobs` are those of its
    trained tokens."""
    predict_K = batch.predict_P[batch.place_NK[sample, batch.mask_NK[sample]]].astype(np.int64)
    start = predict_K[0] - batch.positions_RT.reshape(-1)[predict_K[0]]
    return batch.ids_RT.reshape(-1)[start : predict_K[-1] + 2], predict_K - start


def read_row(content: bytes, ids: Int32Array, *, top_k: int, vocab_size: int, what: str) -> ServedRow:
    """Validate the answer to a row of ids. Raises RolloutError, which begins with `what`."""
    try:
        found = parsed(content, what)
        (choice,) = found["choices"]
        entries = choice.get("prompt_logprobs")
        if entries is None:
            raise RolloutError(f"{what}: the answer has no prompt_logprobs; a teacher's server must return them")
        if choice.get("prompt_token_ids") != ids.tolist():
            raise RolloutError(f"{what}: the answer has other prompt_token_ids than it was asked for, or none")
        if len(entries) != ids.size:
            raise RolloutError(f"{what}: the answer has log-probs of {len(entries)} ids, asked were {ids.size}")
        tokens = list(map(str, ids[1:].tolist()))
        own = [entry[token] for entry, token in zip(entries[1:], tokens, strict=True)]
        logprobs = _log_probs([one["logprob"] for one in own], what)
        texts = tuple(one["decoded_token"] for one in own)
        if not all(isinstance(text, str) for text in texts):
            raise RolloutError(f"{what}: the answer has no decoded_token; the server must have its tokenizer")
        top_ids = np.full((len(own), top_k), -1, np.int32)
        top_logprobs = np.zeros((len(own), top_k), np.float32)
        for place, entry in enumerate(entries[1:] if top_k else ()):
            top_ids[place], top_logprobs[place] = _likeliest(entry, top_k, vocab_size, what)
        return ServedRow(
            logprobs=logprobs,
            top_ids=top_ids,
            top_logprobs=top_logprobs,
            texts=texts,
            weight_version=found.get("weight_version"),
        )
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise RolloutError(f"{what}: the answer does not have the form of prompt_logprobs ({error!r:.200})") from error


def _likeliest(entry: dict[str, Any], top_k: int, vocab_size: int, what: str) -> tuple[Int32Array, Float32Array]:
    """Ids and log-probs [A] of one position. Beside its k likeliest ids, a server names the row's own."""
    ids = np.array([int(token) for token in entry], np.int64)
    logprobs = _log_probs([one["logprob"] for one in entry.values()], what)
    order = np.argsort(-logprobs, kind="stable")[:top_k]
    is_new, mass = len(np.unique(ids)) == ids.size and ids.min() >= 0, float(np.exp(logprobs[order]).sum())
    if not is_new or mass > 1 + _ROUNDING:
        raise RolloutError(f"{what}: the answer has likeliest tokens {ids.tolist()!r:.40} of probability {mass:g}")
    ids, logprobs = ids[order], logprobs[order]
    more, is_known = top_k - ids.size, ids < vocab_size
    return (
        np.pad(np.where(is_known, ids, -1), (0, more), constant_values=-1).astype(np.int32),
        np.pad(np.where(is_known, logprobs, np.float32(0)), (0, more)),
    )


def _log_probs(values: list[Any], what: str) -> Float32Array:
    """float32 of numbers that are log-probs. Raises RolloutError for others."""
    for value in values:  # every comparison with NaN is false
        if type(value) not in (float, int) or not LEAST_LOGPROB <= value <= MOST_LOGPROB:
            raise RolloutError(f"{what}: the answer has the log-prob {value!r:.40}; legal are finite numbers up to 0")
    return np.array(values, np.float32)


def _in_a_thread(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine in a loop of its own: a notebook's thread has one that runs."""
    done: Future[Result] = Future()

    def run() -> None:
        try:
            done.set_result(asyncio.run(work))
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name="asks a teacher", daemon=True).start()
    return done.result()
