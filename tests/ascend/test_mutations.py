"""Wrong changes of what only a card executes are caught on emulated cards: each ends the job or makes other numbers."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from ascend.divisions import FOUR, ONE, TWO, check, named, some

PACKAGE = Path(__file__).resolve().parents[2] / "mindgspo"


@dataclass(frozen=True, slots=True)
class Mutation:
    """file: below the package. case: a plan that takes it. words: of the job's error, or of the first figure that is
    wrong. old: text that stands in the file once; new: what replaces it."""

    file: str
    case: str
    words: str
    old: str
    new: str


MUTATIONS = {
    "decoding without MindSpore's own kernels": Mutation("parallel/platform/runtime.py", "one card", "ReshapeAndCache",
        '"infer_boost": "on"', '"infer_boost": "off"'),
    "the causal mask of another mode": Mutation("parallel/ops/device.py", "one card",
        "attenMaskOptional must be [8, 8]", "CAUSAL_FROM_THE_END = 3", "CAUSAL_FROM_THE_END = 0"),
    "segments that end a token early": Mutation("parallel/ops/device.py", "one card", "the last number is equal to T",
        "return np.flatnonzero(is_last.reshape(-1)) + 1", "return np.maximum(np.flatnonzero(is_last.reshape(-1)), 1)"),
    "cos and sin swapped": Mutation("parallel/ops/device.py", "one card", ": loss",
        "cos, sin, self.mode).reshape(x.shape)", "sin, cos, self.mode).reshape(x.shape)"),
    "gate and up swapped": Mutation("parallel/ops/device.py", "one card", ": loss",
        "join((gate, up))", "join((up, gate))"),
    "keys stored as values": Mutation("rollout/cache.py", "one card", ": sampled/0",
        "self.store(key_MBD.reshape(rows), value_MBD.reshape(rows),",
        "self.store(value_MBD.reshape(rows), key_MBD.reshape(rows),"),
    "attention without the newest token": Mutation("rollout/engine.py", "one card", ": sampled/0",
        "Tensor(run.positions_JS[step] + np.int32(1))", "Tensor(run.positions_JS[step])"),
    "a shared prompt that is not copied": Mutation("rollout/engine.py", "one card", ": sampled/0",
        "self._copy_blocks(*", "(lambda *rows: rows)(*"),
    "a swap that does not come back": Mutation("swap/swap.py", "one card", ": loss",
        "            offload_parameter(parameter)\n", "            parameter.set_data(parameter * 0)\n"),
    "a missing AllReduce behind row-parallel layers": Mutation(
        "parallel/layers/model_parallel.py", "2x1x1", ": sampled/0",
        "        return self.sum(x)\n\n", "        return x\n\n"),
    "gathered logits in the order of ranks, not of columns": Mutation("parallel/layers/model_parallel.py", "2x1x1",
        ": sampled/0", "parts.transpose(1, 0, 2)", "parts"),
    "tokens of every rank added up": Mutation("parallel/layers/model_parallel.py", "2x1x1",
        "Gather: indices must be in 0 to 63", "np.float32(place.at.model == 0)", "np.float32(1)"),
    "weights that stay those of the first reshard": Mutation("rollout/weight_transfer.py", "2x1x1", ": sampled/3",
        "                commit_values(parameter, new[parameter.name])\n",
        "                if self._transfers == 0:\n                    commit_values(parameter, new[parameter.name])\n"
        "        self._verify = 'off'\n"),
    "a norm that counts copies": Mutation("algorithms/optim/over_ranks.py", "1x2x1, tied", ": grad_norm",
        "self._is_alone or self.moments[name].ranks_with_slice_of(rank)[0] == rank", "True"),
    "slices in the reverse order of ranks": Mutation("parallel/plans/layout.py", "1x2x1, tied", ": loss",
        "tuple(number * length for number, length in zip(index, self.slice_shape, strict=True))",
        "tuple((parts - 1 - number) * length for number, length, parts in zip(index, self.slice_shape, self.splits))"),
}  # fmt: skip


def mutated_package(mutation: Mutation, folder: Path) -> Path:
    """A folder with a copy of the package that has the mutation."""
    shutil.copytree(PACKAGE, folder / "mindgspo", ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / "mindgspo" / mutation.file
    text = path.read_text(encoding="utf-8")
    assert text.count(mutation.old) == 1, f"{mutation.file}: {text.count(mutation.old)} x {mutation.old!r}"
    path.write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")
    return folder


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_code_that_is_changed_is_there(name: str) -> None:
    mutation = MUTATIONS[name]
    assert (PACKAGE / mutation.file).read_text(encoding="utf-8").count(mutation.old) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_wrong_change_is_caught(figures_of_cards, figures_on_cpu, tmp_path, name):
    mutation = MUTATIONS[name]
    num_cards, cases = next((n, all_) for n, all_ in ((1, ONE), (2, TWO), (4, FOUR)) if mutation.case in all_)
    cases = some(cases, mutation.case)
    folder = mutated_package(mutation, tmp_path)
    with pytest.raises(AssertionError) as caught:
        found = figures_of_cards(num_cards, named(cases), folder)
        check(found[mutation.case], figures_on_cpu(cases[mutation.case]["model"]), mutation.case)
    assert mutation.words in str(caught.value), str(caught.value)
