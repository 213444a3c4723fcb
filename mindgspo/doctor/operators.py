"""Operators of CANN that jobs launch: whether this installation has them, and which of them it leaves to the AI CPU.

`launches.yaml` names what was launched on emulated cards. MindSpore looks aclnn functions up in libopapi.so; operators
of the graph engine ("aclop") run on a card's cores if CANN's aic-*.json lists them with these dtypes, at once if there
is a prebuilt kernel, else after it is compiled; and on the AI CPU if only that has them. Files lie directly in the
folder of a chip, or since CANN 8.5 in one of a repository below it. Nothing is executed.
"""

from __future__ import annotations

import functools
import itertools
import json
import mmap
import re
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from mindgspo.doctor.cards import known_cards
from mindgspo.doctor.machine import Machine, MachineProblem, Needs, problem
from mindgspo.doctor.software import KERNELS, cann_home
from mindgspo.text import listed

_OPERATORS = "opp/built-in/op_impl"
_DTYPES = {"float": "float32", "double": "float64", "half": "float16", "bf16": "bfloat16"}
_MOST = 40
_DYNAMIC_SYMBOLS = 11  # SHT_DYNSYM


@functools.cache
def _launches() -> Mapping[str, Mapping[str, list[str]]]:
    """{kind of job: {"aclnn": functions, "aclop": operators and the dtypes of their inputs}}."""
    return yaml.safe_load(Path(__file__).with_name("launches.yaml").read_text(encoding="utf-8"))


def operators(machine: Machine, needs: Needs) -> Iterator[MachineProblem]:
    """Functions and operators that this CANN lacks, leaves to the AI CPU, or has to compile first."""
    home = cann_home(machine)
    if needs.device != "Ascend" or home is None:
        return
    if functions := _functions(machine, home):
        lost = [f"{name} ({kind})" for kind, jobs in _launches().items() for name in jobs["aclnn"]
                if f"{name}GetWorkspaceSize" not in functions]  # fmt: skip
        if lost:
            yield problem("functions_missing", f"libopapi.so lacks {listed(lost, most=_MOST)}")
    if not (on_cores := _on_cores(machine, home)):
        return
    on_host = _described(machine.path(f"{home}/{_OPERATORS}").glob("*cpu*/**/*.json"))
    kernels = {path.stem for path in machine.path(_kernels(machine, home)).rglob("*.json")}
    found: dict[str, list[str]] = {}
    for kind, jobs in _launches().items():
        for launch in jobs["aclop"]:
            name, *dtypes = launch.split()
            entries = on_cores.get(name, [])
            if not any(_takes(entry, dtypes) for entry in entries):
                elsewhere = "operators_dtypes" if entries else "operators_missing"
                is_on_host = name in on_host or not (on_host or entries)  # without a list of it, it may have them
                found.setdefault("operators_on_host" if is_on_host else elsewhere, []).append(f"{launch} ({kind})")
            elif kernels and not kernels & _file_names(name, entries):
                found.setdefault("operators_compiled", []).append(f"{launch} ({kind})")
    for finding, names in found.items():
        yield problem(finding, listed(names, most=_MOST))


def compared_with(machine: Machine) -> str:
    """Which of CANN's lists there are to compare with."""
    if (home := cann_home(machine)) is None:
        return "not compared: no CANN"
    there = {
        "functions of libopapi.so": bool(_functions(machine, home)),
        f"operators of {_chip(machine)}": bool(_on_cores(machine, home)),
        "prebuilt kernels": machine.exists(_kernels(machine, home)),
    }
    return listed([f"{name}: {'compared' if is_there else 'not found'}" for name, is_there in there.items()])


def _chip(machine: Machine) -> str:
    """Name of the cards' chip in CANN's folders."""
    names = [card.name for card in known_cards(machine)]
    return "ascend910_93" if names and not any("910B" in name for name in names) else "ascend910b"


def _kernels(machine: Machine, home: str) -> str:
    return f"{home}/{KERNELS}/config/{_chip(machine)}"


def _functions(machine: Machine, home: str) -> set[str]:
    """Names that CANN's libraries of operators define; none if they cannot be read."""
    names: set[str] = set()
    for path in machine.path(f"{home}/lib64").glob("libopapi*.so"):
        with suppress(OSError, ValueError, struct.error), path.open("rb") as file:
            names |= exported_names(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    return names


def exported_names(library: bytes | mmap.mmap) -> set[str]:
    """Names that a shared library defines, by its table of dynamic symbols. Raises ValueError, struct.error if it is no
    whole 64-bit ELF file of a little-endian machine."""
    if library[:6] != b"\x7fELF\x02\x01":
        raise ValueError("no 64-bit ELF file")
    (start,), (size, count) = struct.unpack_from("<Q", library, 0x28), struct.unpack_from("<HH", library, 0x3A)
    sections = [struct.unpack_from("<IIQQQQI", library, start + size * number) for number in range(count)]
    names = set()
    for _, kind, _, _, at, length, link in sections:
        if kind != _DYNAMIC_SYMBOLS or link >= count:
            continue
        texts = sections[link][4]
        for name, _, _, defined_in, _, _ in struct.iter_unpack("<IBBHQQ", library[at : at + length]):
            if defined_in:
                end = library.find(b"\0", texts + name)
                names.add(library[texts + name : end].decode("ascii", "replace"))
    return names


def _on_cores(machine: Machine, home: str) -> dict[str, list[Mapping[str, Any]]]:
    folder = machine.path(f"{home}/{_OPERATORS}/ai_core/tbe/config/{_chip(machine)}")
    return _described(folder.rglob("aic-*.json"))


def _described(paths: Iterator[Path]) -> dict[str, list[Mapping[str, Any]]]:
    """{operator: its entries in these files}; what is no such file is passed over."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for path in paths:
        with suppress(OSError, ValueError, RecursionError):
            content = json.loads(path.read_bytes())
            for name, entry in content.items() if isinstance(content, dict) else ():
                if isinstance(entry, dict) and "input0" in entry:
                    found.setdefault(name, []).append(entry)
    return found


def _takes(entry: Mapping[str, Any], dtypes: list[str]) -> bool:
    """Whether the n-th dtypes of all inputs are these for some n. Equal neighbours count once, so that it does not
    matter how many inputs of a list, or optional ones, are given."""
    inputs = [
        entry[f"input{number}"] for number in itertools.takewhile(lambda i: f"input{i}" in entry, itertools.count())
    ]
    required = [one for one in inputs if one.get("paramType") != "optional"]
    return any(
        dtypes == [dtype for dtype, _ in itertools.groupby(_DTYPES.get(one, one) for one in column)]
        for taken in (inputs, required)
        for column in zip(*(one.get("dtype", "").split(",") for one in taken), strict=False)
    )


def _file_names(name: str, entries: list[Mapping[str, Any]]) -> set[str]:
    """Names that the list of an operator's kernels may have: that of its source file, or its own in lower case."""
    own = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
    return {own, *(entry["opFile"]["value"] for entry in entries if isinstance(entry.get("opFile"), dict))}
