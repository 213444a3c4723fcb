"""Cards: their devices, health, users and links, by `npu-smi` and `hccn_tool`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from mindgspo.doctor.findings import Finding, Needs, broken, risk
from mindgspo.doctor.machine import Machine
from mindgspo.text import counted, listed

NPU_SMI = ("npu-smi", "info")
_MANAGERS = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")
_BUSY_SHARE = 0.15
"""Of the memory: an idle card shows 3 to 4 GB of 64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """number: of /dev/davinci. npu, chip: as npu-smi counts; two chips per NPU on A3. memory in MB. processes: ids."""

    number: int
    npu: int
    chip: int
    name: str
    health: str
    memory_used: int
    memory: int
    processes: tuple[int, ...]


def parse_npu_smi(text: str) -> list[Card]:
    """Cards of `npu-smi info`, in its order. A card has two rows; A3's second one has its number behind the chip."""
    cards: list[Card] = []
    users: dict[tuple[int, int], list[int]] = {}
    first: list[str] | None = None
    for line in text.splitlines():
        cells = [cell.split() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|") or not cells[0] or not cells[0][0].isdecimal():
            continue
        if len(cells) >= 4 and len(cells[0]) == 2 and cells[1] and cells[1][0].isdecimal():  # NPU chip | process | ...
            users.setdefault((int(cells[0][0]), int(cells[0][1])), []).append(int(cells[1][0]))
        elif len(cells) == 3 and len(cells[0]) == 2 and not cells[0][1].isdecimal():
            first = [cells[0][0], cells[0][1], " ".join(cells[1])]
        elif len(cells) == 3 and first is not None:
            sizes = re.findall(r"(\d+)\s*/\s*(\d+)", line)
            used, total = map(int, sizes[-1]) if sizes else (0, 0)
            number = int(cells[0][1]) if len(cells[0]) == 2 else len(cards)
            cards.append(
                Card(
                    number=number,
                    npu=int(first[0]),
                    chip=int(cells[0][0]),
                    name=first[1],
                    health=first[2],
                    memory_used=used,
                    memory=total,
                    processes=(),
                )
            )
            first = None
    return [_with_users(card, users.get((card.npu, card.chip), [])) for card in cards]


def _with_users(card: Card, processes: list[int]) -> Card:
    return Card(**{name: getattr(card, name) for name in card.__slots__ if name != "processes"},
                processes=tuple(processes))  # fmt: skip


def known_cards(machine: Machine) -> list[Card]:
    """By npu-smi; none where it does not answer."""
    output = machine.run(NPU_SMI)
    return parse_npu_smi(output.text) if output is not None and output.code == 0 else []


def visible_cards(machine: Machine) -> list[int]:
    """Devices that ASCEND_RT_VISIBLE_DEVICES leaves, all where it says nothing."""
    devices, text = machine.devices(), machine.environment.get("ASCEND_RT_VISIBLE_DEVICES")
    if text is None:
        return devices
    numbers = [int(word) for word in text.split(",") if word.strip().isdecimal()]
    return [number for number in numbers if number in devices]


def devices(machine: Machine, needs: Needs) -> Iterator[Finding]:
    """Whether the cards that are needed are there, visible, and may be opened."""
    if needs.device != "Ascend":
        return
    found = machine.devices()
    if not found:
        yield broken(
            "no_cards",
            "no /dev/davinci*",
            why="this machine or container sees no card",
            fix="start the container with --device=/dev/davinci0 ..., or with the Ascend Docker runtime",
        )
        return
    if missing := [name for name in _MANAGERS if not machine.exists(name)]:
        yield broken(
            "device_managers",
            f"no {listed(missing)}",
            why="the driver is spoken to through these, not through the card's device alone",
            fix=f"start the container with {' '.join(f'--device={name}' for name in missing)}",
        )
    yield from _visible(machine, needs, found)
    yield from _rights(machine, found)


def _visible(machine: Machine, needs: Needs, found: list[int]) -> Iterator[Finding]:
    text = machine.environment.get("ASCEND_RT_VISIBLE_DEVICES")
    visible = visible_cards(machine)
    if text is not None:
        words = [word.strip() for word in text.split(",")]
        wrong = [word for word in words if not word.isdecimal() or int(word) not in found]
        twice = [word for word, times in Counter(words).items() if times > 1]
        if wrong or twice:
            yield broken(
                "visible_devices",
                f"ASCEND_RT_VISIBLE_DEVICES={text}: {listed([repr(word) for word in wrong or twice])} "
                f"{'is no card of this machine' if wrong else 'stands there twice'}",
                why="ranks would share a card or find none (107001)",
                fix=f"export ASCEND_RT_VISIBLE_DEVICES={','.join(map(str, found))}",
            )
            return
    if len(visible) < needs.cards:
        yield broken(
            "too_few_cards",
            f"{counted(len(visible), 'card')} here, and the experiment needs {needs.cards} on this machine",
            why="each rank has a card of its own",
            fix="unset ASCEND_RT_VISIBLE_DEVICES"
            if text is not None and len(found) >= needs.cards
            else f"give plans for {len(visible)}, or --nodes",
        )


def _rights(machine: Machine, found: list[int]) -> Iterator[Finding]:
    paths = [f"/dev/davinci{number}" for number in found] + [name for name in _MANAGERS if machine.exists(name)]
    closed = [path for path in paths if not machine.may_open(path)]
    if not closed:
        return
    facts = machine.path(closed[0]).stat()
    if (facts.st_mode >> 3) & 0o6 == 0o6:
        yield broken(
            "device_group",
            f"user {machine.user} may not open {closed[0]}: it belongs to group {_group(machine, facts.st_gid)}",
            why="the driver refuses whoever is not in it (drv -8020, 207006)",
            fix=f"sudo usermod -aG {_group(machine, facts.st_gid)} {machine.user}, then log in anew",
        )
    else:
        yield broken(
            "device_rights",
            f"{closed[0]} has mode {facts.st_mode & 0o777:o}; not even its group may write",
            why="the driver made it with 660; something changed that",
            fix=f"sudo chmod 660 {' '.join(closed)}",
        )


def _group(machine: Machine, number: int) -> str:
    for line in (machine.text("/etc/group") or "").splitlines():
        fields = line.split(":")
        if len(fields) > 2 and fields[2] == str(number):
            return fields[0]
    return str(number)


def health(machine: Machine, needs: Needs) -> Iterator[Finding]:
    """What npu-smi says of the visible cards."""
    if needs.device != "Ascend" or not machine.devices():
        return
    output = machine.run(NPU_SMI)
    if output is None:
        yield risk(
            "npu_smi_missing",
            "npu-smi is not on the path",
            why="health, users and memory of the cards cannot be seen",
            fix="start the container with -v /usr/local/bin/npu-smi:/usr/local/bin/npu-smi:ro",
        )
        return
    cards = parse_npu_smi(output.text)
    if output.code or not cards:
        lines = [line for line in output.text.splitlines() if line.strip()]
        yield broken(
            "npu_smi_failed",
            f"npu-smi info: exit code {output.code}, {lines[-1].strip() if lines else 'no output'}",
            why="the driver does not answer: it is not loaded, or another container holds the cards",
            fix="let the administrator see `dmesg | grep -i davinci` on the host, and load the driver anew",
        )
        return
    visible = set(visible_cards(machine))
    cards = [card for card in cards if card.number in visible]
    if sick := [card for card in cards if card.health != "OK"]:
        card = sick[0]
        rest = [number for number in sorted(visible) if number not in {card.number for card in sick}]
        yield broken(
            "card_unhealthy",
            f"{listed([f'card {card.number}: {card.health}' for card in sick])}",
            why=f"it will fail in the run; npu-smi info -t health -i {card.npu} -c {card.chip} names the fault",
            fix=f"leave it out, export ASCEND_RT_VISIBLE_DEVICES={','.join(map(str, rest))}, and have it reset",
        )
    busy = [card for card in cards if card.processes or card.memory_used > _BUSY_SHARE * card.memory]
    if busy:
        card = busy[0]
        yield broken(
            "card_busy",
            f"card {card.number}: {card.memory_used} of {card.memory} MB in use"
            + (f" by process {listed(card.processes)}" if card.processes else ""),
            why="the run will lack that memory (EL0004, 207001), and an old process keeps HCCP (EJ0001)",
            fix=f"end it: kill {' '.join(map(str, card.processes))}, wait 10 s"
            if card.processes
            else f"end its process on the host, or npu-smi set -t reset -i {card.npu} -c {card.chip}",
        )


def links(machine: Machine, needs: Needs) -> Iterator[Finding]:
    """Network ports of the cards, where several machines need them."""
    if needs.device != "Ascend" or not needs.is_cluster:
        return
    states = {card: _hccn(machine, card, "-link") for card in visible_cards(machine)}
    down = [card for card, text in states.items() if re.search(r"link status:\s*DOWN", text or "", re.I)]
    if down and needs.nodes > 1:
        yield broken(
            "card_link_down",
            f"hccn_tool: link of {listed([f'card {card}' for card in down])} is DOWN",
            why="cards of other machines are reached through it (EJ0002, EI0006)",
            fix=f"check cable and switch port; hccn_tool -i {down[0]} -link -g must say UP",
        )
    switches = {card: _hccn(machine, card, "-tls") for card in visible_cards(machine)}
    found = {card: match[1] for card, text in switches.items()
             if (match := re.search(r"tls switch\[(\d)\]", text or ""))}  # fmt: skip
    if len(set(found.values())) > 1:
        odd = [card for card, value in found.items() if value == "0"]
        yield broken(
            "card_tls",
            f"TLS is off on {listed([f'card {card}' for card in odd])} and on on others",
            why="cards with another setting refuse each other (EI0004, EI0006)",
            fix=f"for each card: hccn_tool -i {odd[0]} -tls -s enable 1",
        )
    if needs.nodes > 1:
        config = machine.text("/etc/hccn.conf") or ""
        without = [card for card in visible_cards(machine) if f"address_{card}=" not in config]
        answers = [card for card in without if re.search(r"ipaddr:\s*\d", _hccn(machine, card, "-ip") or "")]
        if len(answers) < len(without):
            bare = next(card for card in without if card not in answers)
            yield broken(
                "card_address",
                f"card {bare} has no address of its own",
                why="HCCL meets other machines at the cards' addresses",
                fix=f"hccn_tool -i {bare} -ip -s address <ip> netmask <mask>, for each card",
            )


def _hccn(machine: Machine, card: int, what: str) -> str | None:
    output = machine.run(("hccn_tool", "-i", str(card), what, "-g"))
    return None if output is None or output.code else output.text
