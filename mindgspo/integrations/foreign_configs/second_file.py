"""Two files about one experiment: what the second one says under what the first one said.

What enters: the drafts of both. What leaves: the first draft, completed, and a report that says which of two values
counts. Called by `mindformers`, for a predict file beside a finetune file and for the files that MindRLHF names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mindgspo.integrations.foreign_configs.draft import Draft
from mindgspo.integrations.foreign_configs.plans import INFER, TRAIN
from mindgspo.integrations.foreign_configs.reading import Finding
from mindgspo.integrations.foreign_configs.table import Fate


def merge(own: Draft, draft: Draft, *, joined: tuple[str, ...], ours: tuple[str, ...], plan: str) -> None:
    """A second file's draft put under the first one's. joined: keys that count though they set nothing by themselves.
    ours: targets in which the second file wins. plan: the plan that its sizes are of."""
    before = {target: placed.value for target, placed in draft.values.items()}
    own.values = {target: placed for target, placed in own.values.items() if not target.startswith(TRAIN)}
    for target, placed in own.values.items():
        if target.startswith(ours) or target not in before:
            draft.values[target] = placed
    draft.used += own.used
    for finding in own.findings:
        if finding.fate is not Fate.ASSUMED or finding.source not in before:
            draft.findings.append(of_plan(_settled(finding, own, before, joined, ours), plan))


def _settled(
    finding: Finding, own: Draft, before: Mapping[str, Any], joined: tuple[str, ...], ours: tuple[str, ...]
) -> Finding:
    """The finding as it is where another file said things before."""
    if finding.fate not in (Fate.MAPPED, Fate.ADJUSTED):
        return finding
    placed = [target for target in finding.targets if target in own.values]
    if not placed and not finding.source.startswith(joined):
        return replace(finding, fate=Fate.NOT_NEEDED, targets=(), text="of training; the other file says it")
    differing = [one for one in placed if one in before and before[one] != own.values[one].value]
    if differing and not differing[0].startswith(ours):
        text = f"the other file's {before[differing[0]]} counts"
        return replace(finding, fate=Fate.NOT_NEEDED, targets=(), text=text)
    return finding


def of_plan(finding: Finding, plan: str) -> Finding:
    """The finding without the keys of the other plan, which a file of this kind does not set."""
    other = INFER if plan == TRAIN else TRAIN
    return replace(finding, targets=tuple(one for one in finding.targets if not one.startswith(other)))
