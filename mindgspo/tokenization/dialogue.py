"""Conversations of several turns in token ids: what stands between one sampled turn of the assistant and the next.

    prompt | sampled turn, EOS | continuation | sampled turn, EOS | continuation | ...

What was sampled is never tokenized again. A continuation is what the chat template writes behind an assistant's turn:
the rest of that turn's end (a newline, say), the messages, and the words that begin the next turn. It is cut out of a
conversation with placeholders, so the template never sees a message's content. Contents come from outside: whatever
they hold is text, no special token.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

from mindgspo.errors import TokenizerError
from mindgspo.text import counted, either, shorten
from mindgspo.tokenization.tokenizer import ChatMessage, JsonObject, Tokenizer

_ASKED: ChatMessage = {"role": "user", "content": "?"}
_SAID = "the-answer"
_THOUGHT = "<think>"
# White space, quotes and signs that a template may trim or escape; the mark of the message stands in the middle.
_PROBE = "\n \t\"'\u00e9<&\\{}\\\u00a0 \n"

_FORMS: tuple[Callable[[str], str], ...] = (
    lambda content: content,
    str.strip,
    lambda content: json.dumps(content, ensure_ascii=False)[1:-1],  # its quotes are the template's
)
"""What templates do to a message's content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """What stands between two sampled turns."""

    ids: list[int]
    """Token ids behind the sampled turn's EOS, up to where the assistant speaks again."""
    num_left_out: int
    """Tokens of the contents that the limit left out."""
    text: str
    """The text of `ids`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Skeleton:
    """A continuation without its contents."""

    turn_end: str
    """From the assistant's last word through the token that ends its turn."""
    end_id: int
    pieces: tuple[str, ...]
    """Before, between and behind the contents."""
    forms: tuple[Callable[[str], str], ...]
    """What the template does to each content."""


