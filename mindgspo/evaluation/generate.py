"""Answers prompts with a model on disk, chats, or plays episodes (`mindgspo generate`, `mindgspo.generate`).

Prompts go through the tokenizer's chat template unless they are raw text. Prompts and lengths are checked before the
weights are read.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from mindgspo.config import ExperimentConfig, load_config, load_mapping
from mindgspo.config.data import LEAST_TEMPERATURE, LEAST_TOP_P
from mindgspo.data.dataset import open_dataset
from mindgspo.data.rendering import RenderedRow, prompt_facts, render_row
from mindgspo.data.source_rows import SourceRow
from mindgspo.data.sources import open_source
from mindgspo.errors import ConfigError, DataError
from mindgspo.evaluation.datasets import HELD_OUT_SEED
from mindgspo.evaluation.inputs import FoundModel, PromptText, default_length, encode_prompt, find_model
from mindgspo.metrics.run_log import turn_records
from mindgspo.models.policy import build_model
from mindgspo.models.weights import load_tensors
from mindgspo.parallel.plans.placement import ALONE
from mindgspo.parallel.platform.cluster import start_device
from mindgspo.progress import activity
from mindgspo.rollout.build import native_engine
from mindgspo.rollout.engine import NativeEngine
from mindgspo.rollout.local_service import EpisodeEngine
from mindgspo.rollout.player import open_environment
from mindgspo.rollout.protocol import Purpose, RandomStream, SamplingSettings
from mindgspo.rollout.service import Request
from mindgspo.text import counted
from mindgspo.tokenization import ChatMessage, Tokenizer, load_tokenizer
from mindgspo.tokenization.tokenizer import JsonObject
from mindgspo.types import FinishReason, Float32Array, Int32Array, Prompt, Response

_CHAT_TOKENS = 4096
_ROUNDS_PER_CALL = 8  # how often the slots are filled per call of the engine; see evaluation.run_tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateOptions:
    """Options of generation. None: the value in the folder's generation_config.json; without one, greedy (0), no top-p,
    no top-k, and answers of up to 2,048 tokens."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_new_tokens: int | None = None
    num_samples: int = 1
    """Answers per prompt."""
    seed: int = 1
    batch: int = 32
    """Answers generated at the same time."""
    device: Literal["CPU", "Ascend"] = "CPU"
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    tokenizer: Path | None = None
    """Folder of the tokenizer, if the model's has none."""
    eos_tokens: tuple[str, ...] = ()
    """Tokens that end an answer, instead of those that the folder names."""
    system_prompt: str | None = None
    """System message of every conversation without one of its own."""
    is_raw: bool = False
    """Whether prompts are text to continue, without a chat template."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One answer."""

    text: str
    """Text without the token that ends it."""
    ids: Int32Array
    """int32 [L], with the token that ends it."""
    logprobs: Float32Array
    """float32 [L], under softmax(logits / temperature) before top-k and top-p; greedy: at temperature 1."""
    finish_reason: FinishReason
    """STOP, or LENGTH where it was cut off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """The answers to one prompt."""

    prompt: PromptText
    completions: tuple[Completion, ...]

    @property
    def text(self) -> str:
        """Text of the first answer."""
        return self.completions[0].text


@dataclass(frozen=True, slots=True)
class _Drawing:
    """Sampling settings, from options and generation_config.json."""

    temperature: float
    top_p: float
    top_k: int


def generate_completions(model: Path, prompts: Sequence[PromptText], options: GenerateOptions) -> Iterator[Generated]:
    """The answers, prompt by prompt, in their order. An answer depends on the seed, the position of its prompt and its
    own number.

    Raises DataError for a prompt without a token, ConfigError for one that is too long, and the errors of the model's
    files.
    """
    found = find_model(model, tokenizer=options.tokenizer, eos_tokens=options.eos_tokens)
    drawing = _drawing(found, options)
    tokenizer = load_tokenizer(found.tokenizer, found.section.vocab_size)
    if not prompts:
        raise DataError("there is no prompt; give at least one")
    encoded = [
        encode_prompt(tokenizer, prompt, f"prompt {number}", system_prompt=options.system_prompt, is_raw=options.is_raw)
        for number, prompt in enumerate(prompts, start=1)
    ]
    longest = max(ids.size for ids in encoded)
    length = _answer_length(found, options, longest)
    slots = min(options.batch, len(prompts) * options.num_samples)
    config = _config(found, options, drawing, longest_prompt=longest, max_new_tokens=length, slots=slots)
    engine = _engine(found, config, tokenizer)
    size = max(1, _ROUNDS_PER_CALL * slots // options.num_samples)
    for start in range(0, len(prompts), size):
        asked = [_prompt(start + n, ids) for n, ids in enumerate(encoded[start : start + size])]
        settings = _settings(options, drawing, length)
        with activity("generating"):
            answered = engine.generate(asked, settings, weight_version=0).responses
        for prompt, responses in zip(prompts[start:], answered, strict=False):
            yield Generated(prompt=prompt, completions=tuple(_completion(tokenizer, each) for each in responses))


def _completion(tokenizer: Tokenizer, response: Response) -> Completion:
    return Completion(
        text=tokenizer.decode(response.ids, skip_special_tokens=True),
        ids=response.ids,
        logprobs=response.logprobs,
        finish_reason=response.finish_reason,
    )


class TextPieces:
    """The text of a growing list of tokens, piece by piece.

    A tokenizer may decode a token differently at the start of a text, and a character may take several tokens: a piece
    is the text added by the last few tokens, and it is held back while its last character is incomplete.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._start = self._told = 0

    def of(self, ids: Int32Array, *, is_last: bool = False) -> str:
        """Return the new text. ids: all tokens so far. is_last: broken characters come as U+FFFD."""
        before, whole = self._text(ids[self._start : self._told]), self._text(ids[self._start :])
        if len(whole) <= len(before) or (whole.endswith("\ufffd") and not is_last):
            return ""
        self._start, self._told = self._told, len(ids)
        return whole[len(before) :]

    def _text(self, ids: Int32Array) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True)


