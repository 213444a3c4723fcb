"""The checks of `mindgspo doctor`: a healthy server has no finding; each broken one has its own, with one fix."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from running import mindgspo, python
from unit.doctor.fake_machine import (
    DRIVER,
    GB,
    HOME,
    LAUNCHES,
    NEEDS,
    NPU_SMI_A3,
    answers,
    healthy,
    library,
    npu_smi,
    table,
    with_operators,
    with_variables,
    write,
)

from mindgspo.config import load_config
from mindgspo.doctor.cards import free_cards, parse_npu_smi
from mindgspo.doctor.machine import Disk, Machine, Needs, Output, Severity, known_problems, this_machine
from mindgspo.doctor.operators import exported_names
from mindgspo.doctor.report import clean, environment_lines, examine, facts, needs_of, report_lines, write_bundle
from mindgspo.errors import ConfigError

PROJECT = Path(__file__).resolve().parents[3]
TWO_NODES = replace(NEEDS, nodes=2)
MB = 1 << 20
PLANNED = replace(NEEDS, buffers=2000 * MB, buffer_room=4000 * MB, message=128 * MB, swapped=30 * GB)
ON_CPU = replace(NEEDS, device="CPU", cards=0)
Break = Callable[[Machine], Machine]


def removed(*paths: str) -> Break:
    def change(machine: Machine) -> Machine:
        for path in paths:
            target = machine.path(path)
            target.rename(target.with_name(f"gone-{target.name}"))
        return machine

    return change


def written(path: str, text: str = "", mode: int = 0o644) -> Break:
    def change(machine: Machine) -> Machine:
        write(machine.root, path, text, mode)
        return machine

    return change


def variables(**values: str | None) -> Break:
    return lambda machine: with_variables(machine, **values)


def fields(**values: object) -> Break:
    return lambda machine: replace(machine, **values)


def answering(known: dict[tuple[str, ...], str | Output]) -> Break:
    return lambda machine: replace(machine, run=answers({("npu-smi", "info"): npu_smi(), **known}))


def disk(path: str, total: int, free: int) -> Break:
    return lambda machine: replace(
        machine, disk=lambda asked: Disk(total, free) if asked == path else machine.disk(asked)
    )


def with_limits(**values: int) -> Break:
    return lambda machine: replace(machine, limits={**machine.limits, **values})


def all_of(*changes: Break) -> Break:
    def change(machine: Machine) -> Machine:
        for one in changes:
            machine = one(machine)
        return machine

    return change


def with_lists(**changes: tuple[str, ...]) -> Break:
    return lambda machine: with_operators(machine, **changes)


def hccn(card: int, what: str, text: str) -> dict[tuple[str, ...], str]:
    return {("hccn_tool", "-i", str(card), what, "-g"): text}


TLS = {
    key: value
    for card in range(8)
    for key, value in hccn(card, "-tls", f"dev_id:{card}, tls switch[{int(card != 5)}](0:disable, 1:enable)").items()
}

# (name of the finding, what breaks, what the fix begins with, what the experiment needs)
BROKEN: list[tuple[str, Break, str, Needs]] = [
    ("python_version", fields(python="3.9.2"), "make an environment", NEEDS),
    ("mindspore_missing", fields(mindspore=None, packages={"numpy": "1.26.4"}), "pip install 'mindspore", NEEDS),
    ("two_mindspores", fields(packages={"mindspore": "2.10.0", "mindspore-ascend": "2.2.0", "numpy": "1.26.4"}),
     "pip uninstall -y mindspore mindspore-ascend", NEEDS),
    ("mindspore_version", fields(packages={"mindspore": "2.7.1", "numpy": "1.26.4"}), "pip install", NEEDS),
    ("numpy_version", fields(packages={"mindspore": "2.10.0", "numpy": "2.1.0"}), "pip install 'numpy", NEEDS),
    ("mindspore_without_ascend", removed("/python/mindspore/lib/plugin"), "pip install", NEEDS),
    ("no_npu", removed("/dev", DRIVER), "--set device=CPU", NEEDS),
    ("no_cards", removed(*(f"/dev/davinci{card}" for card in range(8))), "start the container with --device", NEEDS),
    ("device_managers", removed("/dev/devmm_svm"), "start the container with --device=/dev/devmm_svm", NEEDS),
    ("visible_devices", variables(ASCEND_RT_VISIBLE_DEVICES="0,1,2,3,4,5,6,9"), "export ASCEND_RT_VISIBLE", NEEDS),
    ("visible_devices", variables(ASCEND_RT_VISIBLE_DEVICES="all"), "export ASCEND_RT_VISIBLE_DEVICES=0,1,2", NEEDS),
    ("visible_devices", variables(ASCEND_RT_VISIBLE_DEVICES="0,1,1,2"), "export ASCEND_RT_VISIBLE", NEEDS),
    ("too_few_cards", variables(ASCEND_RT_VISIBLE_DEVICES="0,1"), "unset ASCEND_RT_VISIBLE_DEVICES", NEEDS),
    ("too_few_cards", fields(), "give plans for 8", replace(NEEDS, cards=16)),
    ("device_group", fields(groups=frozenset({1000})), "sudo usermod -aG", NEEDS),
    ("device_rights", all_of(fields(groups=frozenset({1000})), written("/dev/davinci0", mode=0o600)),
     "sudo chmod 660 /dev/davinci0", NEEDS),
    ("npu_smi_missing", fields(run=answers({})), "start the container with -v /usr/local/bin/npu-smi", NEEDS),
    ("npu_smi_failed", answering({("npu-smi", "info"): Output(255, "dcmi module initialize failed. ret is -8005")}),
     "ask the administrator", NEEDS),
    ("card_unhealthy", answering({("npu-smi", "info"): npu_smi(health="Critical")}), "leave it out, export ASCEND_RT_V",
     NEEDS),
    ("card_busy", answering({("npu-smi", "info"): npu_smi(used=34000, process=4711)}), "end it: kill 4711", NEEDS),
    ("card_busy", answering({("npu-smi", "info"): npu_smi(used=34000)}), "end its process on the host", NEEDS),
    ("driver_missing", removed(f"{DRIVER}/lib64"), f"start the container with -v {DRIVER}", NEEDS),
    ("driver_library_path", written("/etc/ld.so.conf.d/ascend_driver_so.conf"), "export LD_LIBRARY_PATH", NEEDS),
    ("driver_old", written(f"{DRIVER}/version.info", "Version=24.1.rc2\n"), "let the administrator", NEEDS),
    ("cann_missing", all_of(removed(HOME), variables(ASCEND_HOME_PATH=None)), "install CANN", NEEDS),
    ("cann_not_sourced", variables(ASCEND_HOME_PATH=None, ASCEND_OPP_PATH=None, LD_LIBRARY_PATH=None),
     "source /usr/local/Ascend/ascend-toolkit/set_env.sh", NEEDS),
    ("cann_path_gone", variables(ASCEND_HOME_PATH="/opt/cann"), "source /usr/local/Ascend", NEEDS),
    ("cann_other_kernels", written("/python/mindspore/lib/plugin/ascend/custom_ascendc_910b/version.info",
                                   "custom_opp_compiler_version=9.1.0\n"), "install CANN 9.1", NEEDS),
    ("cann_version", written(f"{HOME}/compiler/version.info", "Version=8.0.RC3\n"), "install CANN 9.1", NEEDS),
    ("cann_library_path", variables(LD_LIBRARY_PATH="/usr/lib"), "source", NEEDS),
    ("two_canns", all_of(written("/opt/old/lib64/libascendcl.so"),
                         variables(LD_LIBRARY_PATH=f"/opt/old/lib64:{HOME}/lib64")), "open a new shell", NEEDS),
    ("cann_opp", variables(ASCEND_OPP_PATH=None), "source", NEEDS),
    ("cann_kernels", removed(f"{HOME}/opp/built-in/op_impl/ai_core/tbe/kernel"), "install the kernels", NEEDS),
    ("hccl_missing", removed(f"{HOME}/lib64/libhccl.so"), "install the whole toolkit", NEEDS),
    ("card_link_down", answering(hccn(2, "-link", "link status: DOWN")), "check cable", TWO_NODES),
    ("card_tls", answering(TLS), "for each card: hccn_tool -i 5 -tls", NEEDS),
    ("card_address", written("/etc/hccn.conf", "address_0=192.168.1.0\n"), "hccn_tool -i 1 -ip", TWO_NODES),
    ("stale_role", variables(MS_ROLE="MS_WORKER", MS_WORKER_NUM="8"), "unset MS_ROLE MS_WORKER_NUM", NEEDS),
    ("hccl_range", variables(HCCL_BUFFSIZE="200M"), "unset HCCL_BUFFSIZE", NEEDS),
    ("hccl_range", variables(HCCL_CONNECT_TIMEOUT="60"), "unset HCCL_CONNECT_TIMEOUT", NEEDS),
    ("hccl_connect_timeout", variables(HCCL_CONNECT_TIMEOUT="300"), "unset HCCL_CONNECT_TIMEOUT", NEEDS),
    ("hccl_port_range", variables(HCCL_HOST_SOCKET_PORT_RANGE="60000-"), "export HCCL_HOST_SOCKET_PORT_RANGE", NEEDS),
    ("hccl_port_range", variables(HCCL_NPU_SOCKET_PORT_RANGE="60000-65536"), "export HCCL_NPU_SOCKET_PORT_RANGE=auto",
     NEEDS),
    ("hccl_port_range", all_of(variables(HCCL_HOST_SOCKET_PORT_RANGE="50000,50002-50003"),
                               fields(listening=frozenset({50000, 50002, 50003}))), "export HCCL_HOST", NEEDS),
    ("hccl_buffers", variables(HCCL_BUFFSIZE="401"), "export HCCL_BUFFSIZE=400", PLANNED),
    ("hccl_small_buffers", variables(HCCL_BUFFSIZE="127"), "unset HCCL_BUFFSIZE", PLANNED),
    ("functions_missing", with_lists(lost=("aclnnMm",)), "install CANN 9.1", NEEDS),
    ("operators_missing", with_lists(lost=("Pack",)), "install CANN 9.1", NEEDS),
    ("operators_on_host", with_lists(lost=("Pack",), on_host=("Pack",)), "install CANN 9.1", NEEDS),
    ("operators_on_host", with_lists(lost=("Pack",), on_host=()), "install CANN 9.1", NEEDS),
    ("operators_on_host", with_lists(narrow=("Pack",), on_host=("Pack",)), "install CANN 9.1", NEEDS),
    ("operators_dtypes", with_lists(narrow=("Pack",)), "install CANN 9.1", NEEDS),
    ("operators_compiled", with_lists(unbuilt=("Pack",)), "install the kernels package", NEEDS),
    ("hccl_if_ip", variables(HCCL_IF_IP="10.0.0.8"), "export HCCL_IF_IP=10.0.0.7", NEEDS),
    ("socket_interface", variables(HCCL_SOCKET_IFNAME="eth"), "unset HCCL_SOCKET_IFNAME", NEEDS),
    ("socket_interface", variables(GLOO_SOCKET_IFNAME="eth0"), "unset GLOO_SOCKET_IFNAME", ON_CPU),
    ("hccl_whitelist", variables(HCCL_WHITELIST_DISABLE="0"), "export HCCL_WHITELIST_DISABLE=1", NEEDS),
    ("hccl_ports", fields(listening=frozenset({60003})), "export HCCL_IF_BASE_PORT=50000", NEEDS),
    ("rank_table", variables(RANK_TABLE_FILE="/gone.json"), "unset RANK_TABLE_FILE", NEEDS),
    ("rank_table", all_of(written("/t.json", table(4)), variables(RANK_TABLE_FILE="/t.json")), "unset", NEEDS),
    ("rank_table", all_of(written("/t.json", table(status="initializing")), variables(RANK_TABLE_FILE="/t.json")),
     "unset", NEEDS),
    ("rank_table", all_of(written("/t.json", "[" * 10000), variables(RANK_TABLE_FILE="/t.json")), "unset", NEEDS),
    ("shared_memory", disk("/dev/shm", 64 << 20, 64 << 20), "start the container with --shm-size", NEEDS),
    ("shared_memory_full", disk("/dev/shm", 16 * GB, 1 << 20), "remove what killed jobs left", NEEDS),
    ("run_disk", disk("/data/runs/one", 1000 * GB, GB), "make room", NEEDS),
    ("run_dir_local", written("/proc/mounts", "/dev/vda / ext4 rw 0 0\n"), "--set run_dir", TWO_NODES),
    ("tmp_missing", variables(TMPDIR="/scratch"), "unset TMPDIR", NEEDS),
    ("tmp_disk", disk("/tmp", 10 * GB, 1 << 20), "make room in /tmp", NEEDS),
    ("limit_nofile", with_limits(nofile=1024), "ulimit -n 65536", NEEDS),
    ("limit_nproc", with_limits(nproc=512), "ulimit -u", NEEDS),
    ("limit_stack", with_limits(stack=1 << 20), "ulimit -s 8192", NEEDS),
    ("limit_memlock", with_limits(memlock=64 << 10), "ulimit -l unlimited", NEEDS),
    ("limit_memlock", with_limits(memlock=29 * GB), "ulimit -l unlimited", PLANNED),
    ("swap_memory", fields(memory=303 * GB), "raise the container's limit", PLANNED),
    ("host_memory", fields(memory=40 * GB), "raise the container's limit", NEEDS),
    ("cores", fields(cores=2), "plans for 2 ranks", ON_CPU),
    ("locale", fields(encoding="ANSI_X3.4-1968"), "export LC_ALL=C.UTF-8", NEEDS),
    ("no_compiler", fields(tools=frozenset()), "apt-get install g++", ON_CPU),
    ("cache_closed", all_of(written("/closed/x", mode=0o600), variables(XDG_CACHE_HOME="/closed/x")),
     "export XDG_CACHE_HOME", NEEDS),
    ("cache_open", all_of(written("/home/someone/mindgspo/kernels/k/l.so", mode=0o666), variables()), "rm -r ", NEEDS),
    ("verbose_logs", variables(ASCEND_GLOBAL_LOG_LEVEL="1"), "unset ASCEND_GLOBAL_LOG_LEVEL", NEEDS),
    ("launch_blocking", variables(ASCEND_LAUNCH_BLOCKING="1"), "unset ASCEND_LAUNCH_BLOCKING", NEEDS),
]  # fmt: skip


def test_nothing_is_wrong_with_a_healthy_server(tmp_path: Path) -> None:
    machine = healthy(tmp_path)
    for needs in (NEEDS, TWO_NODES, ON_CPU, Needs(device="Ascend")):
        assert examine(machine, needs) == []
    assert examine(with_variables(machine, HCCL_BUFFSIZE="400", HCCL_CONNECT_TIMEOUT=None), PLANNED) == []
    assert examine(with_variables(machine, HCCL_BUFFSIZE="128"), PLANNED) == []
    assert dict(facts(machine, NEEDS))["versions"] == "driver 25.5.0, firmware 7.8.0.5.216, CANN 8.5.0"
    assert report_lines(facts(machine, NEEDS), [])[-1] == "nothing is wrong"


@pytest.mark.parametrize("folder", ["", "ops_math"])
def test_operators_are_looked_up_where_cann_lists_them(tmp_path: Path, folder: str) -> None:
    machine = healthy(tmp_path)
    nothing = "functions of libopapi.so: not found, operators of ascend910b: not found, prebuilt kernels: not found"
    assert dict(facts(machine, NEEDS))["operators"] == nothing
    machine = with_operators(machine, folder)
    assert examine(machine, NEEDS) == []
    assert dict(facts(machine, NEEDS))["operators"] == nothing.replace("not found", "compared")
    lost = with_operators(machine, folder, lost=("aclnnMm", "Pack"))
    kinds = {name: kind for kind, jobs in LAUNCHES.items() for name in (*jobs["aclnn"], *jobs["aclop"])}
    packs = [f"{launch} ({kind})" for launch, kind in kinds.items() if launch.startswith("Pack ")]
    write(machine.root, f"{HOME}/opp/built-in/op_impl/ai_core/tbe/config/ascend910b/aic-broken.json", "[" * 10000)
    assert [(one.name, one.what) for one in examine(lost, NEEDS)] == [
        ("functions_missing", f"libopapi.so lacks aclnnMm ({kinds['aclnnMm']})"),
        ("operators_missing", ", ".join(packs)),
    ]  # fmt: skip


def test_operators_are_compared_by_the_dtypes_of_their_inputs(tmp_path: Path) -> None:
    machine = with_operators(healthy(tmp_path))
    path = machine.path(f"{HOME}/opp/built-in/op_impl/ai_core/tbe/config/ascend910b/aic-ascend910b-ops-info.json")
    lists = json.loads(path.read_text())
    number = 1 + max(int(name[5:]) for name in lists["Pack"])
    lists["Pack"][f"input{number}"] = {"dtype": "int64,int64", "paramType": "optional"}
    path.write_text(json.dumps(lists))
    assert examine(machine, NEEDS) == [], "inputs that may be left out do not count"
    lists["Pack"] = {"input0": {"dtype": "float16,int8", "paramType": "dynamic"}}
    path.write_text(json.dumps(lists))
    assert [one.name for one in examine(machine, NEEDS)] == ["operators_dtypes"]


def test_launches_are_listed_under_the_first_kind_of_job_that_has_them(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("aclnnMm\naclop:Pack bfloat16\naclnnAdd\ninternal:MatMul bfloat16\n")
    (tmp_path / "b").write_text("aclop:Pack bfloat16\naclop:Pack float32\naclnnMm\n")
    words = [f"every run={tmp_path}/a", f"stages={tmp_path}/b", "--out", str(tmp_path / "out.yaml")]
    done = python(PROJECT / "tools/list_launches.py", *words)
    assert done.stdout.endswith("out.yaml: 4 operators\n"), done.stderr
    assert yaml.safe_load((tmp_path / "out.yaml").read_text()) == {
        "every run": {"aclnn": ["aclnnAdd", "aclnnMm"], "aclop": ["Pack bfloat16"]},
        "stages": {"aclnn": [], "aclop": ["Pack float32"]},
    }


def test_names_that_a_library_defines(tmp_path: Path) -> None:
    assert exported_names(library(["aclnnAdd", "b"], ["aclnnMm"])) == {"aclnnAdd", "b"}
    import numpy.random.mtrand

    assert "PyInit_mtrand" in exported_names(Path(numpy.random.mtrand.__file__).read_bytes())
    for wrong in (b"", b"MZ", library(["a"])[:90], b"\x7fELF\x01\x01" + bytes(60)):
        with pytest.raises((ValueError, struct.error)):
            exported_names(wrong)


@pytest.mark.parametrize(
    ("name", "change", "fix", "needs"), BROKEN, ids=[f"{n}-{i}" for i, (n, *_) in enumerate(BROKEN)]
)
def test_a_broken_machine_is_named_with_one_fix(
    tmp_path: Path, name: str, change: Break, fix: str, needs: Needs
) -> None:
    found = examine(change(healthy(tmp_path)), needs)
    assert [finding.name for finding in found] == [name]
    (finding,) = found
    assert finding.fix.startswith(fix), finding.fix
    assert finding.what and finding.why
    lines = report_lines([("host", "x")], found)
    assert len(lines) == 7 and lines[-1] in ("1 broken, 0 risks", "0 broken, 1 risk")


def test_every_known_problem_has_a_broken_machine() -> None:
    assert known_problems().keys() == {name for name, *_ in BROKEN}


def test_broken_ones_come_before_risks(tmp_path: Path) -> None:
    machine = all_of(variables(ASCEND_GLOBAL_LOG_LEVEL="0"), fields(listening=frozenset({60000})))(healthy(tmp_path))
    found = examine(replace(machine, encoding="ascii", python="3.13.1"), NEEDS)
    assert [finding.severity for finding in found] == [Severity.BROKEN] * 2 + [Severity.RISK] * 2


def test_npu_smi_of_a2_and_a3_is_read() -> None:
    cards = parse_npu_smi(npu_smi(process=4711))
    assert [card.number for card in cards] == list(range(8))
    assert (cards[3].name, cards[3].memory_used, cards[3].memory, cards[3].processes) == ("910B3", 3441, 65536, [4711])
    first, second = parse_npu_smi(NPU_SMI_A3)
    assert (first.number, first.npu, first.chip, first.health, first.memory_used) == (0, 0, 0, "OK", 3135)
    assert (second.number, second.npu, second.chip, second.health) == (1, 0, 1, "Alarm")
    assert (second.memory_used, second.processes) == (31000, [4711])
    assert parse_npu_smi("") == parse_npu_smi("| a | b | c |\n|||\n") == []


def test_cards_are_free_that_are_visible_and_have_no_process(tmp_path: Path) -> None:
    machine = healthy(tmp_path)
    assert free_cards(machine) == list(range(8))
    busy = replace(machine, run=lambda command: Output(0, npu_smi(process=4711)))
    assert free_cards(busy) == [0, 1, 2, 4, 5, 6, 7]
    assert free_cards(replace(busy, environment={"ASCEND_RT_VISIBLE_DEVICES": "2,3"})) == [2]
    assert free_cards(replace(machine, run=lambda command: None)) == list(range(8)), "npu-smi does not answer"


def test_needs_of_an_experiment(tmp_path: Path) -> None:
    machine = healthy(tmp_path)
    config = load_config(PROJECT / "examples/gsm8k/gspo_qwen2_5_7b.yaml", [], check_files=False)
    assert needs_of(machine, config, 2).ranks == 4 and needs_of(machine, config).device == "Ascend"
    assert needs_of(machine, None).device == "Ascend"
    assert needs_of(with_variables(removed("/dev", DRIVER)(machine), ASCEND_HOME_PATH=None), None).device == "CPU"
    # Groups: all ranks; model and data groups of both plans. Activations: rows x tokens x hidden size in bfloat16.
    needs = needs_of(machine, config)
    assert needs.buffers == 5 * 400 * MB <= needs.buffer_room and needs.swapped == 0
    assert needs.message == 4 * (2048 + 8192) * 3584 * 2
    swapping = load_config(PROJECT / "examples/gsm8k/gspo_qwen2_5_7b.yaml", ["swap.enabled=true"], check_files=False)
    # While old log-probs are computed, gradients, moments, the sampler's weights and the cache wait on the host.
    assert needs_of(machine, swapping).swapped / GB == pytest.approx(5.07 + 10.14 + 4.31 + 8.75, abs=0.01)
    with pytest.raises(ConfigError, match="--nodes 3: the plans need 8 ranks"):
        needs_of(machine, config, 3)


def test_the_bundle_holds_report_and_logs_and_no_secret(tmp_path: Path) -> None:
    machine = with_variables(
        healthy(tmp_path / "root"),
        HF_TOKEN="hf_abc",
        AWS_SECRET_ACCESS_KEY="xyz",
        MS_AUTH="geheim",
        HCCL_IF_IP="10.0.0.7",
        ASCEND_PROCESS_LOG_PATH="/plog",
    )
    write(machine.root, "/plog/debug/plog/plog-17_1.log", "[ERROR] EI0006\n")
    logs = tmp_path / "logs"
    write(logs, "rank_0.log", "x" * 400_000 + "\nhttp://me:geheim@host/a\nlast\n")
    rows, found = facts(machine, NEEDS), examine(fields(encoding="ascii")(machine), NEEDS)
    folder = tmp_path / "bundle"
    write_bundle(folder, machine, rows, found, logs)
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert names == ["codes.txt", "environment.txt", "logs/plog-17_1.log", "logs/rank_0.log", "npu-smi.txt",
                     "report.json", "report.txt"]  # fmt: skip
    everything = "".join(path.read_text() for path in folder.rglob("*") if path.is_file())
    assert not any(secret in everything for secret in ("hf_abc", "xyz", "geheim"))
    assert "HCCL_IF_IP=10.0.0.7" in everything and "HF_TOKEN=<not shown>" in everything
    assert (folder / "logs/rank_0.log").read_text().endswith("http://***@host/a\nlast\n")
    assert (folder / "logs/rank_0.log").stat().st_size < 300_000
    assert "  seen   plog-17_1.log: [ERROR] EI0006" in (folder / "codes.txt").read_text().splitlines()
    report = json.loads((folder / "report.json").read_text())
    assert [one["name"] for one in report["findings"]] == ["locale"]
    with pytest.raises(ConfigError, match="holds something already"):
        write_bundle(folder, machine, rows, found, None)


def test_the_command_writes_no_secret_for_nobody_else_to_read(tmp_path: Path) -> None:
    key = f"-----BEGIN PRIVATE KEY-----\n{'MIIEvQIBADANBg' * 4}\n-----END PRIVATE KEY-----"
    secrets = {"ASCEND_PASS": "geheim-eins", "HCCL_PASSPHRASE": "geheim zwei", "LANGSMITH_API": "lsv2_geheim3",
               "MS_SIGNING": "geheim-vier", "MINDGSPO_TOKEN": "geheim-5", "GLOG_KEY": key}  # fmt: skip
    write(tmp_path, "ascend/log/debug/plog/plog-1_1.log",
          "".join(f"{name} is {value}\n" for name, value in secrets.items() if name != "MS_SIGNING")
          + f"token: geheim-6\nhf_{'aBcDe' * 6}\n[ERROR] EI0006\n{key}\n")  # fmt: skip
    done = mindgspo("doctor", "--bundle", "out", cwd=tmp_path, env={**secrets, "HOME": str(tmp_path)})
    assert "to send to somebody who can help: out" in done.stdout, done.stderr
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600} and len(files) >= 4
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o700
    everything = "".join(path.read_text() for path in files)
    assert "geheim" not in everything and "MIIEvQ" not in everything and "aBcDe" not in everything
    assert "ASCEND_PASS=<not shown>" in everything and "EI0006" in (tmp_path / "out/codes.txt").read_text()


def test_no_folder_is_left_where_nothing_is_wrong(tmp_path: Path) -> None:
    done = mindgspo("doctor", cwd=tmp_path)
    assert ("nothing is wrong" in done.stdout) == (not list(tmp_path.glob("doctor-*"))), done.stdout
    assert ("nothing is wrong" in done.stdout) == ("to send to somebody" not in done.stdout)


def test_what_a_smoke_test_leaves_is_cleaned(tmp_path: Path) -> None:
    write(tmp_path, "logs/rank_0.log", "password=geheim\n")
    write(tmp_path, "run/export/model.safetensors", "weights")
    (tmp_path / "run/link").symlink_to("/etc/passwd")
    clean(tmp_path, {})
    assert (tmp_path / "logs/rank_0.log").read_text() == "password=***\n"
    assert [path.name for path in tmp_path.rglob("*") if not path.is_dir()] == ["rank_0.log"]
    assert (tmp_path / "logs/rank_0.log").stat().st_mode & 0o777 == 0o600


def test_a_proxy_with_a_password_is_not_shown() -> None:
    assert environment_lines({"MS_PROXY": "http://u:p@proxy:80", "http_proxy": "http://u:p@proxy"}) == [
        "MS_PROXY=http://***@proxy:80", "http_proxy=<not shown>",
    ]  # fmt: skip


def test_this_machine_is_read() -> None:
    machine = this_machine()
    assert machine.packages["mindspore"].startswith("2.") and machine.mindspore is not None
    assert machine.disk("/dev/shm").total > 0 and machine.memory > 0 and "lo" in machine.interfaces
    assert machine.run(("no-such-command",)) is None
    output = machine.run(("sh", "-c", "echo out; echo err >&2; exit 3"))
    assert output is not None and (output.code, output.text) == (3, "out\nerr\n")
    assert isinstance(facts(machine, needs_of(machine, None)), list)
