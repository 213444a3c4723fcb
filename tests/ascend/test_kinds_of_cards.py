"""What an emulated card tells of itself, and what it refuses as a card does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from math import isclose

import pytest

from mindgspo.launch import error_codes

GIB = 2**30
SYSTEM_GIB = 3.3
PROGRAM = """
import ctypes, json
from ascend_emulator.toolchain import find_toolchain
card = ctypes.CDLL(str(find_toolchain(emulated=True).libraries / "libascendcl.so"))
card.aclrtGetSocName.restype = card.aclGetRecentErrMsg.restype = ctypes.c_char_p
def asked(name, kind, width):
    value = width()
    assert getattr(card, name)(0, kind, ctypes.byref(value)) == 0
    return value.value
free, total, address = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_void_p()
def memory():
    card.aclrtGetMemInfo(1, ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value
cores = [asked("aclrtGetDeviceInfo", 102, ctypes.c_int64), asked("aclrtGetDeviceInfo", 201, ctypes.c_int64),
         asked("aclrtGetDeviceResLimit", 0, ctypes.c_uint32), asked("aclGetDeviceCapability", 1, ctypes.c_int64)]
start = memory()
status = [card.aclrtMalloc(ctypes.byref(address), ctypes.c_size_t(start[0] + more), 0) for more in (1, 0)]
print(json.dumps([card.aclrtGetSocName().decode(), cores, start, status, memory()[0]]))
print(card.aclGetRecentErrMsg().decode())
"""


@pytest.mark.parametrize(
    ("soc", "hbm", "cores", "gibibytes"),
    [
        (None, None, 20, 64),
        ("Ascend910B1", None, 24, 64),
        ("Ascend910B4", None, 20, 32),
        ("Ascend910_9391", None, 24, 64),
        ("Ascend910B1", "48", 24, 48),
    ],
)
def test_a_card_of_each_kind(cards: None, soc: str | None, hbm: str | None, cores: int, gibibytes: int) -> None:
    given = {"ASCEND_EMULATOR_SOC": soc, "ASCEND_EMULATOR_HBM_GB": hbm}
    environment = os.environ | {name: value for name, value in given.items() if value}
    answer = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    told, message = answer.stdout.splitlines()
    name, found, (free, total), status, left = json.loads(told)
    assert name == (soc or "Ascend910B3")
    assert found == [cores, 2 * cores, cores, 2 * cores]
    assert total == gibibytes * GIB and isclose(free, (gibibytes - SYSTEM_GIB) * GIB, abs_tol=1)
    assert status == [207001, 0] and left == 0, "a byte more than is free is refused, as on a card"
    assert [seen.error.code for seen in error_codes.find([message])] == ["EL0004"]
    assert f"{gibibytes - SYSTEM_GIB:.2f} GiB that an idle {name}" in message


def test_a_card_that_is_not_emulated(cards: None, tmp_path) -> None:
    script = tmp_path / "script.py"
    script.touch()
    command = [sys.executable, "-m", "ascend_emulator", script]
    answer = subprocess.run(command, env=os.environ | {"ASCEND_EMULATOR_SOC": "910"}, capture_output=True, text=True)
    assert answer.returncode == 1
    assert "error: ASCEND_EMULATOR_SOC=910: must be Ascend910B1, Ascend910B3, Ascend910B4" in answer.stderr
