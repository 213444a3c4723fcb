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
from mindgspo.metrics.redaction import redacted
from mindgspo.text import aligned, counted

_TAIL_BYTES = 1 << 18
_MOST_LOGS = 32
# Values of these are shown; of all other variables only the names.
_SHOWN = """
ASCEND_HOME_PATH ASCEND_TOOLKIT_HOME ASCEND_OPP_PATH ASCEND_AICPU_PATH ASCEND_CUSTOM_OPP_PATH ASCEND_WORK_PATH
ASCEND_CACHE_PATH ASCEND_PROCESS_LOG_PATH ASCEND_GLOBAL_LOG_LEVEL ASCEND_GLOBAL_EVENT_ENABLE
ASCEND_SLOG_PRINT_TO_STDOUT ASCEND_MODULE_LOG_LEVEL ASCEND_HOST_LOG_FILE_NUM ASCEND_LAUNCH_BLOCKING
ASCEND_RT_VISIBLE_DEVICES ASCEND_VISIBLE_DEVICES ASCEND_DEVICE_ID ASCEND_DOCKER_RUNTIME TBE_IMPL_PATH DEVICE_ID
HCCL_ALGO HCCL_BUFFSIZE HCCL_CONNECT_TIMEOUT HCCL_DETERMINISTIC HCCL_ENTRY_LOG_ENABLE HCCL_EXEC_TIMEOUT
HCCL_HOST_SOCKET_PORT_RANGE HCCL_IF_BASE_PORT HCCL_IF_IP HCCL_INTER_HCCS_DISABLE HCCL_INTRA_PCIE_ENABLE
HCCL_INTRA_ROCE_ENABLE HCCL_NPU_SOCKET_PORT_RANGE HCCL_OP_BASE_FFTS_MODE_ENABLE HCCL_OP_EXPANSION_MODE
HCCL_RDMA_PCIE_DIRECT_POST_NOSTRICT HCCL_RDMA_QPS_PER_CONNECTION HCCL_RDMA_RETRY_CNT HCCL_RDMA_SL HCCL_RDMA_TC
HCCL_RDMA_TIMEOUT HCCL_SOCKET_FAMILY HCCL_SOCKET_IFNAME HCCL_WHITELIST_DISABLE HCCL_WHITELIST_FILE GLOO_SOCKET_IFNAME
RANK_ID RANK_SIZE RANK_TABLE_FILE MS_ROLE MS_NODE_ID MS_WORKER_NUM MS_SCHED_HOST MS_SCHED_PORT MS_NODE_TIMEOUT
MS_TOPO_TIMEOUT MS_OM_PATH MS_RETRY_INTERVAL_LOWER MS_RETRY_INTERVAL_UPPER MS_RECEIVE_MSG_TIMEOUT
MS_CPU_COMM_OP_TIMEOUT MS_COMPILER_CACHE_ENABLE MS_COMPILER_CACHE_PATH MS_SIMULATION_LEVEL MS_MEMORY_STATISTIC
MS_ALLOC_CONF MS_DEV_RUNTIME_CONF MS_DEV_GRAPH_KERNEL_FLAGS MS_DISABLE_INTERNAL_KERNELS_LIST
MS_ENABLE_INTERNAL_KERNELS MS_ENABLE_LCCL MS_SUBMODULE_LOG_v MS_INTERNAL_DISABLE_CUSTOM_KERNEL_LIST
MS_INTERNAL_ENABLE_CUSTOM_KERNEL_LIST MS_DEV_DUMP_PATH MS_PROXY GLOG_v GLOG_logtostderr GLOG_log_dir
GLOG_stderrthreshold VLOG_v MINDGSPO_DATA ASCEND_EMULATOR ASCEND_EMULATOR_HBM_GB MINDGSPO_FAULT
MINDGSPO_PYTHON MINDGSPO_VENV OMP_NUM_THREADS OMP_PROC_BIND OMP_PLACES OPENBLAS_NUM_THREADS MKL_NUM_THREADS PATH
LD_LIBRARY_PATH LD_PRELOAD PYTHONPATH PYTHONHOME PYTHONUNBUFFERED PYTHONIOENCODING VIRTUAL_ENV CONDA_PREFIX
CONDA_DEFAULT_ENV HOME USER TMPDIR XDG_CACHE_HOME LANG LANGUAGE LC_ALL LC_CTYPE TZ
"""
_NEVER_SENT = re.compile(r"\.(?:safetensors|ckpt|npz|png|html)")


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
    """Fill a new folder, which only this user can read: report.txt, report.json, environment.txt, npu-smi.txt, logs/,
    and codes.txt, what codes in these mean.

    extra: further files by name. log_dir: of a run, whose logs' ends go along. Raises ConfigError where the folder
    holds something.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"--bundle {folder}: holds something already; name a new folder")
    make_folder(folder)
    folder.chmod(0o700)
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
        write_part(folder / name, text, machine.environment)
    logs = [*_newest(log_dir, "*.log"), *_newest(_plog_folder(machine), "plog-*.log")]
    if logs:
        make_folder(folder / "logs")
    codes = []
    for path in logs:
        text = tail(path)
        write_part(folder / "logs" / path.name, text, machine.environment)
        codes += told(find(text.splitlines()), where=f"{path.name}: ")
    if codes:
        write_part(folder / "codes.txt", "".join(f"{line}\n" for line in codes), machine.environment)


def write_part(path: Path, text: str, environment: Mapping[str, str]) -> None:
    """A file of the folder, without secrets; nobody else can read it. environment: variables that may hold some."""
    write_file(path, redacted(text, environment).encode("utf-8", "replace"), mode=0o600)


def clean(folder: Path, environment: Mapping[str, str]) -> None:
    """What a computation has left in a folder of the bundle: text like the other files, no weights and no pages."""
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_symlink() or _NEVER_SENT.search(path.name):
            path.unlink()
        elif path.is_file():
            write_part(path, tail(path), environment)


def environment_lines(environment: Mapping[str, str]) -> list[str]:
    """Variables that matter with their values, the others by name alone."""
    return [
        f"{name}={redacted(value, environment) if name in _SHOWN.split() else '<not shown>'}"
        for name, value in sorted(environment.items())
    ]


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