class Chat:
    """A conversation with a model, whose answers come piece by piece."""

    def __init__(self, model: Path, options: GenerateOptions) -> None:
        """Loads the model. Raises ConfigError, and the errors of the model's files."""
        found = find_model(model, tokenizer=options.tokenizer, eos_tokens=options.eos_tokens)
        self.place, self._options, self._drawing = found.place, options, _drawing(found, options)
        self._tokenizer = load_tokenizer(found.tokenizer, found.section.vocab_size)
        self._encode([{"role": "user", "content": "?"}])  # whether there is a template, before the weights are read
        self._length = _answer_length(found, options, 1)
        self._most_tokens = min(found.positions, max(_CHAT_TOKENS, 2 * self._length))
        room = self._most_tokens - self._length
        config = _config(found, options, self._drawing, longest_prompt=room, max_new_tokens=self._length, slots=1)
        self._engine = _engine(found, config, self._tokenizer)
        self._turns = 0
        self.messages: list[ChatMessage] = []

    def reset(self) -> None:
        """Forget what was said."""
        self.messages = []

    def say(self, text: str, is_stopped: Callable[[], object] = lambda: False) -> Iterator[str]:
        """The pieces of the answer. is_stopped: called between two syncs with the engine; the text so far is kept.

        Raises ConfigError if the conversation has become too long; it is then as before.
        """
        asked = [*self.messages, {"role": "user", "content": text}]
        ids = self._encode(asked)
        room = min(self._length, self._most_tokens - ids.size)
        if room < 1:
            raise ConfigError(
                f"the conversation has {ids.size:,} tokens, and there is room for {self._most_tokens:,} with the "
                "answer; begin a new one"
            )
        settings = _settings(self._options, self._drawing, room)
        decoding = self._engine.begin(settings)
        decoding.add(Request(number=0, prompt=_prompt(self._turns, ids), samples=(0,), settings=settings))
        self._turns += 1
        pieces, said = TextPieces(self._tokenizer), ""
        ended = []
        while not ended:
            decoding.advance()
            ended = decoding.abort() if is_stopped() else decoding.ended()
            drawn = ended[0].pieces[0].ids if ended else decoding.tokens_of(0)
            piece = pieces.of(drawn, is_last=bool(ended))
            said += piece
            yield piece
        self.messages = [*asked, {"role": "assistant", "content": said}]

    def _encode(self, messages: Sequence[ChatMessage]) -> Int32Array:
        return encode_prompt(self._tokenizer, messages, "the conversation", system_prompt=self._options.system_prompt)


