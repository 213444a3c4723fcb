"""samples.html: a run's samples with search and filters, and one prompt over the steps; one file, nothing is fetched.

Prompts and responses are untrusted. They are embedded as JSON in which no tag can begin, the page's script sets them as
text, and the content policy lets no other script run. Of a long run, as many steps as fit are shown, evenly spread.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mindgspo.errors import RunFolderError
from mindgspo.io import write_file
from mindgspo.metrics.files import SAMPLES_FILE, SAMPLES_PAGE, VALIDATION_FILE, read_records, recorded_number
from mindgspo.metrics.pages import chinese_words, page, questions
from mindgspo.text import printable

MOST_CHARS = {SAMPLES_FILE: 12_000_000, VALIDATION_FILE: 4_000_000}
"""Characters taken from each file; browsers open a page of that size at once."""
MOST_TEXT = 20_000
"""Characters of a prompt or a response; the file has the rest."""
_OTHER_CHARS = 150  # of a sample, beside its texts
_TURN_CHARS = 80  # of a turn, beside its texts
_MOST_INFO = 32  # numbers of an environment
_SetOf = Callable[[Mapping[str, object]], str]
_SCRIPT = Path(__file__).with_name("samples.js")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chosen:
    """Steps of a file that the page shows."""

    steps: frozenset[int]
    num_steps: int
    """Steps in the file."""
    is_cut: bool
    """Whether not even the newest step fits as a whole."""


@dataclass(slots=True)
class _Content:
    """Data of the page's script; columns of samples as it names them. Prompts and sets are numbered as they come."""

    prompts: list[dict[str, str]] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    sets: list[str] = field(default_factory=list)
    samples: list[list[object]] = field(default_factory=list)
    numbers: dict[tuple[str, str], int] = field(default_factory=dict)

    def add(self, record: Mapping[str, object], name: str) -> None:
        """A line of a file of samples; name: of the set that it belongs to. An episode takes the response's place."""
        about = {"text": _text(record.get("prompt")), "answer": _text(record.get("answer"))}
        key = (str(record.get("prompt_index")), name + about["text"])
        if key not in self.numbers:
            self.numbers[key] = len(self.prompts)
            self.prompts.append(about)
            self.counts.append(0)
        number = self.numbers[key]
        episode = _episode(record)
        self.counts[number] += 1
        if name not in self.sets:
            self.sets.append(name)
        self.samples.append(
            [
                self.sets.index(name),
                record.get("step"),
                number,
                _text(record.get("sample_index", record.get("sample"))),
                _text(record.get("verdict")),
                recorded_number(record.get("score")),
                recorded_number(record.get("advantage")),
                recorded_number(record.get("length")),
                record.get("finish_reason") == "length",
                None if record.get("extracted") is None else _text(record["extracted"]),
                None if record.get("message") is None else _text(record["message"]),
                *([_text(record.get("response"))] if episode is None else ["", episode]),
            ]
        )

    def json(self) -> str:
        """Prompts with what they ask (`questions`)."""
        asked = questions([about["text"] for about in self.prompts])
        prompts = [{**about, "question": question} for about, question in zip(self.prompts, asked, strict=True)]
        parts = {"prompts": prompts, "counts": self.counts, "sets": self.sets, "samples": self.samples}
        return _embedded(parts)


def episode_turns(record: Mapping[str, object]) -> list[Mapping[str, object]]:
    """The turns of a sample's episode that have their texts; none of a sample of one turn."""
    episode = record.get("episode")
    turns = episode.get("turns") if isinstance(episode, Mapping) else None
    return [turn for turn in turns if isinstance(turn, Mapping) and "text" in turn] if isinstance(turns, list) else []


def _episode(record: Mapping[str, object]) -> dict[str, object] | None:
    """What the page shows of an episode, turns as lists in the order of `TURN` in the script; all texts together have
    at most MOST_TEXT characters. None if the sample has none."""
    turns, episode = episode_turns(record), record.get("episode")
    if not turns or not isinstance(episode, Mapping):
        return None
    shown, room = [], MOST_TEXT
    for turn in turns:
        if room <= 0:
            break
        texts = []
        for name in ("text", "observation"):
            texts.append(_text(turn.get(name), max(room, 0)))
            room -= len(texts[-1])
        start, stop, *numbers = (
            recorded_number(turn.get(name)) or 0
            for name in ("start", "stop", "num_calls", "seconds", "num_observed", "num_left_out")
        )
        errors = turn.get("errors")
        kinds = [_text(kind) for kind in errors] if isinstance(errors, list) else []
        shown.append([*texts, stop - start, recorded_number(turn.get("mean_logprob")), *numbers, kinds])
        room -= _TURN_CHARS
    info = episode.get("info")
    numbers = info.items() if isinstance(info, Mapping) else ()
    return {
        "turns": shown,
        "hidden": len(turns) - len(shown),
        "end": _text(episode.get("end")),
        "reward": recorded_number(episode.get("reward")),
        "info": [[_text(name), recorded_number(value)] for name, value in numbers][:_MOST_INFO],
        "message": _text(episode.get("message")),
    }


