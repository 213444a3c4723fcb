"""The reward with which an environment ended an episode."""

from __future__ import annotations

from mindgspo.rewards.verification import Candidate, Verification
from mindgspo.types import Verdict


class EnvironmentReward:
    """A verifier that repeats what the environment said. Without its own verdict a reward above 0 counts as correct."""

    def can_read(self, gold: str) -> bool:
        """Always True: what an answer means, only the environment knows."""
        return True

    def verify(self, candidate: Candidate) -> Verification:
        """The environment's judgement; ERROR where it ended without a reward."""
        episode = candidate.episode
        if episode is None or episode.reward is None:
            message = (
                "environment: the episode ended without a reward; return End(reward=...), or name another function"
            )
            return Verification(value=None, verdict=Verdict.ERROR, message=message)
        is_correct = episode.reward > 0 if episode.is_correct is None else episode.is_correct
        return Verification(
            value=episode.reward, verdict=Verdict.CORRECT if is_correct else Verdict.WRONG, extras=episode.info
        )