def play_episodes(
    model: Path, experiment: Path, options: GenerateOptions, *, prompt: str | None = None, row: int = 0
) -> Iterator[str]:
    """Play `options.num_samples` episodes with an experiment's environment: the lines of the conversations.

    prompt: question to begin with, without an answer; None: `row`, from 0, of the experiment's held-out rows. An
    episode has `rollout.max_new_tokens` of the experiment unless the options say otherwise. Raises ConfigError where
    the experiment has no environment or the model too few positions, DataError where it has no such row, and the
    errors of files.
    """
    config = load_config(experiment)
    if config.environment is None:
        raise ConfigError(f"{experiment}: has no section environment; give an experiment with environment.path")
    if options.max_new_tokens is None:
        options = replace(options, max_new_tokens=config.rollout.max_new_tokens)
    found = find_model(model, tokenizer=options.tokenizer, eos_tokens=options.eos_tokens)
    drawing = _drawing(found, options)
    tokenizer = load_tokenizer(found.tokenizer, found.section.vocab_size)
    environment = open_environment(config.environment, tokenizer)
    with environment.player:
        asked = _asked(config, tokenizer, environment.tools, prompt, row)
        length = _answer_length(found, options, asked.ids.size)
        slots = min(options.batch, options.num_samples)
        sized = _config(found, options, drawing, longest_prompt=asked.ids.size, max_new_tokens=length, slots=slots)
        sized = sized.model_copy(update={"environment": config.environment})
        engine = EpisodeEngine(_engine(found, sized, tokenizer), environment, tokenizer, ALONE)
        settings = _settings(options, drawing, length)
        (responses,) = engine.generate([asked], settings, weight_version=0).responses
    yield "--- prompt"
    yield asked.text.strip()
    for number, response in enumerate(responses, start=1):
        if len(responses) > 1:
            yield f"=== episode {number} of {len(responses)}"
        yield from conversation_lines(response, tokenizer.decode)


def _asked(
    config: ExperimentConfig, tokenizer: Tokenizer, tools: Sequence[JsonObject], prompt: str | None, row: int
) -> Prompt:
    """The prompt of a question, or of a held-out row, as the experiment renders it. Raises DataError."""
    source = next(iter(config.data.eval_sets.values()))
    if prompt is not None:
        # A row has an answer; this one's is taken away again.
        asked = SourceRow(where="--prompt", messages=({"role": "user", "content": prompt},), answer="?", data_source="")
    elif source.format == "prepared":
        assert source.path is not None
        rows = open_dataset(source.path, tokenizer, config.data, max_rows=source.max_rows)
        if row >= len(rows):
            raise DataError(f"--row {row}: {source.path} has {len(rows)} rows; they are counted from 0")
        return rows[row]
    else:
        opened = open_source(source, HELD_OUT_SEED, tokenizer)
        asked = next(itertools.islice(opened.parsed(), row, None), None)
        if asked is None:
            raise DataError(f"--row {row}: {opened.label} has {opened.count()} rows; they are counted from 0")
    rendered = render_row(asked, prompt_facts(source, config.data, tools), tokenizer)
    if not isinstance(rendered, RenderedRow):
        raise DataError(f"--row {row}: {rendered.where} is left out: {rendered.reason}; choose another row")
    return replace(rendered.as_prompt(row), **({} if prompt is None else {"answer": ""}))


def conversation_lines(response: Response, decode: Callable[[Int32Array], str]) -> Iterator[str]:
    """An episode as text, special tokens included: turns, observations, and how it ended."""
    episode = response.episode
    assert episode is not None
    for number, turn in enumerate(turn_records(response, decode), start=1):
        calls = f", {counted(turn['num_calls'], 'tool call')}" if turn["num_calls"] else ""
        errors = f" ({', '.join(turn['errors'])})" if turn["errors"] else ""
        yield f"--- turn {number}: {counted(turn['stop'] - turn['start'], 'token')}{calls}{errors}"
        yield turn["text"]
        if turn["num_observed"]:
            left_out = f", {turn['num_left_out']} left out" if turn["num_left_out"] else ""
            yield f"--- environment: {counted(turn['num_observed'], 'token')}{left_out}, {turn['seconds']:.2f} s"
            yield turn["observation"].strip()
    reward = "" if episode.reward is None else f", reward {episode.reward:g}"
    info = "".join(f", {name} {value:g}" for name, value in episode.info.items())
    yield f"--- end: {episode.end.value}{reward}{info}{episode.message and f' ({episode.message})'}"


