"""A judge: a model behind an OpenAI-compatible endpoint scores responses.

A file of yours makes one, and an experiment names it as `reward.functions: [my_judge.py:score]`:

    from judge import Judge

    score = Judge(
        url="https://judge.example/v1",
        model="large",
        template="Question: {question}\n<{mark}>\n{response}\n</{mark}>\nIs what stands in <{mark}> polite? yes or no",
        labels={"yes": 1.0, "no": 0.0},
        key_variable="JUDGE_API_KEY",
    )

As many requests run at the same time as the experiment has reward.workers.count; reward.workers.timeout_s must be
longer than `seconds`. Answers are kept in a folder, so that nothing is asked twice, by other processes or after a
restart either. What it cost:

    python examples/environments/judge.py costs FOLDER
"""

import asyncio
import email.utils
import fcntl
import hashlib
import json
import os
import random
import re
import socket
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import aiohttp

from mindgspo.config import TokenizerSection
from mindgspo.io import make_folder, read_json, write_file
from mindgspo.text import printable
from mindgspo.tokenization import ChatMessage, Tokenizer, load_tokenizer

MOST_BYTES = 1 << 18
"""Of an endpoint's answer."""
MOST_SHOWN = 300
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 20.0
COUNTED = (
    *("responses", "calls", "cache_hits", "retries", "failed", "unparsable"),
    *("prompt_tokens", "completion_tokens"),
)
PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)\}")
STARTED = f"{socket.gethostname()}-{time.time_ns():x}"


