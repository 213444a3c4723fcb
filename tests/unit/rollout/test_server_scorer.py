"""Log-probs of given ids from a server: which ids are asked for, where the answers go, and answers that cannot be
right."""

from __future__ import annotations

import math
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_completion_server import VOCAB, FakeServer, given_logprob

from mindgspo.batches.rows import TrainingSample, lay_out
from mindgspo.config.distillation import TeacherSection
from mindgspo.errors import ConfigError, RolloutError
from mindgspo.parallel.platform import worker_process
from mindgspo.rollout.server_apis import SERVER_APIS
from mindgspo.rollout.server_connection import ServiceOptions
from mindgspo.rollout.server_key import ServerKey
from mindgspo.rollout.server_scorer import ServerScorer, open_server_scorer
from mindgspo.types import Batch

NAMES = SimpleNamespace(name="the policy's", decode=lambda ids: f"t{ids[0]}")
OPTIONS = ServiceOptions(most_running=4, timeout_s=20.0, retries=1, api=SERVER_APIS["vllm"], setting="teachers[0].url")


def scorer_of(server: FakeServer, *, top_k: int = 0, checked: bool = True, **options: Any) -> ServerScorer:
    options = {"api": SERVER_APIS[server.api]} | options
    scorer = ServerScorer(server.url, replace(OPTIONS, **options), vocab_size=VOCAB, top_k=top_k)
    if checked:
        scorer.check_vocabulary(NAMES, longest=26)
        server.asked.clear()
    return scorer


def sample(number: int, prompt: list[int], response: list[int], actions: list[int] | None = None) -> TrainingSample:
    trained = len(response) if actions is None else sum(actions)
    return TrainingSample(
        prompt_ids=np.array(prompt, np.int32), response_ids=np.array(response, np.int32),
        rollout_logp=np.zeros(trained, np.float32), number=number,
        actions=None if actions is None else np.array(actions, bool),
    )  # fmt: skip


@pytest.fixture
def batches() -> list[Batch]:
    """The second one is an episode: its turns are [20, 21] and [24], [22, 23] and [25] are observations."""
    samples = [
        sample(0, [5, 6], [7, 8, 9, 10]), sample(1, [5, 6, 7], [20, 21, 22, 23, 24, 25], [1, 1, 0, 0, 1, 0]),
        sample(2, [3], [4]),
    ]  # fmt: skip
    return lay_out(samples, samples_per_micro_batch=2, length_multiple=4, pad_id=0)


ROWS = {0: [5, 6, 7, 8, 9, 10], 1: [5, 6, 7, 20, 21, 22, 23, 24], 2: [3, 4]}
TRAINED = {0: [2, 3, 4, 5], 1: [3, 4, 7], 2: [1]}


@pytest.mark.parametrize("api", ["vllm", "mindgspo"])
def test_each_trained_token_gets_its_log_prob(api: str, batches: list[Batch]) -> None:
    with FakeServer(api) as server:
        scores = scorer_of(server).score(batches)
    assert sorted(asked["prompt"] for asked in server.asked) == sorted(ROWS.values()), "up to the last trained token"
    assert all((asked["max_tokens"], asked["prompt_logprobs"]) == (1, 0) for asked in server.asked)
    for batch, score in zip(batches, scores, strict=True):
        assert score.logp_NK.shape == batch.mask_NK.shape and not score.logp_NK[~batch.mask_NK].any()
        for row, number in enumerate(batch.samples_N):
            if number >= 0:
                expected = [given_logprob(ROWS[number][place], place) for place in TRAINED[number]]
                np.testing.assert_array_equal(score.logp_NK[row, batch.mask_NK[row]], np.float32(expected))


def test_samples_without_a_token_are_not_asked_for(batches: list[Batch]) -> None:
    only = [replace(batch, mask_NK=batch.mask_NK & (batch.samples_N == 1)[:, None]) for batch in batches]
    with FakeServer("vllm") as server:
        scores = scorer_of(server).score(only)
    assert [asked["prompt"] for asked in server.asked] == [ROWS[1]]
    assert [np.count_nonzero(score.logp_NK) for score in scores] == [3, 0]


