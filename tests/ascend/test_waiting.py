"""The loop of MindSpore's that emulated cards let sleep is in the installed wheel."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import mindgspo.ascend.emulator

SOURCE = Path(mindgspo.ascend.emulator.__file__).parent / "native" / "waiting.cc"


def test_the_wheel_holds_the_loop_once(cards: None) -> None:
    import mindspore

    listing = SOURCE.read_text("utf-8").split("kLoop[] = {")[1].split("};")[0]
    loop = bytes(int(byte, 16) for byte in re.findall(r"0x([0-9a-f]{2})", listing))
    assert len(loop) == 13
    library = Path(mindspore.__file__).parent / "lib" / "libmindspore_ms_backend.so"
    if not library.is_file():
        pytest.skip(f"this MindSpore has no {library.name}")
    assert library.read_bytes().count(loop) == 1
