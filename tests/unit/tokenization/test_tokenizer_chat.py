"""Chat templates are untrusted: they run in a sandbox and their faults name the file."""

from __future__ import annotations

import json
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
    with pytest.raises(TokenizerError, match="asks for today's date .* write a date into the template"):
        render("{{ strftime_now('%d') }}")


@pytest.mark.parametrize(("template", "expected"), [
    ("{% generation %}{{ messages[0].content }}{% endgeneration %}!", "hello!"),
    ("{%- for m in messages -%} {%- generation -%} {{ m.role }} {%- endgeneration -%} {%- endfor -%}", "user"),
    ("{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}", "21"),
    ("{% for m in messages %}{% generation %}{{ loop.index }}{% endgeneration %}{% endfor %}", "1"),
    ("{% macro f() %}{% generation %}a{% endgeneration %}{% endmacro %}{{ f() }}", "a"),
    ("{% set ns = namespace(a=1) %}{% generation %}{% set ns.a = 5 %}{% endgeneration %}{{ ns.a }}", "5"),
])  # fmt: skip
def test_generation_tags_stand_for_their_content(render, template: str, expected: str):
    assert render(template) == expected


@pytest.mark.parametrize(("arguments", "expected"), [
    ("ensure_ascii=True", '{"b": "\\u00e9<", "a": 1}'),
    ("ensure_ascii=False", '{"b": "é<", "a": 1}'),
    ("True", '{"b": "\\u00e9<", "a": 1}'),
    ("separators=(',', ':')", '{"b":"é<","a":1}'),
    ("sort_keys=true", '{"a": 1, "b": "é<"}'),
    ("indent=1", '{\n "b": "é<",\n "a": 1\n}'),
    ("indent=none, ensure_ascii=false, sort_keys=true, separators=(', ', '=')", '{"a"=1, "b"="é<"}'),
])  # fmt: skip
def test_the_arguments_of_tojson(render, arguments: str, expected: str):
    assert render(f"{{{{ {{'b': 'é<', 'a': 1}} | tojson({arguments}) }}}}") == expected


ALL = "{{ bos_token }}|{{ eos_token }}|{{ sep_token }}|{{ cls_token }}|{{ mask_token }}|{{ image_token }}"


def write(folder: Path, name: str, **fields: object) -> None:
    (folder / name).write_text(json.dumps(fields))


def test_special_tokens_of_all_files_reach_the_template(edit_config, builtin):
    """special_tokens_map.json goes first, unless added_tokens_decoder stands in tokenizer_config.json; both forms."""
    start, end, text = "<|im_start|>", "<|im_end|>", "<|endoftext|>"

    def rendered(folder: Path) -> str:
        return load_tokenizer(TokenizerSection(path=folder)).render_chat(USER)

    folder = edit_config(chat_template=ALL, bos_token=text, sep_token={"content": start}, cls_token=start,
                         mask_token=end, extra_special_tokens={"image_token": text})  # fmt: skip
    assert rendered(folder) == f"{text}|{end}|{start}|{start}|{end}|{text}"
    write(folder, "special_tokens_map.json", bos_token=start, eos_token={"content": text}, mask_token=None)
    assert rendered(folder) == f"{text}|{end}|{start}|{start}|{end}|{text}", "added_tokens_decoder is there"
    table = json.loads((folder / "tokenizer_config.json").read_text())["added_tokens_decoder"]
    write(folder, "added_tokens.json", **{token["content"]: int(number) for number, token in table.items()})
    edit_config(added_tokens_decoder=None)
    assert rendered(folder) == f"{start}|{text}|{start}|{start}||{text}"
    assert load_tokenizer(TokenizerSection(path=folder)).encode(text) == builtin.encode(text)


def test_a_token_that_only_the_map_names_is_one_id(edit_config, builtin):
    """`has` is an ordinary piece with a blank in front; named, it is cut out of the text."""
    folder = edit_config(chat_template="{{ bos_token }}{{ messages[0].content }}", bos_token="\u0120has")
    tokenizer = load_tokenizer(TokenizerSection(path=folder))
    assert tokenizer.encode("a\u0120has")[-1] == builtin.backend.id_of("\u0120has")


def test_a_token_that_the_vocabulary_lacks_is_refused_where_the_template_uses_it(edit_config):
    folder = edit_config(chat_template="{{ cls_token }}x", cls_token="<cls>", mask_token="<mask>")
    with pytest.raises(
        TokenizerError, match="chat template uses cls_token, which is '<cls>', and the vocabulary has no"
    ):
        load_tokenizer(TokenizerSection(path=folder))


def test_the_class_names_tokens_that_no_file_does(edit_config):
    folder = edit_config(chat_template="{{ unk_token }}{{ eos_token }}", unk_token=None)
    assert load_tokenizer(TokenizerSection(path=folder)).render_chat(USER) == "<|endoftext|><|im_end|>"


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


SEARCH = {"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}


def test_tools_reach_the_template_as_plain_json(edit_config):
    template = "{{ tools is none }}{% for one in tools or [] %} {{ one | tojson }}{% endfor %} {{ messages[-1].role }}"
    tokenizer = load_tokenizer(TokenizerSection(path=edit_config(chat_template=template)))
    assert tokenizer.render_chat(USER, tools=[SEARCH]) == f"False {json.dumps(SEARCH)} user"
    assert tokenizer.render_chat([*USER, {"role": "tool", "content": "4"}], tools=()) == "True tool"
    for wrong in ({"a": object()}, {"a": float("nan")}):
        with pytest.raises(TokenizerError, match="a tool's schema must be plain JSON"):
            tokenizer.render_chat(USER, tools=[wrong])


def test_a_template_that_ignores_tools_is_found_out(edit_config, builtin):
    assert not builtin.presents([SEARCH])
    folder = edit_config(chat_template="{{ tools | length if tools }}{{ messages[0].content }}")
    assert load_tokenizer(TokenizerSection(path=folder)).presents([SEARCH])
