"""GSPO inside MindRLHF: a cell with the inputs of its `GRPOModel`, and this project's loss behind them.

Written against MindRLHF master e8a8fc1 of 2025-08-08; README.md says which line of its train worker to change.

Legend: R rows of a call, T token slots of a row, P samples packed into a row (`rl_config.pack_num`, 1: one sample per
row), N = R * P samples, dummies and all. To the loss every sample is a response of its own with K = T slots, of which
the mask leaves its response tokens: so each packed sample has its own ratio, and a dummy has no token and no weight.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import mindspore as ms
import numpy as np
from mindspore import Tensor, lazy_inline, nn, ops

from mindgspo.algorithms.loss_metrics import POLICY_METRICS
from mindgspo.algorithms.losses.policy_loss import zeros_like
from mindgspo.algorithms.losses.registry import build_policy_loss
from mindgspo.config import AlgorithmSection, KLSection, with_recipe
from mindgspo.errors import ConfigError

_AT = {metric.name: index for index, metric in enumerate(POLICY_METRICS)}


def inlined_late(init: Callable[..., None]) -> Callable[..., None]:
    """MindSpore's `lazy_inline` where the graph has pipeline stages, as GRPOModel has it: all micro-batches of a call
    share one sub-graph, which is compiled once. Without stages there is one call, and the CPU runtime wants it inlined.
    """
    late = lazy_inline(init)

    @wraps(init)
    def chosen(self: nn.Cell, *arguments: object, **named: object) -> None:
        has_stages = ms.get_auto_parallel_context("pipeline_stages") > 1
        (late if has_stages else init)(self, *arguments, **named)

    return chosen


class GSPOModel(nn.Cell):
    """In the place of `mindrlhf.models.grpo_models.GRPOModel`.

    grpo_config: MindRLHF's; read are rl_config.beta, pack_num, seq_length, enable_oldpolicy and enable_full_monitor.
    Not its epsilon_low and epsilon_high: 0.2 is GRPO's range, 500 times GSPO's. algorithm: the loss and its clip range,
    by default GSPO as in its paper; any other loss of this project too. beta > 0 adds MindRLHF's own KL term.

    samples_per_call: what the sum over the samples of a call is divided by. None: their number, counted from the masks,
    which is right where a call is a whole update. With pipeline stages a call is one micro-batch of an update, and the
    train cell averages them; then give samples of an update / micro_batch_num, so that all samples weigh the same.
    """

    @inlined_late
    def __init__(
        self,
        grpo_config: object,
        policy_model: nn.Cell,
        algorithm: AlgorithmSection | None = None,
        *,
        samples_per_call: float | None = None,
    ) -> None:
        super().__init__()
        settings = grpo_config.rl_config
        self.policy_model = policy_model
        self.measured_loss = undivided(
            PackedLoss(
                build_policy_loss(resolved(algorithm or AlgorithmSection(), settings)),
                pack_num=settings.pack_num,
                beta=settings.beta,
                has_old_policy=settings.enable_oldpolicy,
                samples_per_call=samples_per_call,
            )
        )
        self.is_monitored = settings.enable_full_monitor

    def construct(
        self,
        prompt_completion_ids: Tensor,
        responses_mask: Tensor,
        ref_per_token_logps: Tensor,
        advantages: Tensor,
        actual_sequence_length: Tensor,
        sample_index: Tensor,
        sample_valid_length: Tensor,
        old_per_token_logps: Tensor,
    ) -> Tensor:
        """The loss of a call, float32 scalar.

        prompt_completion_ids: int32 [R, T + 1]. The others but two are [R, T], slot t belonging to token t + 1, which
        it predicts: responses_mask (int32, 1 for a response token), ref_ and old_per_token_logps, advantages,
        sample_index (which of the row's samples). actual_sequence_length: int32 [R, P], where each sample of the row
        ends. sample_valid_length: not read; it counts a sample of one token as a dummy, the mask does not.
        """
        ids_RT, targets_RT = prompt_completion_ids[:, :-1], prompt_completion_ids[:, 1:]
        ends = self.ends_in_replica(actual_sequence_length, ids_RT.shape[1])
        logp_RT = self.policy_model(ids_RT, None, None, None, False, False, targets_RT, ends, False, False)
        measured = self.measured_loss(
            logp_RT, old_per_token_logps, ref_per_token_logps, advantages, responses_mask, sample_index
        )
        if self.is_monitored:
            self.monitor(ops.stop_gradient(measured))
        return measured[0]

    def ends_in_replica(self, ends_RP: Tensor, width: int) -> Tensor:
        """Ends of all samples, flat, counted over the rows of a data-parallel replica laid end to end, as the policy's
        attention takes them."""
        replicas = self.policy_model.dp
        rows = ends_RP.shape[0] // replicas
        before = ops.range(0, rows * width, width).astype(ends_RP.dtype)
        return (ends_RP.reshape(replicas, rows, -1) + before.reshape(1, rows, 1)).reshape(-1)

    def monitor(self, measured: Tensor) -> None:
        """Add to the four numbers that MindRLHF keeps on its policy and logs after the call."""
        ops.assign_add(self.policy_model.old_log_ratio, measured[1])
        ops.assign_add(self.policy_model.clipfrac, measured[2])
        ops.assign_add(self.policy_model.kl_loss, measured[3])
        ops.assign_add(self.policy_model.actor_loss, measured[4])

    def get_ratio(self) -> Tensor:
        """What `monitor` added up; so the next three."""
        return self.policy_model.old_log_ratio.value()

    def get_clipfrac(self) -> Tensor:
        return self.policy_model.clipfrac.value()

    def get_klloss(self) -> Tensor:
        return self.policy_model.kl_loss.value()

    def get_actor_loss(self) -> Tensor:
        return self.policy_model.actor_loss.value()

    def set_ratio(self) -> None:
        """Back to 0; so the next three."""
        self.policy_model.old_log_ratio.set_data(Tensor(0, ms.float32))

    def set_clipfrac(self) -> None:
        self.policy_model.clipfrac.set_data(Tensor(0, ms.float32))

    def set_klloss(self) -> None:
        self.policy_model.kl_loss.set_data(Tensor(0, ms.float32))

    def set_actor_loss(self) -> None:
        self.policy_model.actor_loss.set_data(Tensor(0, ms.float32))


class GSPOModelTrain(nn.Cell):
    """In the place of `GRPOModelTrain`, with its attribute, from which MindRLHF's parameter names come."""

    def __init__(self, grpo_config: object, policy_model: nn.Cell) -> None:
        super().__init__()
        self.grpo_model_train = GSPOModel(grpo_config, policy_model)

    def construct(self, *inputs: Tensor) -> Tensor:
        return self.grpo_model_train(*inputs)


class PackedLoss(nn.Cell):
    """The loss over the samples of packed rows; arguments as `GSPOModel`."""

    def __init__(
        self, loss: nn.Cell, *, pack_num: int, beta: float, has_old_policy: bool, samples_per_call: float | None
    ) -> None:
        super().__init__()
        self.loss = loss
        self.pack_num = pack_num
        self.numbers_1P1 = Tensor(np.arange(pack_num, dtype=np.int32).reshape(1, -1, 1))
        self.beta = Tensor(np.float32(beta))
        self.has_old_policy = has_old_policy
        self.samples_per_call = None if samples_per_call is None else Tensor(np.float32(samples_per_call))

    def construct(
        self,
        logp_RT: Tensor,
        old_logp_RT: Tensor,
        ref_logp_RT: Tensor,
        advantages_RT: Tensor,
        mask_RT: Tensor,
        sample_RT: Tensor,
    ) -> Tensor:
        """float32 [5]: loss, geometric mean of the samples' ratios, share of clipped samples, KL loss without its
        coefficient, policy loss."""
        is_own_NT = (sample_RT.expand_dims(1) == self.numbers_1P1).reshape(-1, sample_RT.shape[1])
        mask_NK = ops.logical_and(is_own_NT, self.per_sample(mask_RT) != 0)
        num_samples = ops.maximum(mask_NK.any(axis=1).astype(ms.float32).sum(), 1.0)
        num_tokens = ops.maximum(mask_NK.astype(ms.float32).sum(), 1.0)
        logp_NK = self.per_sample(logp_RT)
        results = self.loss(
            logp_NK,
            zeros_like(logp_NK),
            self.per_sample(old_logp_RT) if self.has_old_policy else ops.stop_gradient(logp_NK),
            self.per_sample(ref_logp_RT),
            self.per_sample(advantages_RT),
            zeros_like(logp_NK) + 1.0,
            mask_NK,
            num_samples if self.samples_per_call is None else self.samples_per_call,
            num_tokens,
            self.beta,
        )
        metrics = results[1]
        measured = (
            results[0],
            ops.exp(metrics[_AT["log_ratio_mean"]] / num_samples),
            metrics[_AT["pg_clipfrac_seq"]] / num_samples,
            metrics[_AT["kl_loss"]],
            metrics[_AT["pg_loss"]],
        )
        return ops.stack(measured)

    def per_sample(self, values_RT: Tensor) -> Tensor:
        """Every row once for each of its samples, [N, T]."""
        return ops.tile(values_RT.expand_dims(1), (1, self.pack_num, 1)).reshape(-1, values_RT.shape[1])


def undivided(loss: PackedLoss) -> Callable[..., Tensor]:
    """The loss as one operator, which every rank computes whole: its many small ones have no strategies, and in a
    graph that MindSpore's compiler divides (MindRLHF's semi_auto_parallel) the compiler refuses them."""

    def whole(logp_RT, old_logp_RT, ref_logp_RT, advantages_RT, mask_RT, sample_RT):
        return loss(logp_RT, old_logp_RT, ref_logp_RT, advantages_RT, mask_RT, sample_RT)

    def infer_shape(*shapes):
        return [5]

    def infer_dtype(*dtypes):
        return dtypes[0]

    morph = ops.Morph(whole, infer_shape, infer_dtype)
    # A Morph that claims side effects has inputs that MindSpore 2.10 cannot lay out, and on later pipeline stages fails
    # to find. What is inside has none.
    for effect in ("side_effect_backprop", "side_effect_mem", "side_effect_io"):
        morph.add_prim_attr(effect, False)
    return morph


def resolved(algorithm: AlgorithmSection, settings: object) -> AlgorithmSection:
    """The section with the paper's values filled in, and MindRLHF's KL term where beta > 0: k3, the mean over each
    sample's tokens, then over the samples. Raises ConfigError: what MindRLHF's cell does not feed."""
    if algorithm.kl.placement != "none":
        raise ConfigError("algorithm.kl: in MindRLHF the KL term is rl_config.beta; leave this section out")
    if algorithm.entropy_coef > 0:
        raise ConfigError(
            f"algorithm.entropy_coef: {algorithm.entropy_coef}; MindRLHF's policy returns no entropy in training; set 0"
        )
    if settings.beta > 0:
        term = KLSection(
            placement="loss",
            estimator="k3",
            exponent_clamp=None,
            value_clamp=None,
            agg_mode="seq-mean-token-mean",
            coef=settings.beta,
        )
        algorithm = algorithm.model_copy(update={"kl": term})
    return with_recipe(algorithm, max_new_tokens=settings.seq_length)
