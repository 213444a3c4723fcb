"""The registry of policy losses: what a name in `algorithm.name` stands for.

What enters: nothing. What leaves: one `LossRecipe` per name, with the defaults of its paper. To add a loss: its cell
below `mindgspo/algorithms/losses`, and one line here. The schema takes its legal names from this
table, `config.load` the defaults, `losses.registry` the cell. Pure Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

RatioLevel = Literal["token", "sequence", "sequence_token", "none"]
Surrogate = Literal["clip", "cispo", "sapo", "gpg", "gmpo"]
AggregationMode = Literal[
    "token-mean",
    "token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum",
    "seq-mean-token-sum-norm",
    "batch-token-sum-norm",
    "batch-mean",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossRecipe:
    """One policy loss.

    cell: "module:class" below mindgspo.algorithms.losses. source: where it was published. ratio_level, surrogate:
    see `algorithms.definition`. clip: default (clip_low, clip_high), None where the loss clips nothing.
    clip_ratio_c: default dual clip. agg_mode: default `loss_agg_mode`. advantage: default estimator.
    """

    cell: str
    source: str
    ratio_level: RatioLevel
    surrogate: Surrogate
    agg_mode: AggregationMode
    clip: tuple[float, float] | None = None
    clip_ratio_c: float | None = None
    advantage: str = "grpo"


POLICY_LOSSES: Mapping[str, LossRecipe] = {
    # Both clip ranges of arXiv 2507.18071: section 5.1 gives GSPO's, and that of its GRPO baseline.
    "gspo": LossRecipe(
        cell="clipped:GSPOLoss", source="arXiv 2507.18071, eq. 5", ratio_level="sequence", surrogate="clip",
        clip=(3e-4, 4e-4), agg_mode="seq-mean-token-mean",
    ),
    "gspo_token": LossRecipe(
        cell="clipped:GSPOTokenLoss", source="arXiv 2507.18071, eq. 13", ratio_level="sequence_token",
        surrogate="clip", clip=(3e-4, 4e-4), agg_mode="seq-mean-token-mean",
    ),
    "grpo": LossRecipe(
        cell="clipped:GRPOLoss", source="arXiv 2402.03300, eq. 3", ratio_level="token", surrogate="clip",
        clip=(0.2, 0.27), agg_mode="seq-mean-token-mean",
    ),
    "ppo": LossRecipe(
        cell="clipped:PPOLoss", source="arXiv 1707.06347, eq. 7; dual clip arXiv 1912.09729, eq. 5",
        ratio_level="token", surrogate="clip", clip=(0.2, 0.2), clip_ratio_c=3.0, agg_mode="token-mean",
    ),
    "dapo": LossRecipe(
        cell="clipped:DAPOLoss", source="arXiv 2503.14476, eq. 8", ratio_level="token", surrogate="clip",
        clip=(0.2, 0.28), agg_mode="token-mean",
    ),
    "dr_grpo": LossRecipe(
        cell="clipped:DrGRPOLoss", source="arXiv 2503.20783, section 3", ratio_level="token", surrogate="clip",
        clip=(0.2, 0.2), agg_mode="seq-mean-token-sum-norm", advantage="dr_grpo",
    ),
    "gmpo": LossRecipe(
        cell="surrogates:GMPOLoss", source="arXiv 2507.20673", ratio_level="token", surrogate="gmpo",
        clip=(0.4, 0.4), agg_mode="batch-mean",
    ),
    "cispo": LossRecipe(
        cell="surrogates:CISPOLoss", source="arXiv 2506.13585, eq. 4", ratio_level="token", surrogate="cispo",
        clip=(1.0, 4.0), agg_mode="token-mean",
    ),
    "sapo": LossRecipe(
        cell="surrogates:SAPOLoss", source="arXiv 2511.20347", ratio_level="token", surrogate="sapo",
        agg_mode="seq-mean-token-mean",
    ),
    "gpg": LossRecipe(
        cell="surrogates:GPGLoss", source="arXiv 2504.02546", ratio_level="none", surrogate="gpg",
        agg_mode="token-mean", advantage="gpg",
    ),
}  # fmt: skip
