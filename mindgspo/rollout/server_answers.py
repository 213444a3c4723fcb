"""What completion servers answer is believed only as far as it can be checked: here it becomes pieces of responses, or
an error that says what came and what was asked.
"""

from __future__ import annotations

import base64
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from mindgspo.errors import RolloutError
from mindgspo.rollout.service import Answer, Piece, Request
from mindgspo.types import FinishReason, Routing

_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH, "abort": None}
# No float32 is below the one; a token that is certain may come out above 0 by the rounding of a float32 sum.
_LEAST, _MOST = float(np.finfo(np.float32).min), 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a right answer keeps to. vocab_size, eos_ids: of the tokenizer. routing: an array [0, X] of the type of
    experts' numbers, where they are recorded, of which there are num_experts."""

    vocab_size: int
    eos_ids: Collection[int]
    routing: np.ndarray | None = None
    num_experts: int = 0


class AnswerReader:
    """Reads a server's answer to one request, in the form of `mindgspo serve` (docs/rollout_servers.md). Raises
    RolloutError for whatever it cannot be."""

    def __init__(self, request: Request, expected: Expected, url: str) -> None:
        self._request, self._expected, self._url = request, expected, url
        self._prompt = request.token_ids

    def answer(self, found: Any, version: int, label: int | str) -> Answer:
        """version: of the weights that the servers were given; label: what they call it."""
        if not isinstance(found, dict):
            raise self._error("is no JSON object")
        told = found.get("weight_version")
        if told != label or type(told) is not type(label):
            raise self._error(
                f"was generated with weights of version {told!r}, the servers were given version {version}; look for "
                "somebody else who updates this server"
            )
        choices, samples = found.get("choices"), self._request.samples
        if not isinstance(choices, list) or len(choices) != len(samples):
            count = len(choices) if isinstance(choices, list) else "no list of"
            raise self._error(f"has {count} choices, n was {len(samples)}")
        pieces = tuple(self._piece(index, choice) for index, choice in enumerate(choices))
        return Answer(number=self._request.number, weight_version=version, pieces=pieces)

    def _piece(self, index: int, choice: Any) -> Piece:
        if not isinstance(choice, dict) or choice.get("index") != index:
            raise self._error(f"choice {index} is not where it belongs, or no object")
        if choice.get("prompt_token_ids") != self._prompt:
            raise self._error(
                f"choice {index} answers other prompt_token_ids than it was asked; the server must take ids as they are"
            )
        ids = self._ids(index, choice.get("token_ids"))
        logprobs = self._logprobs(index, choice.get("logprobs"), ids.size)
        reason = choice.get("finish_reason")
        if not isinstance(reason, str) or reason not in _REASONS:
            raise self._error(f"choice {index} has finish_reason {reason!r}; legal: {', '.join(_REASONS)}")
        most = self._request.settings.max_new_tokens - self._request.prefix.size
        eos_ids = sorted(self._expected.eos_ids)
        ends = np.flatnonzero(np.isin(ids, eos_ids))
        if reason == "stop" and not (ids.size and ends.size and ends[-1] == ids.size - 1):
            last = int(ids[-1]) if ids.size else "no token"
            raise self._error(
                f"choice {index} stopped at {last}, which is none of the end tokens {eos_ids}; the server must stop at "
                "these alone, and return the last one"
            )
        if ends.size > (reason == "stop"):
            raise self._error(
                f"choice {index} has the end token {int(ids[ends[0]])} at {int(ends[0])} of {ids.size}, and goes on or "
                f"has finish_reason {reason!r}; the server must stop at all of {eos_ids}"
            )
        if reason == "length" and ids.size != most:
            raise self._error(f"choice {index} ended at {ids.size} tokens for its length, max_tokens was {most}")
        return Piece(
            ids=ids,
            logprobs=logprobs,
            finish_reason=_REASONS[reason],
            routing=self._routing(index, choice.get("routed_experts"), ids.size),
        )

    def _ids(self, index: int, found: Any) -> np.ndarray:
        most, size = self._request.settings.max_new_tokens - self._request.prefix.size, self._expected.vocab_size
        if not isinstance(found, list) or not all(type(token) is int for token in found):
            raise self._error(f"choice {index} has no list of token_ids; the server must know return_token_ids")
        if len(found) > most:
            raise self._error(f"choice {index} has {len(found)} tokens, max_tokens was {most}")
        wrong = next((token for token in found if not 0 <= token < size), None)
        if wrong is not None:
            raise self._error(f"choice {index} has token id {wrong}; the vocabulary has {size}")
        return np.array(found, np.int32)

    def _logprobs(self, index: int, found: Any, num_tokens: int) -> np.ndarray:
        values = found.get("token_logprobs") if isinstance(found, dict) else None
        if not isinstance(values, list) or len(values) != num_tokens:
            count = len(values) if isinstance(values, list) else "no"
            raise self._error(f"choice {index} has {count} log-probs for {num_tokens} tokens")
        wrong = [one for one in values if type(one) not in (float, int) or not _LEAST <= one <= _MOST]
        if wrong:
            raise self._error(f"choice {index} has the log-prob {wrong[0]!r}; legal are finite numbers up to 0")
        return np.array(values, np.float32)

    def _routing(self, index: int, found: Any, num_tokens: int) -> Routing | None:
        like = self._expected.routing
        if like is None:
            return None
        if not isinstance(found, dict):
            raise self._error(
                f"choice {index} has no routed_experts, which rollout.record_experts asks for; set it to false, or "
                "take a server that returns them"
            )
        num_prompt = len(self._prompt) - 1 if num_tokens else 0
        return Routing(
            prompt_LX=self._experts(index, found, "prompt", num_prompt, like),
            response_LX=self._experts(index, found, "response", num_tokens, like),
        )

    def _experts(self, index: int, found: dict[str, Any], key: str, rows: int, like: np.ndarray) -> np.ndarray:
        try:
            content = base64.b64decode(found[key], validate=True)
            experts = np.frombuffer(content, like.dtype).reshape(rows, like.shape[1])
        except (KeyError, TypeError, ValueError):
            raise self._error(
                f"choice {index}: routed_experts.{key} is not base64 of {like.dtype.name} [{rows}, {like.shape[1]}]"
            ) from None
        if experts.size and not (experts.min() >= 0 and experts.max() < self._expected.num_experts):
            raise self._error(
                f"choice {index}: routed_experts.{key} names an expert beyond {self._expected.num_experts}"
            )
        return experts.copy()

    def _error(self, what: str) -> RolloutError:
        return RolloutError(f"{self._url}: the answer to request {self._request.number} {what}")