def test_likeliest_tokens_without_the_rows_own(batches: list[Batch]) -> None:
    with FakeServer("vllm") as server:
        scorer = ServerScorer(server.url, OPTIONS, vocab_size=40, top_k=3)
        scorer.check_vocabulary(NAMES, longest=26)
        scores = scorer.score(batches)
    number, told = 1, 0
    (batch, score) = next(pair for pair in zip(batches, scores, strict=True) if number in pair[0].samples_N)
    row = batch.samples_N.tolist().index(number)
    for slot, place in enumerate(TRAINED[number]):
        likeliest = sorted(range(VOCAB), key=lambda token: -given_logprob(token, place))[:3]
        wanted = {token: np.float32(given_logprob(token, place)) for token in likeliest if token < 40}
        ids, logprobs = score.top_ids_NKA[row, slot], score.top_logp_NKA[row, slot]
        assert dict(zip(ids[ids >= 0].tolist(), logprobs[ids >= 0], strict=True)) == wanted
        assert not logprobs[ids < 0].any()
        told += len(wanted)
    assert told < 9, "some are beyond the policy's vocabulary"
    assert (score.top_ids_NKA[~batch.mask_NK] == -1).all()


def test_the_text_of_every_id_is_compared_in_rows_as_long_as_the_longest() -> None:
    with FakeServer("vllm") as server:
        ServerScorer(server.url, OPTIONS, vocab_size=VOCAB).check_vocabulary(NAMES, longest=12)
    assert {len(asked["prompt"]) for asked in server.asked} == {12}
    assert {token for asked in server.asked for token in asked["prompt"][1:]} == set(range(VOCAB))


@pytest.mark.parametrize(("ours", "said"), [
    ("other", "teachers[0].url: http://127.0.0.1:{port}: its vocabulary is not that of the policy's: id 7 is 't7' "
              "there and 'other' here"),
    (" t7", None), ("\ufffd", None), (" ", None),
])  # fmt: skip
def test_another_text_is_another_vocabulary(ours: str, said: str | None) -> None:
    names = SimpleNamespace(name="the policy's", decode=lambda ids: ours if ids[0] == 7 else f"t{ids[0]}")
    with FakeServer("vllm") as server:
        scorer = ServerScorer(server.url, OPTIONS, vocab_size=VOCAB)
        if said is None:
            scorer.check_vocabulary(names, longest=26)
            return
        with pytest.raises(ConfigError) as caught:
            scorer.check_vocabulary(names, longest=26)
    assert str(caught.value) == said.format(port=server.url.rpartition(":")[2])


def test_weights_that_change_are_noticed(batches: list[Batch]) -> None:
    with FakeServer("mindgspo") as server:
        scorer = scorer_of(server)
        server._version = 3
        with pytest.raises(RolloutError, match="its weights have version 3 now, and had None when the run started"):
            scorer.score(batches)


# ---- answers that cannot be right


def changed(**fields: Any) -> Callable[[Any], Any]:
    return lambda answer: answer | {"choices": [answer["choices"][0] | fields]}


def entry(change: Callable[[dict[str, Any]], Any]) -> Callable[[Any], Any]:
    """The second entry of the answer, changed."""

    def spoil(answer: Any) -> Any:
        entries = answer["choices"][0]["prompt_logprobs"]
        return changed(prompt_logprobs=[None, change(entries[1]), *entries[2:]])(answer)

    return spoil


def own(**fields: Any) -> Callable[[Any], Any]:
    return entry(lambda one: {token: found | fields for token, found in one.items()})


def numbers(*logprobs: float) -> dict[str, Any]:
    return {str(token): {"logprob": one, "decoded_token": f"t{token}"} for token, one in enumerate(logprobs)}


