"""verl's overrides out of a shell script, a command line or a list of them. Nothing is run.

Statements are followed in the order of the script, functions where they are called. Of the environment nothing is read
but the home folder and the current one. Of `if` and `case` that branch is followed that the script's values lead to;
where they do not say which, a variable keeps what all branches agree on: of a list the settings that are in it either
way. What a statement that is not followed may change has no value from there on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest

import yaml
from tree_sitter import Node

from mindgspo.config.yaml_dialect import parse_value
from mindgspo_migrate import shell_conditions
from mindgspo_migrate.shell_grammar import Tree, read_script, short
from mindgspo_migrate.shell_variables import ASSIGNMENT, NAME, Scope, is_positional
from mindgspo_migrate.shell_words import (
    OF_THE_CALLER,
    SUBSTITUTIONS,
    Field,
    Unread,
    Variables,
    joint,
)
from mindgspo_migrate.tables import Finding, Reading, Status

_MAIN = re.compile(r"(verl|recipe)(\.\w+)*\.main_\w+|(.*/)?main_\w+\.py")
_MODULE = re.compile(r"\w+(\.\w+)*|.*\.py")
_OTHER_PROGRAMS = re.compile(r"sft|main_eval|main_generation|model_merger|print_cfg")
_OVERRIDE = re.compile(r"(?P<sign>\+{0,2}|~)(?P<key>\w+(?:\.\w+)+)(?P<rest>=.*|)", re.DOTALL)
_OF_A_TRAINER = ("actor_rollout_ref.", "algorithm.")
_CONFIG_OPTIONS = ("--config-name", "--config-path")
_SINGLE_WORDS = (*_CONFIG_OPTIONS, "model_engine")
_LOOPS = ("while_statement", "for_statement", "c_style_for_statement")
_CONTAINERS = ("program", "compound_statement", "do_group", "negated_command", "variable_assignments", "list")
_COMMANDS = ("command", "unset_command", "declaration_command")
_WRAPPERS = ("command", "builtin", "exec", "time", "coproc")
_SETTING_NAMES = {"read": "REPLY", "mapfile": "MAPFILE", "readarray": "MAPFILE", "getopts": "OPTARG OPTIND"}
_DECLARING = ("declare", "typeset", "local", "export", "readonly")
_CHANGING_OPTIONS = {"lastpipe", "nullglob", "failglob", "expand_aliases", "nocasematch"}
# Files that set up the machine's paths; a script's own variables are not theirs.
_OF_THE_MACHINE = re.compile(r"(.*/)?(set_?env\w*(\.sh|\.bash)|setvars\.sh|activate|\.?bashrc|\.?(bash_)?profile)")
_MOST_CHOICES = 500  # that are followed; each keeps a copy of the variables
_MOST_STATEMENTS, _LONGEST_EVAL = 100_000, 10_000


def read_overrides(text: str) -> Reading:
    """Every override of the one training command in the script, or of a plain list of them.

    Raises ValueError: no override in it, several training commands, no shell script, or one beyond all bounds.
    """
    script = _Script(read_script(text))
    try:
        script.visit(script.tree.root, is_sure=True)
    except RecursionError:
        raise ValueError("nests too deeply, so it is no command line") from None
    return script.reading()


class _Script(Scope):
    """Follows the statements in order."""

    def __init__(self, tree: Tree) -> None:
        super().__init__(tree.source)
        self.tree = tree
        self._returned: list[list[Variables]] = []
        self._statements = self._choices = 0
        self._is_rehearsal = self._is_in_loop = False
        self._ended = ""
        self._reading, self._bare = Reading(), Reading()
        self._commands: list[int] = []
        self._others: list[str] = []
        self._programs: list[str] = []

    def visit(self, node: Node, *, is_sure: bool) -> None:
        """is_sure: the node is run exactly once."""
        if node.id in self.tree.in_background:
            self._apart([node], is_sure)
        else:
            self._statement(node, is_sure)

    def _statement(self, node: Node, is_sure: bool) -> None:
        if self._ended:
            return
        self._statements += 1
        if self._statements > _MOST_STATEMENTS:
            raise ValueError(f"runs more than {_MOST_STATEMENTS:,} statements, so it is no command line")
        self._is_sure = is_sure
        kind = node.type
        if kind in _COMMANDS:
            self._command(node, [], is_sure)
        elif kind == "variable_assignment":
            self._forget_changed(node, is_sure)
            self._assign(node, is_sure)
        elif kind == "redirected_statement":
            redirects = node.children_by_field_name("redirect")
            body = node.child_by_field_name("body")
            for redirect in redirects:
                self._forget_changed(redirect, is_sure=False)
            if body is not None and body.type in _COMMANDS:
                self._command(body, redirects, is_sure)
            elif body is not None:
                self.visit(body, is_sure=is_sure)
        elif kind == "list" and len(node.named_children) == 2:
            self._list_of_two(node, is_sure)
        elif kind == "if_statement":
            for number, condition in enumerate(shell_conditions.conditions_of_if(node)):
                self.visit(condition, is_sure=is_sure and number == 0)
            self._follow(list(shell_conditions.branches_of_if(node, self.text_if_known)), is_sure)
        elif kind == "case_statement":
            self._case(node, is_sure)
        elif kind == "function_definition":
            self._define(node, is_sure)
        elif kind in _LOOPS:
            self._loop(node)
        elif kind in ("subshell", "pipeline"):
            for children in [node.named_children] if kind == "subshell" else [[one] for one in node.named_children]:
                self._apart(children, is_sure)
        elif kind not in SUBSTITUTIONS and kind != "comment":
            if kind not in _CONTAINERS or node.text[:2] == b"((":
                self._forget_changed(node, is_sure=False)
            for child in node.named_children:
                self.visit(child, is_sure=is_sure)

    def _apart(self, nodes: Sequence[Node], is_sure: bool) -> None:
        """In a shell of its own, which changes no variable of this one."""
        before = dict(self.variables)
        for node in nodes:
            self._statement(node, is_sure)
        self.variables, self._ended = before, ""

    def _list_of_two(self, node: Node, is_sure: bool) -> None:
        first, second = node.named_children
        verdict = shell_conditions.decided(first, self.text_if_known)
        if any(one.type == "||" for one in node.children) and verdict is not None:
            verdict = not verdict
        self.visit(first, is_sure=is_sure)
        self._follow([(verdict, [second])], is_sure)

    def _case(self, node: Node, is_sure: bool) -> None:
        for child in node.named_children:
            if child.type != "case_item":
                self._forget_changed(child, is_sure=False)
        items = list(shell_conditions.branches_of_case(node, self.text_if_known))
        if shell_conditions.falls_through(node):
            for _, body in items:
                for child in body:
                    self.visit(child, is_sure=False)
        else:
            self._follow(items, is_sure)

    def _loop(self, node: Node) -> None:
        """Run any number of times: what is set in it has no value from its beginning on."""
        if node.type == "for_statement" and (name := node.child_by_field_name("variable")) is not None:
            self.forget(self.text(name), "is set by a loop")
        body = [child for child in node.named_children if child.type == "do_group"]
        for child in node.named_children:
            if child not in body:
                self._forget_changed(child, is_sure=False)
                if node.type == "c_style_for_statement":
                    self._forget_names(NAME.findall(self.text(child)), "is set by a loop")
        inside = node.named_children if node.type == "while_statement" else body
        for is_rehearsal in [False] if self._is_in_loop else [True, False]:
            was_rehearsal, self._is_rehearsal = self._is_rehearsal, self._is_rehearsal or is_rehearsal
            was_in_loop, self._is_in_loop = self._is_in_loop, True
            for child in inside:
                self.visit(child, is_sure=False)
            self._is_rehearsal, self._is_in_loop, self._ended = was_rehearsal, was_in_loop, ""

    def _follow(self, branches: Sequence[shell_conditions.Branch], is_sure: bool) -> None:
        """Visit the branch that is run; where that is not known, all that may be, each from the same variables."""
        possible: list[Sequence[Node]] = []
        for verdict, body in branches:
            is_taken = verdict if is_sure else None  # in a loop variables may be other ones each time
            possible += [body] if is_taken is not False else []
            if is_taken:
                break
        else:
            possible.append(())
        self._choices += 1
        is_known = len(possible) == 1
        is_followed = is_sure and self._choices <= _MOST_CHOICES
        before, after, ends = self.variables, [], set()
        self._open_choices += not is_known
        for body in possible:
            if is_followed and not is_known:
                self.variables = dict(before)
            for child in body:
                self.visit(child, is_sure=is_sure and (is_known or is_followed))
            if is_known:
                break
            if self._ended:
                ends.add(self._ended)
                if self._ended == "return":
                    self._returned[-1].append(self.variables)
            else:
                after.append(self.variables)
            self._ended = ""
        self._open_choices -= not is_known
        if is_followed and not is_known:
            self._ended = "" if after else ("return" if "return" in ends else "exit")
            self.variables = joint(after) if after else before

    def reading(self) -> Reading:
        """What was found. Raises ValueError."""
        reading = self._reading
        if len(self._commands) > 1:
            lines = ", ".join(map(str, self._commands))
            raise ValueError(f"holds {len(self._commands)} training commands (lines {lines}); leave one of them in")
        if not self._commands:
            reading = self._bare
            self._set_engine(reading)
        if not reading.values and not reading.unread_keys:
            raise ValueError(self._nothing())
        for name, (default, why) in self.defaults.items():
            reading.findings.append(Finding(status=Status.ASSUMED, source=f"${name}", value=default, text=why))
        if self._others:
            names = ", ".join(sorted(set(self._others))[:8])
            reading.remark(f"{len(self._others)} other commands", names, "nothing of the script is run")
        return reading

    def _set_engine(self, reading: Reading) -> None:
        """In a list model_engine=megatron looks like a variable."""
        value = self.variables.get("model_engine")
        if isinstance(value, str) and value:
            reading.values["model_engine"] = value
        elif value is not None:
            reading.unread("model_engine", "", str(value))

    def _nothing(self) -> str:
        uncalled = [name for name, bodies in self._functions.items() if any(map(self._may_train, bodies))]
        if self._programs:
            return f"{self._programs[0]}, which is no training that is read; of verl that is main_ppo and its kin"
        if uncalled:
            return f"trains in the function {uncalled[0]}, which is not called as far as the script can be read"
        return "holds no override of the form section.key=value; TRL is read from its YAML (trl grpo --config)"

    @staticmethod
    def _may_train(body: tuple[Tree, Node]) -> bool:
        return bool(re.search(rb"\b(verl|recipe)\.|main_\w+\.py", body[1].text or b""))

    # Functions

    def _define(self, node: Node, is_sure: bool) -> None:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is None or body is None:
            return
        known = self._functions.setdefault(self.text(name), [])
        if is_sure and not self._open_choices:
            known.clear()
        if not any(tree is self.tree and one.start_byte == body.start_byte for tree, one in known):
            known.append((self.tree, body))

    def _call(self, name: str, arguments: Sequence[Field], is_sure: bool) -> None:
        """The body of a function, its arguments as $1, $2, ..."""
        bodies = self._functions[name]
        if name in self._called:
            raise ValueError(f"has a function that calls itself, {name}, which is not followed")
        if len(bodies) > 1:
            self._forget_all(f"may be changed by {name}, which is not followed")
            return
        positional = {key: value for key, value in self.variables.items() if is_positional(key)}
        self._set_positional(arguments)
        (tree, body), outer = bodies[0], (self.tree, self.source)
        self._called.append(name)
        self._locals.append({})
        self._returned.append([])
        self.tree, self.source = tree, tree.source
        self.visit(body, is_sure=is_sure)
        self.tree, self.source = outer
        self._called.pop()
        if returned := self._returned.pop():
            self.variables = joint([*returned, self.variables])
        for local, value in self._locals.pop().items():
            self._put(local, value)
        self.variables = {key: value for key, value in self.variables.items() if not is_positional(key)} | positional
        self._ended = "" if self._ended == "return" else self._ended

    # Commands

    def _command(self, node: Node, redirects: Sequence[Node], is_sure: bool) -> None:
        self._forget_changed(node, is_sure)
        if node.type == "declaration_command":
            self._declare(node, is_sure)
            return
        for child in node.named_children:
            if child.type == "herestring_redirect":
                self._forget_changed(child, is_sure=False)
        fields = list(self._fields_of(node, redirects))
        before = {}
        for child in node.named_children:  # for this command alone, and not yet when its words are read
            if child.type == "variable_assignment" and (target := child.child_by_field_name("name")) is not None:
                name = self.text(target).partition("[")[0]
                before.setdefault(name, self.variables.get(name))
                self._assign(child, is_sure)
        self._run(node, fields, redirects, is_sure)
        for name, value in before.items() if node.child_by_field_name("name") is not None else ():
            self._put(name, value)

    def _fields_of(self, node: Node, redirects: Sequence[Node]) -> Iterator[Field]:
        """The words of a command, those behind a redirection included."""
        skipped = ("comment", "variable_assignment", "file_redirect", "herestring_redirect")
        nodes = [one for one in node.children if (one.is_named or one.type == "unset") and one.type not in skipped]
        for redirect in redirects:
            if redirect.type == "file_redirect":
                nodes += redirect.children_by_field_name("destination")[1:]
        for word in self.words_of(nodes):
            yield from self._expanded(word)

    def _run(self, node: Node, fields: list[Field], redirects: Sequence[Node], is_sure: bool) -> None:
        while fields and fields[0] in _WRAPPERS:
            is_last = fields[0] == "exec" and is_sure and len(fields) > 1
            fields = fields[1:]
            if fields and isinstance(fields[0], str) and (found := ASSIGNMENT.fullmatch(fields[0])):
                self.forget(found[1], "is set behind a word that is not followed")
            if is_last:
                self._run(node, fields, redirects, is_sure)
                self._ended = "exit"
                return
        if not fields:
            return
        first = fields[0]
        trainer = self._trainer(node, fields)
        if trainer is not None:
            self._train(node, fields, trainer, redirects)
        elif _key_of(first):
            self._stray(fields)
        elif isinstance(first, Unread):
            self._forget_all(f"may be changed by the command {short(first.shown)}, which is not in the file")
        elif self._functions.get(first):
            self._call(first, fields[1:], is_sure)
        else:
            self._builtin(node, first, fields[1:], is_sure)
        if trainer is None and not _key_of(first) and not self._is_rehearsal:
            self._others.append(first if isinstance(first, str) else first.shown)

    def _trainer(self, node: Node, fields: Sequence[Field]) -> int | None:
        """Which word names the training program."""
        if fields[0] in ("echo", "printf"):
            return None
        for number, word in enumerate(fields):
            if not isinstance(word, str):
                continue
            if _MAIN.fullmatch(word) and not _OTHER_PROGRAMS.search(word):
                return number
            is_module = number > 0 and fields[number - 1] == "-m"
            if (is_module or word.endswith(".py")) and _MODULE.fullmatch(word):
                keys = [key for one in fields[number + 1 :] if (key := _key_of(one))]
                if _OTHER_PROGRAMS.search(word):
                    if any(map(_key_of, fields[number + 1 :])):
                        self._programs.append(f"line {self.tree.line(node)} runs {word}")
                    return None
                is_of_verl = word.startswith(("verl.", "recipe.")) and bool(keys)
                if is_of_verl or any(key.startswith(_OF_A_TRAINER) for key in keys):
                    return number
        return None

    def _train(self, node: Node, fields: Sequence[Field], trainer: int, redirects: Sequence[Node]) -> None:
        line = self.tree.line(node)
        if any(one.type.startswith("heredoc") for one in redirects):
            raise ValueError(f"line {line}: a here-document (<<) is not read; write the overrides out")
        if not self._is_rehearsal:
            self._commands.append(line)
            self._reading.program = str(fields[trainer])
            self._arguments(fields[trainer + 1 :], self._reading)

    def _stray(self, fields: Sequence[Field]) -> None:
        """Overrides that stand for themselves: a list of them, or what a comment cut off a command."""
        if not self._commands:
            self._arguments(fields, self._bare if not self._is_rehearsal else Reading())
            return
        why = "stands behind the end of the training command; the line above it must end with a backslash"
        behind = Reading()
        self._arguments(fields, behind)
        for key, value in behind.values.items():
            self._reading.unread(key, value, why)
        for key in behind.unread_keys:
            self._reading.unread(key, "", why)
        self._reading.unread_words += behind.unread_words

    def _builtin(self, node: Node, name: str, words: Sequence[Field], is_sure: bool) -> None:
        """Commands of the shell itself that change its variables, or where it goes on; programs change nothing."""
        texts = [one for one in words if isinstance(one, str)]
        is_known = len(texts) == len(words)
        why = f"is changed by {name}, which is not followed"
        if name == "unset":
            self._unset(words, is_sure)
        elif name == "let":
            self._forget_names([found for one in texts for found in NAME.findall(one)], why)
            if not is_known:
                self._forget_all(why)
        elif name in _SETTING_NAMES or (name in ("printf", "wait") and any(re.match("-[vp]", one) for one in texts)):
            names = [*texts, *(one[2:] for one in texts), *_SETTING_NAMES.get(name, "").split()]
            self._forget_names([one.partition("[")[0] for one in names], why)
            if not is_known:
                self._forget_all(why)
        elif name in _DECLARING:
            self._forget_names([one.partition("=")[0].rstrip("+") for one in texts], why)
            if not is_known:
                self._forget_all(why)
        elif name == "eval":
            self._eval(" ".join(texts) if is_known else None, is_sure)
        elif name in ("source", "."):
            if not (words and _OF_THE_MACHINE.fullmatch(words[0] if isinstance(words[0], str) else words[0].shown)):
                self._forget_all("may be changed by a file that the script reads")
        elif name in ("cd", "pushd", "popd"):
            self._forget_names(["PWD", "OLDPWD"], why)
        elif name in ("set", "shift"):
            self._positional(name, words, is_sure)
        elif (name == "shopt" and _CHANGING_OPTIONS & set(texts)) or (
            name == "trap" and {"DEBUG", "RETURN"} & set(texts)
        ):
            line = self.tree.line(node)
            raise ValueError(f"line {line}: {name} changes how the script is run, which is not followed")
        elif name == "exit" or (name == "return" and self._called):
            self._ended = name if is_sure else ""
            if name == "return" and not is_sure:
                self._returned[-1].append(dict(self.variables))

    def _eval(self, text: str | None, is_sure: bool) -> None:
        self._statements += _MOST_STATEMENTS // 100
        try:
            tree = None if text is None or len(text) > _LONGEST_EVAL or self.tree.is_inner else read_script(text)
        except ValueError:
            tree = None
        if tree is None:
            self._forget_all("may be changed by eval")
            return
        outer = self.tree, self.source
        self.tree, self.source = replace(tree, is_inner=True), tree.source
        self.visit(tree.root, is_sure=is_sure)
        self.tree, self.source = outer

    # Overrides

    def _arguments(self, fields: Sequence[Field], reading: Reading) -> None:
        skipped = False
        for field, following in zip_longest(fields, fields[1:]):
            if skipped:
                skipped = False
            elif isinstance(field, str) and field in _CONFIG_OPTIONS and following is not None:
                skipped = True
                if isinstance(following, str):
                    _override(f"{field}={following}", reading)
                else:
                    reading.unread(field, following.shown, following.reason)
            elif isinstance(field, str):
                _override(field, reading)
            elif field.reason == OF_THE_CALLER:
                reading.unread("$@", "", field.reason)
            elif key := _OVERRIDE.fullmatch(field.known):
                reading.unread(key["key"], field.shown.partition("=")[2], field.reason)
            else:
                may_be_any = "=" not in field.known
                why = f"{field.reason}; it may set any key, those before it anew" if may_be_any else field.reason
                reading.unread(field.shown, field.shown.partition("=")[2], why)
                reading.unread_words += [field.shown] if may_be_any else []

    # Variables


def _key_of(field: Field) -> str | None:
    found = _OVERRIDE.fullmatch(field if isinstance(field, str) else field.known)
    return found["key"] if found and (found["rest"] or found["sign"] == "~") else None


def _override(text: str, reading: Reading) -> None:
    found = _OVERRIDE.fullmatch(text)
    option, _, value = text.partition("=")
    if option in _SINGLE_WORDS and value:
        reading.values[option] = value
    elif found is not None and found["sign"] == "~":
        reading.values.pop(found["key"], None)
        reading.remark(f"~{found['key']}", "", "a key that is taken out there; here it is as if never given")
    elif found is not None and found["rest"]:
        _set(found["key"], found["rest"][1:], reading)
    elif text.strip():
        reading.remark(text, "", "no override of the form section.key=value", Status.UNKNOWN)


def _set(key: str, text: str, reading: Reading) -> None:
    if "${" in text:
        reading.unread(key, text, "it refers to another setting, which is not followed")
        return
    try:
        value = parse_value(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        value = text
    if key in reading.values:
        reading.remark(key, reading.values[key], "given twice; the last one counts")
    reading.values[key] = value
    reading.unread_keys.discard(key)
