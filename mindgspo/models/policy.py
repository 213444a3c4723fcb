"""The policy as the trainer sees it: log-probs of response tokens.

`scoring` evaluates it without gradients; the updater differentiates it.

Legend: R rows, T token slots, P predicted tokens, N samples, K response-token slots, A further tokens of each
prediction, H hidden units.
"""

from __future__ import annotations

import mindspore as ms
from mindspore import Tensor, nn, ops

from mindgspo.config import ModelSection
from mindgspo.models.log_odds import LikeliestTokens, LogOdds
from mindgspo.models.log_prob import log_prob_head
from mindgspo.models.model import Model
from mindgspo.models.names import trained_shapes
from mindgspo.models.transformer import Transformer, without_padding
from mindgspo.models.weights import hold_in_compute_type
from mindgspo.parallel.layers.experts import OwnSlots
from mindgspo.parallel.layers.model_parallel import enter_model_parallel, join_context_parallel
from mindgspo.parallel.ops.device import fork_op, takes_packed
from mindgspo.parallel.ops.kernels import LogProbKernel, RowsKernel
from mindgspo.parallel.plans.placement import ALONE, Placement


def build_model(section: ModelSection, place: Placement = ALONE) -> Transformer:
    """The transformer, or this rank's part of it; its parameters are zero until `models.weights` fills them. What
    adapters leave frozen is held in the compute type."""
    model = Transformer(section, place)
    if section.lora is not None:
        hold_in_compute_type(model, but=trained_shapes(section))
    return model


class RoundedWeight(nn.Cell):
    """construct(weight) -> it in float32, rounded to `dtype`; its gradient is not rounded."""

    def __init__(self, dtype: ms.Type) -> None:
        super().__init__(auto_prefix=False)
        self.dtype = dtype

    def construct(self, weight: Tensor) -> Tensor:
        return ops.cast(ops.cast(weight, self.dtype), ms.float32)

    def bprop(self, weight, out, dout):
        return (dout,)


