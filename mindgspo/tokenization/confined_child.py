"""The program of the child process that `confined` starts: one JSON line of setup, then one line per request.

The processor time of a request is bounded by a timer of the system, whose signal ends the process also in the middle of
a library's call; memory by a limit of the system.
"""

from __future__ import annotations

import base64
import json
import os
import resource
import signal
import sys
from collections.abc import Mapping
from typing import Any

from mindgspo.errors import TokenizerError
from mindgspo.tokenization.backends import AnyBackend, load_here
from mindgspo.tokenization.chat import render_here
from mindgspo.tokenization.files import TokenizerFiles

_LONGEST_FAULT = 500


class Services:
    """What a request may name: each takes the request's other fields and returns JSON."""

    def __init__(self, files: TokenizerFiles) -> None:
        self._files = files
        self._loaded: AnyBackend | None = None

    @property
    def _backend(self) -> AnyBackend:
        if self._loaded is None:
            self._loaded = load_here(self._files)
        return self._loaded

    def load(self) -> dict[str, Any]:
        """num_ids and special_names."""
        return {"num_ids": self._backend.num_ids, "special_names": self._backend.special_names()}

    def encode(self, text: str) -> list[int]:
        """Ids of a text."""
        return self._backend.encode(text)

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        """Text of ids."""
        return self._backend.decode(ids, skip_special_tokens=skip_special_tokens)

    def id_of(self, token: str) -> int | None:
        """The id of a token's text."""
        return self._backend.id_of(token)

    def render(self, source: str, variables: Mapping[str, Any]) -> str:
        """The text that a template makes."""
        return render_here(source, variables)


def serve_requests() -> None:
    """Answer until the input ends."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints must not get between the replies
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    setup = json.loads(sys.stdin.buffer.readline())
    contents = {name: base64.b64decode(content) for name, content in setup["contents"].items()}
    services = Services(TokenizerFiles(origin=setup["origin"], contents=contents))
    for limit, value in ((resource.RLIMIT_AS, setup["memory_bytes"]), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(limit, (value, value))
    _say(replies, {})
    for line in sys.stdin.buffer:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, request.pop("seconds"))
        reply = _reply(services, request)
        signal.setitimer(signal.ITIMER_PROF, 0)
        _say(replies, reply)


def _reply(services: Services, request: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"value": getattr(services, request.pop("service"))(**request)}
    except TokenizerError as error:
        return {"error": str(error)}
    except MemoryError:
        return {"fault": "it needs too much memory"}
    except BaseException as error:  # whatever a template or a library raises; a panic of Rust is no Exception
        return {"fault": f"{type(error).__name__}: {error}"[:_LONGEST_FAULT]}


def _say(replies: Any, reply: Mapping[str, Any]) -> None:
    try:
        print(json.dumps(reply), file=replies, flush=True)
    except BrokenPipeError:
        os._exit(0)  # the parent was killed
