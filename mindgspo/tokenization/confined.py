"""A tokenizer and its chat template from outside, in a child process with limits.

A template is a program, and so is a tokenizer.json: with regular expressions and replacements it can take years or all
memory over one line of text, inside a library call that Python cannot interrupt. So whatever comes from a folder runs
in a child, which gives itself a limit of processor time per request and of memory, and is started again when it has
died of one. The built-in tokenizer needs none of this.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any
from weakref import WeakValueDictionary, finalize

from mindgspo.errors import TokenizerError
from mindgspo.tokenization.files import TokenizerFiles

REQUEST_S, LOADING_S = 3, 120
"""Seconds of processor time: a usual text takes a millisecond, a large vocabulary a few seconds."""
_CHARACTERS_PER_S = 200_000
"""A long text gets this much longer; usual tokenizers are ten times as fast."""
MEMORY_BYTES = 4 << 30
_LONGEST_FAULT = 500

_START = "import sys; sys.path[:] = sys.argv[1:]; import mindgspo.tokenization.confined as c; c.serve_requests()"
# One thread, whose processor time is the child's; a panic's backtrace would be printed in an unknown place.
_ENVIRONMENT = {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "RUST_BACKTRACE": "0"}


class ConfinedError(TokenizerError):
    """An error of the child's libraries, or the cause of its death, in a few words without the file's name."""


class ConfinedTokenizer:
    """A `Backend`, loaded in the child, and the child's other services. request_s: processor time of one request but
    loading; memory_bytes: of the child."""

    def __init__(
        self, files: TokenizerFiles, *, request_s: float = REQUEST_S, memory_bytes: int = MEMORY_BYTES
    ) -> None:
        self._files = files
        self._request_s = request_s
        self._memory_bytes = memory_bytes
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._facts: Mapping[str, Any] | None = None
        self._ids: dict[str, int | None] = {}

    @property
    def num_ids(self) -> int:
        return self.load()["num_ids"]

    def special_names(self) -> list[str]:
        return list(self.load()["special_names"])

    def load(self) -> Mapping[str, Any]:
        """num_ids and special_names. Raises TokenizerError if the files are no tokenizer."""
        facts = self._facts
        if facts is None:
            facts = self._named("the tokenizer cannot be loaded", lambda: self.ask("load", seconds=LOADING_S))
            self._facts = facts
        return facts

    def encode(self, text: str, plain: Sequence[tuple[int, int]] = ()) -> list[int]:
        what = f"the tokenizer fails on a text of {len(text):,} characters"
        seconds = self._request_s + len(text) / _CHARACTERS_PER_S
        return self._named(what, lambda: self.ask("encode", text=text, plain=plain, seconds=seconds))

    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        what = f"the tokenizer fails on {len(ids):,} ids"
        return self._named(what, lambda: self.ask("decode", ids=ids, skip_special_tokens=skip_special_tokens))

    def id_of(self, token: str) -> int | None:
        if token not in self._ids:
            self._ids[token] = self._named("the tokenizer fails", lambda: self.ask("id_of", token=token))
        return self._ids[token]

    def _named(self, what: str, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except ConfinedError as error:
            raise TokenizerError(f"{self._files.origin}: {what}: {error}") from error

    def ask(self, service: str, *, seconds: float | None = None, **fields: object) -> Any:
        """Return what a service of the child returns. Raises ConfinedError, or the service's own TokenizerError."""
        seconds = self._request_s if seconds is None else seconds
        with self._lock:
            if self._child is None:
                self._child = self._started()
            try:
                reply = _exchange(self._child, {"service": service, "seconds": seconds, **fields})
            except BaseException:  # Ctrl-C, say: the reply is not read, and would be taken for the next one
                self._end()
                raise
            if reply is None:
                raise ConfinedError(self._cause_of_death(self._end(), seconds))
        if "error" in reply:
            raise TokenizerError(reply["error"])
        if "fault" in reply:
            raise ConfinedError(reply["fault"])
        return reply["value"]

    def _started(self) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            [sys.executable, "-c", _START, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | _ENVIRONMENT,
            start_new_session=True,  # Ctrl-C is the parent's; the child ends with its input
        )
        finalize(self, _close, child)
        contents = {name: base64.b64encode(content).decode() for name, content in self._files.contents.items()}
        setup = {"origin": self._files.origin, "contents": contents, "memory_bytes": self._memory_bytes}
        if _exchange(child, setup) is None:
            raise ConfinedError(f"its process cannot be started (exit code {child.wait()})")
        return child

    def _end(self) -> int:
        """End the child, so that the next request starts another one; returns the exit code."""
        child, self._child = self._child, None
        return 0 if child is None else _close(child)

    def _cause_of_death(self, code: int, seconds: float) -> str:
        if code == -signal.SIGPROF:
            return f"it takes more than {seconds:.3g} s of processor time"
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"exit code {code}"
        return f"its process died ({name}); it has {self._memory_bytes / 2**30:g} GiB of memory"


def _exchange(child: subprocess.Popen[bytes], request: Mapping[str, object]) -> dict[str, Any] | None:
    """The reply; None if the child has died."""
    assert child.stdin and child.stdout
    try:
        child.stdin.write(json.dumps(request).encode() + b"\n")
        child.stdin.flush()
    except BrokenPipeError:
        return None
    line = child.stdout.readline()
    return json.loads(line) if line.endswith(b"\n") else None


def _close(child: subprocess.Popen[bytes]) -> int:
    """The exit code, which of a process that was dying already is that of its death."""
    child.kill()
    code = child.wait()
    assert child.stdin and child.stdout
    for pipe in (child.stdin, child.stdout):
        with suppress(BrokenPipeError):
            pipe.close()
    return code


_IN_USE: WeakValueDictionary[tuple[str, str], ConfinedTokenizer] = WeakValueDictionary()


def confined(files: TokenizerFiles) -> ConfinedTokenizer:
    """The child process for these files; all callers with the same files share it."""
    digest = hashlib.sha256()
    for name, content in sorted(files.contents.items()):
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return _IN_USE.setdefault((files.origin, digest.hexdigest()), ConfinedTokenizer(files))


def _service(files: TokenizerFiles) -> Callable[..., Any]:
    """The function that answers requests: a service's name and its fields give JSON."""
    from mindgspo.tokenization.backends import load_here  # these modules import this one
    from mindgspo.tokenization.chat import render_here

    backend = cache(lambda: load_here(files))

    def answer(service: str, **fields: Any) -> Any:
        if service == "render":
            return render_here(**fields)
        if service == "load":
            return {"num_ids": backend().num_ids, "special_names": backend().special_names()}
        assert service in ("encode", "decode", "id_of"), service
        return getattr(backend(), service)(**fields)

    return answer


def serve_requests() -> None:
    """The program of the child process: one JSON line of setup, then one line per request, until the input ends.

    The processor time of a request is bounded by a timer of the system, whose signal ends the process also in the
    middle of a library's call; memory by a limit of the system.
    """
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints must not get between the replies
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    setup = json.loads(sys.stdin.buffer.readline())
    contents = {name: base64.b64decode(content) for name, content in setup["contents"].items()}
    answer = _service(TokenizerFiles(origin=setup["origin"], contents=contents))
    for limit, value in ((resource.RLIMIT_AS, setup["memory_bytes"]), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(limit, (value, value))
    _say(replies, {})
    for line in sys.stdin.buffer:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, request.pop("seconds"))
        reply = _reply(answer, request)
        signal.setitimer(signal.ITIMER_PROF, 0)
        _say(replies, reply)


def _reply(answer: Callable[..., Any], request: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"value": answer(**request)}
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
