"""Servers that die, hang, come back or do not: whose requests are answered by whom, and when a run ends."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_completion_server import EOS, VOCAB, FakeServer, script

from mindgspo.errors import RolloutError
from mindgspo.rollout import http_service, server_connection
from mindgspo.rollout.http_service import HTTPService
from mindgspo.rollout.protocol import Purpose, RandomStream, SamplingSettings
from mindgspo.rollout.server_apis import SERVER_APIS, Expected
from mindgspo.rollout.server_connection import ServiceOptions
from mindgspo.rollout.server_key import ServerKey
from mindgspo.rollout.service import Answer, Request
from mindgspo.types import Prompt

WEIGHTS = Path("/weights/version_3")
FACTS = {"model": "tiny", "vocab_size": VOCAB, "max_prompt_length": 32, "max_new_tokens": 8}


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_connection, "_WATCH_S", 0.05)
    monkeypatch.setattr(server_connection, "HEALTH_TIMEOUT_S", 0.2)
    monkeypatch.setattr(http_service, "HEALTH_TIMEOUT_S", 0.2)
    monkeypatch.setattr(http_service, "_RETURN_S", 0.05)


@contextmanager
def asking(
    *servers: FakeServer, processes: Callable[[], dict[str, int]] = dict, **options: Any
) -> Iterator[HTTPService]:
    """A service over servers that have weights of version 3, and wait 60 s for one that comes back."""
    chosen = {"most_running": 8, "timeout_s": 60.0, "retries": 1, "patience_s": 60.0} | options
    chosen = {"api": SERVER_APIS[servers[0].api]} | chosen
    expected = Expected(vocab_size=VOCAB, eos_ids=(EOS,))
    service = HTTPService([server.url for server in servers], expected, ServiceOptions(**chosen), processes)
    try:
        service.await_servers(10.0)
        service.load_weights(WEIGHTS, 3)
        yield service
    finally:
        service.close()


def request(number: int, *, samples: Sequence[int] = (0, 1), **more: Any) -> Request:
    prompt = Prompt(index=40, ids=np.array([5, 6, 7], np.int32), text="2+2=", answer="4", data_source="arithmetic")
    stream = RandomStream(seed=9, purpose=Purpose.TRAINING, step=2, draw=1)
    settings = SamplingSettings(num_samples=2, temperature=0.5, max_new_tokens=8, stream=stream)
    return Request(number=number, prompt=prompt, samples=tuple(samples), settings=settings, **more)


def waited(service: HTTPService, count: int) -> list[Answer]:
    answers: list[Answer] = []
    while len(answers) < count:
        answers += service.wait()
    return sorted(answers, key=lambda answer: answer.number)


def await_asked(server: FakeServer, count: int = 1) -> None:
    give_up = time.monotonic() + 30
    while len(server.asked) < count:
        assert time.monotonic() < give_up, "it is not asked"
        time.sleep(0.01)


def again(dead: FakeServer, **options: Any) -> FakeServer:
    """Another server at the address of one that has ended."""
    return FakeServer(dead.api, port=dead.port, facts=dead.facts, **options)


@pytest.mark.parametrize("api", sorted(SERVER_APIS))
def test_requests_of_a_dead_server_go_to_the_others(api: str) -> None:
    with FakeServer(api) as other, asking(one := FakeServer(api, held_at=1), other) as service:
        service.submit([request(number) for number in range(4)])
        await_asked(one)
        one.__exit__()
        answers = waited(service, 4)
    assert [answer.number for answer in answers] == list(range(4))
    assert [[piece.ids.tolist() for piece in answer.pieces] for answer in answers] == [[script(0), script(1)]] * 4
    assert all(body in other.asked for body in one.asked), "as they were, with their random numbers"
    assert len(other.asked) == 4


def test_what_a_response_has_already_is_kept() -> None:
    with FakeServer() as other, asking(one := FakeServer(held_at=1), other) as service:
        prefix = np.array([14, 11], np.int32)
        service.submit([request(7, samples=[4], prefix=prefix)])
        await_asked(one)
        one.__exit__()
        (answer,) = waited(service, 1)
    assert other.asked == one.asked and other.asked[0]["prompt"] == [5, 6, 7, 14, 11]
    assert answer.pieces[0].ids.tolist() == script(4)[2:]


@pytest.mark.parametrize("facts", [{}, FACTS])
def test_a_server_that_comes_back_gets_the_present_weights_before_any_request(facts: dict[str, Any]) -> None:
    """All die. Without weights it answers with status 503; and it is asked with those of version 5 alone."""
    one, other = FakeServer(held_at=1, facts=facts), FakeServer(held_at=1, facts=facts)
    with asking(one, other) as service:
        service.load_weights(Path("/weights/version_5"), 5)
        service.submit([request(number) for number in range(6)])
        await_asked(one), await_asked(other)
        one.__exit__(), other.__exit__()
        assert service.wait(timeout_s=0.5) == []
        with again(one) as new:
            answers = waited(service, 6)
    updates = [body for path, body in new.calls if path == "/update_weights"]
    assert updates == [{"folder": "/weights/version_5", "version": 5}] and new.calls[0][0] == "/abort_requests"
    assert len(new.asked) == 6 and {answer.weight_version for answer in answers} == {5}


def test_weights_are_pushed_while_a_server_is_lost() -> None:
    with FakeServer() as other, asking(one := FakeServer(), other) as service:
        one.__exit__()
        service.load_weights(Path("/weights/version_5"), 5)
        service.submit([request(number) for number in range(3)])
        assert {answer.weight_version for answer in waited(service, 3)} == {5}
        with again(one, held_at=1) as new:
            give_up, number = time.monotonic() + 60, 10
            while not new.asked:  # the other one has nothing to do for most of the time
                assert time.monotonic() < give_up, "it is not asked"
                service.submit([request(number), request(number + 1)])
                time.sleep(0.02)
                number += 2
            service.abort()
    assert ("/update_weights", {"folder": "/weights/version_5", "version": 5}) in new.calls


def test_a_run_ends_when_no_server_has_come_back_in_time() -> None:
    one, other = FakeServer(held_at=1), FakeServer(held_at=1)
    with asking(one, other, patience_s=0.6) as service:
        service.submit([request(number) for number in range(2)])
        await_asked(one), await_asked(other)
        one.__exit__()
        assert service.wait(timeout_s=1.5) == [], "another one is left"
        other.__exit__()
        with pytest.raises(RolloutError) as caught:
            service.wait()
    said = str(caught.value)
    assert one.url in said and other.url in said and "\n" not in said
    assert said.endswith("; no server has come back for 0.6 s (rollout.servers.patience_s)")


def test_without_patience_the_last_server_ends_the_run() -> None:
    one, other = FakeServer(held_at=1), FakeServer(held_at=1)
    with asking(one, other, patience_s=0.0) as service:
        service.submit([request(number) for number in range(2)])
        await_asked(one), await_asked(other)
        one.__exit__()
        await_asked(other, 2)
        other.__exit__()
        with pytest.raises(RolloutError, match=r"the connection broke \(.*, 2 times; see the server's log$"):
            service.wait()


def test_an_abort_while_all_are_lost_returns_every_request() -> None:
    with asking(one := FakeServer(held_at=1)) as service:
        service.submit([request(number) for number in range(6)])  # four run at a time
        await_asked(one)
        one.__exit__()
        answers = sorted(service.abort(), key=lambda answer: answer.number)
        assert [answer.number for answer in answers] == list(range(6))
        assert not any(piece.ids.size for answer in answers for piece in answer.pieces)
        with again(one):
            service.submit([request(9)])
            assert waited(service, 1)[0].pieces[0].ids.tolist() == script(0)


# ---- who comes back


@pytest.mark.parametrize(("changed", "said"), [
    ({"vocab_size": 49}, "another model is served there: vocab_size 49, not 50"),
    ({"model": "huge"}, "another model is served there: model 'huge', not 'tiny'"),
    ({"max_new_tokens": None}, "another model is served there: max_new_tokens None, not 8"),
])  # fmt: skip
def test_another_model_stays_away(changed: dict[str, Any], said: str) -> None:
    with asking(one := FakeServer(held_at=1, facts=FACTS), patience_s=1.0) as service:
        service.submit([request(7)])
        await_asked(one)
        one.__exit__()
        one.facts = FACTS | changed
        with again(one) as new, pytest.raises(RolloutError, match=f"{one.url}: {said}; no server has come back"):
            service.wait()
    assert new.asked == new.calls == [], "neither prompts nor weights"


def test_another_model_of_a_vllm_stays_away() -> None:
    facts = {"id": "policy", "root": "/models/a", "max_model_len": 40}
    with asking(one := FakeServer("vllm", held_at=1, facts=facts), patience_s=1.0) as service:
        service.submit([request(7)])
        await_asked(one)
        one.__exit__()
        one.facts = facts | {"root": "/models/b"}
        with (
            again(one),
            pytest.raises(RolloutError, match="served there: root '/models/b', not '/models/a'; no server"),
        ):
            service.wait()


def test_a_vocabulary_is_compared_at_the_start() -> None:
    said = r"another model is served there: vocab_size 151936, not 50"
    server = FakeServer(facts=FACTS | {"vocab_size": 151936})
    with server, pytest.raises(RolloutError, match=said), asking(server):
        pass


def test_whoever_takes_the_port_of_a_dead_server_gets_nothing() -> None:
    key = ServerKey("s3cret-of-a-run")
    with FakeServer(key=key) as other, asking(one := FakeServer(held_at=1, key=key), other, key=key) as service:
        service.submit([request(number) for number in range(2)])
        await_asked(one)
        one.__exit__()
        with again(one) as impostor:
            assert len(waited(service, 2)) == 2
            time.sleep(0.5)
            service.load_weights(Path("/weights/version_5"), 5)
            service.submit([request(number) for number in range(8)])
            assert {answer.weight_version for answer in waited(service, 8)} == {5}
    assert impostor.asked == impostor.calls == []


def test_a_server_that_the_run_starts_again_has_another_address_and_process() -> None:
    children = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) for _ in range(2)]
    with FakeServer() as new, FakeServer(held_at=1) as one:
        found = {one.url: children[0].pid}
        with asking(one, processes=lambda: dict(found)) as service:
            service.submit([request(7)])
            await_asked(one)
            children[0].kill()
            assert service.wait(timeout_s=0.5) == [] and len(one.asked) == 1, "although somebody answers there"
            found.clear()
            found[new.url] = children[1].pid
            assert waited(service, 1)[0].pieces[0].ids.tolist() == script(0)
            assert len(one.asked) == 1
    for child in children:
        child.kill()
        child.wait()


# ---- servers that hang, requests that end servers


def test_requests_of_a_hanging_server_go_to_the_others_and_it_may_go_on() -> None:
    with FakeServer() as other, FakeServer(held_at=1) as one, asking(one, other, silent_s=0.4) as service:
        service.submit([request(number) for number in range(2)])
        await_asked(one)
        one._loop.call_soon_threadsafe(time.sleep, 3.0)
        began = time.monotonic()
        assert [answer.number for answer in waited(service, 2)] == [0, 1]
        assert time.monotonic() - began < 30, "long before the time-out of a request"
        give_up = time.monotonic() + 30
        while ("/update_weights", {"folder": str(WEIGHTS), "version": 3}) not in one.calls[1:]:
            assert time.monotonic() < give_up, "it has not come back"
            time.sleep(0.02)


def test_a_request_that_ends_every_server_ends_the_run() -> None:
    with FakeServer(failures=("drop",) * 1000) as one, FakeServer(failures=("drop",) * 1000) as other:
        with asking(one, other, retries=0) as service, pytest.raises(RolloutError) as caught:
            service.submit([request(7)])
            service.wait()
        assert "prompt 40 was asked for again and again, and each time its server was lost" in str(caught.value)
        assert len(one.asked) + len(other.asked) == 20


def test_a_request_that_takes_too_long_is_repeated_once() -> None:
    with FakeServer(held_at=1) as one, FakeServer(held_at=1) as other, asking(one, other, timeout_s=0.3) as service:
        with pytest.raises(RolloutError, match=r"no answer within 0.3 s; see .*; prompt 40 was asked for again"):
            service.submit([request(7)])
            service.wait()
        assert len(one.asked) + len(other.asked) == 2
