"""The report, and a folder with everything that somebody who is to help would ask for, without secrets."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from mindgspo.doctor.cards import NPU_SMI
from mindgspo.doctor.findings import Finding, Level
from mindgspo.doctor.machine import Machine
from mindgspo.errors import ConfigError
from mindgspo.io import make_folder, write_file
from mindgspo.launch.error_codes import find, told
from mindgspo.text import aligned, counted

_TAIL_BYTES = 1 << 18
_MOST_LOGS = 32
# Values of these are shown; of all other variables only the names.
_SHOWN = re.compile(
    r"(ASCEND|HCCL|GLOO|MS_|GLOG|MINDGSPO|RANK|DEVICE_ID|OMP_|OPENBLAS|LC_|LANG|TBE|XDG_CACHE|TMPDIR|TZ$)|"
    r"(LD_LIBRARY_PATH|PATH|PYTHONPATH|PYTHONHOME|VIRTUAL_ENV|CONDA_PREFIX|HOME|USER)$"
)
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|KEY|CREDENTIAL|AUTH", re.I)
_LOGIN = re.compile(r"(?<=://)[^/@\s]+@")


def report_lines(rows: Sequence[tuple[str, str]], findings: Sequence[Finding]) -> list[str]:
    """What was looked at, then each finding with its fix, then how many there are."""
    lines = aligned(rows, left=2)
    for finding in findings:
        lines += ["", f"{finding.level.value.upper()}  {finding.name}: {finding.what}", f"  why  {finding.why}",
                  f"  fix  {finding.fix}"]  # fmt: skip
    number = {level: sum(finding.level is level for finding in findings) for level in Level}
    summary = (
        f"{number[Level.BROKEN]} broken, {counted(number[Level.RISK], 'risk')}" if findings else "nothing is wrong"
    )
    return [*lines, "", summary]


def write_bundle(
    folder: Path,
    machine: Machine,
    rows: Sequence[tuple[str, str]],
    findings: Sequence[Finding],
    extra: Mapping[str, str],
    log_dir: Path | None,
) -> None:
    """Fill a new folder: report.txt, report.json, environment.txt, npu-smi.txt, logs/, and codes.txt, what codes in
    these mean.

    extra: further files by name. log_dir: of a run, whose logs' ends go along. Raises ConfigError where the folder
    holds something.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"--bundle {folder}: holds something already; name a new folder")
    make_folder(folder)
    report = {
        "facts": dict(rows),
        "packages": dict(machine.packages),
        "findings": [{**dataclasses.asdict(finding), "level": finding.level.value} for finding in findings],
    }
    output = machine.run(NPU_SMI)
    files = {
        "report.txt": "\n".join(report_lines(rows, findings)) + "\n",
        "report.json": json.dumps(report, indent=2) + "\n",
        "environment.txt": "".join(f"{line}\n" for line in environment_lines(machine.environment)),
        **({} if output is None else {"npu-smi.txt": output.text}),
        **extra,
    }
    for name, text in files.items():
        write_file(folder / name, text.encode("utf-8", "replace"))
    logs = [*_newest(log_dir, "*.log"), *_newest(_plog_folder(machine), "plog-*.log")]
    if logs:
        make_folder(folder / "logs")
    codes = []
    for path in logs:
        text = _LOGIN.sub("<removed>@", tail(path))
        write_file(folder / "logs" / path.name, text.encode("utf-8", "replace"))
        codes += told(find(text.splitlines()), where=f"{path.name}: ")
    if codes:
        write_file(folder / "codes.txt", "".join(f"{line}\n" for line in codes).encode("utf-8", "replace"))


def environment_lines(environment: Mapping[str, str]) -> list[str]:
    """Variables that matter with their values, the others by name alone."""
    lines = []
    for name, value in sorted(environment.items()):
        is_shown = _SHOWN.match(name) and not _SECRET.search(name)
        lines.append(f"{name}={_LOGIN.sub('<removed>@', value)}" if is_shown else f"{name}=<not shown>")
    return lines


def tail(path: Path, num_bytes: int = _TAIL_BYTES) -> str:
    """The end of a log, from a whole line on."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - num_bytes))
        data = file.read(num_bytes)
    return (data if size <= num_bytes else data.partition(b"\n")[2]).decode("utf-8", "replace")


def _newest(folder: Path | None, pattern: str) -> list[Path]:
    """At most so many files, the newest, links left out."""
    if folder is None or not folder.is_dir():
        return []
    files = [path for path in folder.glob(pattern) if path.is_file() and not path.is_symlink()]
    return sorted(files, key=lambda path: path.stat().st_mtime)[-_MOST_LOGS:]


def _plog_folder(machine: Machine) -> Path:
    """Where CANN logs: ASCEND_PROCESS_LOG_PATH, else ~/ascend/log."""
    base = (
        machine.environment.get("ASCEND_PROCESS_LOG_PATH") or f"{machine.environment.get('HOME', '/root')}/ascend/log"
    )
    return machine.path(base) / "debug" / "plog"
