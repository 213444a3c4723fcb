"""The section `algorithm.filter_groups`: groups that teach nothing, and what is done in their place.

What enters: plain values from `config.load`. What leaves: a frozen `FilterGroupsSection`, read by the trainer. Rules
that join its keys with others are in `filter_rules`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mindgspo.config.section import Section


class FilterGroupsSection(Section):
    """A group has a signal if its responses differ in `metric`. DAPO's dynamic sampling (arXiv 2503.14476, section 3.2)
    is `metric` with `refill`."""

    metric: str = "none"
    """What the responses of a group are compared in: reward (the total), accuracy (right or wrong), or one of
    reward.functions by its entry there. Groups without a signal leave the batch and its denominators. none: they count
    as responses with advantage 0. (verl: algorithm.filter_groups.metric)"""
    refill: bool = False
    """Draw further prompts until rollout.prompts_per_step groups have a signal, so that every update has its full size.
    (verl: algorithm.filter_groups.enable)"""
    prompts_per_draw: int | None = Field(default=None, ge=1)
    """Prompts per draw. None: first as many as are missing; then as many as are missing divided by the share of groups
    with a signal so far, at most rollout.prompts_per_step. (verl: data.gen_batch_size)"""
    max_num_gen_batches: int = Field(default=10, ge=1)
    """Most draws of one step. (verl: algorithm.filter_groups.max_num_gen_batches)"""
    when_short: Literal["train", "skip", "stop"] = "train"
    """What happens if the batch is not full then. train: on the groups there are, in fewer or smaller updates. skip: no
    update in this step. stop: the run ends with an error, as in verl."""
    keep_surplus_steps: int = Field(default=0, ge=0)
    """For how many further steps groups beyond the full batch are kept, to be trained first then; their responses are
    older than the weights by as many steps. 0: they are dropped."""