class PassingError(Exception):
    """A failure after which another try may help. wait_s: before which the server wants none."""

    def __init__(self, reason: str, wait_s: float = 0.0) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the judge said about one response, and what it took to know."""

    text: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    is_cached: bool = False
    retries: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """A reward function, with its settings. Raises ValueError for those that cannot be used."""

    url: str
    """Base URL, before /chat/completions."""
    model: str
    """Name of the model. A model that changes needs another name, or another `cache`."""
    template: str
    """The question. {response}, {answer} (the row's), {mark}, and names of columns among data.*.columns.extra_info
    are replaced, once: what is put in is text. {mark} is a word that the response cannot know, for a fence around
    it."""
    system: str = ""
    """System prompt."""
    labels: Mapping[str, float] = field(default_factory=dict)
    """Words of the judge and their scores from 0 to 1; capitals do not matter. Without: the judge says a number."""
    pattern: str = ""
    """Regular expression, whose group is the number or the word. By default the words of `labels`."""
    takes: Literal["last", "first"] = "last"
    """Which match in the judge's message counts, thoughts before </think> aside. No other one is looked at."""
    lowest: float = 0.0
    highest: float = 1.0
    """Numbers become scores from 0 (lowest) to 1 (highest). Beyond them they are unparsable."""
    unparsable: float | None = 0.0
    """Score where the message has no match, or one that is no score. None: the response is left out."""
    sampling: Mapping[str, Any] = field(default_factory=lambda: {"temperature": 0, "max_tokens": 16})
    """Further fields of the request."""
    key_variable: str = ""
    """Environment variable that holds the API key."""
    tokenizer: Path | None = None
    """Folder of the judge's tokenizer, for servers that take token ids instead of messages, such as `mindgspo serve`:
    the chat is rendered here, and /completions is asked."""
    cache: Path = Path("judge_cache")
    """Folder of the answers and the costs; relative to where the run is started."""
    seconds: float = 60.0
    """For one response, retries included."""
    request_seconds: float = 30.0
    """For one request."""
    price_per_million: tuple[float, float] | None = None
    """Of prompt tokens and of completion tokens."""
    counts: Counter[str] = field(default_factory=Counter, init=False, repr=False, compare=False)
    """Of this process."""

    def __post_init__(self) -> None:
        address = urlsplit(self.url)
        if address.scheme not in ("http", "https") or not address.hostname or "@" in address.netloc or address.query:
            raise ValueError(f"url: {printable(address.hostname or '')!r}: expected http(s)://host/v1, without user")
        if "{response}" not in self.template:
            raise ValueError("template: has no {response}")
        if not self.labels and not self.pattern:
            raise ValueError("labels, pattern: give labels, or a pattern for a number, as in r'Score: (\\d+)'")
        if wrong := [value for value in self.labels.values() if not 0 <= value <= 1]:
            raise ValueError(f"labels: {wrong[0]}: scores are from 0 to 1")
        if self.takes not in ("last", "first"):
            raise ValueError(f"takes: {self.takes!r}: last or first")
        if not self.lowest < self.highest:
            raise ValueError(f"lowest: {self.lowest} is not below highest, {self.highest}")
        if (groups := self.matcher.groups) != 1:
            raise ValueError(f"pattern: {self.pattern!r} has {groups} groups; write one, (?:...) for others")
        self.headers()

    def __call__(
        self, data_source: str, solution_str: str, ground_truth: str, extra_info: Mapping[str, object]
    ) -> dict[str, object]:
        """Score a response. Raises RuntimeError if the judge cannot be asked, which leaves the response out."""
        messages = self.messages(solution_str, ground_truth, extra_info)
        self.counts["responses"] += 1
        try:
            answer = self.answer(messages)
            found = self.parsed(answer.text)
            self.counts["unparsable"] += found is None
        except RuntimeError:
            self.counts["failed"] += 1
            raise
        finally:
            self.write_counts()
        score = self.unparsable if found is None else found
        return {
            "score": score,
            "acc": score is not None and score >= 0.5,
            "pred": answer.text[-MOST_SHOWN:],
            "unparsable": found is None,
            "cache_hits": answer.is_cached,
            "retries": answer.retries,
            "prompt_tokens": answer.prompt_tokens,
            "completion_tokens": answer.completion_tokens,
        }

    def messages(self, response: str, answer: str, columns: Mapping[str, object]) -> list[ChatMessage]:
        """The chat that asks about a response."""
        texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in columns.items()}
        texts |= {"response": response, "answer": answer}
        texts["mark"] = hashlib.sha256(json.dumps(texts, sort_keys=True).encode()).hexdigest()[:12]
        if unknown := set(PLACEHOLDER.findall(self.template)) - texts.keys():
            raise ValueError(
                f"template: {{{sorted(unknown)[0]}}} is unknown; known are {', '.join(sorted(texts))} "
                "(columns come from data.*.columns.extra_info)"
            )
        asked = PLACEHOLDER.sub(lambda found: texts[found[1]], self.template)
        asked = asked.encode("utf-8", "replace").decode()  # half a surrogate pair is no text
        system: list[ChatMessage] = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, {"role": "user", "content": asked}]

    # ---- the answer's meaning

    @property
    def matcher(self) -> re.Pattern[str]:
        """`pattern`, or the words of `labels`."""
        words = "|".join(sorted(map(re.escape, self.labels), key=len, reverse=True))
        return re.compile(self.pattern or rf"(?<!\w)({words})(?!\w)", re.IGNORECASE)

    def parsed(self, text: str) -> float | None:
        """Score of a message, None for one that is unparsable."""
        found = self.matcher.findall(text.rpartition("</think>")[2])
        if not found:
            return None
        word = found[-1 if self.takes == "last" else 0]
        if self.labels:
            return {label.casefold(): value for label, value in self.labels.items()}.get(word.strip().casefold())
        try:
            number = float(word)
        except ValueError:
            return None
        if not self.lowest <= number <= self.highest:
            return None
        return (number - self.lowest) / (self.highest - self.lowest)

    # ---- from the cache, or else from the endpoint

    def answer(self, messages: Sequence[ChatMessage]) -> Answer:
        """The judge's message. Raises RuntimeError if there is none."""
        until = time.monotonic() + self.seconds
        asked = [self.address, self.model, self.template, messages, dict(self.sampling)]
        key = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
        path = self.cache / key[:2] / f"{key}.json"
        answer = kept(path)
        if answer is None:
            make_folder(path.parent)
            with alone(self.cache / "lock", key, until):  # several workers often have the same response at once
                answer = kept(path)
                if answer is None:
                    return self.paid(messages, path, until)
        self.counts["cache_hits"] += 1
        return answer

    def paid(self, messages: Sequence[ChatMessage], path: Path, until: float) -> Answer:
        """The endpoint's answer, which is kept."""
        retries = self.counts["retries"]
        content = asyncio.run(self.ask(self.body(messages), until))
        text, usage = self.read(content)
        self.counts.update(calls=1, **usage)
        write_file(path, json.dumps({"text": text, "sha256": digest(text)}).encode(), sync=False)
        return Answer(text=text, retries=self.counts["retries"] - retries, **usage)

    @property
    def address(self) -> str:
        return self.url.rstrip("/") + ("/chat/completions" if self.tokenizer is None else "/completions")

    def headers(self) -> dict[str, str]:
        """With the key. Raises ValueError without one."""
        if not self.key_variable:
            return {}
        key = os.environ.get(self.key_variable, "").strip()
        if not re.fullmatch(r"[!-~]+", key):
            raise ValueError(f"key_variable: ${self.key_variable} holds no key; set it where the run is started")
        return {"Authorization": f"Bearer {key}"}

    def body(self, messages: Sequence[ChatMessage]) -> dict[str, Any]:
        """Of the request."""
        if self.tokenizer is None:
            return {"model": self.model, "messages": messages, **self.sampling}
        ids = token_ids(loaded(self.tokenizer), messages)
        return {"model": self.model, "prompt": ids, "return_token_ids": True, **self.sampling}

    def read(self, content: bytes) -> tuple[str, dict[str, int]]:
        """Text and usage of an answer."""
        try:
            found = json.loads(content)
            choice, usage = found["choices"][0], found.get("usage") or {}
            if self.tokenizer is None:
                text = choice["message"]["content"] or ""
            else:
                text = loaded(self.tokenizer).decode(choice["token_ids"], skip_special_tokens=True)
            if not isinstance(text, str):
                raise TypeError("the content is no text")
            tokens = {key: usage.get(key, 0) for key in ("prompt_tokens", "completion_tokens")}
            if not all(type(number) is int and 0 <= number < 1 << 40 for number in tokens.values()):
                raise ValueError("usage has no counts of tokens")
            return text, tokens
        except (AttributeError, IndexError, KeyError, OverflowError, RecursionError, TypeError, ValueError) as error:
            raise RuntimeError(
                f"{self.address}: answers with {self.quoted(decoded(content))}, which is no completion ({error!r:.100})"
            ) from None

    async def ask(self, body: Mapping[str, Any], until: float) -> bytes:
        """Content of the answer, with retries. Raises RuntimeError."""
        pause_s = FIRST_PAUSE_S
        headers = {"Accept-Encoding": "identity", **self.headers()}
        async with aiohttp.ClientSession(headers=headers, auto_decompress=False) as session:
            while True:
                try:
                    return await self.ask_once(session, body, until)
                except PassingError as error:
                    wait_s = max(pause_s * random.uniform(0.5, 1), error.wait_s)
                    if time.monotonic() + wait_s >= until:
                        text = f"{self.address}: {error}; no time is left of {self.seconds:g} s"
                        raise RuntimeError(text) from None
                self.counts["retries"] += 1
                await asyncio.sleep(wait_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def ask_once(self, session: aiohttp.ClientSession, body: Mapping[str, Any], until: float) -> bytes:
        """Content of the answer. Raises PassingError where another try may help, else RuntimeError."""
        where, left = urlsplit(self.address), min(self.request_seconds, max(until - time.monotonic(), 0.01))
        proxy = None if urllib.request.proxy_bypass(where.netloc) else urllib.request.getproxies().get(where.scheme)
        timeout = aiohttp.ClientTimeout(total=left)
        try:
            async with session.post(
                self.address, json=body, allow_redirects=False, proxy=proxy, timeout=timeout
            ) as answer:
                content = await self.content(answer)
        except asyncio.TimeoutError:
            raise PassingError(f"no answer within {left:.3g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise PassingError(f"the connection broke ({shown(str(error) or type(error).__name__)})") from None
        if answer.status == 200:
            return content
        if 300 <= answer.status < 400:
            raise RuntimeError(f"{self.address}: redirects, which is not followed; give the judge's own URL")
        reason = f"status {answer.status}: {self.message(content)}"
        if answer.status == 429 or answer.status >= 500:
            raise PassingError(reason, retry_after(answer.headers.get("Retry-After", "")))
        raise RuntimeError(f"{self.address}: {reason}")

    async def content(self, answer: aiohttp.ClientResponse) -> bytes:
        """Of bounded size."""
        content = bytearray()
        async for chunk in answer.content.iter_any():
            content += chunk
            if len(content) > MOST_BYTES:
                raise RuntimeError(f"{self.address}: answers with more than {MOST_BYTES} bytes")
        return bytes(content)

    def message(self, content: bytes) -> str:
        """One line of a server's error."""
        try:
            return self.quoted(str(json.loads(content)["error"]["message"]))
        except (ValueError, KeyError, TypeError, RecursionError):
            return self.quoted(decoded(content))

    def quoted(self, text: str) -> str:
        """The beginning of what a server said, in one line. Some servers repeat the key."""
        for secret in self.headers().values():
            text = text.replace(secret.removeprefix("Bearer "), "***")
        return shown(text)

    def write_counts(self) -> None:
        """Beside the cache, in a file of this process and model."""
        what = {"url": self.url, "model": self.model, "price_per_million": self.price_per_million}
        name = digest(json.dumps(what))[:8]
        path = self.cache / "costs" / f"{STARTED}-{os.getpid()}-{name}.json"
        make_folder(path.parent)
        write_file(path, json.dumps({**what, "counts": self.counts}).encode(), sync=False)


def kept(path: Path) -> Answer | None:
    """The answer in a file of the cache; None if there is none, or a damaged one."""
    try:
        if path.stat().st_size > 4 * MOST_BYTES:
            return None
        found = read_json(path)
        if isinstance(found["text"], str) and digest(found["text"]) == found["sha256"]:
            return Answer(text=found["text"], is_cached=True)
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


def digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@contextmanager
def alone(path: Path, key: str, until: float) -> Iterator[None]:
    """While no other process is in here with the same key, whose place in the file is locked. The lock ends with its
    process. Where the file system has no locks, there is none."""
    with path.open("ab") as file:
        while True:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, int(key[:15], 16))
                break
            except (BlockingIOError, PermissionError):
                if time.monotonic() > until:
                    raise RuntimeError("another process asks the judge the same, and has no answer yet") from None
                time.sleep(0.02)
            except OSError:
                break
        yield


@cache
def loaded(folder: Path) -> Tokenizer:
    return load_tokenizer(TokenizerSection(path=folder))


def token_ids(tokenizer: Tokenizer, messages: Sequence[ChatMessage]) -> list[int]:
    """Of a chat. What stands in messages is text: no <|im_end|> of a response becomes a special token."""
    text, plain, end = tokenizer.render_chat(messages), [], 0
    for message in messages:
        content = message["content"].strip()
        start = text.find(content, end)
        if start < 0:
            raise RuntimeError(f"{tokenizer.name}: the chat template changes what messages say")
        end = start + len(content)
        plain.append((start, end))
    return tokenizer.encode(text, plain=plain)


def retry_after(value: str) -> float:
    """Seconds of the header: a number, or a date; 0 for anything else."""
    if re.fullmatch(r"[0-9]{1,9}", value):
        return float(value)
    with suppress(ValueError, TypeError, OverflowError):
        date = email.utils.parsedate_tz(value)
        return 0.0 if date is None else max(0.0, email.utils.mktime_tz(date) - time.time())
    return 0.0


def decoded(content: bytes) -> str:
    return content.decode("utf-8", "replace")


def shown(text: str) -> str:
    """The beginning, in one line."""
    return " ".join(printable(text[: 4 * MOST_SHOWN]).split())[:MOST_SHOWN] or "nothing"


def costs(folder: Path) -> list[str]:
    """Lines with the sums over all processes, for each endpoint, model and price."""
    sums: dict[str, Counter[str]] = {}
    for path in sorted((folder / "costs").glob("*.json")):
        found = read_json(path)
        key = json.dumps([found["url"], found["model"], found["price_per_million"]])
        sums.setdefault(key, Counter()).update(found["counts"])
    lines = []
    for key, counts in sums.items():
        url, model, price = json.loads(key)
        lines += [f"{model} at {url}", *(f"  {name:18}{counts[name]:>14,}" for name in COUNTED)]
        if price is not None:
            cost = (counts["prompt_tokens"] * price[0] + counts["completion_tokens"] * price[1]) / 1e6
            lines.append(f"  {'cost':18}{cost:>14,.4f}")
    return lines or [f"{folder}: no judge has been asked"]


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] != "costs":
        sys.exit("usage: python examples/environments/judge.py costs FOLDER")
    print("\n".join(costs(Path(sys.argv[2]))))
