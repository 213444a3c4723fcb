"""A score as text: what ranks send each other, and what a checkpoint keeps."""

from __future__ import annotations

import json
from dataclasses import asdict

from mindgspo.types import Score, Verdict


def score_to_json(score: Score) -> str:
    """What `score_from_json` reads back as an equal score."""
    return json.dumps({**asdict(score), "verdict": score.verdict.value})


def score_from_json(text: str) -> Score:
    """The score that `score_to_json` wrote."""
    fields = json.loads(text)
    return Score(**{**fields, "verdict": Verdict(fields["verdict"])})
