"""Random requests that nobody sends in good faith, as raw bytes, and what a server answers to them."""

from __future__ import annotations

import gzip
import json
import random
import re
import socket
import zlib
from collections.abc import Callable
from contextlib import suppress

_PATHS = (
    *("/v1/completions",) * 8, *("/update_weights",) * 3, "/health", "/v1/models", "/abort_requests", "/sleep",
    "/wake_up", "/", "*", "/v1/completions/", "//v1//completions", "/v1/../sleep", "/%00", "/%ff%fe",
    "/v1/%63ompletions", "/health?x=%ff", "/health#x", "http://elsewhere/health", "/\xff\xfe", "/" + "a" * 9000,
    "/health?" + "b=1&" * 3000, "",
)  # fmt: skip
_METHODS = (
    *("POST",) * 12, *("GET",) * 3, "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "CONNECT", "post", "P\x00ST",
    "A" * 300, "", "\xff",
)  # fmt: skip
_KEYS = (
    *("prompt", "n", "max_tokens", "temperature", "top_k", "top_p", "seed", "random_stream", "number", "model"),
    *("logprobs", "stop", "stream", "echo", "return_routed_experts", "folder", "version", "\ud800", "", "x" * 3000),
)
# As they stand in a body; Python's json would not write most of them.
_VALUES = (
    *("null", "true", "false", "0", "1", "-1", "2", "3.5", "-0.0", "1e-40", "1e-45", "1e-300", "1e400", "-1e400"),
    *("1" + "0" * 400, "-1" + "0" * 400, "1" * 5000, "NaN", "Infinity", "-Infinity", "9223372036854775808"),
    *('""', '"x"', '"\\ud800"', '"\\u0000"', '"/tmp/\\ud800"', '"/tmp/\\u0000"', '"../../etc"', '"/proc/self/mem"'),
    *("[]", "[5]", "[-1]", "[5, null]", "[1e3]", "[[5]]", "[true]", "{}", '{"start": 1}', '{"samples": [0]}'),
    *('{"seed": null, "purpose": 1, "step": 0, "draw": 0, "samples": [0]}', "[" * 50_000, '{"a":' * 3000, "0x10", "01"),
)
_HEADERS = (
    *("Accept-Encoding: gzip", "Cookie: " + "a=b; " * 500, "X: " + "y" * 9000, "no colon", ": empty", "X-Nul: \x00"),
    *("X-Bytes: \xff\xfe", " folded: yes", "Range: bytes=0-0", "Origin: http://elsewhere", "Origin: null"),
    *("Host: elsewhere.example", "Host: ", "Authorization: Bearer \xff", "Authorization: MindGSPO x", "X-Nonce: \xff"),
    *("Connection: upgrade\r\nUpgrade: websocket", "Connection: upgrade\r\nUpgrade: h2c", "Expect: 100-continue"),
    *("Expect: nothing", "Content-Type: \xff", "Content-Type: text/plain; charset=utf-7", "TE: trailers"),
    *("Content-Encoding: gzip", "Content-Encoding: deflate", "Content-Encoding: br", "Content-Encoding: zstd"),
    "\r\n".join(f"X-{number}: {number}" for number in range(300)),
)
_LENGTHS = ("-1", "+5", "0x10", "1e3", "99999999999999999999999", "", "5, 5", "abc", "0", "1", "1000000")
_STRANGE = (
    b"", b"\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x00" * 500,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)), b"GET /health\r\n", b"A" * 70_000,
    b"POST /v1/completions HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}", b"GET /health HTTP/1.1\nHost: localhost\n\n",
)  # fmt: skip


def hostile_request(rng: random.Random, host: str) -> bytes:
    """Bytes that are sent over one connection; most hold one request."""
    kind = rng.random()
    if kind < 0.05:
        return rng.choice(_STRANGE)
    if kind < 0.15:
        return b"".join(_request(rng, host, is_last=False) for _ in range(rng.randint(1, 6))) + _request(rng, host)
    return _request(rng, host)