def json_row(generated: Generated) -> str:
    """One line of JSON Lines."""
    completions = [
        {"text": one.text, "finish_reason": one.finish_reason.value, "num_tokens": int(one.ids.size)}
        for one in generated.completions
    ]
    prompt = generated.prompt if isinstance(generated.prompt, str) else list(generated.prompt)
    return json.dumps({"prompt": prompt, "completions": completions}, ensure_ascii=False)


# ----- from options to an engine


def _drawing(found: FoundModel, options: GenerateOptions) -> _Drawing:
    """Raises ConfigError for impossible numbers, and for several samples that would all be equal."""
    said = found.generation if found.generation.get("do_sample") is True else {}

    def chosen(given: float | None, key: str, default: float) -> float:
        value = said.get(key, default) if given is None else given
        return value if isinstance(value, (int, float)) and not isinstance(value, bool) else default

    temperature = chosen(options.temperature, "temperature", 1.0 if said else 0.0)
    if options.num_samples > 1 and temperature == 0:
        raise ConfigError(f"--num-samples {options.num_samples}: greedy answers are all the same; add --temperature 1")
    top_p = chosen(options.top_p, "top_p", 1.0)
    if not (temperature == 0 or temperature >= LEAST_TEMPERATURE) or not LEAST_TOP_P <= top_p <= 1:
        raise ConfigError(
            f"--temperature {temperature:g} --top-p {top_p:g}: legal are a temperature of 0 or from "
            f"{LEAST_TEMPERATURE:g}, and a top-p from {LEAST_TOP_P:g} to 1"
        )
    return _Drawing(temperature, top_p, int(chosen(options.top_k, "top_k", 0)))


def _answer_length(found: FoundModel, options: GenerateOptions, longest_prompt: int) -> int:
    """Most tokens of an answer. Raises ConfigError if prompt and answer do not fit into the model's positions."""
    room = found.positions - longest_prompt
    wanted = options.max_new_tokens
    if wanted is None:
        wanted = min(default_length(found.section, found.generation), max(1, room))
    if wanted > room:
        fewer = f"; give at most --max-new-tokens {room}" if room >= 1 else "; shorten the prompt"
        raise ConfigError(
            f"{found.place}: {found.positions:,} positions, but the longest prompt has {longest_prompt:,} tokens and "
            f"answers up to {wanted:,}{fewer}"
        )
    return wanted


def _settings(options: GenerateOptions, drawing: _Drawing, max_new_tokens: int) -> SamplingSettings:
    return SamplingSettings(
        num_samples=options.num_samples,
        temperature=drawing.temperature,
        max_new_tokens=max_new_tokens,
        stream=RandomStream(seed=options.seed, purpose=Purpose.EVALUATION, step=0),
    )


def _prompt(index: int, ids: Int32Array) -> Prompt:
    return Prompt(index=index, ids=ids, text="", answer="", data_source="")


def _config(
    found: FoundModel,
    options: GenerateOptions,
    drawing: _Drawing,
    *,
    longest_prompt: int,
    max_new_tokens: int,
    slots: int,
) -> ExperimentConfig:
    """An experiment that generates like this. Raises ConfigError for impossible numbers."""
    sections = {
        "experiment": "generate",
        "device": options.device,
        "seed": options.seed,
        "model": {**found.section.model_dump(mode="json"), "dtype": options.dtype},
        "tokenizer": found.tokenizer.model_dump(mode="json"),
        "data": {
            "train": {"format": "arithmetic"},  # never read; an experiment has them
            "eval": {"format": "arithmetic", "split": "test"},
            "max_prompt_length": longest_prompt,
        },
        "rollout": {
            "prompts_per_step": 1,
            "num_generations": max(2, options.num_samples),
            "max_new_tokens": max_new_tokens,
            "slots": slots,
            "top_p": drawing.top_p,
            "top_k": drawing.top_k,
        },
        "trainer": {"max_steps": 1, "prompts_per_mini_batch": 1, "samples_per_micro_batch": 1},
    }
    return load_mapping("generate", sections)


def _engine(found: FoundModel, config: ExperimentConfig, tokenizer: Tokenizer) -> NativeEngine:
    start_device(config)
    model = build_model(config.model, ALONE)
    with found.open() as tensors:
        load_tensors(model, config.model, tensors)
    engine = native_engine(config, model, tokenizer)
    engine.load_weights(0)
    return engine
