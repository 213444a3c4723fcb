"""Rules of the section `eval` that join its fields, and those of `data.eval`.

What enters: a resolved config. What leaves: lines as in `config.validate`, which calls this.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from mindgspo.config.eval_section import OVERALL, EvalSection
from mindgspo.config.schema import ExperimentConfig
from mindgspo.text import closest

_BEST = re.compile(r"val-core/(?P<part>.+)/(?P<figure>(?:acc|reward)/[a-z]+@[0-9]+)")


def eval_problems(config: ExperimentConfig) -> Iterator[str]:
    """Every violated rule about evaluation."""
    section = config.eval
    most = max(section.pass_at_k)
    if most > section.num_samples:
        yield (
            f"eval.pass_at_k: {most} needs as many samples, but eval.num_samples is "
            f"{section.num_samples}; set eval.num_samples={most} or drop {most}"
        )
    else:
        yield from _best_metric_problems(config)


def part_of(best_metric: str) -> str | None:
    """The set or data source that a legal eval.best_metric is about; None for all problems together."""
    found = _BEST.fullmatch(best_metric)
    return None if found is None else found["part"]


def measured_figures(section: EvalSection) -> list[str]:
    """The figures that an evaluation makes of each set or data source."""
    size = section.num_samples
    greedy = ["acc/mean@1", "reward/mean@1"]
    if size == 1:
        return greedy
    several = sorted({*section.pass_at_k, size} - {1})
    return [
        *greedy,
        *(f"{kind}/mean@{size}" for kind in ("acc", "reward")),
        *(f"acc/pass@{k}" for k in section.pass_at_k),
        *(f"acc/maj@{k}" for k in several),
        *(f"reward/best@{k}" for k in several),
    ]


def _best_metric_problems(config: ExperimentConfig) -> Iterator[str]:
    name = config.eval.best_metric
    if name == OVERALL:
        return
    found, figures = _BEST.fullmatch(name), measured_figures(config.eval)
    if found is None:
        example = next(iter(config.data.eval_sets)) if config.data.names_eval_sets else "<data source>"
        yield f"eval.best_metric: {name} is no figure of an evaluation; e.g. {OVERALL} or val-core/{example}/acc/mean@1"
        return
    if found["figure"] not in figures:
        close = closest(found["figure"], figures, cutoff=0.0)
        yield (
            f"eval.best_metric: {found['figure']} is not measured with eval.num_samples {config.eval.num_samples} and "
            f"eval.pass_at_k {list(config.eval.pass_at_k)}; nearest: val-core/{found['part']}/{close}"
        )
    names = list(config.data.eval_sets)
    if config.data.names_eval_sets and found["part"].split("/")[0] not in names:
        yield f"eval.best_metric: there is no set {found['part']} under data.eval; there are {', '.join(names)}"
