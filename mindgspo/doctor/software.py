"""Python, MindSpore, CANN and driver: checks that they are present and compatible.

`check_version` of MindSpore 2.10 has the series of CANN; MindFormers' installation page has the driver of each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from mindgspo.doctor.machine import DRIVER, MINDSPORE_PACKAGES, Machine, MachineProblem, Needs, problem
from mindgspo.text import listed

PYTHONS = ("3.10", "3.11", "3.12")
MINDSPORES = {"CPU": ("2.9", "2.10"), "Ascend": ("2.10",)}
"""Series that the tests ran with; Ascend: on emulated cards."""
CANN_SERIES = ("8.2", "8.3", "8.5", "9.0", "9.1")
DRIVER_OF_CANN = {"8.2": (25, 2), "8.3": (25, 3), "8.5": (25, 5), "9.0": (26, 0), "9.1": (26, 0)}
"""The oldest driver that MindFormers' table pairs with a series of CANN; 9.1 is not in it, and needs no older one."""

_USUAL_CANN = ("/usr/local/Ascend/ascend-toolkit/latest", "/usr/local/Ascend/cann", "/usr/local/Ascend/latest")
KERNELS = "opp/built-in/op_impl/ai_core/tbe/kernel"
_CANN_VERSION_FILES = ("compiler/version.info", "toolkit/version.info", "runtime/version.info", "version.info")


def python_packages(machine: Machine, needs: Needs) -> Iterator[MachineProblem]:
    """Python, MindSpore, numpy."""
    if _series(machine.python) not in PYTHONS:
        yield problem("python_version", f"Python {machine.python}")
    if machine.mindspore is None:
        yield problem("mindspore_missing", f"no MindSpore in this Python {machine.python}")
        return
    installed = [name for name in MINDSPORE_PACKAGES if name in machine.packages]
    versions = [f"{name} {machine.packages[name]}" for name in installed]
    tested = MINDSPORES[needs.device]
    if len(installed) > 1:
        yield problem("two_mindspores", f"{listed(versions)} in one environment", installed=" ".join(installed))
    elif installed and _series(machine.packages[installed[0]]) not in tested:
        yield problem("mindspore_version", versions[0], device=needs.device, tested=listed(tested))
    numpy = machine.packages.get("numpy", "")
    if not (1, 26) <= _numbers(numpy) < (2,):
        yield problem("numpy_version", f"numpy {numpy or 'missing'}")
    plugin = machine.mindspore / "lib" / "plugin" / "libmindspore_ascend.so.2"
    if needs.device == "Ascend" and not plugin.is_file():
        what = f"MindSpore at {machine.mindspore} has no Ascend plugin ({plugin.name})"
        yield problem("mindspore_without_ascend", what)


def cann(machine: Machine, needs: Needs) -> Iterator[MachineProblem]:
    """CANN's folder, environment, version and kernels."""
    if needs.device != "Ascend":
        return
    home = cann_home(machine)
    usual = next((folder for folder in _USUAL_CANN if machine.exists(f"{folder}/lib64")), None)
    if home and machine.exists(f"{home}/lib64"):
        yield from _cann_environment(machine, home)
        yield from _cann_versions(machine)
    elif home:
        set_env = _set_env(machine, usual or _USUAL_CANN[0])
        yield problem("cann_path_gone", f"ASCEND_HOME_PATH={home} has no lib64", set_env=set_env)
    elif usual:
        what = f"CANN is at {usual}, and ASCEND_HOME_PATH is not set"
        yield problem("cann_not_sourced", what, set_env=_set_env(machine, usual))
    else:
        yield problem("cann_missing", f"no CANN: ASCEND_HOME_PATH is not set, and nothing is at {listed(_USUAL_CANN)}")


def cann_home(machine: Machine) -> str | None:
    """Folder of the CANN that this shell uses."""
    return machine.environment.get("ASCEND_HOME_PATH") or machine.environment.get("ASCEND_TOOLKIT_HOME")


def _set_env(machine: Machine, home: str) -> str:
    beside = f"{home}/set_env.sh"
    return beside if machine.exists(beside) else f"{home.rpartition('/')[0]}/set_env.sh"


