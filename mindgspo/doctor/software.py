"""Python, MindSpore, CANN and driver: whether they are there, and fit each other.

`check_version` of MindSpore 2.10 has the series of CANN; MindFormers' installation page has the driver of each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from mindgspo.doctor.findings import Finding, Needs, broken, risk
from mindgspo.doctor.machine import DRIVER, Machine
from mindgspo.text import listed

PYTHONS = ("3.10", "3.11", "3.12")
MINDSPORES = {"CPU": ("2.9", "2.10"), "Ascend": ("2.10",)}
"""Series that the tests ran with; Ascend: on emulated cards."""
CANN_SERIES = ("8.2", "8.3", "8.5", "9.0", "9.1")
DRIVER_OF_CANN = {"8.2": (25, 2), "8.3": (25, 3), "8.5": (25, 5), "9.0": (26, 0), "9.1": (26, 0)}
"""The oldest driver that MindFormers' table pairs with a series of CANN; 9.1 is not in it, and needs no older one."""

_MINDSPORES = ("mindspore", "mindspore-ascend", "mindspore-cpu", "mindspore-gpu", "mindspore-dev")
_USUAL_CANN = ("/usr/local/Ascend/ascend-toolkit/latest", "/usr/local/Ascend/cann", "/usr/local/Ascend/latest")
_KERNELS = "opp/built-in/op_impl/ai_core/tbe/kernel"


def python_packages(machine: Machine, needs: Needs) -> Iterator[Finding]:
    """Python, MindSpore, numpy."""
    series = ".".join(machine.python.split(".")[:2])
    if series not in PYTHONS:
        yield broken(
            "python_version",
            f"Python {machine.python}",
            why="MindSpore has wheels for 3.10, 3.11 and 3.12 only",
            fix="make an environment with one of them: python3.11 -m venv .venv",
        )
    installed = [name for name in _MINDSPORES if name in machine.packages]
    if machine.mindspore is None:
        yield broken(
            "mindspore_missing",
            f"no MindSpore in this Python {machine.python}",
            why="everything but `check`, `plan` and `report` needs it",
            fix="pip install 'mindspore~=2.10.0', or on a CANN image use the Python that has it",
        )
        return
    if len(installed) > 1:
        yield broken(
            "two_mindspores",
            f"{listed([f'{name} {machine.packages[name]}' for name in installed])} in one environment",
            why="they write into one folder `mindspore`, whose files are then a mixture",
            fix=f"pip uninstall -y {' '.join(installed)}, then pip install 'mindspore~=2.10.0'",
        )
    elif installed and ".".join(machine.packages[installed[0]].split(".")[:2]) not in MINDSPORES[needs.device]:
        yield broken(
            "mindspore_version",
            f"{installed[0]} {machine.packages[installed[0]]}",
            why=f"device {needs.device} is tested with MindSpore {listed(MINDSPORES[needs.device])}; other series have "
            "other operators and layouts",
            fix="pip install 'mindspore~=2.10.0'",
        )
    numpy = machine.packages.get("numpy", "")
    if not numpy.startswith("1.") or _numbers(numpy) < (1, 26):
        yield broken(
            "numpy_version",
            f"numpy {numpy or 'missing'}",
            why="MindSpore is built for numpy 1.x; with 2.x its errors turn into ImportErrors",
            fix="pip install 'numpy>=1.26,<2'",
        )
    plugin = machine.mindspore / "lib" / "plugin" / "libmindspore_ascend.so.2"
    if needs.device == "Ascend" and not plugin.is_file():
        yield broken(
            "mindspore_without_ascend",
            f"MindSpore at {machine.mindspore} has no Ascend plugin ({plugin.name})",
            why="it was built for CPU alone, and sees no card",
            fix="pip install --force-reinstall 'mindspore~=2.10.0'",
        )


