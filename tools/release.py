#!/usr/bin/env python3
"""Make a release: one version everywhere, its section of CHANGELOG.md, wheels of all packages, a tag.

    python tools/release.py set 0.3.0        write the version into every file that names it
    python tools/release.py check            fail unless all agree, and CHANGELOG.md has a dated section of the version
                                             that names the schema of its settings
    python tools/release.py notes            print that section
    python tools/release.py build dist       build sdist and wheel of each package and check them with twine (both from
                                             the extra `release`)
    python tools/release.py tag              check, then tag the commit v0.3.0; the tree must have no changes

The version stands in pyproject.toml; every other place must say the same.
"""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import date
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
CHANGELOG = PROJECT / "CHANGELOG.md"
# In these files this is the project's version; other versions look otherwise.
_NAMED = {
    **dict.fromkeys(
        ["pyproject.toml", *(f"tools/{part}/pyproject.toml" for part in (
            "kernels", "math_answers", "ascend_emulator", "migrate", "gguf", "conformance",
        ))],
        r'(?m)(?:^version = "|"(?:mindgspo|mindgspo-\w+|math-answers(?:\[symbolic\])?|ascend-emulator)==)([0-9.]+)"',
    ),
    "CITATION.cff": r'(?m)^version: "?([0-9.]+)"?$',
    "README.md": r"version = \{([0-9.]+)\}",
    "README_CN.md": r"version = \{([0-9.]+)\}",
}  # fmt: skip


def main(words: list[str]) -> int:
    """Do one of the things above; returns the exit code."""
    match words:
        case ["set", version] if re.fullmatch(r"\d+\.\d+\.\d+", version):
            set_version(version)
        case ["check"]:
            return _print_problems()
        case ["notes"]:
            print(notes(version_of_project()))
        case ["build", out]:
            build(Path(out))
        case ["tag"]:
            return _print_problems() or tag()
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


def version_of_project() -> str:
    """What pyproject.toml says."""
    (version,) = re.findall(r'(?m)^version = "(.*)"$', (PROJECT / "pyproject.toml").read_text("utf-8"))
    return version


def packages() -> list[Path]:
    """Folders of the packages, each of which has wheels."""
    return [PROJECT, *sorted(path.parent for path in PROJECT.glob("tools/*/pyproject.toml"))]


def set_version(version: str) -> None:
    """Write it into all files that name one."""
    for name, pattern in _NAMED.items():
        path = PROJECT / name
        text = path.read_text("utf-8")
        path.write_text(re.sub(pattern, lambda found: _with(found, version), text), "utf-8")


def _with(found: re.Match[str], version: str) -> str:
    start, stop = (place - found.start() for place in found.span(1))
    return f"{found[0][:start]}{version}{found[0][stop:]}"


def problems() -> list[str]:
    """What keeps this tree from being a release; empty if nothing does."""
    from mindgspo.config.load import SCHEMA  # what the others do needs no package

    version, found = version_of_project(), []
    for name, pattern in _NAMED.items():
        named = re.findall(pattern, (PROJECT / name).read_text("utf-8"))
        if set(named) != {version}:
            found.append(f"{name}: names {', '.join(sorted(set(named))) or 'no version'}; pyproject.toml: {version}")
    try:
        if f"schema {SCHEMA}" not in notes(version):
            found.append(f"CHANGELOG.md: the section of {version} does not say 'schema {SCHEMA}'")
    except ValueError as error:
        found.append(str(error))
    return found


def _print_problems() -> int:
    found = problems()
    for problem in found:
        print(f"error: {problem}", file=sys.stderr)
    return int(bool(found))


def notes(version: str) -> str:
    """The version's section of CHANGELOG.md, without its heading. Raises ValueError if there is none with a date."""
    text = CHANGELOG.read_text("utf-8")
    section = re.search(rf"(?ms)^## {re.escape(version)} - (\S+)\n(.*?)(?=^## |\Z)", text)
    if section is None:
        raise ValueError(f"CHANGELOG.md: no section '## {version} - YYYY-MM-DD'")
    date.fromisoformat(section[1])
    return section[2].strip()


def build(out: Path) -> None:
    """Sdists and wheels of all packages. Raises CalledProcessError."""
    for folder in packages():
        subprocess.run([sys.executable, "-m", "build", "--outdir", out, folder], check=True)
    files = sorted(path for path in out.iterdir() if path.suffix in (".whl", ".gz"))
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *files], check=True)


def tag() -> int:
    """An annotated tag with the notes; returns the exit code."""
    changed = subprocess.run(["git", "status", "--porcelain"], cwd=PROJECT, check=True, capture_output=True, text=True)
    if changed.stdout:
        print(f"error: the tree has changes:\n{changed.stdout}", file=sys.stderr)
        return 1
    version = version_of_project()
    subprocess.run(
        ["git", "tag", "--annotate", f"v{version}", "--cleanup=verbatim", "--message", notes(version)],
        cwd=PROJECT,
        check=True,
    )
    print(f"tagged v{version}; git push origin v{version} starts the workflow of a release")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
