"""A model's weights against what a file holds: every difference is listed."""

from pathlib import Path

import pytest

from mindgspo.errors import WeightsError
from mindgspo.models.weight_check import check_names
from mindgspo.tensor_files import TensorInfo


def info(dtype: str, *shape: int) -> TensorInfo:
    return TensorInfo(dtype=dtype, shape=shape)


def test_matching_names_pass() -> None:
    check_names({"w": (5, 3), "b": ()}, {"w": info("F32", 5, 3), "b": info("BF16")}, where=Path("m"))


def test_both_sides_are_listed_with_near_names() -> None:
    expected = {"model.norm.weight": (3,), "lm_head.weight": (5, 3), "bias": (2,), "scale": (1,)}
    found = {
        "model.norm.weigth": info("F32", 3),
        "rotary.inv_freq": info("F16", 4),
        "bias": info("F32", 3),
        "scale": info("I8", 1),
    }
    with pytest.raises(WeightsError) as caught:
        check_names(expected, found, where=Path("some/folder"))
    message = str(caught.value)
    assert message.startswith("some/folder: ") and "4 weights expected, 4 found" in message
    assert "missing (2):" in message and "    lm_head.weight\n" in message
    assert "model.norm.weight; did you mean model.norm.weigth?" in message
    assert "unexpected (2):" in message and "    rotary.inv_freq\n" in message
    assert "model.norm.weigth; did you mean model.norm.weight?" in message
    assert "bias: the model has (2,), the file (3,)" in message
    assert "scale: I8" in message


def test_a_long_list_is_cut_and_counted() -> None:
    with pytest.raises(WeightsError, match=r"missing \(100\):(\n    w\d+){8}\n    ... and 92 more"):
        check_names({f"w{number}": (1,) for number in range(100)}, {}, where=Path("m"))
