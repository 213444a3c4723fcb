"""Reads the dtypes that CANN's sources list for operators, and compares them with the contracts of emulated cards.

    python tools/read_cann_dtypes.py ops-math=FOLDER@v9.1.0 ops-nn=FOLDER@v9.1.0 ops-transformer=FOLDER@COMMIT

FOLDER: a clone of github.com/hicann/<name>. For every operator of `ascend_emulator.contract`, the tables of an aclnn
function's file that count on Atlas A2 and A3 are put together; of an operator of the graph engine those that send it to
the cards' cores, not to the AI CPU. Writes {operator: dtypes} and where they were read, and prints what differs.
"""

from __future__ import annotations

import argparse
import re
import subprocess
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import yaml

import ascend_emulator.operators  # noqa: F401  (enters them into the table)
from ascend_emulator.contract import OPERATORS
from ascend_emulator.tensors import ANY

TABLE = Path(__file__).resolve().parent / "ascend_emulator" / "tests" / "cann_dtypes.yaml"
HEADER = "# Dtypes that CANN's sources list for operators on Atlas A2 and A3. Made by tools/read_cann_dtypes.py.\n"
_LIST = re.compile(r"initializer_list<(?:\w+::)*DataType>\s+(\w+)\s*=\s*\{([^}]*)\}")
_DTYPES = {"FLOAT": "float32", "DOUBLE": "float64", "BF16": "bfloat16"}
_A2 = re.compile("910_?B|910_93|2201", re.I)
_OTHER_CARDS = re.compile("910|950|310|3510|610|REG_?BASE", re.I)
# Of indices; and of functions, what decides between cores, AI CPU and ways to compute, not what is taken.
_OTHER_TENSORS, _WAYS = re.compile("IND(EX|ICES)|AICPU"), re.compile("AICORE|ATOMIC|SORT|CAST|_SELF|FLOAT_LIST")
_NO_NUMBERS = re.compile("ind|ax|dim|pad", re.I)  # arguments with tables of their own, or none
_OUT, _IN = "out", "in"


def tables_of(text: str, *, is_function: bool) -> dict[str, frozenset[str]]:
    """The dtypes of a file's tables for Atlas A2, else of those that name no card: of inputs, and of outputs."""
    found: dict[str, dict[str, frozenset[str]]] = {_IN: {}, _OUT: {}}
    for name, body in _LIST.findall(text):
        if _OTHER_TENSORS.search(name) or (is_function and _WAYS.search(name)):
            continue
        dtypes = {_DTYPES.get(one, one.lower()) for one in re.findall(r"DT_(\w+)", body)}
        found[_OUT if re.search("(?<!WITH)OUT", name) else _IN][name] = ANY & dtypes
    chosen = {}
    for where, tables in found.items():
        ours = [one for name, one in tables.items() if _A2.search(name)]
        ours = ours or [one for name, one in tables.items() if not _OTHER_CARDS.search(name)]
        chosen[where] = frozenset[str]().union(*ours)
    return chosen


def read(folder: str, tag: str) -> dict[str, str]:
    """{operator: dtypes of inputs, and " -> " and dtypes of outputs if those have a table} of one repository."""
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for path in git(folder, "ls-tree", "-r", "--name-only", tag).splitlines():
        if "/op_api/" not in path or not path.endswith(".cpp") or "/tests/" in path or path.startswith("experimental"):
            continue
        text = git(folder, "show", f"{tag}:{path}")
        functions = {f"aclnn{one}" for one in re.findall(r"\baclnn(\w+)GetWorkspaceSize\(", text)}
        on_cores = {f"aclop:{one}" for one in re.findall(r"OP_TYPE_REGISTER\((\w+)\)", text)}
        for operator in (functions | on_cores) & OPERATORS.keys():
            for where, dtypes in tables_of(text, is_function=operator in functions).items():
                found[operator][where] |= dtypes
    lists = {
        name: [" ".join(sorted(both[where])) for where in (_IN, _OUT)] for name, both in found.items() if both[_IN]
    }
    return {name: f"{inputs} -> {outputs}" if outputs else inputs for name, (inputs, outputs) in lists.items()}


def differences(table: Mapping[str, str]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """What contracts allow and the table does not list, by operator and "in" or "out"; and the reverse."""
    looser, stricter = {}, {}
    for name, listed in table.items():
        inputs, _, outputs = listed.partition(" -> ")
        rules: dict[str, set[str]] = {_IN: set(), _OUT: set()}
        for rule in (*OPERATORS[name].rules, *OPERATORS[name].outputs):
            if rule.dtypes and not _NO_NUMBERS.search(rule.name):
                rules[_OUT if rule.name.startswith(("out", "y")) else _IN] |= rule.dtypes
        for where, allowed in rules.items():
            there = {*((where == _OUT and outputs) or inputs).split()}
            if allowed and (more := allowed - there):
                looser[f"{name} {where}"] = sorted(more)
            if allowed and (fewer := there - allowed):
                stricter[f"{name} {where}"] = sorted(fewer)
    return looser, stricter


def git(folder: str, *command: str) -> str:
    return subprocess.run(("git", "-C", folder, *command), capture_output=True, text=True, check=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="+", metavar="NAME=FOLDER@TAG")
    parser.add_argument("--out", type=Path, default=TABLE)
    arguments = parser.parse_args()
    sources, table = {}, {}
    for source in arguments.sources:
        repository, _, at = source.partition("=")
        folder, _, tag = at.rpartition("@")
        sources[f"hicann/{repository}"] = f"{tag}, commit {git(folder, 'rev-parse', f'{tag}^0').strip()}"
        table |= read(folder, tag)
    text = yaml.safe_dump({"sources": sources, "dtypes": table}, width=1000)
    arguments.out.write_text(HEADER + text, encoding="utf-8")
    for what, found in zip(("allowed here, not listed there", "the reverse"), differences(table), strict=True):
        print(f"{what}:", *(f"{name}: {' '.join(dtypes)}" for name, dtypes in found.items()), sep="\n    ")


if __name__ == "__main__":
    main()
