"""The records that travel between packages, in the order of one step.

Prompt -> Response -> ScoredGroup (one Score per response) -> Group (with advantages) -> Batch -> StepResult.

Legend of the shape suffixes used here and in every tensor file:

    L  tokens of one prompt or one response          G  responses per prompt (the group)
    N  responses (samples) in a batch                K  slots per response for its sampled tokens
    R  rows of a batch                               T  token slots per row
    P  predicted tokens of a batch
    V  vocabulary entries                            H  hidden units
    X  experts that one token goes to, in all layers

A record is frozen, built by keyword, and checks its lengths when it is made. Lengths are always explicit: they are
never rebuilt by searching for EOS or padding ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Int32Array = NDArray[np.int32]
Float32Array = NDArray[np.float32]
BoolArray = NDArray[np.bool_]
ExpertArray = NDArray[np.uint8 | np.int16]
"""Numbers of experts: one byte each where a layer has at most 256 of them, two where it has more."""


class FinishReason(str, Enum):
    """Why a response ended: the model emitted a token of the EOS set, or it reached `max_new_tokens`."""

    STOP = "stop"
    LENGTH = "length"


class Verdict(str, Enum):
    """Finding of a reward function. Only CORRECT and WRONG are judgements of the answer itself.

    NO_ANSWER: the response holds no recognisable answer. UNPARSEABLE_GOLD: the data row's own answer cannot be
    read. TIMEOUT, ERROR: the scorer failed, so the sample is invalid and leaves the group's statistics.
    """

    CORRECT = "correct"
    WRONG = "wrong"
    NO_ANSWER = "no_answer"
    UNPARSEABLE_GOLD = "unparseable_gold"
    TIMEOUT = "timeout"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One row of a prepared data set.

    Example: Prompt(index=0, ids=np.array([5, 9], np.int32), text="2+2=", answer="4", data_source="arithmetic")
    """

    index: int
    """Row number in the data set, from 0; with seed and step it keys the prompt's random stream."""
    ids: Int32Array
    """int32 [L], the tokenized prompt in its chat format."""
    text: str
    """Exactly the text that was tokenized."""
    answer: str
    """Gold answer as text."""
    data_source: str
    """The name that selects the reward function, e.g. "openai/gsm8k"."""
    solution: str = ""
    """Worked solution as text; "" if the data has none."""
    extra_info: Mapping[str, object] = field(default_factory=dict)
    """The row's other columns, passed to reward functions."""
    source: str = ""
    """Name of its entry where `data.train` is a list; "" elsewhere."""

    def __post_init__(self) -> None:
        assert self.ids.ndim == 1 and self.ids.size > 0, f"prompt {self.index}: ids has shape {self.ids.shape}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """The experts that the sampler's routers chose for each token they were fed.

    The X columns are the K choices of each layer with a router, layer after layer, the likeliest first.

    Example: a prompt of 3 tokens and a response of 2, in a model of 4 layers that chooses 2 experts per token, have
    prompt_LX [2, 8] and response_LX [2, 8].
    """

    prompt_LX: ExpertArray
    """[prompt tokens - 1, X], all tokens of the prompt except the last; siblings may share the array."""
    response_LX: ExpertArray
    """[response tokens, X], the token before each response token: the prompt's last one, then all response tokens
    except the last, which no router sees."""

    @property
    def whole(self) -> ExpertArray:
        """Experts of prompt and response but the last token, [tokens - 1, X]."""
        return np.concatenate([self.prompt_LX, self.response_LX])


class EpisodeEnd(str, Enum):
    """Why an episode ended.

    DONE: the environment ended it. MAX_TURNS: no further turn is allowed. TURN_TOKENS: a turn was cut at its longest
    length. EPISODE_TOKENS: there was no room for another turn. FAILED: the environment failed, or ran out of time.
    """

    DONE = "done"
    MAX_TURNS = "max_turns"
    TURN_TOKENS = "turn_tokens"
    EPISODE_TOKENS = "episode_tokens"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSpan:
    """One assistant turn of an episode, and what its observation took.

    Example: TurnSpan(start=0, stop=12, num_calls=1, errors=("bad_arguments",), seconds=0.2)
    """

    start: int
    """Place of its first sampled token in `Response.ids`."""
    stop: int
    """Place after its last one."""
    num_calls: int = 0
    """Calls of tools that the turn made."""
    errors: tuple[str, ...] = ()
    """Kinds of the errors of these calls."""
    seconds: float = 0.0
    """Time that the environment took to answer the turn."""
    num_left_out: int = 0
    """Tokens of its observation that were left out by a limit."""

    def __post_init__(self) -> None:
        assert 0 <= self.start < self.stop, f"a turn from {self.start} to {self.stop}"

    @property
    def length(self) -> int:
        """Number of sampled tokens."""
        return self.stop - self.start

    def to_json(self) -> dict[str, Any]:
        """JSON: all fields."""
        return {**asdict(self), "errors": list(self.errors)}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> TurnSpan:
        """The inverse of `to_json`."""
        return cls(**{**fields, "errors": tuple(fields["errors"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """The turns of a response that an environment took part in, and the environment's judgement.

    Example: a turn of 12 tokens, an observation of 5 and a turn of 4 are the turns (0, 12) and (17, 21).
    """

    turns: tuple[TurnSpan, ...]
    """Assistant turns in their order, the first from 0; tokens between them are observations."""
    end: EpisodeEnd
    reward: float | None
    """The environment's own reward; None if it gave none."""
    is_correct: bool | None
    """The environment's own verdict; None if it gave none."""
    info: Mapping[str, float]
    """Other numbers of the environment, by name; they are only logged."""
    message: str = ""
    """Why the environment failed; "" if it did not."""

    def __post_init__(self) -> None:
        assert self.turns and self.turns[0].start == 0, f"turns {self.turns}"
        assert all(one.stop <= other.start for one, other in pairwise(self.turns)), f"turns {self.turns}"
        assert self.reward is None or np.isfinite(self.reward), f"reward must be finite or None, got {self.reward}"
        assert all(map(np.isfinite, self.info.values())), f"info must be finite, got {self.info}"

    @property
    def num_sampled(self) -> int:
        """Tokens of all turns."""
        return sum(turn.length for turn in self.turns)

    def to_json(self) -> dict[str, Any]:
        """JSON: all fields."""
        return {**asdict(self), "turns": [turn.to_json() for turn in self.turns], "end": self.end.value}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Episode:
        """The inverse of `to_json`."""
        turns = tuple(map(TurnSpan.from_json, fields["turns"]))
        return cls(**{**fields, "turns": turns, "end": EpisodeEnd(fields["end"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """One sampled continuation, exactly as the sampler produced it; of an episode, with the observations between its
    turns.

    Example: Response(prompt_index=0, sample_index=3, ids=np.array([7, 2], np.int32), logprobs=np.float32([-0.1, -0.7]),
    finish_reason=FinishReason.STOP, temperature=1.0, weight_version=12)
    """

    prompt_index: int
    """`Prompt.index` of its prompt."""
    sample_index: int
    """Its number among the G siblings of the prompt, from 0."""
    ids: Int32Array
    """int32 [L], everything behind the prompt, EOS included if one was sampled."""
    logprobs: Float32Array
    """float32, log-probability of each sampled token under softmax(logits / temperature), before any top-k or top-p
    filter."""
    finish_reason: FinishReason
    temperature: float
    """0 means greedy; the log-probs are then those at temperature 1."""
    weight_version: int
    """Version of the weights that sampled the first token."""
    token_versions: Int32Array | None = None
    """int32, version of the weights that sampled each sampled token; None if one version sampled all of them."""
    routing: Routing | None = None
    """None if it was not recorded, and on ranks of other replicas than the one that sampled the response."""
    episode: Episode | None = None
    """None if there is no environment: the whole response is one sampled turn."""

    def __post_init__(self) -> None:
        sampled = self.ids.size if self.episode is None else self.episode.num_sampled
        assert self.logprobs.shape == (sampled,) and self.ids.ndim == 1 and self.ids.size > 0, (
            f"response {self.prompt_index}/{self.sample_index}: ids {self.ids.shape}, {sampled} of them sampled, "
            f"logprobs {self.logprobs.shape}"
        )
        assert self.episode is None or self.episode.turns[-1].stop <= self.ids.size, (self.episode, self.ids.size)
        assert self.token_versions is None or self.token_versions.shape == self.logprobs.shape, self.token_versions
        assert self.routing is None or len(self.routing.response_LX) == self.ids.size, (
            f"response {self.prompt_index}/{self.sample_index}: routing of {len(self.routing.response_LX)} tokens"
        )

    @property
    def length(self) -> int:
        """Number of sampled tokens, EOS included."""
        return int(self.logprobs.size)

    @property
    def last_turn(self) -> Int32Array:
        """The tokens that give the answer: those of the last turn; without an environment all."""
        if self.episode is None:
            return self.ids
        turn = self.episode.turns[-1]
        return self.ids[turn.start : turn.stop]

    @property
    def actions(self) -> BoolArray | None:
        """bool [L], which of `ids` were sampled; None: all, for want of an environment."""
        if self.episode is None:
            return None
        actions = np.zeros(self.ids.size, np.bool_)
        for turn in self.episode.turns:
            actions[turn.start : turn.stop] = True
        return actions


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The reward of one response.

    Example: Score(value=1.0, verdict=Verdict.CORRECT, extracted="72", parts={"gsm8k": 1.0})
    """

    value: float | None
    """The total reward. None abstains: the sample is counted, but excluded from the group's statistics and from
    training."""
    verdict: Verdict
    extracted: str | None = None
    """The answer found in the response; None if none was found."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Unweighted value of each reward function, by name."""
    extras: Mapping[str, float] = field(default_factory=dict)
    """Other numbers that a user's function returned, by "function/key"; they are only logged."""
    message: str = ""
    """Why a function failed; "" if none did."""

    def __post_init__(self) -> None:
        assert self.value is None or np.isfinite(self.value), f"reward must be finite or None, got {self.value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredGroup:
    """The G siblings of one prompt with their scores.

    Example: of two responses, the first right and the second wrong, the scores have values 1.0 and 0.0.
    """

    prompt: Prompt
    responses: tuple[Response, ...]
    scores: tuple[Score, ...]

    def __post_init__(self) -> None:
        sizes = (len(self.responses), len(self.scores))
        assert len(set(sizes)) == 1, f"group of prompt {self.prompt.index}: responses, scores = {sizes}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group(ScoredGroup):
    """A scored group with the advantage of every response token.

    Example: two responses of 3 and 2 tokens, the first better, have advantages [0.7, 0.7, 0.7] and [-0.7, -0.7].
    """

    advantages: tuple[Float32Array, ...]
    """One float32 [length] per response, a value per sampled token. Most estimators give all tokens of a response the
    same value; a response whose reward abstained has zeros."""

    def __post_init__(self) -> None:
        ScoredGroup.__post_init__(self)
        lengths = [response.length for response in self.responses]
        given = [advantage.size for advantage in self.advantages]
        assert lengths == given, f"group of prompt {self.prompt.index}: advantages of {given} tokens for {lengths}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Numpy rows for the train graph: the samples of one micro-batch, padded to static shapes.

    Rows hold tokens (right-padded, causal attention never looks right), one sample or several; samples hold responses.
    The P predictions that reach the vocabulary join the two: `predict_P` says where in the rows each is made,
    `place_NK` which of them belongs to each response token. So the loss does not depend on how samples were laid into
    rows, and the head skips the slots that short responses leave empty.

    Response tokens are those that were sampled. The observations of an episode stand in the rows, where they condition
    what follows; nothing predicts them, and no slot of a sample is theirs.

    Example: one sample with prompt [5, 9] and response [7, 2] in a row of 6 slots (pad id 0):

        ids_RT        [[5, 9, 7, 2, 0, 0]]      predict_P  [1, 2]  (the slots of 9 and 7)
        positions_RT  [[0, 1, 2, 3, 0, 0]]      targets_P  [7, 2]
        segments_RT   [[1, 1, 1, 1, 0, 0]]      place_NK   [[0, 1]], mask_NK [[True, True]]
    """

    ids_RT: Int32Array
    """int32, prompt and response tokens, padded with the tokenizer's pad id."""
    positions_RT: Int32Array
    """int32, position of each token within its own sample; 0 in padding."""
    segments_RT: Int32Array
    """int32, 1, 2, ... per sample within the row, 0 in padding; attention stays within a segment."""
    predict_P: Int32Array
    """int32, index into the flattened [R * T] positions whose hidden state predicts a token; 0 in padding."""
    targets_P: Int32Array
    """int32, the token that is predicted; 0 in padding."""
    place_NK: Int32Array
    """int32, index into P of response token k; arbitrary where masked."""
    mask_NK: BoolArray
    """bool, True for real response tokens."""
    samples_N: Int32Array
    """int32, the number under which the maker of the batch knows each sample. -1 for a filler sample, whose row of
    `mask_NK` is all False and which is not counted anywhere."""
    rollout_logp_NK: Float32Array
    """float32, log-probs of the targets under the sampler; 0 where masked."""
    old_logp_NK: Float32Array
    """float32, log-probs under the policy before the update; 0 where masked."""
    ref_logp_NK: Float32Array
    """float32, log-probs under the reference policy; 0 where masked, and everywhere without a reference."""
    advantages_NK: Float32Array
    """float32, 0 where masked."""
    correction_NK: Float32Array
    """float32, weights that correct the mismatch of sampler and trainer; 1 everywhere without a correction."""
    num_sequences: int
    """Denominator: responses of the whole global mini-batch, not of this micro-batch."""
    num_tokens: int
    """Denominator: response tokens of the whole global mini-batch."""
    experts_RTX: ExpertArray | None = None
    """The recorded experts of each token except the last of a sample, see `Routing`, else 0; None without a record."""
    turns_NK: Int32Array | None = None
    """int32, number of the turn that sampled each token, from 0; 0 where masked. None unless the loss reads it."""
    selected_NK: BoolArray | None = None
    """bool, tokens that a covariance selects; False where masked. None unless the loss reads it."""
    teacher_ids_NKA: Int32Array | None = None
    """int32, the A likeliest ids of a teacher, -1 where it gave none; anything where masked. None unless the loss reads
    it, like the next one."""
    teacher_logp_NKA: Float32Array | None = None
    """float32, their log-probs under the teacher."""

    def __post_init__(self) -> None:
        arrays_NK = {name: getattr(self, name) for name in self.__slots__ if name.endswith("_NK")}
        shapes_NK = {name: array.shape for name, array in arrays_NK.items() if array is not None}
        assert len(set(shapes_NK.values())) == 1, f"batch: {shapes_NK}"
        shapes_RT = {name: getattr(self, name).shape for name in ("ids_RT", "positions_RT", "segments_RT")}
        assert len(set(shapes_RT.values())) == 1, f"batch: {shapes_RT}"
        shapes_P = (self.predict_P.shape, self.targets_P.shape)
        assert self.predict_P.ndim == 1 and len(set(shapes_P)) == 1, f"batch: {shapes_P}"
        of_teacher = [array.shape for array in (self.teacher_ids_NKA, self.teacher_logp_NKA) if array is not None]
        if of_teacher:
            are_alike = len(of_teacher) == 2 and of_teacher[0] == of_teacher[1]
            assert are_alike and of_teacher[0][:2] == self.mask_NK.shape, f"batch: of a teacher {of_teacher}"
        if self.experts_RTX is not None:
            assert self.experts_RTX.shape[:2] == self.ids_RT.shape, f"batch: experts {self.experts_RTX.shape}"
        assert self.samples_N.shape == self.mask_NK.shape[:1], f"batch: samples {self.samples_N.shape}"
        assert self.num_sequences > 0 and self.num_tokens > 0, "a batch without a single response token"

    @property
    def predict_NK(self) -> Int32Array:  # noqa: N802  (an array as its siblings)
        """`predict_P` by response token; 0 where masked."""
        return np.where(self.mask_NK, self.predict_P[self.place_NK], 0)

    @property
    def targets_NK(self) -> Int32Array:  # noqa: N802  (an array as its siblings)
        """The response tokens; 0 where masked."""
        return np.where(self.mask_NK, self.targets_P[self.place_NK], 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """Outcome of one training step.

    Example: StepResult(step=3, metrics={"critic/score/mean": 0.55, "actor/grad_norm": 0.4}, groups=groups)
    """

    step: int
    metrics: Mapping[str, float]
    """Flat, with slash-separated names."""
    groups: tuple[Group, ...]
    """The groups it trained on."""