def _request(rng: random.Random, host: str, *, is_last: bool = True) -> bytes:
    is_plain = rng.random() < 0.5  # of its head: then the body is what is looked at
    method, path = ("POST", rng.choice(_PATHS[:12])) if is_plain else (rng.choice(_METHODS), rng.choice(_PATHS))
    headers = [f"Host: {host}"] if is_plain or rng.random() < 0.9 else []
    if not is_plain:
        headers += rng.sample(_HEADERS, rng.randint(0, 3))
    body = _body(rng)
    length, framed = _framed(rng, body)
    headers += [*length, *(["Connection: close"] if is_last else [])]
    version = "1.1" if is_plain or rng.random() < 0.9 else rng.choice(("1.0", "0.9", "2.0", "1.10", "x"))
    head = f"{method} {path} HTTP/{version}\r\n" + "".join(f"{header}\r\n" for header in headers) + "\r\n"
    return head.encode("latin-1") + framed


def _framed(rng: random.Random, body: bytes) -> tuple[list[str], bytes]:
    """Headers that say how long the body is, and how it is sent."""
    kind = rng.random()
    if kind < 0.7:
        return [f"Content-Length: {len(body)}"], body
    if kind < 0.8:
        return [f"Content-Length: {rng.choice(_LENGTHS)}"], body
    if kind < 0.84:
        return [f"Content-Length: {len(body)}"], body[: len(body) // 2]
    if kind < 0.87:
        return [f"Content-Length: {len(body)}"] * 2, body
    if kind < 0.9:
        return [], body
    chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    wrong = (
        b"zz\r\n" + body,
        b"-5\r\n" + body,
        b"f" * 40 + b"\r\n",
        b"5;" + b"x" * 20_000 + b"\r\n",
        chunks[:-7],
        chunks * 2,
    )
    found = chunks if rng.random() < 0.5 else rng.choice(wrong)
    both = [f"Content-Length: {len(body)}"] if rng.random() < 0.2 else []
    return [*both, rng.choice(("Transfer-Encoding: chunked",) * 4 + ("Transfer-Encoding: gzip, chunked",))], found


def _body(rng: random.Random) -> bytes:
    kind = rng.random()
    if kind < 0.65:
        fields = {"prompt": "[5, 6]", "max_tokens": "2"} if rng.random() < 0.8 else {"folder": '"/tmp"', "version": "1"}
        for _ in range(rng.randint(0, 3)):
            fields[rng.choice(_KEYS)] = rng.choice(_VALUES)
        return ("{" + ", ".join(f"{json.dumps(key)}: {value}" for key, value in fields.items()) + "}").encode()
    good = b'{"prompt": [5], "max_tokens": 1}'
    ways: tuple[Callable[[], bytes], ...] = (
        lambda: rng.choice(_VALUES).encode(),
        lambda: rng.randbytes(rng.randint(0, 3000)),
        lambda: good[: rng.randint(0, len(good))],
        lambda: good.decode().encode(rng.choice(("utf-16", "utf-32-le", "utf-8-sig", "utf-7"))),
        lambda: gzip.compress(good),
        lambda: zlib.compress(good)[:-3],
        lambda: b"\x1f\x8b" + rng.randbytes(50),
        lambda: gzip.compress(b"0" * 10_000_000),
        lambda: b'{"prompt": [' + b"5," * 200_000 + b"5]}",
        lambda: b'{"prompt": [5], "prompt": [6], "n": "\xff"}',
    )
    return rng.choice(ways)()


def answered(address: tuple[str, int], content: bytes, patience_s: float = 0.2) -> tuple[list[int], bytes]:
    """Statuses and bytes of what comes until the server hangs up, or until it says nothing more: whoever lies about
    lengths waits."""
    found = bytearray()
    with socket.create_connection(address, timeout=10.0) as caller, suppress(TimeoutError, ConnectionError):
        caller.sendall(content)
        while True:
            # The first answer takes its time: a graph may have to be compiled.
            caller.settimeout(patience_s if found or not _is_whole(content) else 30.0)
            if not (part := caller.recv(1 << 16)):
                break
            found += part
    # What is sent back of a request can hold no status line: errors quote it with escapes.
    return [int(status) for status in re.findall(rb"^HTTP/1\.[01] (\d{3}) ", found, re.MULTILINE)], bytes(found)


def _is_whole(content: bytes) -> bool:
    """Whether it is one request whose body has come, which is always answered."""
    head, end, body = content.partition(b"\r\n\r\n")
    lengths = re.findall(rb"(?i)\r\nContent-Length: (\d+)(?=\r\n|$)", head)
    return bool(end) and len(lengths) == 1 and int(lengths[0]) == len(body) and b"Expect" not in head
