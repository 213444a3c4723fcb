"""Parquet files whose footer or pages were changed, or that are a thousand times larger than they look: an error of
ours or rows, in a process with a limit of memory and of processor time."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
from running import environment

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

READ = """
import resource, sys
from pathlib import Path
from mindgspo.data.sources import read_file
from mindgspo.errors import DataError
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
for path in sorted(Path(sys.argv[1]).glob("*.parquet")):
    try:
        said = f"{sum(1 for _ in read_file(path))} rows"
    except DataError as error:
        said = f"refused: {error}"
    print(path.name, said.splitlines()[0], flush=True)
"""


def outcomes(folder: Path) -> list[str]:
    """A line for each file of the folder; the process must live to the end."""
    done = subprocess.run([sys.executable, "-c", READ, str(folder)], env=environment(), capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and len(lines) == len(list(folder.iterdir())), (lines[-1:], done.stderr[-2000:])
    return lines


def test_changed_footers_and_pages(tmp_path: Path) -> None:
    rows = {"question": [f"q {number}" for number in range(50)], "answer": [str(number) for number in range(50)],
            "extra_info": [{"a": number, "b": [1, 2]} for number in range(50)]}  # fmt: skip
    parquet.write_table(pyarrow.table(rows), tmp_path / "whole")
    whole, draw = (tmp_path / "whole").read_bytes(), random.Random(1)
    (tmp_path / "whole").unlink()
    start = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    lengths = (0, 1, 1 << 31, (1 << 32) - 1, len(whole))
    files = [whole, b"", b"PAR1", b"PAR1PAR1", *(whole[:-8] + one.to_bytes(4, "little") + b"PAR1" for one in lengths)]
    for number in range(70):
        content = bytearray(whole)
        for _ in range(draw.choice((1, 1, 2, 8))):
            content[draw.randrange(start if number % 6 else 4, len(whole) - 8)] = draw.choice((0, 127, 128, 255, 1))
        if number % 5 == 0:  # large numbers, as thrift writes them
            place = draw.randrange(start, len(whole) - 18)
            content[place : place + 10] = draw.choice((b"\xff" * 9 + b"\1", b"\x19\xfc\xff\xff\xff\x07" + bytes(4)))
        files.append(bytes(content))
    for number, content in enumerate(files):
        (tmp_path / f"{number:04}.parquet").write_bytes(content)
    lines = outcomes(tmp_path)
    assert lines[0] == "0000.parquet 50 rows" and sum(" refused: " in line for line in lines) > 40


@pytest.mark.slow
def test_a_file_that_is_larger_than_it_looks(tmp_path: Path) -> None:
    """A dictionary of one text of 8 MB, for 64 rows."""
    text = pyarrow.DictionaryArray.from_arrays(
        pyarrow.array([0] * 64, pyarrow.int32()), pyarrow.array(["x" * (8 << 20)])
    )
    table = pyarrow.table({"question": text, "answer": ["1"] * 64})
    parquet.write_table(table, tmp_path / "a.parquet", compression="zstd")
    assert "more than 268,435,456 bytes; remove the longest" in outcomes(tmp_path)[0]
