"""The table of CANN's prototypes, its maker, and that the emulated operators agree with it."""

import subprocess
from pathlib import Path

import make_aclnn_signatures as maker
import pytest

import ascend_emulator.operators  # noqa: F401  (enters the operators into the table)
from ascend_emulator.contract import OPERATORS
from ascend_emulator.stand_ins import SIGNATURES

LETTERS = set("tTsSIFBdfbcwluz")
Table = dict[str, tuple[str, list[str]]]


@pytest.fixture(scope="module")
def table() -> Table:
    """name: (letters, names of the arguments), none where the table has a dash."""
    lines = [line.split() for line in SIGNATURES.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return {
        name: (letters.replace("-", ""), [word for word in arguments.split(",") if word != "-"])
        for name, letters, arguments in lines
    }


def test_the_table_says_what_it_was_read_from() -> None:
    header = [line for line in SIGNATURES.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    assert [line.split()[1] for line in header[-3:]] == ["ops-math", "ops-nn", "ops-transformer"]
    assert all(len(line.split()[2]) == 40 for line in header[-3:])


def test_every_line_is_a_prototype(table: Table) -> None:
    assert len(table) > 1000 and list(table) == sorted(table)
    for name, (letters, arguments) in table.items():
        assert name.startswith("aclnn") and set(letters) <= LETTERS
        assert len(letters) == len(arguments) == len(set(arguments))


def test_every_emulated_operator_has_the_arguments_of_its_prototype(table: Table) -> None:
    for name, operator in OPERATORS.items():
        if name.startswith("aclnn"):
            letters, arguments = table[name]
            assert len(operator.rules) == len(letters), name
            assert [rule.name for rule in operator.rules] == arguments, name


@pytest.mark.parametrize(("text", "expected"), [
    ("const aclTensor *self, int64_t dim, aclTensor* out, uint64_t *workspaceSize, aclOpExecutor **executor", "tlt"),
    ("aclTensorList * const x, char *mode, double p, bool keep, uint64_t* n, aclOpExecutor ** e", "Tzdb"),
    ("const aclIntArray* dims, aclDataType dtype, int8_t kind, uint64_t* n, aclOpExecutor** e", "Iwc"),
    ("uint64_t* workspaceSize, aclOpExecutor** executor", ""),
    ("aclStream stream, uint64_t* n, aclOpExecutor** e", None),
    ("self, out, &workspaceSize, &executor", None),
    ("int64_t *sizes, uint64_t* n, aclOpExecutor** e", None),
])  # fmt: skip
def test_reading_a_prototype(text: str, expected: str | None) -> None:
    found = maker.letters_and_names(text)
    assert (isinstance(found, str) and expected is None) or "".join(letter for letter, _ in found) == expected


def test_making_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = tmp_path / "ops-toy"
    last_two = "uint64_t* n, aclOpExecutor** e"
    files = {
        "math/a/a.h": f"aclnnStatus aclnnAGetWorkspaceSize(const aclTensor* x /* in */, {last_two});",
        "math/a/docs/a.md": f"aclnnStatus aclnnAGetWorkspaceSize(int wrong, {last_two})",
        "experimental/a/a.h": f"aclnnStatus aclnnAGetWorkspaceSize(bool wrong, {last_two});",
        "math/b/docs/b.md": f"aclnnBGetWorkspaceSize(\n  aclScalar *s, // number\n  {last_two})".replace("*", r"\*"),
        "math/c/c.h": f"aclnnStatus aclnnCGetWorkspaceSize(FILE* f, {last_two});",
    }
    for path, text in files.items():
        (repository / path).parent.mkdir(parents=True, exist_ok=True)
        (repository / path).write_text(text, encoding="utf-8")
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    for command in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "toy"]):
        subprocess.run(["git", "-C", str(repository), *command], check=True)
    out = tmp_path / "signatures.txt"
    monkeypatch.setattr("sys.argv", ["make", str(repository), "--out", str(out)])
    maker.main()
    lines = out.read_text(encoding="utf-8").splitlines()
    assert lines[-2:] == ["aclnnA t x", "aclnnB s s"]
    assert lines[-3].startswith("# ops-toy ")
