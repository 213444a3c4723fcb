"""What shared objects want and offer, read with binutils, and assembly text that offers what is missing.

What enters: paths of shared objects, names of operators. What leaves: sets of symbols and sonames, text for the
assembler. Called by `stand_ins`.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

# Vtables, type infos and their names are data: loaders copy addresses out of them, nobody calls them.
_DATA_PREFIXES = ("_ZTV", "_ZTI", "_ZTS")
_DATA_BYTES = 512
# What Python's executable or libpython offers.
_PYTHON_PREFIXES = ("Py", "_Py")
_ELF_MACHINE_X86_64 = 62
_WEAK_AND_UNDEFINED = ("w", "v")


@dataclass(frozen=True, slots=True, kw_only=True)
class Symbols:
    """wanted: undefined ones without which loading fails; weak ones may stay undefined, and weak initialisers of
    thread-local variables must. offered: defined ones. needed: sonames the linker was told."""

    wanted: frozenset[str] = frozenset()
    offered: frozenset[str] = frozenset()
    needed: frozenset[str] = frozenset()


def is_x86_64(path: Path) -> bool:
    """Whether the file is an ELF object for x86-64 (wheels carry some for the device's own processor)."""
    with path.open("rb") as file:
        head = file.read(20)
    return head[:4] == b"\x7fELF" and int.from_bytes(head[18:20], "little") == _ELF_MACHINE_X86_64


def read_symbols(paths: Sequence[Path]) -> Symbols:
    """Of all these shared objects together; raises subprocess.CalledProcessError for what is none."""
    if not paths:
        return Symbols()
    wanted, offered = set(), set()
    for line in _output("nm", "--dynamic", "--no-sort", *paths).splitlines():
        words = line.split()
        if len(words) < 2 or line.endswith(":"):  # the name of the next file, with empty lines around it
            continue
        kind, name = words[-2], words[-1].split("@")[0]
        if kind == "U":
            wanted.add(name)
        elif kind not in _WEAK_AND_UNDEFINED:
            offered.add(name)
    needed = re.findall(r"\(NEEDED\).*\[(.+?)\]", _output("readelf", "--dynamic", "--wide", *paths))
    return Symbols(wanted=frozenset(wanted), offered=frozenset(offered), needed=frozenset(needed))


def missing_symbols(wanted: Iterable[str], offered: Iterable[str]) -> list[str]:
    """What nobody offers, in order; Python's own are offered by the process."""
    return sorted(name for name in set(wanted) - set(offered) if not name.startswith(_PYTHON_PREFIXES))


def assembly(names: Iterable[str]) -> str:
    """Text for the assembler (x86-64) that defines every name: functions that return 0, tables of zeros."""
    names = list(names)
    tables = [name for name in names if name.startswith(_DATA_PREFIXES)]
    functions = [name for name in names if not name.startswith(_DATA_PREFIXES)]
    parts = [".text\n", *map(_function, functions), ".data\n.balign 16\n", *map(_table, tables)]
    return "".join([*parts, '.section .note.GNU-stack,"",@progbits\n'])


# Saves the registers that can hold arguments and hands them on, with the operator's name (r11) and the caller's stack.
_CAPTURE = "".join(
    [
        "emulator_common:\n push %rbp\n mov %rsp,%rbp\n sub $192,%rsp\n",
        *(f" movups %xmm{i},{16 * i}(%rsp)\n" for i in range(8)),
        *(f" mov %{name},{128 + 8 * i}(%rsp)\n" for i, name in enumerate(("rdi", "rsi", "rdx", "rcx", "r8", "r9"))),
        " mov %r11,%rdi\n mov %rsp,%rsi\n lea 16(%rbp),%rdx\n call emulator_capture@PLT\n leave\n ret\n",
    ]
)


def operator_stubs(names: Sequence[str]) -> str:
    """Text for the assembler (x86-64): for each operator X, XGetWorkspaceSize goes to `emulator_capture` with all that
    it was given, and X(workspace, size, executor, stream) to `emulator_launch` with the operator's name in front."""
    parts, texts = [".text\n", _CAPTURE], [".section .rodata\n"]
    for number, name in enumerate(names):
        texts.append(f'operator_{number}: .asciz "{name}"\n')
        parts.append(
            f".globl {name}GetWorkspaceSize\n.type {name}GetWorkspaceSize,@function\n{name}GetWorkspaceSize:\n"
            f" lea operator_{number}(%rip),%r11\n jmp emulator_common\n"
            f".globl {name}\n.type {name},@function\n{name}:\n"
            " mov %rcx,%r8\n mov %rdx,%rcx\n mov %rsi,%rdx\n mov %rdi,%rsi\n"
            f" lea operator_{number}(%rip),%rdi\n jmp emulator_launch@PLT\n"
        )
    return "".join([*parts, *texts])


def _function(name: str) -> str:
    return f'.globl "{name}"\n.type "{name}",@function\n"{name}":\n xor %eax,%eax\n ret\n'


def _table(name: str) -> str:
    return f'.globl "{name}"\n.type "{name}",@object\n.size "{name}",{_DATA_BYTES}\n"{name}":\n .zero {_DATA_BYTES}\n'


def _output(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
