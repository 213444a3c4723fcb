"""A healthy server with eight cards, as files and answers, for tests to break."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

import mindgspo.doctor
from mindgspo.doctor.machine import Disk, Machine, Needs, Output

HOME = "/usr/local/Ascend/ascend-toolkit/latest"
DRIVER = "/usr/local/Ascend/driver"
LAUNCHES = yaml.safe_load(Path(mindgspo.doctor.__file__).with_name("launches.yaml").read_text())
USER, GROUP = 1000, 1001
GB = 1 << 30
NEEDS = Needs(device="Ascend", ranks=8, cards=8, run_dir=Path("/data/runs/one"), has_config=True)

_LINE = "+---------------------------+---------------+----------------------------------------------------+\n"


def npu_smi(health: str = "OK", used: int = 3441, process: int | None = None) -> str:
    """What npu-smi prints on an Atlas 800T A2; the arguments are card 3's."""
    text = "| npu-smi 25.5.0                   Version: 25.5.0                                              |\n" + _LINE
    text += "| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|\n"
    text += (
        "| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |\n" + _LINE
    )
    for card in range(8):
        state, memory = (health, used) if card == 3 else ("OK", 3430)
        text += (
            f"| {card}     910B3               | {state:<13} | 93.6        43                0    / 0             |\n"
        )
        text += f"| 0                         | 0000:C{card}:00.0  | 0       0    / 0      {memory} / 65536       |\n"
        text += _LINE
    text += "| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |\n"
    text += _LINE
    if process is not None:
        text += f"| 3       0                 | {process:<13} | python3                  | 31234                   |\n"
    return text + "| No running processes found in NPU 0                                                            |\n"


NPU_SMI_A3 = """\
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     Ascend910           | OK            | 164.3       37                0    / 0             |
| 0     0                   | 0000:9D:00.0  | 0           0    / 0          3135 / 65536         |
+------------------------------------------------------------------------------------------------+
| 0     Ascend910           | Alarm         | -           36                0    / 0             |
| 1     1                   | 0000:9F:00.0  | 0           0    / 0          31000/ 65536         |
+===========================+===============+====================================================+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| 0       1                 | 4711          | python                   | 28000                   |
"""


def write(root: Path, path: str, text: str = "", mode: int = 0o644) -> None:
    """A file of the fake tree."""
    target = root / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)
    target.chmod(mode)


def library(defined: Collection[str], needed: Collection[str] = ()) -> bytes:
    """An ELF file with nothing but a table of dynamic symbols: of its own, and those that others have."""
    names = [*defined, *needed]
    texts = b"\0" + b"".join(name.encode() + b"\0" for name in names)
    symbols = bytes(24)
    for i, name in enumerate(names):
        symbols += struct.pack("<IBBHQQ", texts.index(b"\0" + name.encode() + b"\0") + 1, 18, 0, i < len(defined), 0, 0)
    first, second = 64 + len(symbols), 64 + len(symbols) + len(texts)
    table = [(0,) * 10, (0, 11, 0, 0, 64, len(symbols), 2, 0, 0, 24), (0, 3, 0, 0, first, len(texts), 0, 0, 0, 0)]
    header = b"\x7fELF\x02\x01".ljust(40, b"\0") + struct.pack("<QIHHHHHH", second, 0, 64, 0, 0, 64, 3, 0)
    return header + symbols + texts + b"".join(struct.pack("<IIQQQQIIQQ", *section) for section in table)


def with_operators(
    machine: Machine,
    folder: str = "",
    *,
    lost: Collection[str] = (),
    on_host: Collection[str] = ("Abs",),
    narrow: Collection[str] = (),
    unbuilt: Collection[str] = (),
) -> Machine:
    """CANN's lists of all operators that jobs launch, but those `lost`. folder: of the repository within a chip's.
    narrow: those of int8 alone."""
    functions = {name for jobs in LAUNCHES.values() for name in jobs["aclnn"]} - {*lost}
    path = machine.path(f"{HOME}/lib64/libopapi.so")
    path.write_bytes(
        library([f"{name}GetWorkspaceSize" for name in functions], [f"{name}GetWorkspaceSize" for name in lost])
    )
    on_cores: dict[str, list[list[str]]] = {}
    for launch in (launch for jobs in LAUNCHES.values() for launch in jobs["aclop"]):
        name, *dtypes = launch.replace("float32", "float").split()
        dtypes = ["int8"] if name in narrow else dtypes
        if name not in lost:
            on_cores.setdefault(name, []).append((dtypes + 9 * dtypes[-1:])[:9])
    described = {
        name: {
            f"input{i}": {"name": "x", "dtype": ",".join(column), "paramType": "required"}
            for i, column in enumerate(zip(*columns, strict=True))
        }
        for name, columns in on_cores.items()
    }
    tbe = f"{HOME}/opp/built-in/op_impl/ai_core/tbe"
    write(machine.root, f"{tbe}/config/ascend910b/{folder}/aic-ascend910b-ops-info.json", json.dumps(described))
    for name in on_cores.keys() - {*unbuilt}:
        own = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).strip("_")
        write(machine.root, f"{tbe}/kernel/config/ascend910b/{folder}/{own}.json")
    host = {name: {"input0": {"name": "x", "type": "DT_FLOAT"}, "opInfo": {}} for name in on_host}
    write(machine.root, f"{HOME}/opp/built-in/op_impl/aicpu/config/aicpu_kernel.json", json.dumps(host))
    return machine


