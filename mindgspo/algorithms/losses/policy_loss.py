"""The body every policy loss shares, on one page, `PolicyLoss.construct`: log-probs -> ratio -> clip -> surrogate ->
aggregation, KL and entropy, metrics.

A surrogate is a subclass (`clipped`, `surrogates`); `registry` pairs it with a ratio. Tests compare it with
the float64 twins in numpy of `tools/conformance`.

    N  responses    K  response-token slots    1  an axis kept for broadcasting
"""

from __future__ import annotations

import math

import mindspore as ms
from mindspore import Tensor, nn, ops
from mindspore.ops import constexpr

from mindgspo.algorithms.loss_metrics import OPSM_METRIC, POLICY_METRICS
from mindgspo.algorithms.losses.definition import Aggregation, KLTerm, LossDefinition
from mindgspo.algorithms.losses.distillation import DISTILLATION_METRIC, TopKKL
from mindgspo.algorithms.losses.ratios import Ratio

# Beyond every log-ratio. Not inf: where inf and -inf are both constants of a graph, MindSpore 2.10's compiler
# puts, in about one compilation of a hundred, one in the other's place, or fails.
BEYOND = 3e38
# The operator itself: MindSpore 2.7.0 loses the graph of the Python function ops.zeros_like inside ops.Morph.
zeros_like = ops.ZerosLike()


def bounded(values: Tensor, low: float | None, high: float | None) -> Tensor:
    """`values` between the bounds; the gradient is 0 outside and whole on a bound (ops.clip_by_value: half)."""
    if high is not None:
        values = ops.where(values > high, high, values)
    if low is not None:
        values = ops.where(values < low, low, values)
    return values


def log_bound(bound: float | None) -> float | None:
    """Logarithm of a bound of the ratio. A lower bound of 0 or less never acts."""
    if bound is None:
        return None
    return math.log(bound) if bound > 0 else -BEYOND


def log_clip_range(clip_low: float | None, clip_high: float | None) -> tuple[float, float]:
    """[log(1 - clip_low), log(1 + clip_high)], exact where the range is narrow: float32 resolves log s = 4e-4 to
    3e-11, but s = 1.0004 only to 1e-7."""
    low = -BEYOND if clip_low is None or clip_low >= 1 else math.log1p(-clip_low)
    high = BEYOND if clip_high is None else math.log1p(clip_high)
    return low, high


NAMES = ("logp_NK", "entropy_NK", "old_logp_NK", "ref_logp_NK", "advantages_NK", "correction_NK")


@constexpr
def check_inputs(shapes: tuple, mask_shape: tuple, mask_dtype: ms.Type, scalar_shapes: tuple) -> bool:
    """shapes: of the arguments NAMES, in order. scalar_shapes: of num_sequences, num_tokens, kl_coef."""
    if mask_dtype != ms.bool_:
        raise TypeError(f"mask_NK: expected bool, got {mask_dtype}; a mask of 0 and 1 becomes one by `mask != 0`")
    if len(mask_shape) != 2:
        raise ValueError(f"mask_NK: expected [responses, tokens], got shape {list(mask_shape)}")
    for name, shape in zip(NAMES, shapes, strict=True):
        if tuple(shape) != tuple(mask_shape):
            hint = " (repeat one advantage per response over its tokens)" if name == "advantages_NK" else ""
            raise ValueError(f"{name}: expected shape {list(mask_shape)} as mask_NK, got {list(shape)}{hint}")
    for name, shape in zip(("num_sequences", "num_tokens", "kl_coef"), scalar_shapes, strict=True):
        if len(shape) > 0:
            raise ValueError(f"{name}: expected a scalar, got shape {list(shape)}")
    return True


class Aggregate(nn.Cell):
    """The modes of `definition.Aggregation`, after verl's `agg_loss`."""

    def __init__(self, aggregation: Aggregation) -> None:
        super().__init__()
        self.mode = aggregation.mode
        self.seq_len_eps = aggregation.seq_len_eps
        self.scale = 1.0 / (aggregation.loss_scale_factor or 1.0)

    def construct(self, loss_NK: Tensor, mask_NK: Tensor, num_sequences: Tensor, num_tokens: Tensor) -> Tensor:
        """Reduce the losses to a float32 scalar.

        loss_NK: float32; masked slots may hold anything. batch-mean takes loss_N1, one value per response, every row
            counting.
        mask_NK: bool.
        num_sequences, num_tokens: float32 scalars over the global mini-batch, read by the modes that divide by them.
        """
        if self.mode == "batch-mean":
            return loss_NK.sum() / num_sequences
        loss_NK = ops.where(mask_NK, loss_NK, 0.0)
        if self.mode == "seq-mean-token-mean":
            share_NK = mask_NK.astype(ms.float32) / self.lengths(mask_NK)
            return (loss_NK * share_NK).sum() / num_sequences
        total = loss_NK.sum()
        if self.mode == "token-mean":
            return total / num_tokens
        if self.mode == "seq-mean-token-sum":
            return total / num_sequences
        if self.mode == "seq-mean-token-sum-norm":
            return total * self.scale / num_sequences
        if self.mode == "batch-token-sum-norm":
            return total * self.scale
        return total

    def lengths(self, mask_NK: Tensor) -> Tensor:
        """Lengths [N, 1] by which a row's sum is divided to make its mean; never 0."""
        length_N1 = mask_NK.astype(ms.float32).sum(axis=1, keepdims=True)
        if not self.seq_len_eps:
            return ops.maximum(length_N1, 1.0)
        return length_N1 + self.seq_len_eps


