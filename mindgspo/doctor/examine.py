"""All checks in order, and what is looked at."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from mindgspo.config import ExperimentConfig
from mindgspo.doctor import cards, hccl, host, software
from mindgspo.doctor.findings import Check, Finding, Needs, broken
from mindgspo.doctor.machine import Machine
from mindgspo.errors import ConfigError
from mindgspo.text import counted, listed

CHECKS: tuple[Check, ...] = (
    software.python_packages, cards.devices, software.driver, software.cann, cards.health, cards.links,
    hccl.leftovers, hccl.variables, hccl.rank_table, hccl.ports,
    host.disks, host.limits, host.memory, host.surroundings,
)  # fmt: skip


def needs_of(machine: Machine, config: ExperimentConfig | None, nodes: int = 1) -> Needs:
    """What an experiment asks of each of so many machines; without one, what any would. Raises ConfigError for nodes
    that do not divide its ranks."""
    if config is None:
        has_ascend = machine.has_cards() or "ASCEND_HOME_PATH" in machine.environment
        return Needs(device="Ascend" if has_ascend else "CPU", nodes=nodes, run_dir=Path.cwd())
    ranks, infer = config.plans.train.world_size, config.plans.infer
    if ranks % nodes:
        raise ConfigError(f"--nodes {nodes}: the plans need {counted(ranks, 'rank')}, the same number on every node")
    assert config.run_dir is not None, "config is not resolved"
    return Needs(
        device=config.device,
        ranks=ranks // nodes,
        cards=ranks // nodes + (infer.world_size if config.has_own_servers else 0),
        nodes=nodes,
        run_dir=config.run_dir.absolute(),
        has_config=True,
    )


def examine(machine: Machine, needs: Needs) -> list[Finding]:
    """What is wrong, in the order of the checks; broken ones first."""
    found = []
    if needs.device == "Ascend" and not machine.has_cards():
        found.append(
            broken(
                "no_npu",
                "no NPU: neither /dev/davinci* nor a driver",
                why="device Ascend needs cards; everything below is checked for CPU",
                fix="--set device=CPU, or start the container with the cards' devices and the driver",
            )
        )
        needs = replace(needs, device="CPU", ranks=1)
    found += [finding for check in CHECKS for finding in check(machine, needs)]
    return sorted(found, key=lambda finding: finding.level.value)


def facts(machine: Machine, needs: Needs) -> list[tuple[str, str]]:
    """What was looked at, by name."""
    known = [
        f"{card.number}: {card.name} {card.health} {card.memory_used}/{card.memory} MB"
        for card in cards.known_cards(machine)
    ]
    mindspores = [f"{name} {version}" for name, version in machine.packages.items() if name != "numpy"]
    cluster = f"{counted(needs.ranks, 'rank')} on each of {counted(needs.nodes, 'machine')}"
    memory = f"{counted(machine.cores, 'core')}, {machine.memory / 2**30:.1f} GB of memory"
    rows = [
        ("host", f"{machine.host}, {machine.processor}, {memory}"),
        ("for", f"device {needs.device}, {cluster if needs.has_config else 'no experiment was named'}"),
        ("python", f"{machine.python}, {listed(mindspores) or 'no MindSpore'}, numpy {machine.packages.get('numpy')}"),
        ("tested", f"device {needs.device} with MindSpore {listed(software.MINDSPORES[needs.device])}"),
        ("npu", listed(known, most=16) or ("npu-smi does not answer" if machine.has_cards() else "none here")),
    ]
    if machine.has_cards() or needs.device == "Ascend":
        versions = (
            ("driver", software.driver_version(machine)),
            ("firmware", software.firmware_version(machine)),
            ("CANN", software.cann_version(machine)),
        )
        rows.append(("versions", ", ".join(f"{name} {version or 'unknown'}" for name, version in versions)))
    shared, run_dir = machine.disk("/dev/shm"), machine.disk(str(needs.run_dir))
    rows.append(
        ("disks", f"/dev/shm {shared.free / 2**30:.1f} GB free, {needs.run_dir} {run_dir.free / 2**30:.1f} GB free")
    )
    limits = {name: "unlimited" if value is None else str(value) for name, value in machine.limits.items()}
    rows.append(("limits", ", ".join(f"{name} {value}" for name, value in limits.items())))
    return rows