def healthy(root: Path) -> Machine:
    """Below `root`; the user is in the group of the devices as the tree's files have it."""
    for name in (*(f"davinci{card}" for card in range(8)), "davinci_manager", "devmm_svm", "hisi_hdc"):
        write(root, f"/dev/{name}", mode=0o660)
    write(root, f"{DRIVER}/version.info", "Version=25.5.0\n")
    write(root, f"{DRIVER}/lib64/driver/libascend_hal.so")
    write(root, "/usr/local/Ascend/firmware/version.info", "Version=7.8.0.5.216\n")
    write(root, "/etc/ld.so.conf.d/ascend_driver_so.conf", f"{DRIVER}/lib64/driver\n")
    for name in ("libascendcl.so", "libhccl.so"):
        write(root, f"{HOME}/lib64/{name}")
    write(root, f"{HOME}/compiler/version.info", "Version=8.5.0\nversion_dir=8.5.0\n")
    write(root, f"{HOME}/opp/built-in/op_impl/ai_core/tbe/kernel/ascend910b/ops.json")
    write(root, f"{HOME.rpartition('/')[0]}/set_env.sh")
    write(root, "/tmp/x")
    (root / "home/someone").mkdir(parents=True)
    (root / "home/someone").chmod(0o1777)
    write(root, "/etc/group", f"root:x:0:\nHwHiAiUser:x:{GROUP}:someone\n")
    write(root, "/proc/mounts", "/dev/vda / ext4 rw 0 0\nfs:/data /data nfs4 rw 0 0\n")
    write(root, "/etc/hccn.conf", "".join(f"address_{card}=192.168.1.{card}\n" for card in range(8)))
    plugin = root / "python/mindspore/lib/plugin/libmindspore_ascend.so.2"
    plugin.parent.mkdir(parents=True)
    plugin.touch()
    group = (root / "dev/davinci0").stat().st_gid
    return Machine(
        root=root,
        environment={
            "ASCEND_HOME_PATH": HOME,
            "ASCEND_OPP_PATH": f"{HOME}/opp",
            "LD_LIBRARY_PATH": f"{HOME}/lib64",
            "HCCL_CONNECT_TIMEOUT": "1800",
            "HOME": "/home/someone",
            "XDG_CACHE_HOME": "/home/someone",
        },
        run=answers({("npu-smi", "info"): npu_smi()}),
        disk=lambda path: Disk(64 * GB, 60 * GB),
        limits={"nofile": 1 << 20, "nproc": None, "memlock": None, "stack": 8 << 20},
        packages={"mindspore": "2.10.0", "numpy": "1.26.4"},
        mindspore=root / "python/mindspore",
        tools=frozenset({"g++", "gcc"}),
        python="3.11.9",
        processor="aarch64",
        user="someone",
        user_id=USER,
        groups=frozenset({USER, group}),
        interfaces={"lo": frozenset({"127.0.0.1"}), "enp67s0": frozenset({"10.0.0.7"})},
        listening=frozenset({22}),
        memory=1024 * GB,
        cores=192,
        encoding="UTF-8",
        host="atlas",
    )


def answers(known: dict[tuple[str, ...], str | Output]) -> Callable[[tuple[str, ...]], Output | None]:
    """Commands that answer; there are no others."""

    def run(command: tuple[str, ...]) -> Output | None:
        found = known.get(command)
        return Output(0, found) if isinstance(found, str) else found

    return run


def with_variables(machine: Machine, **variables: str | None) -> Machine:
    """None takes a variable away."""
    merged = {**machine.environment, **variables}
    return replace(machine, environment={name: value for name, value in merged.items() if value is not None})


def table(ranks: int = 8, **changes: Any) -> str:
    """A rank table of one server."""
    devices = [
        {"device_id": str(rank), "device_ip": f"192.168.1.{rank}", "rank_id": str(rank)} for rank in range(ranks)
    ]
    body = {"status": "completed", "version": "1.0", "server_count": "1",
            "server_list": [{"server_id": "10.0.0.7", "device": devices}]}  # fmt: skip
    return json.dumps(body | changes)
