"""The first part of `mindgspo doctor --smoke` on an emulated card."""

import json
import os
from pathlib import Path

import pytest
from running import python

SCRIPT = """
import json, sys
from ascend_emulator.launcher import enter_emulated_cards
enter_emulated_cards()
from mindgspo.parallel.platform.runtime import set_up_runtime
set_up_runtime("Ascend")
from mindgspo.doctor.first_minutes import first_minutes
json.dump([list(map(str, one)) for one in first_minutes(0.0)], open(sys.argv[1], "w"))
"""


@pytest.mark.slow
def test_first_minutes_of_a_card(cards: None, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    launches = tmp_path / "launches.txt"
    environment = os.environ | {"ASCEND_EMULATOR_LAUNCHES": str(launches)}
    done = python(tmp_path / "script.py", tmp_path / "found.json", env=environment)
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert [what.split(":")[0] for what, _ in found] == [
        "434 scalars joined in runs of 32", "the 8 largest of [1024, 128]", "PagedAttention over 16,384 columns",
    ]  # fmt: skip
    assert {is_right for _, is_right in found} == {"True"}, found
    lines = launches.read_text(encoding="ascii").splitlines()
    assert len(lines) == len(set(lines)) and "aclnnTopk" in lines
    assert any(line.startswith('internal:PagedAttention [[["bfloat16", 1, 1, 1024]') for line in lines), lines
