"""Runs all checks, reports them, and fills a folder with everything that a helper would ask for, without secrets."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from mindgspo.config import ExperimentConfig
from mindgspo.config.cache import training_config
from mindgspo.doctor import cards, host, operators, software
from mindgspo.doctor.machine import Check, Machine, MachineProblem, Needs, Severity, problem
from mindgspo.errors import ConfigError
from mindgspo.io import make_folder, write_file
from mindgspo.launch.error_codes import find, told
from mindgspo.metrics.redaction import redacted
from mindgspo.planner.ascend_memory import hccl_buffers, largest_message
from mindgspo.planner.cache_budget import with_cache_budget
from mindgspo.planner.expected import buffer_room, swapped_bytes
from mindgspo.planner.rank_work import RankWork
from mindgspo.text import aligned, counted, listed

CHECKS: tuple[Check, ...] = (
    software.python_packages, cards.devices, software.driver, software.cann, operators.operators, cards.health,
    cards.links, host.leftovers, host.variables, host.rank_table, host.ports, host.buffers,
    host.disks, host.limits, host.memory, host.surroundings,
)  # fmt: skip
_TAIL_BYTES = 1 << 18
_MOST_LOGS = 32
# Values of these are shown; of all other variables only the names. A list rather than prefixes: ASCEND_PASS is none.
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
GLOG_stderrthreshold VLOG_v MINDGSPO_DATA ASCEND_EMULATOR ASCEND_EMULATOR_SOC ASCEND_EMULATOR_HBM_GB MINDGSPO_FAULT
MINDGSPO_PYTHON MINDGSPO_VENV OMP_NUM_THREADS OMP_PROC_BIND OMP_PLACES OPENBLAS_NUM_THREADS MKL_NUM_THREADS PATH
LD_LIBRARY_PATH LD_PRELOAD PYTHONPATH PYTHONHOME PYTHONUNBUFFERED PYTHONIOENCODING VIRTUAL_ENV CONDA_PREFIX
CONDA_DEFAULT_ENV HOME USER TMPDIR XDG_CACHE_HOME LANG LANGUAGE LC_ALL LC_CTYPE TZ
"""
_NEVER_SENT = re.compile(r"\.(?:safetensors|ckpt|npz|png|html)")


def needs_of(machine: Machine, config: ExperimentConfig | None, nodes: int = 1) -> Needs:
    """Requirements of an experiment on each of `nodes` machines; without one, those of every experiment. Raises
    ConfigError for nodes that do not divide its ranks."""
    if config is None:
        has_ascend = machine.has_cards() or "ASCEND_HOME_PATH" in machine.environment
        return Needs(device="Ascend" if has_ascend else "CPU", nodes=nodes, run_dir=Path.cwd())
    ranks, infer = config.plans.train.world_size, config.plans.infer
    if ranks % nodes:
        raise ConfigError(f"--nodes {nodes}: the plans need {counted(ranks, 'rank')}, the same number on every node")
    assert config.run_dir is not None, "config is not resolved"
    needs = Needs(
        device=config.device,
        ranks=ranks // nodes,
        cards=ranks // nodes + (infer.world_size if config.has_own_servers else 0),
        nodes=nodes,
        run_dir=config.run_dir.absolute(),
        has_config=True,
    )
    if config.device == "CPU":
        return needs
    config = training_config(config) if config.has_servers else with_cache_budget(config)
    work = RankWork.of(config, 0)
    return dataclasses.replace(
        needs,
        buffers=hccl_buffers(work),
        buffer_room=buffer_room(config),
        message=largest_message(work),
        swapped=swapped_bytes(config),
    )


def examine(machine: Machine, needs: Needs) -> list[MachineProblem]:
    """List all problems, the broken parts first, otherwise in the order of the checks."""
    found = []
    if needs.device == "Ascend" and not machine.has_cards():
        found.append(problem("no_npu", "no NPU: neither /dev/davinci* nor a driver"))
        needs = dataclasses.replace(needs, device="CPU", ranks=1, swapped=0)
    found += [one for check in CHECKS for one in check(machine, needs)]
    return sorted(found, key=lambda one: one.severity.value)


