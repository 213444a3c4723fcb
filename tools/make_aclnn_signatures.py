"""Reads the C prototypes of CANN's operators from their open repositories, as the table of the emulated card.

    python tools/make_aclnn_signatures.py OPS_MATH OPS_NN OPS_TRANSFORMER [--out FILE]

Each repository is a git checkout or a bare mirror; FILE is the project's own table where it is not given. What is read:
every `aclnnXGetWorkspaceSize(...)` in headers (`*.h`) and, for operators without an open header, documents (`*.md`) of
the commit checked out. What is written: one line per operator with a letter per argument and the arguments' names; the
last two, workspace size and executor, are left out. A prototype with an argument of any other kind is left out and
counted.
"""

from __future__ import annotations

import argparse
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

TABLE = Path(__file__).resolve().parents[1] / "mindgspo" / "ascend" / "emulator" / "signatures.txt"
POINTERS = {
    "aclTensor": "t",
    "aclTensorList": "T",
    "aclScalar": "s",
    "aclScalarList": "S",
    "aclIntArray": "I",
    "aclFloatArray": "F",
    "aclBoolArray": "B",
    "char": "z",
}
NUMBERS = {
    "double": "d",
    "float": "f",
    "bool": "b",
    "int8_t": "c",
    "int32_t": "w",
    "int": "w",
    "aclDataType": "w",
    "int64_t": "l",
    "uint64_t": "u",
}
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
PROTOTYPE = re.compile(r"\b(aclnn\w+)GetWorkspaceSize\s*\(([^;{)]*)\)")
ARGUMENT = re.compile(r"(?:const\s+)?(\w+)\b((?:\s|\*|\bconst\b)*?)(\w+)", re.S)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repositories", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=TABLE)
    arguments = parser.parse_args()
    table: dict[str, list[tuple[str, str]]] = {}
    left_out: dict[str, str] = {}
    header = ["# Operators of CANN: a letter per argument of aclnnXGetWorkspaceSize(...), and the arguments' names."]
    header.append("# Made by tools/make_aclnn_signatures.py, which explains it, from:")
    for repository in arguments.repositories:
        header.append(f"# {title_of(repository)} {git(repository, 'rev-parse', 'HEAD').decode().strip()}")
        for name, text in prototypes(repository):
            signature = letters_and_names(text)
            if isinstance(signature, str):
                left_out.setdefault(name, signature)
            else:
                table.setdefault(name, signature)
    lines = [
        f"{name} {''.join(letter for letter, _ in signature) or '-'} {','.join(word for _, word in signature) or '-'}"
        for name, signature in sorted(table.items())
    ]
    arguments.out.write_text("\n".join([*header, *lines]) + "\n", encoding="utf-8")
    reasons = Counter(reason for name, reason in left_out.items() if name not in table)
    print(f"{len(lines)} operators; left out: {dict(reasons)}")


def prototypes(repository: Path) -> Iterator[tuple[str, str]]:
    """(name, arguments) of every prototype: released operators first, and headers before documents."""
    found = git(repository, "grep", "-zlF", "GetWorkspaceSize", "HEAD", "--", "*.h", "*.md").decode()
    for path in sorted(found.rstrip("\0").split("\0"), key=precedence):
        text = COMMENT.sub("", git(repository, "show", path).decode("utf-8", "replace"))
        for match in PROTOTYPE.finditer(text):
            # Outside of a code block, Markdown escapes the asterisk.
            yield match[1], match[2].replace("\\*", "*")


def precedence(path: str) -> tuple[bool, bool, str]:
    return "experimental/" in path, not path.endswith(".h"), path


def letters_and_names(text: str) -> list[tuple[str, str]] | str:
    """[(letter, argument name), ...] of a prototype's arguments, or why it is left out."""
    signature = []
    for argument in text.split(","):
        match = ARGUMENT.fullmatch(argument.strip())
        if match is None:
            return "not a prototype"
        signature.append((match[1], match[2].count("*"), match[3]))
    if len(signature) < 2 or signature[-1][0] != "aclOpExecutor":
        return "not a prototype"
    letters = []
    for kind, pointers, name in signature[:-2]:
        letter = POINTERS.get(kind) if pointers else NUMBERS.get(kind)
        if letter is None:
            return f"an argument of the kind {kind}{'*' * pointers}"
        letters.append((letter, name))
    return letters


def title_of(repository: Path) -> str:
    """ops-math of .../ops-math, and of a mirror's .../hicann+ops-math/repo."""
    folder = repository.resolve()
    return (folder.parent if folder.name == "repo" else folder).name.split("+")[-1].removesuffix(".git")


def git(repository: Path, *command: str) -> bytes:
    return subprocess.run(["git", "-C", str(repository), *command], check=True, capture_output=True).stdout


if __name__ == "__main__":
    main()