class KLPenalty(nn.Cell):
    """k1, k2, k3 (low_var_kl) and abs of John Schulman's "Approximating KL divergence", 2020.

    As a loss, k1 has a gradient of mean 0 and k3 only approximates that of the divergence; k2's is unbiased on the
    policy, so `straight_through_k2` lends it to the others. With `importance_weight` value and gradient are unbiased
    off the policy too (DeepSeek-V3.2, section 3.1).
    """

    def __init__(self, term: KLTerm) -> None:
        super().__init__()
        self.kind = term.kind
        self.importance_weight = term.importance_weight
        self.straight_through_k2 = term.straight_through_k2
        self.log_ratio_max = term.log_ratio_max
        self.arg_low, self.arg_high = term.arg_clamp or (None, None)
        self.value_low, self.value_high = term.value_clamp or (None, None)

    def construct(self, logp_NK: Tensor, ref_logp_NK: Tensor, old_logp_NK: Tensor, mask_NK: Tensor) -> Tensor:
        """kl_NK, float32, 0 where masked. old_logp_NK is read by the importance weight only."""
        logp_NK = ops.where(mask_NK, logp_NK, 0.0)
        above_NK = logp_NK - ops.where(mask_NK, ref_logp_NK, 0.0)
        kl_NK = self.estimate(above_NK)
        if self.importance_weight:
            difference_NK = logp_NK - ops.where(mask_NK, old_logp_NK, 0.0)
            kl_NK = kl_NK * ops.exp(bounded(difference_NK, None, self.log_ratio_max))
        kl_NK = bounded(kl_NK, self.value_low, self.value_high)
        if self.straight_through_k2:
            squared_NK = 0.5 * above_NK * above_NK
            kl_NK = squared_NK + ops.stop_gradient(kl_NK - squared_NK)
        return ops.where(mask_NK, kl_NK, 0.0)

    def estimate(self, above_NK: Tensor) -> Tensor:
        """above_NK: log pi - log pi_ref."""
        if self.kind == "k1":
            return above_NK
        if self.kind == "k2":
            return 0.5 * above_NK * above_NK
        if self.kind == "abs":
            return ops.abs(above_NK)
        return exp_minus_linear(bounded(-above_NK, self.arg_low, self.arg_high))


def exp_minus_linear(exponent: Tensor) -> Tensor:
    """exp(x) - x - 1 in float32: by its series near 0, where the difference would lose all its digits.

    Close policies are where training begins, and their x is about 1e-3. The series ends at x^6 / 720, which at
    |x| = 0.25 leaves less than 1e-7 of the value.
    """
    is_near = ops.abs(exponent) < 0.25
    x = ops.where(is_near, exponent, 0.0)
    series = x * x * (1 / 2 + x * (1 / 6 + x * (1 / 24 + x * (1 / 120 + x * (1 / 720)))))
    return ops.where(is_near, series, ops.exp(exponent) - exponent - 1.0)