def cann(machine: Machine, needs: Needs) -> Iterator[Finding]:
    """CANN's folder, environment, version and kernels."""
    if needs.device != "Ascend":
        return
    home = machine.environment.get("ASCEND_HOME_PATH") or machine.environment.get("ASCEND_TOOLKIT_HOME")
    usual = next((folder for folder in _USUAL_CANN if machine.exists(f"{folder}/lib64")), None)
    if not home:
        yield (
            broken(
                "cann_missing",
                f"no CANN: ASCEND_HOME_PATH is not set, and nothing is at {listed(_USUAL_CANN)}",
                why="MindSpore loads CANN's libraries to reach a card",
                fix="install CANN's toolkit and kernels for this chip, 9.1, or use a CANN image",
            )
            if usual is None
            else broken(
                "cann_not_sourced",
                f"CANN is at {usual}, and ASCEND_HOME_PATH is not set",
                why="libraries, operators and compilers are found through variables that set_env.sh sets",
                fix=f"source {_set_env(machine, usual)}",
            )
        )
        return
    if not machine.exists(f"{home}/lib64"):
        yield broken(
            "cann_path_gone",
            f"ASCEND_HOME_PATH={home} has no lib64",
            why="the libraries of CANN are looked for there",
            fix=f"source {_set_env(machine, usual or '/usr/local/Ascend/ascend-toolkit/latest')} in a new shell",
        )
        return
    yield from _cann_environment(machine, home)
    yield from _cann_versions(machine, home)


def _set_env(machine: Machine, home: str) -> str:
    beside = f"{home}/set_env.sh"
    return beside if machine.exists(beside) else f"{home.rpartition('/')[0]}/set_env.sh"


def _cann_environment(machine: Machine, home: str) -> Iterator[Finding]:
    folders = machine.environment.get("LD_LIBRARY_PATH", "").split(":")
    own = machine.path(f"{home}/lib64").resolve()
    places = [machine.path(folder).resolve() for folder in folders if folder.startswith("/")]
    others = [place for place in places if place != own and (place / "libascendcl.so").is_file()]
    if own not in places:
        yield broken(
            "cann_library_path",
            f"LD_LIBRARY_PATH does not hold {home}/lib64",
            why="libascendcl.so and its siblings are not found when MindSpore loads its plugin",
            fix=f"source {_set_env(machine, home)}",
        )
    elif any(places.index(other) < places.index(own) for other in others if "stub" not in other.name):
        other = next(folder for folder, place in zip(folders, places, strict=False) if place in others)
        yield broken(
            "two_canns",
            f"LD_LIBRARY_PATH has {other} before {home}/lib64",
            why="libraries of one CANN work with operators of another",
            fix=f"open a new shell and source only {_set_env(machine, home)}",
        )
    opp = machine.environment.get("ASCEND_OPP_PATH")
    if not opp or not machine.exists(opp):
        yield broken(
            "cann_opp",
            f"ASCEND_OPP_PATH is {opp or 'not set'}{', which does not exist' if opp else ''}",
            why="kernels and their tiling are looked for there: every operator would be unknown (E19999, EZ3003)",
            fix=f"source {_set_env(machine, home)}",
        )
    elif machine.exists(opp) and not any(machine.path(f"{home}/{_KERNELS}").glob("ascend910*")):
        yield broken(
            "cann_kernels",
            f"no kernels for Ascend 910 in {home}/{_KERNELS}",
            why="the toolkit alone holds none: aclnn operators fail with 561003",
            fix="install the kernels package of the same version and chip (Ascend-cann-kernels-910b, 8.5 on: -ops)",
        )
    if not machine.exists(f"{home}/lib64/libhccl.so"):
        yield broken(
            "hccl_missing",
            f"{home}/lib64 has no libhccl.so",
            why="collectives between cards are in it",
            fix="install the whole toolkit (nnrt, the run-time package alone, has no HCCL)",
        )


