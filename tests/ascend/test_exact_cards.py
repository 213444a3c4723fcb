"""Where sampler and trainer are bit-equal on an emulated card, and the operator that parts them."""

import json

import pytest
from ascend.conftest import WORKERS
from running import environment, python


@pytest.mark.slow
def test_one_layer_is_equal_and_the_norm_between_layers_parts_two(cards: None) -> None:
    """Decoding adds and norms by one operator, AddRmsNorm; in training the sum ends a cell that is compiled once for
    all layers, and the norm begins the next one."""
    done = python(WORKERS / "exact_on_card.py", env=environment())
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    parted = {name: said for name, said in found.items() if name.startswith("two layers")}
    assert len(parted) == 2 and len(found) == 5
    for name, said in parted.items():
        assert said.endswith(
            "They part at layers.1.input_layernorm: RmsNorm in both graphs, which fuse or tile it differently; "
            "layers.1.input_layernorm (sum) before it is equal, bit for bit"
        ), (name, said)
    assert all(found[name] > 300 for name in found if name not in parted), found