def facts(machine: Machine, needs: Needs) -> list[tuple[str, str]]:
    """(name, value) of everything that was looked at."""
    known = [
        f"{card.number}: {card.name} {card.health} {card.memory_used}/{card.memory} MB"
        for card in cards.known_cards(machine)
    ]
    packages = listed([f"{name} {version}" for name, version in machine.packages.items()])
    cluster = f"{counted(needs.ranks, 'rank')} on each of {counted(needs.nodes, 'machine')}"
    memory = f"{counted(machine.cores, 'core')}, {machine.memory / 2**30:.1f} GB of memory"
    rows = [
        ("host", f"{machine.host}, {machine.processor}, {memory}"),
        ("for", f"device {needs.device}, {cluster if needs.has_config else 'no experiment was named'}"),
        ("python", f"{machine.python}, {packages or 'no MindSpore'}"),
        ("tested", f"device {needs.device} with MindSpore {listed(software.MINDSPORES[needs.device])}"),
        ("npu", listed(known, most=16) or ("npu-smi does not answer" if machine.has_cards() else "none here")),
    ]
    if machine.has_cards() or needs.device == "Ascend":
        installed = {"driver": software.driver_of_machine, "firmware": software.firmware_of_machine,
                     "CANN": software.cann_of_machine}  # fmt: skip
        rows.append(("versions", listed([f"{name} {of(machine) or 'unknown'}" for name, of in installed.items()])))
        rows.append(("operators", operators.compared_with(machine)))
    if needs.buffers:
        taken, room = (f"{size / 2**30:.1f}" for size in (host.buffer_bytes(machine, needs), needs.buffer_room))
        largest = f"its largest message has {needs.message / 2**20:.0f} MB"
        rows.append(("HCCL", f"buffers take {taken} GB of a card, where the plan leaves {room}; {largest}"))
    free = [f"{path} {machine.disk(path).free / 2**30:.1f} GB free" for path in ("/dev/shm", str(needs.run_dir))]
    limits = [f"{name} {'unlimited' if value is None else value}" for name, value in machine.limits.items()]
    return [*rows, ("disks", listed(free)), ("limits", listed(limits))]


def report_lines(rows: Sequence[tuple[str, str]], problems: Sequence[MachineProblem]) -> list[str]:
    """The facts, then each problem with its fix, then how many there are."""
    lines = aligned(rows, left=2)
    for one in problems:
        lines += ["", f"{one.severity.value.upper()}  {one.name}: {one.what}", f"  why  {one.why}", f"  fix  {one.fix}"]
    number = {severity: sum(one.severity is severity for one in problems) for severity in Severity}
    summary = f"{number[Severity.BROKEN]} broken, {counted(number[Severity.RISK], 'risk')}"
    return [*lines, "", summary if problems else "nothing is wrong"]


def write_bundle(
    folder: Path,
    machine: Machine,
    rows: Sequence[tuple[str, str]],
    problems: Sequence[MachineProblem],
    log_dir: Path | None,
) -> None:
    """Fill a new folder, which only this user can read: report.txt, report.json, environment.txt, npu-smi.txt, logs/,
    and codes.txt, what codes in these mean.

    log_dir: of a run, the ends of whose logs are included. Raises ConfigError if the folder holds something.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"--bundle {folder}: holds something already; name a new folder")
    make_folder(folder)
    folder.chmod(0o700)
    report = {
        "facts": dict(rows),
        "packages": dict(machine.packages),
        "findings": [{**dataclasses.asdict(one), "severity": one.severity.value} for one in problems],
    }
    output = machine.run(cards.NPU_SMI)
    logs = [*_newest(log_dir, "*.log"), *_newest(_plog_folder(machine), "plog-*.log")]
    tails = {path.name: tail(path) for path in logs}
    codes = [line for name, text in tails.items() for line in told(find(text.splitlines()), where=f"{name}: ")]
    files = {
        "report.txt": "\n".join(report_lines(rows, problems)),
        "report.json": json.dumps(report, indent=2),
        "environment.txt": "\n".join(environment_lines(machine.environment)),
        "npu-smi.txt": "" if output is None else output.text,
        "codes.txt": "\n".join(codes),
        **{f"logs/{name}": text for name, text in tails.items()},
    }
    if logs:
        make_folder(folder / "logs")
    for name, text in files.items():
        if text:
            write_part(folder / name, text if text.endswith("\n") else f"{text}\n", machine.environment)


def write_part(path: Path, text: str, environment: Mapping[str, str]) -> None:
    """Write a file of the folder, without secrets; only the user can read it. environment: may hold secrets."""
    write_file(path, redacted(text, environment).encode("utf-8", "replace"), mode=0o600)


def clean(folder: Path, environment: Mapping[str, str]) -> None:
    """Clean what a computation left in the bundle for sending: redact text, remove weights and pages."""
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
    """The newest files, links left out."""
    if folder is None or not folder.is_dir():
        return []
    files = [path for path in folder.glob(pattern) if path.is_file() and not path.is_symlink()]
    return sorted(files, key=lambda path: path.stat().st_mtime)[-_MOST_LOGS:]


def _plog_folder(machine: Machine) -> Path:
    """Folder of CANN's logs: ASCEND_PROCESS_LOG_PATH, else ~/ascend/log."""
    home = machine.environment.get("HOME", "/root")
    return machine.path(machine.environment.get("ASCEND_PROCESS_LOG_PATH") or f"{home}/ascend/log") / "debug" / "plog"