HOSTILE = {
    "none": (changed(prompt_logprobs=None), "has no prompt_logprobs; a teacher's server must return them"),
    "no such field": (lambda answer: answer | {"choices": [{}]}, "has no prompt_logprobs"),
    "too short": (lambda answer: changed(prompt_logprobs=answer["choices"][0]["prompt_logprobs"][:-1])(answer),
                  "has log-probs of "),
    "too long": (lambda answer: changed(prompt_logprobs=[*answer["choices"][0]["prompt_logprobs"], {}])(answer),
                 "has log-probs of "),
    "other ids": (changed(prompt_token_ids=[1, 2]), "has other prompt_token_ids than it was asked for, or none"),
    "no ids": (changed(prompt_token_ids=None), "has other prompt_token_ids than it was asked for, or none"),
    "without the id": (entry(lambda one: numbers(-3.0)), "does not have the form of prompt_logprobs (KeyError("),
    "null": (entry(lambda one: None), "does not have the form of prompt_logprobs"),
    "a list": (entry(lambda one: [-0.5]), "does not have the form of prompt_logprobs"),
    "NaN": (own(logprob=math.nan), "has the log-prob nan; legal are finite numbers up to 0"),
    "minus infinity": (own(logprob=-math.inf), "has the log-prob -inf; legal"),
    "positive": (own(logprob=0.5), "has the log-prob 0.5; legal"),
    "text": (own(logprob="-0.5"), "has the log-prob '-0.5'; legal"),
    "true": (own(logprob=True), "has the log-prob True; legal"),
    "huge": (own(logprob=-(10**400)), "has the log-prob -1000"),
    "no text": (own(decoded_token=None), "has no decoded_token; the server must have its tokenizer"),
    "two choices": (lambda answer: answer | {"choices": answer["choices"] * 2}, "does not have the form"),
    "no choices": (lambda answer: {}, "does not have the form"),
    "a number": (lambda answer: 7.5, "does not have the form"),
    "no JSON": (lambda answer: b"<html>", "which is not JSON"),
    "too much": (lambda answer: b"[" + b"1," * (1 << 20), "bytes, which no valid answer has"),
    "an error": (lambda answer: 404, "status 404: no such model"),
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_an_answer_that_cannot_be_right_is_one_line(kind: str, batches: list[Batch]) -> None:
    spoil, said = HOSTILE[kind]
    with FakeServer("vllm") as server:
        scorer = scorer_of(server)
        server.spoil = spoil
        with pytest.raises(RolloutError) as caught:
            scorer.score(batches)
    assert str(caught.value).startswith(f"{server.url}/v1/completions: ") and said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("spoiled", "said"), [
    (numbers(*[-0.5] * 11), "likeliest tokens [0, 1, 2, "),
    (numbers(*[-3.0] * 11) | {"00": {"logprob": -3.0}}, "likeliest tokens [0, 1, 2, "),
    (numbers(*[-3.0] * 11) | {"-1": {"logprob": -3.0}}, "likeliest tokens [0, 1, 2, "),
    (numbers(*[-3.0] * 11) | {"x": {"logprob": -3.0}}, "does not have the form of prompt_logprobs (ValueError("),
    (numbers(*[-3.0] * 11) | {str(10**30): {"logprob": -3.0}}, "does not have the form of prompt_logprobs (Overflow"),
    (numbers(*[-3.0] * 11) | {"30": {"logprob": math.nan}}, "has the log-prob nan"),
])  # fmt: skip
def test_likeliest_tokens_that_are_no_distribution(spoiled: dict[str, Any], said: str, batches: list[Batch]) -> None:
    with FakeServer("vllm") as server:
        scorer = scorer_of(server, top_k=2)
        server.spoil = entry(lambda one: spoiled)
        with pytest.raises(RolloutError) as caught:
            scorer.score(batches)
    assert said in str(caught.value)