class PolicyLoss(nn.Cell):
    """Body of all policy losses. Subclasses define their `surrogate`.

    ratio: the cell of `definition.ratio_level`.
    """

    reads_old_logp = False
    """Whether the surrogate takes old_logp_NK as well, 0 where masked."""
    reads_correction = False
    """Whether the surrogate takes correction_NK as well, 1 where masked; then nothing else applies it."""
    reads_selection = False
    """Whether the surrogate takes selected_NK as well, bool, False where masked."""

    def __init__(self, definition: LossDefinition, ratio: type[Ratio]) -> None:
        super().__init__()
        self.log_ratio_min = definition.log_ratio_min
        self.log_ratio_max = definition.log_ratio_max
        self.log_low, self.log_high = log_clip_range(definition.clip_low, definition.clip_high)
        self.log_ratio = ratio(definition.ratio_len_eps)
        self.is_per_response = self.log_ratio.is_per_response
        self.reads_turns = definition.ratio_level == "turn"
        self.opsm_threshold = definition.opsm_threshold
        self.distillation_coef = definition.distillation_coef
        self.distillation = TopKKL() if definition.distillation_coef > 0 else None
        has_opsm, has_teacher = self.opsm_threshold is not None, self.distillation is not None
        self.metrics = (*POLICY_METRICS, *(OPSM_METRIC,) * has_opsm, *(DISTILLATION_METRIC,) * has_teacher)
        self.further_inputs = tuple(
            name
            for name, is_read in (
                ("turns_JNK", self.reads_turns),
                ("selected_NK", self.reads_selection),
                ("rollout_logp_NK", has_opsm),
                ("teacher_ids_NKA", has_teacher),
                ("teacher_logp_NKA", has_teacher),
            )
            if is_read
        )
        self.sampler_at = int(self.reads_turns) + int(self.reads_selection)
        self.aggregate = Aggregate(definition.aggregation)
        self.kl = None if definition.kl is None else KLPenalty(definition.kl)
        if definition.kl is not None:
            self.aggregate_kl = Aggregate(definition.kl.aggregation)
        self.entropy_coef = definition.entropy_coef
        self.weighted_sums = ops.MatMul(transpose_b=True)

    def surrogate(
        self, log_ratio: Tensor, inside: Tensor, logp_NK: Tensor, advantages_NK: Tensor, mask_NK: Tensor, *read: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Token loss, to be minimised, and two bool masks: where the clip acts, and where the dual clip does.

        log_ratio: within its bounds, [N, K] or [N, 1].
        inside: `log_ratio` within the clip range.
        logp_NK: 0 where masked.
        read: what the class reads besides, in the order of its flags.

        Each result is [N, K] or [N, 1].
        """
        raise NotImplementedError

    def token_advantages(self, advantages_NK: Tensor, mask_NK: Tensor) -> Tensor:
        """The advantages that the surrogate reads."""
        return ops.where(mask_NK, advantages_NK, 0.0)

    def corrected(self, token_loss: Tensor, correction_NK: Tensor, mask_NK: Tensor) -> Tensor:
        """The token loss times the weights against the mismatch of sampler and trainer."""
        if self.reads_correction:
            return token_loss
        return token_loss * ops.where(mask_NK, correction_NK, 0.0)

    def off_policy(self, advantages_NK: Tensor, drift_NK: Tensor, mask_NK: Tensor, threshold: float) -> Tensor:
        """Responses, bool [N, 1], that the off-policy sequence mask leaves out: DeepSeek-V3.2, arXiv 2512.02556,
        section 3.1. A is negative, and the mean over tokens of the drift above the threshold.

        advantages_NK: a response is judged by their sum. drift_NK: log-prob under the sampler less the present one, 0
        where masked.
        """
        length_N1 = ops.maximum(mask_NK.astype(ms.float32).sum(axis=1, keepdims=True), 1.0)
        mean_N1 = drift_NK.sum(axis=1, keepdims=True) / length_N1
        return ops.logical_and(advantages_NK.sum(axis=1, keepdims=True) < 0, mean_N1 > threshold)

    def construct(
        self,
        logp_NK: Tensor,
        entropy_NK: Tensor,
        old_logp_NK: Tensor,
        ref_logp_NK: Tensor,
        advantages_NK: Tensor,
        correction_NK: Tensor,
        mask_NK: Tensor,
        num_sequences: Tensor,
        num_tokens: Tensor,
        kl_coef: Tensor,
        *further: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Loss (float32 scalar), metrics (float32 [len(metrics)]), and log-ratios without gradient: [N, 1] for a ratio
        per response, [N, K] for one per token.

        All [N, K] but mask_NK (bool) are float32; anything may stand in masked slots. num_sequences, num_tokens:
        float32 scalars over the global mini-batch. kl_coef: float32 scalar. entropy_NK, ref_logp_NK and kl_coef are
        read only by definitions with an entropy bonus or a KL term. further: those of `further_inputs`, in this order:
        turns_JNK, bool, the tokens of each turn; selected_NK, bool; rollout_logp_NK, log-probs of the sampler;
        teacher_ids_NKA and teacher_logp_NKA, and after them the log-probs of the same ids under the policy (see
        `distillation.TopKKL`). A row without a real token adds nothing to the loss, the gradient or the metrics (but
        see `gmpo`). Raises ValueError or TypeError, while the graph is compiled, for shapes that do not match and a
        mask that is not bool.
        """
        check_inputs(
            (
                logp_NK.shape,
                entropy_NK.shape,
                old_logp_NK.shape,
                ref_logp_NK.shape,
                advantages_NK.shape,
                correction_NK.shape,
            ),
            mask_NK.shape,
            mask_NK.dtype,
            (num_sequences.shape, num_tokens.shape, kl_coef.shape),
        )
        # Masked before any arithmetic: 0 * nan is nan, in the gradient too.
        masked_logp_NK = ops.where(mask_NK, logp_NK, 0.0)
        masked_old_logp_NK = ops.where(mask_NK, old_logp_NK, 0.0)
        difference_NK = masked_logp_NK - masked_old_logp_NK
        advantages_NK = self.token_advantages(advantages_NK, mask_NK)
        if self.reads_turns:
            raw_log_ratio = self.log_ratio(difference_NK, mask_NK, further[0])
        else:
            raw_log_ratio = self.log_ratio(difference_NK, mask_NK)
        log_ratio = bounded(raw_log_ratio, self.log_ratio_min, self.log_ratio_max)
        inside = bounded(log_ratio, self.log_low, self.log_high)  # the clip
        read = ()
        if self.reads_old_logp:
            read += (masked_old_logp_NK,)
        if self.reads_correction:
            read += (ops.where(mask_NK, correction_NK, 1.0),)
        if self.reads_selection:
            read += (ops.logical_and(mask_NK, further[int(self.reads_turns)]),)
        token_loss, clipped, capped = self.surrogate(log_ratio, inside, masked_logp_NK, advantages_NK, mask_NK, *read)
        more_metrics = ()
        if self.opsm_threshold is not None:
            sampler_logp_NK = ops.where(mask_NK, further[self.sampler_at], 0.0)
            drift_NK = sampler_logp_NK - masked_logp_NK
            off_policy_N1 = self.off_policy(advantages_NK, drift_NK, mask_NK, self.opsm_threshold)
            token_loss = ops.where(off_policy_N1, 0.0, token_loss)
            more_metrics += (off_policy_N1.astype(ms.float32).sum().reshape(1),)
        policy_loss = self.aggregate(
            self.corrected(token_loss, correction_NK, mask_NK), mask_NK, num_sequences, num_tokens
        )

        loss = policy_loss
        kl_loss = zeros_like(policy_loss)
        kl_NK = zeros_like(difference_NK)
        if self.kl is not None:
            kl_NK = self.kl(logp_NK, ref_logp_NK, old_logp_NK, mask_NK)
            kl_loss = self.aggregate_kl(kl_NK, mask_NK, num_sequences, num_tokens)
            loss = loss + kl_coef * kl_loss
        if self.entropy_coef > 0:
            loss = loss - self.entropy_coef * self.aggregate_tokens(entropy_NK, mask_NK, num_sequences, num_tokens)
        if self.distillation is not None:
            taught_NK = self.distillation(further[-1], further[-3], further[-2], mask_NK)
            loss = loss + self.distillation_coef * self.aggregate_tokens(taught_NK, mask_NK, num_sequences, num_tokens)
            more_metrics += (taught_NK.sum().reshape(1),)

        quantities = (
            clipped,
            ops.logical_and(clipped, advantages_NK > 0),
            ops.logical_and(clipped, advantages_NK < 0),
            -difference_NK,
            raw_log_ratio,
            ops.abs(ops.exp(log_ratio) - 1.0),
            capped,
            kl_NK,
        )
        metrics = self.measure(quantities, raw_log_ratio, mask_NK)
        metrics = ops.concat((metrics, policy_loss.reshape(1), kl_loss.reshape(1), *more_metrics))
        if self.is_per_response:
            raw_log_ratio = raw_log_ratio[:, :1]
        return loss, ops.stop_gradient(metrics), ops.stop_gradient(raw_log_ratio)

    def aggregate_tokens(self, values_NK: Tensor, mask_NK: Tensor, num_sequences: Tensor, num_tokens: Tensor) -> Tensor:
        """Values of tokens, with the weights of the token loss: entropies, and KL to a teacher."""
        return self.aggregate(values_NK, mask_NK, num_sequences, num_tokens)

    def measure(self, quantities: tuple[Tensor, ...], log_ratio: Tensor, mask_NK: Tensor) -> Tensor:
        """The vector of POLICY_METRICS up to the extremes.

        quantities: eight, in the order of the table, each [N, 1] (spread over the row's tokens) or [N, K].
        """
        mask_float_NK = mask_NK.astype(ms.float32)
        share_NK = mask_float_NK / ops.maximum(mask_float_NK.sum(axis=1, keepdims=True), 1.0)
        spread = ops.stack([quantity.astype(ms.float32) * mask_float_NK for quantity in quantities])
        weights = ops.stack((share_NK, mask_float_NK))
        sums = self.weighted_sums(weights.reshape(2, -1), spread.reshape(len(quantities), -1))
        highest = ops.where(mask_NK, log_ratio, -BEYOND).max().reshape(1)
        lowest = ops.where(mask_NK, log_ratio, BEYOND).min().reshape(1)
        return ops.concat((sums[0, :6], sums[1, :4], sums[1, 6:], highest, lowest))
