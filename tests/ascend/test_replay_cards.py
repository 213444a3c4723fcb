"""A step dumped on CPU, run again on an emulated card: within tolerance; an operator made wrong there is found."""

from pathlib import Path

import pytest
from ascend.conftest import WORKERS
from ascend.test_whole_runs import EXPERIMENT, REWARD
from running import environment, python, succeeded

SETTINGS = ("--set", "trainer.dump_step=2", "--set", "trainer.save_every=2")


@pytest.fixture(scope="module")
def dumped(cards: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dumped")
    (folder / "reward.py").write_text(REWARD, encoding="utf-8")
    (folder / "small.yaml").write_text(EXPERIMENT, encoding="utf-8")
    succeeded("run", folder / "small.yaml", *SETTINGS, cwd=folder)
    return folder / "runs/small/dumps/step_00000002"


def test_a_card_makes_the_numbers_of_the_cpu(cards: None, dumped: Path) -> None:
    done = succeeded("replay", dumped, "--emulate-ascend", cwd=dumped)
    assert "run again on an emulated card" in done.stdout
    assert done.stdout.splitlines()[-1].startswith(("within tolerance: ", "bit-equal: "))


@pytest.mark.parametrize(("operator", "position", "said"), [
    ("aclnnRmsNorm", 3, "first difference: forward: layers.0.input_layernorm (RmsNorm) is off by"),
    ("aclnnSwiGlu", -1, "first difference: forward: layers.0.mlp.swiglu (Swiglu) is off by"),
    ("aclnnRotaryPositionEmbedding", 4,
     "first difference: forward: layers.0.self_attn.rotate (queries) (RotaryPositionEmbedding) is off by"),
    ("aclnnRmsNormGrad", 4, "right before it comes gradient of model.norm.weight, which agrees"),
])  # fmt: skip
def test_an_operator_made_wrong_is_found_by_name(
    cards: None, dumped: Path, operator: str, position: int, said: str
) -> None:
    done = python(WORKERS / "wrong_operator.py", operator, position, dumped, env=environment())
    assert done.returncode == 1, done.stdout + done.stderr
    assert said in done.stdout, done.stdout
