"""Cards: their devices, health, users and links, by `npu-smi` and `hccn_tool`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from mindgspo.doctor.machine import Machine, MachineProblem, Needs, problem
from mindgspo.text import counted, listed

NPU_SMI = ("npu-smi", "info")
_MANAGERS = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")
_BUSY_SHARE = 0.15
"""Share of the memory in use: an idle card shows 3 to 4 GB of 64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardStatus:
    """A card as `npu-smi info` shows it."""

    number: int
    """N of /dev/davinciN."""
    npu: int
    chip: int
    """On its NPU: A3 has two."""
    name: str
    health: str
    memory_used: int
    """MB, as `memory`."""
    memory: int
    processes: list[int] = field(default_factory=list)


def parse_npu_smi(text: str) -> list[CardStatus]:
    """Cards of `npu-smi info`, in its order. A card has two rows; A3's second one has its number after the chip."""
    cards: list[CardStatus] = []
    first: list[list[str]] = []
    for line in text.splitlines():
        cells = [cell.split() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|") or not cells[0] or not cells[0][0].isdecimal():
            continue
        if len(cells) >= 4 and len(cells[0]) == 2 and cells[1] and cells[1][0].isdecimal():  # NPU chip | process | ...
            for card in cards:
                if [str(card.npu), str(card.chip)] == cells[0]:
                    card.processes.append(int(cells[1][0]))
        elif len(cells) == 3 and len(cells[0]) == 2 and not cells[0][1].isdecimal():
            first = cells
        elif len(cells) == 3 and first:
            sizes = re.findall(r"(\d+)\s*/\s*(\d+)", line)
            used, total = map(int, sizes[-1]) if sizes else (0, 0)
            number = int(cells[0][1]) if len(cells[0]) == 2 else len(cards)
            (npu, name), health = first[0], " ".join(first[1])
            cards.append(
                CardStatus(
                    number=number, npu=int(npu), chip=int(cells[0][0]), name=name, health=health, memory_used=used,
                    memory=total,
                )
            )  # fmt: skip
            first = []
    return cards


def known_cards(machine: Machine) -> list[CardStatus]:
    """Cards that npu-smi shows; none if it does not answer."""
    output = machine.run(NPU_SMI)
    return parse_npu_smi(output.text) if output is not None and output.code == 0 else []


def visible_cards(machine: Machine) -> list[int]:
    """Devices that ASCEND_RT_VISIBLE_DEVICES leaves visible; all if it is not set."""
    devices, text = machine.devices(), machine.environment.get("ASCEND_RT_VISIBLE_DEVICES")
    if text is None:
        return devices
    numbers = [int(word) for word in text.split(",") if word.strip().isdecimal()]
    return [number for number in numbers if number in devices]


def free_cards(machine: Machine) -> list[int]:
    """Visible devices without a process, as far as npu-smi tells."""
    busy = {card.number for card in known_cards(machine) if card.processes}
    return [number for number in visible_cards(machine) if number not in busy]


def devices(machine: Machine, needs: Needs) -> Iterator[MachineProblem]:
    """Whether the cards that are needed are there, visible, and may be opened."""
    if needs.device != "Ascend":
        return
    found = machine.devices()
    if not found:
        yield problem("no_cards", "no /dev/davinci*")
        return
    if missing := [name for name in _MANAGERS if not machine.exists(name)]:
        options = " ".join(f"--device={name}" for name in missing)
        yield problem("device_managers", f"no {listed(missing)}", options=options)
    yield from _visible(machine, needs, found)
    yield from _rights(machine, found)


def _visible(machine: Machine, needs: Needs, found: list[int]) -> Iterator[MachineProblem]:
    text = machine.environment.get("ASCEND_RT_VISIBLE_DEVICES")
    words = [] if text is None else [word.strip() for word in text.split(",")]
    wrong = [word for word in words if not word.isdecimal() or int(word) not in found]
    twice = [word for word, times in Counter(words).items() if times > 1]
    visible = len(visible_cards(machine))
    if wrong or twice:
        how = "is no card of this machine" if wrong else "stands there twice"
        what = f"ASCEND_RT_VISIBLE_DEVICES={text}: {listed([repr(word) for word in wrong or twice])} {how}"
        yield problem("visible_devices", what, cards=",".join(map(str, found)))
    elif visible < needs.cards:
        what = f"{counted(visible, 'card')} here, and the experiment needs {needs.cards} on this machine"
        hides = text is not None and len(found) >= needs.cards
        remedy = "unset ASCEND_RT_VISIBLE_DEVICES" if hides else f"give plans for {visible}, or --nodes"
        yield problem("too_few_cards", what, remedy=remedy)


def _rights(machine: Machine, found: list[int]) -> Iterator[MachineProblem]:
    paths = [f"/dev/davinci{number}" for number in found] + [name for name in _MANAGERS if machine.exists(name)]
    closed = [path for path in paths if not machine.may_open(path)]
    if not closed:
        return
    facts = machine.path(closed[0]).stat()
    if (facts.st_mode >> 3) & 0o6 == 0o6:
        group = _group(machine, facts.st_gid)
        what = f"user {machine.user} may not open {closed[0]}: it belongs to group {group}"
        yield problem("device_group", what, group=group, user=machine.user)
    else:
        what = f"{closed[0]} has mode {facts.st_mode & 0o777:o}; not even its group may write"
        yield problem("device_rights", what, paths=" ".join(closed))


def _group(machine: Machine, number: int) -> str:
    lines = [line.split(":") for line in machine.text("/etc/group").splitlines()]
    return next((fields[0] for fields in lines if len(fields) > 2 and fields[2] == str(number)), str(number))


def health(machine: Machine, needs: Needs) -> Iterator[MachineProblem]:
    """Health and users of the visible cards."""
    if needs.device != "Ascend" or not machine.devices():
        return
    output = machine.run(NPU_SMI)
    if output is None:
        yield problem("npu_smi_missing", "npu-smi is not on the path")
        return
    cards = parse_npu_smi(output.text)
    if output.code or not cards:
        last = next((line.strip() for line in reversed(output.text.splitlines()) if line.strip()), "no output")
        yield problem("npu_smi_failed", f"npu-smi info: exit code {output.code}, {last}")
        return
    visible = visible_cards(machine)
    cards = [card for card in cards if card.number in visible]
    if sick := [card for card in cards if card.health != "OK"]:
        others = ",".join(str(card.number) for card in cards if card not in sick)
        what = listed([f"card {card.number}: {card.health}" for card in sick])
        yield problem("card_unhealthy", what, npu=sick[0].npu, chip=sick[0].chip, others=others)
    for card in cards:
        if card.processes or card.memory_used > _BUSY_SHARE * card.memory:
            by = f" by process {listed(card.processes)}" if card.processes else ""
            remedy = f"end its process on the host, or npu-smi set -t reset -i {card.npu} -c {card.chip}"
            if card.processes:
                remedy = f"end it: kill {' '.join(map(str, card.processes))}, wait 10 s; to share the card, give both "
                remedy += "ports of their own: export HCCL_HOST_SOCKET_PORT_RANGE=auto HCCL_NPU_SOCKET_PORT_RANGE=auto"
            what = f"card {card.number}: {card.memory_used} of {card.memory} MB in use{by}"
            yield problem("card_busy", what, remedy=remedy)
            return  # one tells enough: mostly a whole run was left over


def links(machine: Machine, needs: Needs) -> Iterator[MachineProblem]:
    """Network ports of the cards, where ranks need them."""
    if needs.device != "Ascend" or not needs.is_cluster:
        return
    cards = visible_cards(machine)
    tls = {card: re.search(r"tls switch\[(\d)\]", _hccn(machine, card, "-tls")) for card in cards}
    odd = [card for card, found in tls.items() if found and found[1] == "0"]
    if 0 < len(odd) < sum(found is not None for found in tls.values()):
        yield problem(
            "card_tls", f"TLS is off on {listed([f'card {card}' for card in odd])} and on on others", card=odd[0]
        )
    if needs.nodes == 1:
        return
    if down := [card for card in cards if re.search(r"link status:\s*DOWN", _hccn(machine, card, "-link"), re.I)]:
        what = f"hccn_tool: link of {listed([f'card {card}' for card in down])} is DOWN"
        yield problem("card_link_down", what, card=down[0])
    config = machine.text("/etc/hccn.conf")
    unlisted = [card for card in cards if f"address_{card}=" not in config]
    if bare := [card for card in unlisted if not re.search(r"ipaddr:\s*\d", _hccn(machine, card, "-ip"))]:
        yield problem("card_address", f"card {bare[0]} has no address of its own", card=bare[0])


def _hccn(machine: Machine, card: int, what: str) -> str:
    output = machine.run(("hccn_tool", "-i", str(card), what, "-g"))
    return "" if output is None or output.code else output.text