def _cann_versions(machine: Machine, home: str) -> Iterator[Finding]:
    version = cann_version(machine)
    series = ".".join((version or "").split(".")[:2])
    if version is not None and series not in CANN_SERIES:
        yield broken(
            "cann_version",
            f"CANN {version}",
            why=f"MindSpore 2.10 takes {listed(CANN_SERIES)}",
            fix="install CANN 9.1, toolkit and kernels",
        )
    elif (built := _built_with(machine)) is not None and built != series:
        yield risk(
            "cann_other_kernels",
            f"CANN {version}; MindSpore's own kernels were built with CANN {built}",
            why="MindSpore takes it with a warning; kernels of another release may fail (507015)",
            fix=f"install CANN {built}, toolkit and kernels",
        )
    driver = driver_version(machine)
    least = DRIVER_OF_CANN.get(series)
    if driver is not None and least is not None and _numbers(driver)[:2] < least:
        yield risk(
            "driver_old",
            f"driver {driver} under CANN {version}",
            why=f"CANN {series} came with driver {least[0]}.{least[1]}; older ones lack what it calls (207019, 507899)",
            fix=f"let the administrator install driver and firmware {least[0]}.{least[1]} or newer on the host",
        )


def _built_with(machine: Machine) -> str | None:
    """Series of the CANN that the kernels in MindSpore's wheel were built with."""
    if machine.mindspore is None:
        return None
    path = machine.mindspore / "lib" / "plugin" / "ascend" / "custom_ascendc_910b" / "version.info"
    found = re.search(r"=\s*(\d+\.\d+)", path.read_text(encoding="utf-8")) if path.is_file() else None
    return found[1] if found else None


def driver(machine: Machine, needs: Needs) -> Iterator[Finding]:
    """The driver's files, as a container sees them."""
    if needs.device != "Ascend":
        return
    if machine.devices() and not machine.exists(f"{DRIVER}/lib64"):
        yield broken(
            "driver_missing",
            f"/dev/davinci{machine.devices()[0]} is there, {DRIVER}/lib64 is not",
            why="CANN reaches cards through the driver's libraries (libascend_hal.so)",
            fix=f"start the container with -v {DRIVER}:{DRIVER}:ro",
        )
    elif machine.exists(f"{DRIVER}/lib64") and not _finds_driver(machine):
        yield broken(
            "driver_library_path",
            f"neither LD_LIBRARY_PATH nor /etc/ld.so.conf.d names {DRIVER}/lib64",
            why="libascend_hal.so is not found",
            fix=f"export LD_LIBRARY_PATH={DRIVER}/lib64/driver:{DRIVER}/lib64/common:$LD_LIBRARY_PATH",
        )


def _finds_driver(machine: Machine) -> bool:
    if f"{DRIVER}/lib64" in machine.environment.get("LD_LIBRARY_PATH", ""):
        return True
    return any(f"{DRIVER}/lib64" in (machine.text(f"/etc/ld.so.conf.d/{path.name}") or "")
               for path in machine.path("/etc/ld.so.conf.d").glob("*.conf"))  # fmt: skip


def cann_version(machine: Machine) -> str | None:
    """Of the CANN of ASCEND_HOME_PATH, as its files say."""
    home = machine.environment.get("ASCEND_HOME_PATH") or machine.environment.get("ASCEND_TOOLKIT_HOME")
    if not home:
        return None
    for name in ("compiler/version.info", "toolkit/version.info", "runtime/version.info", "version.info"):
        if found := re.search(r"^Version\s*=\s*(\S+)", machine.text(f"{home}/{name}") or "", re.MULTILINE):
            return found[1]
    return None


def driver_version(machine: Machine) -> str | None:
    """As the driver's file says."""
    found = re.search(r"^Version\s*=\s*(\S+)", machine.text(f"{DRIVER}/version.info") or "", re.MULTILINE | re.I)
    return found[1] if found else None


def firmware_version(machine: Machine) -> str | None:
    """As the firmware's file says; a container has none."""
    text = machine.text("/usr/local/Ascend/firmware/version.info") or ""
    found = re.search(r"^Version\s*=\s*(\S+)", text, re.MULTILINE | re.I)
    return found[1] if found else None


def _numbers(version: str) -> tuple[int, ...]:
    """`25.0.RC1` -> (25, 0, 1)."""
    return tuple(int(number) for number in re.findall(r"\d+", version))