def _cann_environment(machine: Machine, home: str) -> Iterator[MachineProblem]:
    set_env = _set_env(machine, home)
    yield from _library_path(machine, home, set_env)
    opp = machine.environment.get("ASCEND_OPP_PATH")
    if not opp or not machine.exists(opp):
        what = f"ASCEND_OPP_PATH={opp} does not exist" if opp else "ASCEND_OPP_PATH is not set"
        yield problem("cann_opp", what, set_env=set_env)
    elif not any(machine.path(f"{home}/{KERNELS}").glob("ascend910*")):
        yield problem("cann_kernels", f"no kernels for Ascend 910 in {home}/{KERNELS}")
    if not machine.exists(f"{home}/lib64/libhccl.so"):
        yield problem("hccl_missing", f"{home}/lib64 has no libhccl.so")


def _library_path(machine: Machine, home: str, set_env: str) -> Iterator[MachineProblem]:
    own = machine.path(f"{home}/lib64").resolve()
    for folder in machine.environment.get("LD_LIBRARY_PATH", "").split(":"):
        place = machine.path(folder).resolve()
        if folder.startswith("/") and place == own:
            return
        if folder.startswith("/") and "stub" not in place.name and (place / "libascendcl.so").is_file():
            yield problem("two_canns", f"LD_LIBRARY_PATH has {folder} before {home}/lib64", set_env=set_env)
            return
    yield problem("cann_library_path", f"LD_LIBRARY_PATH does not hold {home}/lib64", set_env=set_env)


def _cann_versions(machine: Machine) -> Iterator[MachineProblem]:
    version = cann_of_machine(machine)
    series, built = _series(version or ""), _built_with(machine)
    if version is not None and series not in CANN_SERIES:
        yield problem("cann_version", f"CANN {version}", taken=listed(CANN_SERIES))
    elif built not in (None, series):
        what = f"CANN {version}; MindSpore's own kernels were built with CANN {built}"
        yield problem("cann_other_kernels", what, built=built)
    driver, least = driver_of_machine(machine), DRIVER_OF_CANN.get(series)
    if driver is not None and least is not None and _numbers(driver)[:2] < least:
        what = f"driver {driver} under CANN {version}"
        yield problem("driver_old", what, series=series, least=f"{least[0]}.{least[1]}")


def _built_with(machine: Machine) -> str | None:
    """Series of the CANN that the kernels in MindSpore's wheel were built with."""
    if machine.mindspore is None:
        return None
    path = machine.mindspore / "lib" / "plugin" / "ascend" / "custom_ascendc_910b" / "version.info"
    found = re.search(r"=\s*(\d+\.\d+)", path.read_text(encoding="utf-8")) if path.is_file() else None
    return found[1] if found else None


def driver(machine: Machine, needs: Needs) -> Iterator[MachineProblem]:
    """The driver's files, as a container sees them."""
    libraries = f"{DRIVER}/lib64"
    if needs.device != "Ascend":
        return
    if machine.devices() and not machine.exists(libraries):
        what = f"/dev/davinci{machine.devices()[0]} is there, {libraries} is not"
        yield problem("driver_missing", what, driver=DRIVER)
    elif machine.exists(libraries):
        configured = [machine.text(f"/etc/ld.so.conf.d/{path.name}")
                      for path in machine.path("/etc/ld.so.conf.d").glob("*.conf")]  # fmt: skip
        if not any(libraries in text for text in (machine.environment.get("LD_LIBRARY_PATH", ""), *configured)):
            what = f"neither LD_LIBRARY_PATH nor /etc/ld.so.conf.d names {libraries}"
            yield problem("driver_library_path", what, driver=DRIVER)


def cann_of_machine(machine: Machine) -> str | None:
    """Version of the CANN of ASCEND_HOME_PATH, as its files say."""
    home = cann_home(machine)
    files = [f"{home}/{name}" for name in _CANN_VERSION_FILES] if home else []
    return next(filter(None, (_version_in(machine, file) for file in files)), None)


def driver_of_machine(machine: Machine) -> str | None:
    """Version of the driver, as its file says."""
    return _version_in(machine, f"{DRIVER}/version.info")


def firmware_of_machine(machine: Machine) -> str | None:
    """Version of the firmware, as its file says; a container has none."""
    return _version_in(machine, "/usr/local/Ascend/firmware/version.info")


def _version_in(machine: Machine, path: str) -> str | None:
    found = re.search(r"^Version\s*=\s*(\S+)", machine.text(path), re.MULTILINE | re.IGNORECASE)
    return found[1] if found else None


def _series(version: str) -> str:
    """`2.10.0` -> `2.10`."""
    return ".".join(version.split(".")[:2])


def _numbers(version: str) -> tuple[int, ...]:
    """`25.0.RC1` -> (25, 0, 1)."""
    return tuple(int(number) for number in re.findall(r"\d+", version))
