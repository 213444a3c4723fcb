"""Chat templates: messages to one text, by the Jinja template that came with the tokenizer.

The template is untrusted code: it runs in
jinja2's immutable sandbox without a loader, sees plain strings only, and its only helpers are `range`,
`dict`, `namespace` and `raise_exception`. Rendering is deterministic: no clock is offered (`strftime_now`),
so templates that look for one take their fixed date.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from mindgspo.errors import TokenizerError
from mindgspo.tokenization.files import CHAT_TEMPLATE, CONFIG, TokenizerFiles

HELPERS = ("range", "dict", "namespace")
# What code inside a template can raise; whatever it is, the file is at fault.
TEMPLATE_FAULTS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class ChatTemplate:
    """A template's source, compiled on first use: without chat needs, nobody meets its faults."""

    def __init__(self, source: str, *, where: str, special_tokens: Mapping[str, str]) -> None:
        self._source = source
        self._where = where
        self._special_tokens = dict(special_tokens)
        self._compiled: jinja2.Template | None = None

    def render(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool) -> str:
        """The text of a conversation, as Hugging Face's `apply_chat_template` renders it.

        Raises TokenizerError naming the template's file where the template fails or refuses the messages.
        """
        for message in messages:
            assert all(isinstance(value, str) for value in message.values()), f"not text: {message}"
        # Exact str objects only: a subclass could carry methods that the sandbox does not know.
        plain = [{str(key): str(value) for key, value in message.items()} for message in messages]
        try:
            if self._compiled is None:
                self._compiled = _environment().from_string(self._source)
            return self._compiled.render(
                messages=plain,
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._special_tokens,
            )
        except TEMPLATE_FAULTS as error:
            raise TokenizerError(
                f"{self._where}: the chat template failed with {type(error).__name__}: {error}. "
                "The roles given were: " + ", ".join(message.get("role", "?") for message in plain)
            ) from error


def read_chat_template(files: TokenizerFiles) -> ChatTemplate | None:
    """The folder's template: chat_template.jinja if there is one, else the field of tokenizer_config.json.

    A list of named templates gives its entry "default". None where the folder has no template. Raises
    TokenizerError where the field is neither text nor such a list.
    """
    special_tokens = _special_tokens(files)
    if CHAT_TEMPLATE in files:
        where = files.where(CHAT_TEMPLATE)
        return ChatTemplate(files.text(CHAT_TEMPLATE), where=where, special_tokens=special_tokens)
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
    return ChatTemplate(source, where=where, special_tokens=special_tokens)


def _special_tokens(files: TokenizerFiles) -> dict[str, str]:
    """bos_token, eos_token, ... as text; entries may be text or {"content": text}."""
    tokens = {}
    for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
        value = files.config().get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            tokens[name] = value
    return tokens


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols], loader=None
    )
    environment.globals = {name: environment.globals[name] for name in HELPERS}
    environment.globals["raise_exception"] = _raise_exception
    environment.filters["tojson"] = _to_json
    return environment


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(value: object, indent: int | None = None) -> str:
    # jinja2's own filter escapes for HTML; templates of language models expect plain JSON.
    return json.dumps(value, ensure_ascii=False, indent=indent)
