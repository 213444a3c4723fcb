"""One rank of a group that calls HCCL's functions by themselves, without MindSpore.

usage: hccl_steps.py RANK SIZE STEPS; STEPS is JSON: ["sleep", seconds], ["form"], ["all_reduce", HcclDataType,
HcclReduceOp], ["send", rank], ["receive", rank]. The last line printed is what HCCL says of the first step that fails,
or "done".
"""

import ctypes
import json
import os
import sys
import time
from pathlib import Path

from ascend_emulator.toolchain import find_toolchain

ROOT_INFO_BYTES = 4108
FLOAT32 = 4
COUNT = 4


def main(rank: int, size: int, steps: list[list]) -> str:
    card = ctypes.CDLL(str(find_toolchain(emulated=True).libraries / "libascendcl.so"))
    card.aclGetRecentErrMsg.restype = ctypes.c_char_p
    group = ctypes.c_void_p()
    data, count = (ctypes.c_float * COUNT)(), ctypes.c_uint64(COUNT)

    def call(kind: str, *settings: int) -> int:
        if kind == "form":
            info = ctypes.create_string_buffer(b"group", ROOT_INFO_BYTES)
            return card.HcclCommInitRootInfo(size, info, rank, ctypes.byref(group))
        if kind == "all_reduce":
            return card.HcclAllReduce(data, data, count, *settings, group, None)
        transfer = {"send": card.HcclSend, "receive": card.HcclRecv}[kind]
        return transfer(data, count, FLOAT32, *settings, group, None)

    folder = Path(os.environ["ASCEND_EMULATOR_FOLDER"])
    (folder / f"here_{rank}").touch()
    while len(list(folder.glob("here_*"))) < size:  # limits count from here, not from the start of the processes
        time.sleep(0.01)
    for kind, *settings in steps:
        if kind == "sleep":
            time.sleep(settings[0])
        elif call(kind, *settings):
            return card.aclGetRecentErrMsg().decode()
    return "done"


if __name__ == "__main__":
    print(main(int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])))
