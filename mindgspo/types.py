"""The records that travel between packages, in the order of one step.

Prompt -> Response -> ScoredGroup (one Score per response) -> Group (with advantages) -> Batch -> StepResult.

Legend of the shape suffixes used here and in every tensor file:

    L  tokens of one prompt or one response          G  responses per prompt (the group)
    N  responses (samples) in a batch                K  response-token slots per response
    R  rows of a batch                               T  token slots per row
    P  predicted tokens of a batch
    V  vocabulary entries                            H  hidden units
    X  experts that one token goes to, in all layers

A record is frozen, built by keyword, and checks its lengths when it is made. Lengths are always explicit:
nobody rebuilds them by searching for EOS or padding ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

Int32Array = NDArray[np.int32]
Float32Array = NDArray[np.float32]
BoolArray = NDArray[np.bool_]
ExpertArray = NDArray[np.uint8] | NDArray[np.int16]
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

    index: row number in the data set (>= 0); with seed and step it keys the prompt's random stream.
    ids: int32 [L], the tokenized chat-formatted prompt. text: exactly the text that was tokenized.
    answer: gold answer as text. solution: worked solution as text, "" where the data has none.
    data_source: the name that chose the reward, e.g. "openai/gsm8k".

    Example: Prompt(index=0, ids=np.array([5, 9], np.int32), text="2+2=", answer="4", data_source="arithmetic")
    """

    index: int
    ids: Int32Array
    text: str
    answer: str
    data_source: str
    solution: str = ""
    extra_info: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert self.ids.ndim == 1 and self.ids.size > 0, f"prompt {self.index}: ids has shape {self.ids.shape}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Which experts of a mixture the sampler's routers chose for the tokens that it was fed.

    X columns: K of each layer, layer after layer, the likeliest first. prompt_LX: of the prompt's tokens but the last;
    siblings may share it. response_LX: of the token in front of each response token: the prompt's last one, then the
    response's but the last, which is fed to nobody.
    """

    prompt_LX: ExpertArray
    response_LX: ExpertArray

    @property
    def whole(self) -> ExpertArray:
        """Experts of prompt and response but the last token, [tokens - 1, X]."""
        return np.concatenate([self.prompt_LX, self.response_LX])


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """One sampled continuation, as the sampler made it.

    prompt_index, sample_index: which prompt, and which of its G siblings.
    ids: int32 [L], EOS included if one was sampled. logprobs: float32 [L], log-probability of each token under
    softmax(logits / temperature), before any top-k or top-p cut. temperature: 0 means greedy (log-probs then
    at temperature 1). weight_version: version stamp of the weights that sampled its first token. token_versions: int32
    [L], those of each token; None where one version sampled them all. routing: None where it was not recorded, and on
    ranks of other replicas than the one that sampled it.
    """

    prompt_index: int
    sample_index: int
    ids: Int32Array
    logprobs: Float32Array
    finish_reason: FinishReason
    temperature: float
    weight_version: int
    token_versions: Int32Array | None = None
    routing: Routing | None = None

    def __post_init__(self) -> None:
        assert self.ids.shape == self.logprobs.shape and self.ids.ndim == 1 and self.ids.size > 0, (
            f"response {self.prompt_index}/{self.sample_index}: ids {self.ids.shape}, logprobs {self.logprobs.shape}"
        )
        assert self.token_versions is None or self.token_versions.shape == self.ids.shape, self.token_versions
        assert self.routing is None or len(self.routing.response_LX) == self.ids.size, (
            f"response {self.prompt_index}/{self.sample_index}: routing of {len(self.routing.response_LX)} tokens"
        )

    @property
    def length(self) -> int:
        """Number of sampled tokens, EOS included."""
        return int(self.ids.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A reward for one response.

    value: the total reward; None abstains (the sample is invalid: left out of the group's statistics, counted).
    verdict: see Verdict. extracted: the answer that was found in the response, None if none was.
    parts: value of every reward function before weighting, by name. extras: further numbers that a user's function
    reported, by "function/key"; they are logged only. message: why a function failed, "" where none did.
    """

    value: float | None
    verdict: Verdict
    extracted: str | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    extras: Mapping[str, float] = field(default_factory=dict)
    message: str = ""

    def __post_init__(self) -> None:
        assert self.value is None or np.isfinite(self.value), f"reward must be finite or None, got {self.value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredGroup:
    """The G siblings of one prompt with their scores."""

    prompt: Prompt
    responses: tuple[Response, ...]
    scores: tuple[Score, ...]

    def __post_init__(self) -> None:
        sizes = (len(self.responses), len(self.scores))
        assert len(set(sizes)) == 1, f"group of prompt {self.prompt.index}: responses, scores = {sizes}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group(ScoredGroup):
    """A scored group with the advantage of every response token.

    advantages: one float32 [L] per response, L its length. Most estimators give all tokens of a response the same.
    A response whose reward abstained has zeros.
    """

    advantages: tuple[Float32Array, ...]

    def __post_init__(self) -> None:
        ScoredGroup.__post_init__(self)
        lengths = [response.length for response in self.responses]
        given = [advantage.size for advantage in self.advantages]
        assert lengths == given, f"group of prompt {self.prompt.index}: advantages of {given} tokens for {lengths}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Numpy rows for the train graph: the samples of one micro-batch, padded to static shapes.

    Rows hold tokens (right-padded, causal attention never looks right), one sample or several; samples hold responses.
    The two are joined by the P predictions that reach the vocabulary: `predict_P` says where in the rows each is made,
    `place_NK` which of them each response token is. So the loss does not know how samples were laid into rows, and the
    head computes no slot twice that responses of different length leave empty.

    ids_RT: int32, prompt + response tokens, padded with the tokenizer's pad id.
    positions_RT: int32, position of each token within its own sample; 0 where padded.
    segments_RT: int32, 1, 2, ... per sample within the row, 0 where padded; attention stays within a segment.
    predict_P: int32, index into the flattened [R*T] positions whose hidden state predicts a token; 0 where padded.
    targets_P: int32, that token; 0 where padded. place_NK: int32, index into P of response token k; where masked any
        index. mask_NK: bool, real tokens.
    samples_N: int32, the number that the maker of the batch knows each sample by; -1 for a filler sample, whose row
        of `mask_NK` has no True and which is not counted anywhere.
    rollout_logp_NK, old_logp_NK, ref_logp_NK: float32 log-probs of the targets under the sampler, the policy before
        the update and the reference policy; 0 where masked (ref: everywhere, if there is no reference).
    advantages_NK: float32, 0 where masked. correction_NK: float32 weights against the mismatch of sampler and
        trainer, 1 everywhere if they are not corrected.
    num_sequences, num_tokens: denominators over the whole global mini-batch (not this micro-batch).
    experts_RTX: where routing was recorded, of each token but the last of a sample, see `Routing`; else 0.
    """

    ids_RT: Int32Array
    positions_RT: Int32Array
    segments_RT: Int32Array
    predict_P: Int32Array
    targets_P: Int32Array
    place_NK: Int32Array
    mask_NK: BoolArray
    samples_N: Int32Array
    rollout_logp_NK: Float32Array
    old_logp_NK: Float32Array
    ref_logp_NK: Float32Array
    advantages_NK: Float32Array
    correction_NK: Float32Array
    num_sequences: int
    num_tokens: int
    experts_RTX: ExpertArray | None = None

    def __post_init__(self) -> None:
        shapes_NK = {name: getattr(self, name).shape for name in self.__slots__ if name.endswith("_NK")}
        assert len(set(shapes_NK.values())) == 1, f"batch: {shapes_NK}"
        shapes_RT = {name: getattr(self, name).shape for name in ("ids_RT", "positions_RT", "segments_RT")}
        assert len(set(shapes_RT.values())) == 1, f"batch: {shapes_RT}"
        shapes_P = (self.predict_P.shape, self.targets_P.shape)
        assert self.predict_P.ndim == 1 and len(set(shapes_P)) == 1, f"batch: {shapes_P}"
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
    """Outcome of one training step: its metrics (flat, slash-named) and the groups it trained on."""

    step: int
    metrics: Mapping[str, float]
    groups: tuple[Group, ...]
