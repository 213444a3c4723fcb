"""Chat templates are untrusted: they run in a sandbox and their faults name the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from mindgspo.config.data import TokenizerSection
from mindgspo.errors import TokenizerError
from mindgspo.tokenization import load_tokenizer

USER = [{"role": "user", "content": "hello"}]


@pytest.fixture
def render(edit_config):
    def render_with(template: object) -> str:
        return load_tokenizer(TokenizerSection(path=edit_config(chat_template=template))).render_chat(USER)

    return render_with


@pytest.mark.parametrize("template", [
    "{{ ''.__class__.__mro__ }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.append({'role': 'x'}) }}",
    "{{ messages[0].update({'role': 'x'}) }}",
    "{{ raise_exception.__globals__['__builtins__'] }}",
    "{{ '{0.__class__.__mro__}'.format('') }}",
    "{{ ''|attr('__class__') }}{{ (''|attr('__class__')).__mro__ }}",
    "{{ self.__init__.__globals__ }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ cycler.__init__.__globals__ }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}{{ os }}",
    "{% for i in range(10000000) %}x{% endfor %}",
])  # fmt: skip
def test_malicious_templates_are_refused(render, template: str):
    with pytest.raises(TokenizerError, match=r"tokenizer_config.json: chat_template: the chat template failed"):
        render(template)


@pytest.mark.parametrize(("template", "message"), [
    ("{{ raise_exception('only one turn') }}", "only one turn"),
    ("{% if %}", "TemplateSyntaxError"),
    ("{{ messages[0].content + 1 }}", "TypeError"),
    ("{{ 1 // 0 }}", "ZeroDivisionError"),
    ("{{ nothing.here }}", "UndefinedError"),
])  # fmt: skip
def test_failing_templates_name_the_file_and_the_roles(render, template: str, message: str):
    with pytest.raises(TokenizerError, match=message) as raised:
        render(template)
    assert "tokenizer_config.json" in str(raised.value) and "user" in str(raised.value)


def test_the_helpers_that_templates_rely_on(render):
    assert render("{%- for m in messages %}\n    {%- if loop.first %}{{ m.role }}{% endif %}\n{% endfor %}") == "user"
    assert render("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = 7 %}{% endfor %}{{ ns.n }}") == "7"
    assert render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "01"
    assert render("{{ {'a': '<é>'} | tojson }}") == '{"a": "<é>"}'
    assert render("{{ bos_token is defined }} {{ eos_token }} {{ tools is none }}") == "False <|im_end|> True"
    assert render("{{ strftime_now is defined }}") == "False"


def test_a_list_of_templates_gives_its_default(render):
    assert render([{"name": "tool", "template": "t"}, {"name": "default", "template": "d"}]) == "d"
    with pytest.raises(TokenizerError, match="without one named 'default'"):
        render([{"name": "tool", "template": "t"}])
    with pytest.raises(TokenizerError, match="expected text, got int"):
        render(5)


def test_chat_template_file_comes_first(small_folder: Path):
    (small_folder / "chat_template.jinja").write_text("from the file: {{ messages[0].content }}")
    tokenizer = load_tokenizer(TokenizerSection(path=small_folder))
    assert tokenizer.render_chat(USER) == "from the file: hello"
    (small_folder / "chat_template.jinja").write_text("{{ 1 // 0 }}")
    with pytest.raises(TokenizerError, match="chat_template.jinja: the chat template failed"):
        load_tokenizer(TokenizerSection(path=small_folder)).render_chat(USER)


def test_no_template_matters_only_when_chat_is_rendered(edit_config):
    tokenizer = load_tokenizer(TokenizerSection(path=edit_config(chat_template=None)))
    assert tokenizer.encode("7") == [tokenizer.backend.id_of("7")]
    with pytest.raises(TokenizerError, match="no chat template. Add chat_template.jinja"):
        tokenizer.render_chat(USER)
