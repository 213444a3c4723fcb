"""Wrong changes of what ranks do together are caught on CPU: each ends the job or makes other numbers."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from running import PROJECT, run_workers

WORKERS = Path(__file__).parent / "workers"

SEQUENCE = {"model_parallel": 2, "use_seq_parallel": True}
SHARDED = {"data_parallel": 2, "optimizer_shard": True}
STAGES = {"pipeline_stage": 2, "micro_batch_num": 2}
CONTEXT = {"context_parallel": 2}
EXPERTS = {"data_parallel": 2, "expert_parallel": 2}


@dataclass(frozen=True, slots=True)
class Mutation:
    """file: below the package. plan: of two ranks, that takes it. old: text that stands in the file once; new: what
    replaces it."""

    file: str
    plan: dict[str, object]
    old: str
    new: str
    model: str = "dense"


OVER_RANKS, BETWEEN, LAYOUTS = (
    "algorithms/optim/over_ranks.py", "parallel/layers/model_parallel.py", "parallel/plans/parameter_layouts.py"
)  # fmt: skip
MUTATIONS = {
    "a missing reduce-scatter": Mutation(OVER_RANKS, SHARDED, "found = self.scatter(found)",
        "found = found[:1]"),
    "the first rank's rows of the weights on every rank": Mutation("models/weights.py", SHARDED,
        "each.held_by(model.place.rank) for each in (rows[name], layouts[name])",
        "each.held_by(0) for each in (rows[name], layouts[name])"),
    "new weights that are not gathered": Mutation(OVER_RANKS, SHARDED,
        "        if self._has_rows:\n            self._gather(_START)\n", ""),
    "a norm that counts copies": Mutation(OVER_RANKS, {"model_parallel": 2},
        "self._is_alone or self.moments[name].ranks_with_slice_of(rank)[0] == rank", "True"),
    "gradients that replicas do not add up": Mutation(OVER_RANKS, {"data_parallel": 2},
        "            found = self.sum(found)\n", "            found = found * 1.0\n"),
    "norms of split sequences that are not added up": Mutation(LAYOUTS, SEQUENCE,
        "is Split.WHOLE and not plan.use_seq_parallel", "is Split.WHOLE"),
    "the gradient of a tied table counted once": Mutation(LAYOUTS, STAGES,
        "is Split.WHOLE and not plan.use_seq_parallel", "in (Split.WHOLE, Split.INPUT_TABLE)"),
    "a whole table that every rank of a replica counts": Mutation("parallel/layers/linear.py", {"model_parallel": 2},
        "not self.is_split and self.parts == 1 and place.at.model > 0", "False"),
    "a micro-batch that is lost": Mutation("algorithms/optim/updater.py", STAGES,
        "Tensor([int(i > 0)], ms.int32)", "Tensor([int(i > 1)], ms.int32)"),
    "gradients that do not reach the stage before": Mutation("parallel/pipeline.py", STAGES,
        "send(returned.pop(number),", "send(returned.pop(number) * 0,"),
    "stages in the reverse order": Mutation("parallel/plans/placement.py", STAGES,
        "layers_of_stage(self.at.stage,", "layers_of_stage(self.plan.pipeline_stage - 1 - self.at.stage,"),
    "gradients of gathered tokens that are not added up": Mutation(BETWEEN, EXPERTS,
        "        return self.scatter(dout), zeros_like(tokens)\n",
        "        return dout[: x.shape[0]], zeros_like(tokens)\n", "experts"),
    "every part of the sequences takes the first part's gradient": Mutation(BETWEEN, CONTEXT,
        "dout[self.number * rows : (self.number + 1) * rows], zeros_like(tokens)", "dout[:rows], zeros_like(tokens)"),
    "keys of other heads than queries": Mutation(BETWEEN, CONTEXT,
        "return query, key, self.to_heads(ops.depend(value, key))",
        "return query, self.to_heads(ops.depend(value, key)), self.to_heads(ops.depend(value, key))"),
    "predictions of the next part": Mutation("parallel/ops/device.py", CONTEXT,
        "parts.predict[own], parts.targets[own]", "parts.predict[own - 1], parts.targets[own]"),
    "experts of the neighbour": Mutation("parallel/plans/placement.py", EXPERTS,
        "number = self.rank % self.plan.expert_block // self.plan.expert_slices",
        "number = (self.rank + 1) % self.plan.expert_block // self.plan.expert_slices", "experts"),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_code_that_is_changed_is_there(name: str) -> None:
    mutation = MUTATIONS[name]
    assert (PROJECT / "mindgspo" / mutation.file).read_text(encoding="utf-8").count(mutation.old) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", [None, *MUTATIONS])
def test_a_wrong_change_is_caught(
    figures_alone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str | None
) -> None:
    """None: nothing is changed, and nothing is caught."""
    mutation = MUTATIONS[name] if name else Mutation("__init__.py", STAGES, "", "")
    shutil.copytree(PROJECT / "mindgspo", tmp_path / "mindgspo", ignore=shutil.ignore_patterns("__pycache__"))
    file = tmp_path / "mindgspo" / mutation.file
    if name:
        file.write_text(file.read_text(encoding="utf-8").replace(mutation.old, mutation.new), encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    job = [{"name": "changed", "train": mutation.plan, "infer": {"data_parallel": 2}, "model": mutation.model,
            "reference": None, "is_packed": True, "is_composed": False}]  # fmt: skip
    (tmp_path / "job.json").write_text(json.dumps(job))
    with pytest.raises(AssertionError) if name else nullcontext():
        run_workers(WORKERS / "plan_numbers.py", tmp_path, 2)
        with np.load(tmp_path / "changed.npz") as found:
            assert _agree(dict(found), figures_alone(mutation.model, is_packed=True))


def _agree(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> bool:
    kinds = ("logp", "loss", "parameter", "moment")
    same = (
        np.allclose(found[key], array, rtol=0, atol=1e-5)
        for key, array in wanted.items()
        if key.split("/")[0] in kinds and "entropy" not in key
    )
    return all(same)