def _embedded(value: object) -> str:
    """JSON without "<", so that nothing in it ends the element that holds it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def write_samples_page(run_dir: Path, name: str, *, most_chars: Mapping[str, int] = MOST_CHARS) -> Path | None:
    """Write samples.html into the run folder and return its path; None if the run logged no samples.

    name: of the run. most_chars: by file. Raises RunFolderError for a damaged line, WriteError.
    """
    content, notes = _Content(), []
    for file, set_of in (
        (SAMPLES_FILE, lambda record: "training"),
        (VALIDATION_FILE, lambda record: f"held-out: {_text(record.get('set'))}"),
    ):
        chosen = choose_steps(run_dir / file, most_chars[file])
        notes += _notes(file, chosen)
        _fill(content, run_dir / file, chosen, most_chars[file], set_of)
    if not content.samples:
        return None
    script = _SCRIPT.read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    path = run_dir / SAMPLES_PAGE
    html = page(
        "samples.jinja",
        name=name,
        notes=notes,
        data=content.json(),
        words=_embedded(chinese_words()),
        script=script,
        script_hash=f"sha256-{digest}",
    )
    write_file(path, html)
    return path


def choose_steps(path: Path, most: int) -> _Chosen:
    """Choose as many steps as fit, evenly spread, the newest among them. Reads the file once."""
    sizes: dict[int, int] = {}
    for step, size, _ in _records(path):
        sizes[step] = sizes.get(step, 0) + size
    steps = sorted(sizes)
    low, high = 0, len(steps)  # so many fit; no more than so many
    while low < high:
        middle = (low + high + 1) // 2
        if sum(sizes[step] for step in _spread(steps, middle)) <= most:
            low = middle
        else:
            high = middle - 1
    is_cut = low == 0 and bool(steps)
    return _Chosen(steps=frozenset(_spread(steps, max(low, 1))), num_steps=len(steps), is_cut=is_cut)


def _spread(steps: Sequence[int], count: int) -> list[int]:
    """`count` of the steps, at equal distances; always the last one."""
    if count <= 1 or not steps:
        return list(steps[-1:]) if count else []
    return [steps[round(number * (len(steps) - 1) / (count - 1))] for number in range(min(count, len(steps)))]


def _records(path: Path) -> Iterator[tuple[int, int, Mapping[str, object]]]:
    """Step, number of characters that it would add to the page, and the record itself. Raises RunFolderError."""
    for number, record in enumerate(read_records(path), start=1):
        step = record.get("step")
        if not isinstance(step, int):
            raise RunFolderError(f"{path}, line {number}: has no integer 'step'")
        texts = (str(record.get(name)) for name in ("prompt", "response"))
        size = _OTHER_CHARS + _TURN_CHARS * len(episode_turns(record))
        yield step, size + sum(min(len(text), MOST_TEXT) for text in texts), record


def _fill(content: _Content, path: Path, chosen: _Chosen, most: int, set_of: _SetOf) -> None:
    room = most
    for step, size, record in _records(path):
        if step in chosen.steps:
            room -= size
            if chosen.is_cut and room < 0:
                return
            content.add(record, set_of(record))


def _notes(file: str, chosen: _Chosen) -> list[str]:
    if chosen.is_cut:
        return [f"{file} is long: a part of its newest step is shown, out of {chosen.num_steps:,} steps."]
    if len(chosen.steps) < chosen.num_steps:
        return [f"{file} is long: {len(chosen.steps):,} of its {chosen.num_steps:,} steps are shown, evenly spread."]
    return []


def _text(value: object, most: int = MOST_TEXT) -> str:
    text = printable("" if value is None else str(value))
    hidden = len(text) - most
    return text if hidden <= 0 else f"{text[:most]}\n[... {hidden:,} more characters in the run folder]"
