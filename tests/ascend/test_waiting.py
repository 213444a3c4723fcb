"""Scripts on one emulated card: MindSpore's loop that sleeps, and the operators in the forms that cards take."""

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


FORMS = """
from ascend_emulator.launcher import enter_emulated_cards
enter_emulated_cards()
from mindgspo.parallel.platform.runtime import call_compiled, set_up_runtime
set_up_runtime("Ascend", deterministic=True)
import os
import mindspore as ms
import numpy as np
from mindspore import mint, ops
from mindgspo.algorithms.optim.gradients import GradientNorm
from mindgspo.models.mixture_of_experts import Router, RoutingRule
from mindgspo.parallel.ops.device import aclnn_on_cards, likeliest_op
from mindgspo.rollout.graphs import Collect
assert ms.get_context("deterministic") == "ON" and os.environ["HCCL_DETERMINISTIC"] == "true"
rng = np.random.default_rng(1)

class Forms(ms.nn.Cell):
    def __init__(self):
        super().__init__()
        self.cumsum, self.likeliest = aclnn_on_cards(ops.cumsum, mint.cumsum), likeliest_op()
    def construct(self, x, counts):
        return self.cumsum(x, -1), self.cumsum(counts, 0), self.likeliest(x)

x, counts = rng.normal(size=(3, 50)).astype(np.float32), np.arange(5, dtype=np.int32)
x[1, 7] = x[1, 30] = 9.0
sums, ends, first = call_compiled(Forms(), ms.Tensor(x), ms.Tensor(counts))
np.testing.assert_allclose(sums.asnumpy(), x.cumsum(-1), rtol=1e-5, atol=1e-5)
assert ends.asnumpy().tolist() == [0, 1, 3, 6, 10]
assert first.dtype == ms.int32 and first.asnumpy().tolist() == x.argmax(-1).tolist() and first.asnumpy()[1] == 7

drawn = [rng.integers(0, 1 << 17, 4).astype(np.int32) for _ in range(40)]
log_probs = [rng.normal(size=4).astype(np.float32) for _ in range(40)]
both = call_compiled(Collect(), *map(ms.Tensor, (*drawn, *log_probs))).asnumpy()
np.testing.assert_array_equal(both, np.stack([np.stack(drawn).astype(np.float32), np.stack(log_probs)]))

hidden, weight = rng.normal(size=(6, 8)).astype(np.float32), rng.normal(size=(16, 8)).astype(np.float32)
bias = rng.normal(size=16).astype(np.float32)
experts, weights = call_compiled(
    Router(4, RoutingRule(is_normed=True)), ms.Tensor(hidden), ms.Tensor(weight), ms.Tensor(bias)
)
wanted = np.argsort(-(hidden @ weight.T), axis=-1)[:, :4]
assert experts.dtype == ms.int32 and experts.asnumpy().tolist() == wanted.tolist()
np.testing.assert_allclose(weights.asnumpy().sum(-1), 1, rtol=1e-5)

rule = RoutingRule(is_sigmoid=True, is_normed=True, groups=4, best_groups=2, scale=2.5)
experts, weights = call_compiled(Router(4, rule), ms.Tensor(hidden), ms.Tensor(weight), ms.Tensor(bias))
merits = (1 / (1 + np.exp(-hidden @ weight.T)) + bias).reshape(6, 4, 4)
worst = np.argsort(-np.sort(merits, axis=2)[:, :, 2:].sum(2), axis=1)[:, 2:]
np.put_along_axis(merits, worst[:, :, None], -np.inf, axis=1)
assert experts.asnumpy().tolist() == np.argsort(-merits.reshape(6, 16), axis=-1)[:, :4].tolist()
np.testing.assert_allclose(weights.asnumpy().sum(-1), 2.5, rtol=1e-5)

arrays = [rng.normal(size=(3, 4)).astype(np.float32) for _ in range(70)]
gradients = [ms.Parameter(ms.Tensor(array), name=f"g{i}") for i, array in enumerate(arrays)]
norm = call_compiled(GradientNorm(gradients[:40], gradients[40:])).asnumpy()
wanted = np.sqrt((np.stack(arrays[:40]).astype(np.float64) ** 2).sum())
np.testing.assert_allclose(norm, wanted, rtol=1e-6)
"""


def test_cards_sum_choose_and_join_as_the_cpu_does(cards: None, tmp_path: Path) -> None:
    """40 steps' tokens joined, 70 gradients of which 40 count on this rank, in runs of 32; ties go to the first."""
    script = tmp_path / "script.py"
    script.write_text(FORMS, encoding="utf-8")
    done = python(script)
    assert done.returncode == 0, done.stderr[-3000:]
