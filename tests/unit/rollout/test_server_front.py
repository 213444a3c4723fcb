"""The side of a completion server that faces the network, on a real port, in front of nothing that generates."""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hostile_requests import answered, hostile_request

from mindgspo.rollout import server_front
from mindgspo.rollout.completions import Limits
from mindgspo.rollout.protocol import SamplingFilter
from mindgspo.rollout.server_front import ServerFront
from mindgspo.rollout.server_key import NONCE, SIGNATURE, ServerKey

LIMITS = Limits(
    name="m", vocab_size=512, max_prompt_length=32, max_new_tokens=40, max_samples=8, most_requests=8,
    sampling_filter=SamplingFilter(), records_experts=False,
)  # fmt: skip
KEY = ServerKey("s3cret")
BODY = b'{"prompt": [5]}'


class Front:
    """One that answers every order at once, unless `held` is set, and notes them."""

    def __init__(self, key: ServerKey | None, folders: list[Path]) -> None:
        self.orders: list[tuple[str, dict[str, Any]]] = []
        self.held = False
        self.fault: Exception | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        state = {"weight_version": 4, "is_sleeping": False}
        self._front = ServerFront(LIMITS, self._order, lambda: state, str, key=key, folders=folders)
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        self.address = listener.getsockname()
        self.host = f"127.0.0.1:{self.address[1]}"
        self._do(self._front.open(listener))

    def _order(self, kind: str, content: dict[str, Any]) -> Future:
        self.orders.append((kind, content))
        done: Future = Future()
        if self.fault is not None:
            done.set_exception(self.fault)
        elif not self.held:
            done.set_result((200, {"done": kind}))
        return done

    def _do(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=10)

    def close(self) -> None:
        self._do(self._front.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def ask(
        self, path: str, body: bytes = b"{}", method: str = "POST", **headers: str
    ) -> tuple[int, dict[str, Any], http.client.HTTPMessage, bytes]:
        """Status, JSON, headers and bytes of the answer; _ in the names of headers is -."""
        caller = http.client.HTTPConnection(*self.address, timeout=10)
        sent = {name.replace("_", "-"): text for name, text in headers.items()}
        caller.request(method, path, body=body, headers=sent)
        answer = caller.getresponse()
        content = answer.read()
        caller.close()
        return answer.status, json.loads(content), answer.headers, content

    def says(self, path: str, body: bytes = b"{}", method: str = "POST", **headers: str) -> tuple[int, str]:
        """Status and message of an error."""
        status, found, *_ = self.ask(path, body, method, **headers)
        return status, found["error"]["message"]


@pytest.fixture
def front(tmp_path: Path) -> Iterator[Front]:
    with closing(Front(None, [tmp_path / "weights"])) as front:
        yield front


@pytest.fixture
def keyed(tmp_path: Path) -> Iterator[Front]:
    with closing(Front(KEY, [tmp_path / "weights"])) as front:
        yield front


# ---- who asks


@pytest.mark.parametrize("origin", ["http://elsewhere.example", "null", "http://127.0.0.1:8000", ""])
@pytest.mark.parametrize("path", ["/sleep", "/v1/completions", "/update_weights", "/health"])
def test_pages_of_browsers_are_not_served(front: Front, origin: str, path: str) -> None:
    assert front.says(path, BODY, Origin=origin) == (403, "Origin: web pages are not served")
    assert front.orders == []


@pytest.mark.parametrize(
    ("host", "status"),
    [("elsewhere.example", 403), ("elsewhere.example:8000", 403), ("127.0.0.1.elsewhere.example", 403),
     ("localhost.elsewhere", 403), ("", 403), ("[::1", 403), ("[::1]", 200), ("127.0.0.1", 200), ("localhost", 200),
     ("LOCALHOST:1", 200), ("10.0.0.2:8000", 200), ("[::1]:8000", 200)],
)  # fmt: skip
def test_a_name_that_dns_was_made_to_give_this_address(front: Front, host: str, status: int) -> None:
    assert front.ask("/v1/completions", BODY, Host=host)[0] == status


def test_two_hosts_or_none(front: Front) -> None:
    for hosts in (b"", b"Host: localhost\r\nHost: elsewhere\r\n"):
        assert answered(front.address, b"GET /health HTTP/1.1\r\n%sConnection: close\r\n\r\n" % hosts)[0] == [400]


def test_without_the_key_nothing_is_answered(keyed: Front) -> None:
    for path in ("/health", "/v1/models", "/v1/completions", "/sleep", "/abort_requests", "/update_weights", "/none"):
        for word in ("", "Bearer", "Bearer wrong", "s3cret", "bearer s3cret", "Basic s3cret", "Bearer \xff\xfe"):
            headers = {"Authorization": word} if word else {}
            status, found, sent, _ = keyed.ask(path, BODY, **headers)
            assert (status, found["error"]["code"]) == (401, 401) and SIGNATURE not in sent
    assert keyed.orders == []
    # As OpenAI's clients send it.
    assert keyed.ask("/v1/completions", BODY, Authorization="Bearer s3cret")[0] == 200
    assert keyed.ask("/health", b"", "GET", Authorization="Bearer s3cret")[0] == 200


def test_a_signature_holds_for_one_method_path_and_body(keyed: Front) -> None:
    signed = KEY.signed("POST", "/v1/completions", BODY)
    status, _, headers, content = keyed.ask("/v1/completions", BODY, **signed)
    assert status == 200 and KEY.is_proven(headers, signed[NONCE], 200, content)
    assert not KEY.is_proven(headers, signed[NONCE], 200, content + b" ")
    assert not KEY.is_proven(headers, KEY.signed("POST", "/", b"")[NONCE], 200, content)
    for path, body, changed in (
        ("/sleep", BODY, {}), ("/v1/completions", b"{}", {}), ("/v1/completions", BODY, {NONCE: "0" * 32}),
        ("/v1/completions", BODY, {SIGNATURE: "0" * 64}), ("/v1/completions?x", BODY, {}),
    ):  # fmt: skip
        assert keyed.ask(path, body, **signed | changed)[0] == 401
    assert keyed.ask("/v1/completions", BODY, **ServerKey("other").signed("POST", "/v1/completions", BODY))[0] == 401


# ---- what is asked


def test_weights_are_looked_for_in_the_folders_that_were_named(front: Front, tmp_path: Path) -> None:
    root = tmp_path / "weights"
    (root / "version_1").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (root / "link").symlink_to(tmp_path / "outside")
    for folder in (root / "version_1", root / ".." / "weights" / "version_1", root / "not there yet"):
        body = json.dumps({"folder": str(folder), "version": 1}).encode()
        assert front.ask("/update_weights", body)[0] == 200, folder
    outside = (tmp_path / "outside", root / ".." / "outside", root / "link", root / "link" / "x", root, tmp_path, "..")
    for folder in map(str, outside):
        status, said = front.says("/update_weights", json.dumps({"folder": folder, "version": 1}).encode())
        assert status == 403 and f"is in none of the folders that weights are accepted from: {root};" in said
    taken = [Path(content["folder"]).relative_to(root).name for _, content in front.orders]
    assert taken == ["version_1", "version_1", "not there yet"]


@pytest.mark.parametrize(
    "body",
    [b'{"folder": "\\ud800", "version": 1}', b'{"folder": "\\u0000", "version": 1}', b'{"folder": 5, "version": 1}',
     b'{"folder": "/tmp", "version": Infinity}', b'{"folder": "/tmp", "version": NaN}', b'{"folder": "/tmp"}',
     b'{"folder": "/tmp", "version": 1e3}', b'{"folder": "/tmp", "version": true}', b"[]", b"{", b"", b"\xff",
     b'{"folder": "/tmp", "version": -1}', b'{"folder": "/tmp", "version": 1' + b"0" * 5000 + b"}", b"[" * 5000],
)  # fmt: skip
def test_a_hand_over_that_cannot_be(front: Front, body: bytes) -> None:
    assert front.says("/update_weights", body)[0] == 400 and front.orders == []


def test_bodies_that_are_packed_or_too_large(front: Front) -> None:
    for coding in ("gzip", "deflate", "br", "gzip, identity", "unknown"):
        assert front.says("/v1/completions", b"\x1f\x8bgarbage", Content_Encoding=coding)[0] == 415
    assert front.ask("/v1/completions", BODY, Content_Encoding="identity")[0] == 200
    assert front.says("/v1/completions", b" " * 200_000) == (400, "the body is larger than 66816 bytes")


def test_a_defect_is_an_answer(front: Front, capsys: pytest.CaptureFixture[str]) -> None:
    front.fault = OverflowError("secret of the server")
    status, said = front.says("/v1/completions", BODY)
    assert (status, said) == (500, "internal error of this server: OverflowError; see its log")
    front.fault = None
    assert front.ask("/v1/completions", BODY)[0] == 200
    assert "OverflowError: secret of the server" in capsys.readouterr().err


# ---- how much is asked


def test_idle_and_slow_connections_make_way(front: Front) -> None:
    """300 that say nothing, or not all; 72 may be open."""
    kept = []
    begun = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
    for number in range(300):
        kept.append(socket.create_connection(front.address, timeout=5))
        kept[-1].sendall((b"", b"POST /v1/comple", begun)[number % 3])
    assert front.ask("/v1/completions", BODY)[0] == 200
    for caller in kept:
        caller.close()


def test_requests_that_run_are_not_closed_for_others(front: Front) -> None:
    front.held = True
    kept = [socket.create_connection(front.address, timeout=5) for _ in range(8)]
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {front.host}\r\nContent-Length: {len(BODY)}\r\n\r\n".encode()
    for caller in kept:
        caller.sendall(head + BODY)
    give_up = time.monotonic() + 10
    while len(front.orders) < 8:
        assert time.monotonic() < give_up
        time.sleep(0.01)
    more = [socket.create_connection(front.address, timeout=5) for _ in range(200)]
    assert front.says("/v1/completions", BODY)[0] == 429
    for caller in kept:  # nothing has come, and nobody has hung up
        caller.setblocking(False)
        with pytest.raises(BlockingIOError):
            caller.recv(1)
    for caller in [*kept, *more]:
        caller.close()
    while len(front.orders) < 16:  # those who hung up are forgotten
        assert time.monotonic() < give_up
        time.sleep(0.01)
    assert sorted(kind for kind, _ in front.orders) == ["ask"] * 8 + ["forget"] * 8


def test_headers_that_do_not_end_are_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_front, "_IDLE_S", 0.2)
    with closing(Front(None, [tmp_path])) as front:
        for sent in (b"", b"GET /hea", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX: "):
            with socket.create_connection(front.address, timeout=10) as caller:
                caller.sendall(sent)
                assert caller.recv(1) == b"", "the server hangs up"


def test_a_body_that_does_not_end_is_not_waited_for(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_front, "_BODY_S", 0.2)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\nConnection: close\r\n\r\n{"
    assert answered(front.address, head, patience_s=10.0)[0] == [408]


@pytest.mark.parametrize("count", [200, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("has_key", [False, True])
def test_random_requests(
    count: int, has_key: bool, front: Front, keyed: Front, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whatever is sent, the answer is no fault of the server, nothing is written, and it goes on."""
    asked, rng, found = keyed if has_key else front, random.Random(7), Counter()
    for number in range(count):
        content = hostile_request(rng, asked.host)
        statuses, answer = answered(asked.address, content, patience_s=0.05)
        found.update(statuses)
        assert all(status < 500 for status in statuses), (number, content[:500], answer[:500])
    assert (found[401] > 50) if has_key else (found[400] > 50 and found[200] > 0 and found[404] > 0), found
    assert asked.ask("/v1/completions", BODY, Authorization="Bearer s3cret")[0] == 200
    assert capfd.readouterr() == ("", "")