def test_answers_that_were_changed_at_random(batches: list[Batch]) -> None:
    """Either they are refused, or every log-prob is one."""
    random = np.random.default_rng(5)

    def any_value() -> Any:
        values = [None, -1, 0.5, "x", [], {}, True, 10**20, [None], {"5": 1}, math.nan]
        return values[random.integers(len(values))]

    def spoiled(value: Any) -> Any:
        if random.random() < 0.03:
            return any_value()
        if isinstance(value, dict):
            return {key: spoiled(one) for key, one in value.items() if random.random() > 0.02}
        return [spoiled(one) for one in value] if isinstance(value, list) else value

    with FakeServer("vllm") as server:
        scorer = scorer_of(server, top_k=2)
        server.spoil = spoiled
        for _ in range(40):
            with suppress(RolloutError):
                for batch, score in zip(batches, scorer.score(batches), strict=True):
                    assert (score.logp_NK[batch.mask_NK] <= 1e-4).all() and np.isfinite(score.top_logp_NKA).all()


# ---- the way to the server


def test_a_busy_server_is_asked_again(batches: list[Batch]) -> None:
    with FakeServer("vllm") as server:
        scorer = scorer_of(server)
        server.failures = [503, "drop"]
        scorer.score(batches)
        assert len(server.asked) == 5


def test_no_more_rows_are_asked_for_at_once_than_may_be(batches: list[Batch]) -> None:
    many = lay_out([sample(n, [5], [6, 7]) for n in range(9)], samples_per_micro_batch=4, length_multiple=4, pad_id=0)
    with FakeServer("vllm") as server, ThreadPoolExecutor(1) as thread:
        scorer = scorer_of(server)
        server.held_at = 0
        scores = thread.submit(scorer.score, many)
        while server.most < 4:
            assert not scores.done()
        server.held_at = None
        urllib.request.urlopen(f"{server.url}/pause", data=b"{}").close()  # lets the held ones go
        assert len(scores.result(timeout=20)) == 3 and len(server.asked) == 9 and server.most == 4


def test_keys_are_sent_as_the_server_takes_them_and_not_told(batches: list[Batch]) -> None:
    key = ServerKey("s3cret")
    with FakeServer("mindgspo", key=key) as server:
        scorer_of(server, key=key).score(batches)
        assert not any("s3cret" in str(headers) for headers in server.heard)
        with pytest.raises(RolloutError, match="does not have the key|a key is needed"):
            scorer_of(server, key=ServerKey("other"))
    with FakeServer("vllm") as server:
        scorer = scorer_of(server, key=key)
        assert server.heard[-1]["Authorization"] == "Bearer s3cret"
        server.spoil = own(logprob="s3cret")
        with pytest.raises(RolloutError, match=r"log-prob '\*\*\*'"):
            scorer.score(batches)


def test_the_key_is_in_the_teachers_file_else_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless that is the one of servers that the run starts: it is no teacher's."""
    (tmp_path / "key").write_text("s3cret\n")

    def opened(url: str, *, has_own_servers: bool = False, file: str | None = None) -> None:
        config: Any = SimpleNamespace(
            has_own_servers=has_own_servers, watch=SimpleNamespace(min_seconds=20.0), data=SimpleNamespace(
                max_prompt_length=12
            ), model=SimpleNamespace(vocab_size=VOCAB), rollout=SimpleNamespace(
                max_new_tokens=8, servers=SimpleNamespace(timeout_seconds=20.0, retries=0)
            ),
        )  # fmt: skip
        teacher = TeacherSection(url=url, api_key_file=None if file is None else tmp_path / file)
        open_server_scorer(config, teacher, NAMES, "teachers[0]")

    with FakeServer(key=ServerKey("s3cret")) as server:
        opened(server.url, file="key", has_own_servers=True)
        monkeypatch.setattr(worker_process, "_api_key", "s3cret")
        opened(server.url)
        with pytest.raises(RolloutError, match="a key is needed"):
            opened(server.url, has_own_servers=True)
        with pytest.raises(ConfigError, match=r"teachers\[0\].api_key_file: .*none: the key cannot be read"):
            opened(server.url, file="none")


def test_a_server_that_is_gone_is_named_with_its_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mindgspo.rollout.server_scorer._STARTS_WITHIN_S", 0.2)
    with FakeServer("vllm") as server:
        url = server.url
    with pytest.raises(RolloutError, match=r"no server answers there .*; check teachers\[0\].url"):
        ServerScorer(url, OPTIONS, vocab_size=VOCAB).check_vocabulary(NAMES, longest=26)
