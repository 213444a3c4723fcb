"""The host code of MindSpore's own kernels decides on emulated cards as on cards: what it refuses runs as aclnn, its
workspaces take memory of the card.
"""

import json
import os
from pathlib import Path

import wheel_answers
from running import python

SCRIPT = """
import json, sys
from ascend_emulator.launcher import enter_emulated_cards, launch_counts
enter_emulated_cards()
from mindgspo.parallel.platform.runtime import call_compiled, paged_kernels, set_up_runtime
set_up_runtime("Ascend")
import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

class Product(nn.Cell):
    def __init__(self):
        super().__init__()
        self.product = ops.MatMul(transpose_b=True)
    def construct(self, x, w):
        return self.product(x, w)

class Attend(nn.Cell):
    def __init__(self):
        super().__init__()
        self.attend = ops.auto_generate.PagedAttention(4, 0.25, 2)
    def construct(self, query, keys, tables, batch_valid_length):  # read by this name on the host
        return self.attend(query, keys, keys, tables, batch_valid_length)

def launched(cell, *inputs):
    before = launch_counts()
    call_compiled(cell, *inputs)
    ms.runtime.synchronize()
    return {name: count for name, count in (launch_counts() - before).items() if "Cast" not in name}

def zeros(*shape, dtype=ms.bfloat16):
    return Tensor(np.zeros(shape, np.float32), dtype=dtype)

answers = {}
with paged_kernels():
    for dtype in (ms.float32, ms.bfloat16):
        answers[f"MatMul {dtype}"] = launched(Product(), zeros(8, 64, dtype=dtype), zeros(32, 64, dtype=dtype))
    for size in (64, 256):
        tables, lengths = Tensor(np.arange(8).reshape(2, 4), ms.int32), Tensor([5, 200], ms.int32)
        try:
            answers[f"head of {size}"] = launched(Attend(), zeros(2, 4, size), zeros(8, 128, 2, size), tables, lengths)
        except RuntimeError as error:
            answers[f"head of {size}"] = str(error)
        answers["peak"] = ms.runtime.max_memory_allocated()
json.dump(answers, open(sys.argv[1], "w"))
"""


def test_what_the_wheel_says_of_its_kernels(cards: None, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    launches = tmp_path / "launches.txt"
    environment = os.environ | {"ASCEND_EMULATOR_LAUNCHES": str(launches)}
    done = python(tmp_path / "script.py", tmp_path / "answers.json", env=environment)
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
    answers = json.loads((tmp_path / "answers.json").read_text(encoding="utf-8"))
    assert [name.split(":")[0] for name in answers["MatMul Float32"]] != ["internal"], "it does not take float32"
    assert answers["MatMul BFloat16"] == {"internal:MatMul": 1}
    assert answers["head of 64"] == {"internal:PagedAttention": 1}
    assert "PagedAttention" in answers["head of 256"], "128 x 256 numbers are more than it takes"
    assert answers["peak"] > 300 * 2**20, "its workspace, at 512 columns"

    told = launches.read_text(encoding="ascii").splitlines()
    compared = wheel_answers.compared(told)
    assert sorted(call.split()[0] for call in compared) == ["MatMul", "PagedAttention"]
    assert all(ours == alone for ours, alone in compared.values()), compared
    wider = [line.replace('"workspace": ', '"workspace": 1') for line in told]
    assert any(ours != alone for ours, alone in wheel_answers.compared(wider).values())
