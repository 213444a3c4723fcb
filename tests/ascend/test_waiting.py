"""The loop of MindSpore's that emulated cards let sleep is found in the installed wheel."""

from pathlib import Path

from running import python

SCRIPT = """
from ascend_emulator.launcher import enter_emulated_cards, sleeps_while_waiting
enter_emulated_cards()
from mindgspo.parallel.platform.runtime import call_compiled, set_up_runtime
set_up_runtime("Ascend")
import mindspore
class Twice(mindspore.nn.Cell):
    def construct(self, x):
        return x + x
assert call_compiled(Twice(), mindspore.Tensor([1.0, 2.0])).asnumpy().tolist() == [2.0, 4.0]
assert sleeps_while_waiting()
"""


def test_a_graph_runs_with_threads_that_sleep_while_they_wait(cards: None, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    done = python(script)
    assert done.returncode == 0, done.stderr[-2000:]
