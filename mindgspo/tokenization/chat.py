"""Chat templates: messages to one text, by the Jinja template that came with the tokenizer.

The template is untrusted code: it runs in a child process with limits, there in jinja2's immutable sandbox without a
loader, sees plain strings only, and has the helpers of transformers' templates but the clock (`strftime_now`).
Rendering is deterministic: templates that merely look for a clock use their fixed date, those that require one are
rejected.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from mindgspo.errors import TokenizerError
from mindgspo.tokenization.confined import ConfinedError, ConfinedTokenizer, confined
from mindgspo.tokenization.files import (
    CHAT_TEMPLATE,
    CONFIG,
    TokenizerFiles,
    is_built_in,
    special_tokens,
)

HELPERS = ("range", "dict", "namespace", "cycler", "joiner")
LONGEST_TEXT = 16 << 20


class ChatTemplate:
    """A template's source; its errors only matter to rows that need a chat template. where: its file, for messages."""

    def __init__(
        self, source: str, *, where: str, files: TokenizerFiles, child: ConfinedTokenizer | None = None
    ) -> None:
        """child: renders it; None: the one that all templates of these files share."""
        self._source = source
        self.where = where
        self._files = files
        self._special_tokens = special_tokens(files)
        # This project's own template runs here, any other in a child process with limits.
        self._confined = None if is_built_in(files) else child or confined(files)

    def check_tokens(self, id_of: Callable[[str], int | None]) -> None:
        """Raises TokenizerError if the template may write a special token that the vocabulary lacks, which would be
        split into pieces. id_of: of a token's text."""
        for name, text in self._special_tokens.items():
            if name in self._source and id_of(text) is None:
                raise TokenizerError(
                    f"{self.where}: the chat template uses {name}, which is {text!r}, and the vocabulary has no such "
                    f"token; correct {name} in {CONFIG}, or give the tokenizer that the template belongs to"
                )

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, object]] = (),
    ) -> str:
        """The text of a conversation, as Hugging Face's `apply_chat_template` renders it.

        tools: JSON schemas; without any, the template's variable is none. Raises TokenizerError naming the template's
        file if the template fails, rejects the messages, or takes too long or too much memory; also for a tool that is
        no JSON.
        """
        for message in messages:
            assert all(isinstance(value, str) for value in message.values()), f"not text: {message}"
        variables = {
            **self._special_tokens,
            # Exact str objects only: a subclass could carry methods that the sandbox does not know.
            "messages": [{str(key): str(value) for key, value in message.items()} for message in messages],
            "tools": plain_schemas(tools) or None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        if self._confined is None:
            return render_here(self._source, variables)
        try:
            return self._confined.ask("render", source=self._source, variables=variables)
        except ConfinedError as error:
            roles = ", ".join(str(message.get("role", "?")) for message in messages)
            raise TokenizerError(
                f"{self.where}: the chat template failed: {error}. The roles given were: {roles}"
            ) from error


def plain_schemas(tools: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    """The tools as JSON returns them: a subclass could carry methods that the sandbox does not know.

    Raises TokenizerError for what is no JSON.
    """
    try:
        return json.loads(json.dumps(list(tools), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise TokenizerError(f"a tool's schema must be plain JSON: {error}") from error


def render_here(source: str, variables: Mapping[str, Any]) -> str:
    """The text that a template makes, in this process. Raises whatever its code can raise; ValueError for a text that
    cannot be encoded as UTF-8 or is too long."""
    text = _compiled(source).render(variables)
    if len(text) > LONGEST_TEXT:
        raise ValueError(f"it wrote {len(text):,} characters; at most {LONGEST_TEXT:,} are taken")
    text.encode()
    return text


@lru_cache(maxsize=4)
def _compiled(source: str) -> jinja2.Template:
    return _environment().from_string(source)


def read_chat_template(files: TokenizerFiles, child: ConfinedTokenizer | None = None) -> ChatTemplate | None:
    """The folder's template: chat_template.jinja if there is one, else the field of tokenizer_config.json.

    A list of named templates gives its entry "default". None if the folder has no template. Raises
    TokenizerError where the field is neither text nor such a list. child: as of `ChatTemplate`.
    """
    if CHAT_TEMPLATE in files:
        return ChatTemplate(files.text(CHAT_TEMPLATE), where=files.where(CHAT_TEMPLATE), files=files, child=child)
    source = files.config().get("chat_template")
    where = f"{files.where(CONFIG)}: chat_template"
    if isinstance(source, list):
        named = {item.get("name"): item.get("template") for item in source if isinstance(item, dict)}
        if not isinstance(named.get("default"), str):
            raise TokenizerError(f"{where}: a list of templates without one named 'default'")
        source = named["default"]
    if source is None:
        return None
    if not isinstance(source, str):
        raise TokenizerError(f"{where}: expected text, got {type(source).__name__}")
    return ChatTemplate(source, where=where, files=files, child=child)


class _Generation(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}`: transformers marks an assistant's words so for training masks; in a
    prompt the tags are replaced by their content."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares a set

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        content = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        # Variables set inside do not exist after it.
        return jinja2.nodes.Scope(content, lineno=line)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols], loader=None
    )
    environment.globals = {name: environment.globals[name] for name in HELPERS}
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = jinja2.Undefined(hint=_NO_CLOCK)
    environment.filters["tojson"] = _to_json
    return environment


_NO_CLOCK = (
    "it asks for today's date (strftime_now), so that the prompts of one run would change overnight; write a date into "
    "the template in its place"
)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter escapes for HTML; templates of language models expect plain JSON. Its arguments, and their
    # order, are those of transformers' filter.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
