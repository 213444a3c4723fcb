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
    one, two = json.loads(done.stdout.splitlines()[-1])
    assert one > 300
    assert two.endswith("They part at layers.1.input_layernorm: RmsNorm in both graphs, which fuse or tile it "
                        "differently; layers.1.input_layernorm (sum) before it is equal, bit for bit"), two  # fmt: skip
