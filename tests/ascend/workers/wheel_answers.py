"""What MindSpore's own kernels answered on emulated cards, beside what the wheel's host code answers alone.

usage: wheel_answers.py FILE...; of $ASCEND_EMULATOR_LAUNCHES. Prints a table, and ends with 1 if answers differ.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from ascend_emulator.launcher import emulated_environment
from ascend_emulator.stand_ins import HEADERS, OWN_KERNELS, installed_wheel
from ascend_emulator.toolchain import find_toolchain

SOURCE = Path(__file__).with_suffix(".cc")
# DataType of the wheel's base_type.h.
TYPES = {"float32": "kTypeFloat32", "float16": "kTypeFloat16", "bfloat16": "kTypeBF16", "int8": "kTypeInt8",
         "int32": "kTypeInt32", "int64": "kTypeInt64"}  # fmt: skip
PARAMETERS = {
    "MatMul": ("transpose_a", "transpose_b", "with_bias"),
    "AddRmsNorm": ("epsilon",),
    "RmsNorm": ("epsilon",),
    "Softmax": ("axes",),
    "Gather": ("batch_dims", "axes"),
    "PagedAttention": ("num_heads", "num_kv_heads", "scale", "mla_v_dim", "kv_seq_len", "q_seq_len"),
    "ReshapeAndCache": (),
}


class Answer(NamedTuple):
    """takes_dtypes: 1 or 0. tiling: 0 is success. workspace: bytes."""

    takes_dtypes: int
    tiling: int
    workspace: int


def compared(lines: Iterable[str]) -> dict[str, tuple[Answer, Answer]]:
    """{call: (on the emulated card, by the wheel alone)} of each call in lines of the log. A call that was launched
    was taken and cut up; where MindSpore had its tiling from an equal kernel (workspace -1), that one stands for it.
    KeyError for a kernel that is not in `PARAMETERS`."""
    calls = sorted({line.strip().removeprefix("internal:") for line in lines if line.startswith("internal:")})
    calls = [call for call in calls if '"workspace": -1' not in call]
    found = [(name, *json.loads(text)) for name, text in (call.split(" ", 1) for call in calls)]
    alone = _ask([_as_words(*call) for call in found])
    ours = [Answer(1, 0, parameters["workspace"]) for *_, parameters in found]
    return dict(zip(calls, zip(ours, alone, strict=True), strict=True))


def _as_words(name: str, inputs: list, outputs: list, parameters: dict[str, Any]) -> str:
    words: list[Any] = [name]
    for tensors in (inputs, outputs):
        words.append(len(tensors))
        for one in tensors:
            dtype, *shape = one or ["none"]
            words += [TYPES.get(dtype, "kTypeNone"), len(shape), *shape]
    for one in (parameters[key] for key in PARAMETERS[name]):
        words += [len(one), *one] if isinstance(one, list) else [one]
    return " ".join(map(str, words))


def _ask(calls: list[str]) -> list[Answer]:
    wheel = installed_wheel().folder
    names = sorted({*TYPES.values(), "kTypeNone"})
    with tempfile.TemporaryDirectory() as folder:
        program, numbers = Path(folder, "wheel_answers"), Path(folder, "numbers")
        flags = ("-std=c++17", "-D_GLIBCXX_USE_CXX11_ABI=0", f"-I{wheel / HEADERS}", f"-I{wheel / HEADERS / 'include'}")
        libraries = find_toolchain(emulated=True).libraries
        link = (str(wheel / OWN_KERNELS), f"-L{libraries}", "-l:libascendcl.so", "-Wl,--allow-shlib-undefined")
        subprocess.run(["g++", *flags, "-o", program, SOURCE, *link], check=True)
        text = (
            '#include <iostream>\n#include "include/base_type.h"\nint main() { using namespace mindspore::internal;\n'
        )
        text += "\n".join(f'std::cout << "{name} " << static_cast<int>({name}) << "\\n";' for name in names) + "}\n"
        subprocess.run(["g++", *flags, "-x", "c++", "-o", numbers, "-"], input=text, text=True, check=True)
        known = dict(line.split() for line in subprocess.check_output([numbers], text=True).splitlines())
        asked = "\n".join(" ".join(known.get(word, word) for word in call.split()) for call in calls)
        environment = emulated_environment(Path(folder))
        paths = [str((wheel / OWN_KERNELS).parent), environment["LD_LIBRARY_PATH"]]
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(paths)
        done = subprocess.run([program], input=asked, env=environment, capture_output=True, text=True)
    print(done.stderr, end="", file=sys.stderr)
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-2000:]
    return [Answer(*map(int, line.split())) for line in done.stdout.splitlines() if line[:1].isdigit()]


def main(paths: list[str]) -> int:
    rows: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    answers = compared(line for path in paths for line in Path(path).read_text(encoding="ascii").splitlines())
    for call, (ours, alone) in answers.items():
        name, text = call.split(" ", 1)
        dtypes = " ".join(dict.fromkeys(one[0] for one in json.loads(text)[0] if one))
        row = rows[name, dtypes]
        row[0] += 1
        row[1] += ours == alone
        row[2] = max(row[2], alone.workspace)
        if ours != alone:
            print(f"differs: {call}: {ours}, the wheel alone {alone}")
    print("kernel | dtypes | calls | equal | largest workspace, MiB")
    for (name, dtypes), (calls, equal, workspace) in sorted(rows.items()):
        print(f"{name} | {dtypes} | {calls} | {equal} | {workspace / 2**20:.2f}")
    return int(any(ours != alone for ours, alone in answers.values()))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