class Dialogue:
    """The continuations that a tokenizer's chat template writes. tools: JSON schemas that the prompts present.

    Raises TokenizerError: no chat template; one that takes no message of role "tool" although there are tools, or that
    ends an assistant's turn with none of `tokenizer.eos_ids`; an EOS that is no token by itself.
    """

    def __init__(self, tokenizer: Tokenizer, *, tools: Sequence[JsonObject] = ()) -> None:
        self._tokenizer, self._tools = tokenizer, tools
        self._where = tokenizer.name if tokenizer.template is None else tokenizer.template.where
        self._eos = {number: tokenizer.decode([number]) for number in tokenizer.eos_ids}
        self._skeleton = lru_cache(maxsize=64)(self._read_skeleton)
        for number, name in self._eos.items():
            if tokenizer.encode(name + name) != [number, number]:
                raise TokenizerError(
                    f"tokenizer.eos_tokens: {name!r} is part of the text for {tokenizer.name}; name special tokens"
                )
        self._skeleton(("user",))
        if tools:
            self._check_tool_role()
            self._skeleton(("tool",))

    def continuation(self, messages: Sequence[ChatMessage], *, last_id: int, max_tokens: int) -> Continuation:
        """What follows a sampled turn, of tools and users.

        last_id: the EOS that ended the turn; it is not repeated, but where it is not the one by which the template
        ends turns, that one follows. max_tokens: each content keeps at most so many tokens, its first and its last
        ones, with a note of the gap between them. Raises TokenizerError if the template rejects these roles, or changes
        a content in an unknown way.
        """
        assert last_id in self._eos, f"{last_id} is no EOS: {self._eos}"
        skeleton = self._skeleton(tuple(message["role"] for message in messages))
        # The EOS stands in front while the text is encoded, because what follows a special token may depend on it.
        text = self._eos[last_id] + ("" if last_id == skeleton.end_id else skeleton.turn_end) + skeleton.pieces[0]
        plain: list[tuple[int, int]] = []
        num_left_out = 0
        for message, form, piece in zip(messages, skeleton.forms, skeleton.pieces[1:], strict=True):
            content, num = self._limited(message["content"], max_tokens)
            num_left_out += num
            content = form(content)
            plain.append((len(text), len(text) + len(content)))
            text += content + piece
        ids = self._tokenizer.encode(text, plain=plain)
        assert ids[0] == last_id, f"{ids[0]} instead of {last_id}"
        return Continuation(ids=ids[1:], num_left_out=num_left_out, text=text[len(self._eos[last_id]) :])

    def differences(self) -> str | None:
        """A line about earlier turns that the template renders differently from how they were sampled: without their
        thoughts, say, once the user speaks again. None if conversations only grow. White space around a turn, which
        many templates trim, is not looked at."""
        prompt = self._render([])
        thoughtful = f"{_THOUGHT}\n{_SAID}\n</think>\n\n{_SAID}"
        # Some prompts begin the thought; it is part of the turn for the template.
        begins_thought = prompt.rstrip().endswith(_THOUGHT)
        if begins_thought:
            prompt = prompt[: prompt.rindex(_THOUGHT)]
        for said in [thoughtful] if begins_thought else [_SAID, thoughtful]:
            for role in ("tool", "user") if self._tools else ("user",):
                skeleton = self._skeleton((role,))
                grown = prompt + said + skeleton.turn_end + skeleton.pieces[0] + _mark(0) + skeleton.pieces[1]
                rendered = self._render([role], [_mark(0)], said=said)
                if rendered != grown:
                    pairs = enumerate(zip(grown, rendered, strict=False))
                    same = next((i for i, (one, other) in pairs if one != other), min(len(grown), len(rendered)))
                    return (
                        f"{self._where}: where {grown[same:][:60]!r} was sampled, the template renders "
                        f"{rendered[same:][:60]!r} as soon as a message of role {role!r} follows; training keeps every "
                        "turn as it was sampled"
                    )
        return None

    def _limited(self, content: str, max_tokens: int) -> tuple[str, int]:
        """The content without its middle, and the number of tokens left out."""
        content = content.encode("utf-8", "replace").decode()  # half a surrogate pair is no text
        ids = self._tokenizer.encode(content, plain=[(0, len(content))])
        num = len(ids) - max_tokens
        if num <= 0:
            return content, 0
        head = max_tokens // 2
        # A character of several tokens may be cut.
        first = self._tokenizer.decode(ids[:head]).rstrip("\ufffd")
        last = self._tokenizer.decode(ids[head + num :]).lstrip("\ufffd")
        return f"{first}\n[{counted(num, 'token')} left out here]\n{last}", num

    def _render(self, roles: Sequence[str], contents: Iterable[str] = (), *, said: str | None = None) -> str:
        """A conversation that ends where the assistant is to speak. said: its first turn."""
        messages: list[ChatMessage] = [_ASKED]
        if said is not None:
            messages.append({"role": "assistant", "content": said})
        for role, content in zip(roles, contents, strict=True):
            messages.append({"role": role, "content": content})
        return self._tokenizer.render_chat(messages, tools=self._tools)

    def _behind_turn(self, roles: Sequence[str], contents: Sequence[str]) -> str:
        """What the template writes behind an assistant's turn that such messages follow."""
        text = self._render(roles, contents, said=_SAID)
        if text.count(_SAID) != 1:
            raise TokenizerError(
                f"{self._where}: the template writes an assistant's turn {text.count(_SAID)} times instead of once"
            )
        return text.partition(_SAID)[2]

    def _pieces(self, roles: Sequence[str]) -> list[str]:
        """What the template writes before, between and behind the contents of such messages."""
        marks = [_mark(number) for number in range(len(roles))]
        rest = self._behind_turn(roles, marks)
        pieces: list[str] = []
        for role, mark in zip(roles, marks, strict=True):
            if rest.count(mark) != 1:
                what = "repeats" if mark in rest else "leaves out"
                raise TokenizerError(f"{self._where}: the template {what} a message of role {role!r}")
            piece, _, rest = rest.partition(mark)
            pieces.append(piece)
        return [*pieces, rest]

    def _read_skeleton(self, roles: tuple[str, ...]) -> _Skeleton:
        first, *later = self._pieces(roles)
        ends = [number for number, name in self._eos.items() if first.lstrip().startswith(name)]
        if not ends:
            raise TokenizerError(
                f"{self._where}: behind an assistant's turn the template writes {shorten(first)!r}, which begins with "
                f"none of tokenizer.eos_tokens ({', '.join(self._eos.values())}); add the token that ends a turn"
            )
        end_id = max(ends, key=lambda number: len(self._eos[number]))
        stop = len(first) - len(first.lstrip()) + len(self._eos[end_id])
        return _Skeleton(
            turn_end=first[:stop],
            end_id=end_id,
            pieces=(first[stop:], *later),
            forms=self._forms(roles, first, later),
        )

    def _forms(self, roles: Sequence[str], first: str, later: Sequence[str]) -> tuple[Callable[[str], str], ...]:
        """What the template does to the content of each message, found out by contents that are easily changed."""
        probes = [_PROBE.format(_mark(number)) for number in range(len(roles))]
        rest = self._behind_turn(roles, probes).removeprefix(first)
        forms: list[Callable[[str], str]] = []
        for role, probe, piece in zip(roles, probes, later, strict=True):
            form = next((form for form in _FORMS if rest.startswith(form(probe) + piece)), None)
            if form is None:
                raise TokenizerError(
                    f"{self._where}: the template changes the content of a message of role {role!r} in a way that is "
                    f"neither trimming nor JSON: {probe!r} becomes {rest[: 2 * len(probe)]!r}; let it write "
                    "{{ message.content }}"
                )
            forms.append(form)
            rest = rest[len(form(probe) + piece) :]
        return tuple(forms)

    def _check_tool_role(self) -> None:
        try:
            self._pieces(("tool",))
        except TokenizerError as error:
            known: list[str] = []
            for role in ("user", "system"):
                with suppress(TokenizerError):
                    self._pieces((role,))
                    known.append(role)
            raise TokenizerError(
                f"{self._where}: tools are declared, but the template takes no message of role 'tool' behind an "
                f"assistant's turn, only of {either(known)}: answer in that role, or choose a template for tools "
                f"({error})"
            ) from error


def _mark(number: int) -> str:
    return f"message-{number}-here"
