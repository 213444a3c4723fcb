"""Workers run on the processors beside their cards, where npu-smi names them and the user has not chosen others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mindgspo.launch.failures import open_folder
from mindgspo.launch.processes import plan_cluster, processors_beside_cards, start_processes
from mindgspo.parallel.platform import runtime
from mindgspo.parallel.platform.worker_process import LaunchOrders

# As on an Atlas 800T A2: the cards' nodes are in another order than the cards.
TOPOLOGY = """\
\t   NPU0       NPU1       NPU2       NPU3       CPU Affinity
NPU0       X          HCCS       HCCS       HCCS       144-167
NPU1       HCCS       X          HCCS       HCCS       144-167
NPU2       HCCS       HCCS       X          HCCS       96-97,99
NPU3       HCCS       HCCS       HCCS       X          0

Legend:
  X    = Self
"""


@pytest.fixture
def npu_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """npu_smi(text): the program prints it."""
    monkeypatch.setattr(os, "cpu_count", lambda: len(os.sched_getaffinity(0)))
    monkeypatch.delenv("ASCEND_RT_VISIBLE_DEVICES", raising=False)

    def answer(text: str, code: int = 0) -> None:
        program = tmp_path / "bin" / "npu-smi"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n[ \"$*\" = 'info -t topo' ] || exit 2\ncat <<'END'\n{text}\nEND\nexit {code}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")

    return answer


def test_each_card_has_its_row(npu_smi, monkeypatch: pytest.MonkeyPatch) -> None:
    npu_smi(TOPOLOGY)
    first, second, third, fourth = processors_beside_cards()
    assert first == second == set(range(144, 168)) and third == {96, 97, 99} and fourth == {0}
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "3,0")
    assert processors_beside_cards() == [fourth, first]


@pytest.mark.parametrize("visible", ["4", "all"])
def test_cards_of_unknown_numbers_are_left_alone(npu_smi, monkeypatch: pytest.MonkeyPatch, visible: str) -> None:
    npu_smi(TOPOLOGY)
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", visible)
    assert processors_beside_cards() == []


def test_a_table_without_processors_says_nothing(npu_smi) -> None:
    npu_smi("Phy-ID0  X  HCCS\nNPU0   X   HCCS", code=1)
    assert processors_beside_cards() == []


def test_processors_that_the_user_has_chosen_are_kept(npu_smi, monkeypatch: pytest.MonkeyPatch) -> None:
    npu_smi(TOPOLOGY)
    monkeypatch.setattr(os, "cpu_count", lambda: len(os.sched_getaffinity(0)) + 1)
    assert processors_beside_cards() == []


def test_without_cards_npu_smi_is_not_asked(npu_smi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as those of a run on the CPU of an Atlas server, and emulated ones."""
    npu_smi(f"NPU0 X {min(os.sched_getaffinity(0))}")
    plan = plan_cluster(num_workers=1, nodes=1, node_rank=0, master_addr="127.0.0.1", master_port=None)
    script = "import os; print(sorted(os.sched_getaffinity(0)))"
    for on_cards, emulated in ((False, ""), (True, "1")):
        if emulated:
            monkeypatch.setenv(runtime.EMULATED, emulated)
        with open_folder(tmp_path / f"logs{emulated}", plan.members) as folder:
            orders = LaunchOrders(log_dir=str(folder.log_dir), state_dir=str(folder.state_dir), launcher=os.getpid(),
                                  is_terminal=False)  # fmt: skip
            started = start_processes(["-c", script], plan, folder, orders, on_cards=on_cards)
            assert {process.wait(timeout=60) for process in started.values()} == {0}
            assert folder.log(0).read_text() == f"{sorted(os.sched_getaffinity(0))}\n"


def test_workers_start_beside_their_cards_and_say_so(npu_smi, tmp_path: Path) -> None:
    ours = sorted(os.sched_getaffinity(0))
    if len(ours) < 2:
        pytest.skip("needs two processors")
    npu_smi(f"NPU0 X HCCS {ours[1]}\nNPU1 HCCS X {ours[0]}")
    plan = plan_cluster(num_workers=3, nodes=1, node_rank=0, master_addr="127.0.0.1", master_port=None)
    script = "import os, time; time.sleep(1); print(sorted(os.sched_getaffinity(0)))"
    with open_folder(tmp_path / "logs", plan.members) as folder:
        orders = LaunchOrders(log_dir=str(folder.log_dir), state_dir=str(folder.state_dir), launcher=os.getpid(),
                              is_terminal=False)  # fmt: skip
        for process in start_processes(["-c", script], plan, folder, orders, on_cards=True).values():
            assert process.wait(timeout=60) == 0
        told = [folder.log(rank).read_text().splitlines() for rank in range(3)]
    beside = "rank {} runs on 1 processor beside its card"
    assert told == [[beside.format(0), f"[{ours[1]}]"], [beside.format(1), f"[{ours[0]}]"], [str(ours)]]
