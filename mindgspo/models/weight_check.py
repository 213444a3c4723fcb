"""Whether a file's weights are those of a model.

What enters: the names and shapes that the model expects, and what a file holds. What leaves: nothing, or an error that
lists every difference. Called by `models.weights` and by the conversion of weights. Needs no MindSpore.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path

from mindgspo.errors import WeightsError
from mindgspo.tensor_files import FLOAT_DTYPES, TensorInfo
from mindgspo.tensor_files.damage import listed

_NUMBER = re.compile(r"[0-9]+")


def check_names(expected: Mapping[str, tuple[int, ...]], found: Mapping[str, TensorInfo], *, where: Path) -> None:
    """Refuse weights that do not fit the model exactly: names, shapes, and floating-point values.

    expected: shape of every weight of the model, by its name in the file. where: named in the message.
    Raises WeightsError that lists what is missing, unexpected, of another shape or no float, with near names.
    """
    missing = sorted(expected.keys() - found.keys())
    unexpected = sorted(found.keys() - expected.keys())
    common = sorted(expected.keys() & found.keys())
    problems = [
        *listed("missing", missing, lambda name: name + _near(name, unexpected)),
        *listed("unexpected", unexpected, lambda name: name + _near(name, missing)),
        *listed(
            "wrong shape",
            [name for name in common if found[name].shape != tuple(expected[name])],
            lambda name: f"{name}: the model has {tuple(expected[name])}, the file {found[name].shape}",
        ),
        *listed(
            "not floating point (quantised weights are not supported)",
            [name for name in common if found[name].dtype not in FLOAT_DTYPES],
            lambda name: f"{name}: {found[name].dtype}",
        ),
    ]
    if problems:
        raise WeightsError(
            f"{where}: the weights do not fit the configured model ({len(expected)} weights expected, "
            f"{len(found)} found); compare the `model` section with the weights' config.json\n" + "\n".join(problems)
        )


def _near(name: str, candidates: list[str]) -> str:
    """A `did you mean` for one name, or nothing."""
    numbers = _NUMBER.findall(name)  # of the same layer and expert: there are tens of thousands of weights
    near = [one for one in candidates if _NUMBER.findall(one) == numbers]
    close = difflib.get_close_matches(name, near, n=1, cutoff=0.8)
    return f" (did you mean {close[0]}?)" if close else ""