class PolicyLogProbs(nn.Cell):
    """Transformer and log-prob head. Only response positions reach the head; prompts and padding never do.

    replays_experts: use recorded experts instead of the routers' choices. returns_routing: also return the routers'
    choice; see `Transformer.with_choices`. scores_ids: also take ids beside the targets and return their log-probs.
    likeliest: a number and a vocabulary size; also return so many likeliest ids below it, and their log-probs.
    """

    def __init__(
        self,
        model: Model,
        *,
        temperature: float,
        with_entropy: bool,
        replays_experts: bool = False,
        returns_routing: bool = False,
        scores_ids: bool = False,
        likeliest: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(auto_prefix=False)
        self.model, self.num_routers = model, len(model.config.expert_layers)
        self.is_last = model.place.is_last_stage
        self.with_entropy = with_entropy
        self.replays_experts, self.returns_routing = replays_experts, returns_routing
        self.kernel, self.is_packed = None, takes_packed(model)
        if self.is_packed and model.place.model_parallel == 1:
            is_frozen = model.config.lora is not None
            self.kernel = LogProbKernel(temperature=temperature, with_entropy=with_entropy, is_frozen=is_frozen)
        else:
            self.head = log_prob_head(model.config, model.place, temperature=temperature, with_entropy=with_entropy)
            self.enter, self.enters_first = enter_model_parallel(model.place), model.place.plan.use_seq_parallel
        self.join = join_context_parallel(model.place)
        # A head composed of small operators computes in float32, unlike the kernels around it.
        self.is_widened = self.is_packed and model.dtype != ms.float32
        if self.is_widened:
            self.rows, self.rounded = RowsKernel(ms.float32), RoundedWeight(model.dtype)
        self.scores_ids = scores_ids and self.is_last
        self.further_inputs = ("teacher_ids_PA",) if self.scores_ids else ()
        """What `construct` takes beside the six inputs, by the names of `gradients.tensors_of`, before the experts."""
        self.log_odds, self.likeliest, is_frozen = None, None, model.config.lora is not None
        if self.scores_ids:
            self.log_odds = LogOdds(model.place, temperature=temperature, is_frozen=is_frozen)
        if likeliest is not None and self.is_last:
            count, vocab_size = likeliest
            self.likeliest = LikeliestTokens(
                model.config, model.place, count=count, vocab_size=vocab_size, temperature=temperature
            )
        self.has_further = self.log_odds is not None or self.likeliest is not None
        self.fork = fork_op()
        self.may_be_empty = model.place.plan.context_parallel > 1 or self.has_further
        self.zero_others = OwnSlots()
        self.gather = ops.Gather()

    def construct(
        self,
        ids_RT: Tensor,
        positions_RT: Tensor,
        segments_RT: Tensor,
        predict_P: Tensor,
        targets_P: Tensor,
        place_NK: Tensor,
        *further: Tensor,
    ) -> tuple[Tensor, ...]:
        """logp_NK and entropy_NK, float32; masked slots hold meaningless values. With scores_ids the ids' log-probs
        [N, K, A], float32; with likeliest those of the likeliest ids, and these, int32. With returns_routing,
        chosen_MX, int32: see `types.Routing`.

        further: ids_PA, int32, with scores_ids; recorded experts [R, T, X], with replays_experts; see
        `RoutedTokens.given`.

        A pipeline stage that is not the last returns hidden states [M, H] in place of all but the last, and with
        returns_routing the columns of its own layers; one that is not the first takes those in place of ids_RT.
        """
        ids_PA, replayed_MX = (), ()
        if self.scores_ids:
            ids_PA = (further[0],)
        if self.replays_experts:
            replayed_MX = (further[-1].reshape(-1, further[-1].shape[-1]),)
        own, region, _ = self.model.tokens_in_use(segments_RT, positions_RT.size)
        if self.returns_routing:
            hidden_MH, choices = self.model.with_choices(ids_RT, positions_RT, segments_RT, *replayed_MX)
            found = self._log_probs(hidden_MH, (own, region), predict_P, targets_P, place_NK, *ids_PA)
            if len(choices) == 0:  # of a stage of dense layers, see `Stage.choices_of_all`
                choices = (ops.zeros((positions_RT.size, 1), ms.int32),)
            return *found, self.join(ops.depend(ops.concat(choices, 1), found[-1]), region)
        hidden_MH = self.model(ids_RT, positions_RT, segments_RT, *replayed_MX)
        return self._log_probs(hidden_MH, (own, region), predict_P, targets_P, place_NK, *ids_PA)

    def _log_probs(
        self,
        hidden_MH: Tensor,
        tokens: tuple[Tensor, Tensor],
        predict_P: Tensor,
        targets_P: Tensor,
        place_NK: Tensor,
        *ids_PA: Tensor,
    ) -> tuple[Tensor, ...]:
        if not self.is_last:
            return (hidden_MH,)
        own, region = tokens
        hidden_PH = hidden_MH
        if self.kernel is not None:
            if self.has_further:
                hidden_MH, again_MH = self.fork(hidden_MH)
                hidden_PH = self._predicting(again_MH, predict_P)
            weight_VH = without_padding(self.model)
            logp_P, entropy_P = self.kernel(hidden_MH, weight_VH, predict_P, targets_P, region)
        else:
            if self.enters_first:
                hidden_PH = self._predicting(self.enter(hidden_MH, own), predict_P)
            else:
                hidden_PH = self.enter(self._predicting(hidden_MH, predict_P), region)
            weight_VH = self.model.output_weight()
            if self.is_widened:
                weight_VH = self.rounded(weight_VH)
            logp_P, entropy_P = self.head(hidden_PH, weight_VH, targets_P)
        all_logp_P = self.join(logp_P, region)
        entropy_P = self.join(ops.depend(entropy_P, all_logp_P), region)
        found = (self._by_sample(all_logp_P, place_NK), self._by_sample(entropy_P, place_NK))
        before = entropy_P
        for part_PA in self._further(ops.depend(hidden_PH, entropy_P), logp_P.reshape(-1, 1), targets_P, *ids_PA):
            before = self.join(ops.depend(part_PA, before), region)
            found += (self.gather(before, place_NK.reshape(-1), 0).reshape((*place_NK.shape, -1)),)
        return found

    def _further(self, hidden_PH: Tensor, logp_P1: Tensor, targets_P: Tensor, *ids_PA: Tensor) -> tuple[Tensor, ...]:
        """Log-probs of the ids [P, A]; or those of the likeliest, and these; nothing without either."""
        if not self.has_further:
            return ()
        weight_VH = self.model.output_weight()
        if self.is_widened:
            weight_VH = self.rounded(weight_VH)
        if self.likeliest is not None:
            odds_PA, ids = self.likeliest(hidden_PH, weight_VH, targets_P)
            return logp_P1 + odds_PA, ids
        if self.log_odds is None or len(ids_PA) == 0:  # of one module after the other, which asks for none
            return ()
        return (logp_P1 + self.log_odds(hidden_PH, weight_VH, targets_P, ids_PA[0]),)

    def _predicting(self, hidden_MH: Tensor, predict_P: Tensor) -> Tensor:
        """Hidden states [P, H] in front of the response tokens."""
        rows_P = ops.maximum(predict_P, 0) if self.is_packed else predict_P  # nobody reads what is -1
        if self.is_widened:
            hidden_PH = self.rows(rows_P, hidden_MH, ops.ones((1,), ms.int32) * rows_P.shape[0])
        else:
            hidden_PH = self.gather(hidden_MH, rows_P, 0)
        if self.is_packed and self.may_be_empty:  # where no row is in use, the first one is anything
            hidden_PH = self.zero_others(hidden_PH, (predict_P >= 0).reshape(-1, 1))
        return hidden_PH

    def _by_sample(self, values_P: Tensor, place_NK: Tensor) -> Tensor:
        """Arrange the head's values [P] by sample and slot, [N, K]."""
        return self.gather(values_P, place_NK.reshape(-1), 0).reshape(place_NK.shape)
