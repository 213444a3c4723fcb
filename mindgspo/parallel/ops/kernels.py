"""Our C++ kernels for CPU graphs as cells; `device.has_kernels` says when they are used.

Each is an `ops.Custom` from the library that `mindgspo_kernels.build` compiles, with its gradient. `tokens` is an
integer tensor whose last element is the number of leading rows in use in the other inputs; only those are computed, the
other rows are undefined. Weights stay float32 and are rounded to the type of their other factor.

Legend: M tokens, H hidden units, A query heads, B key/value heads, D head size, I inner features, V vocabulary entries,
P predictions, E experts, K experts per token, S slots, R rotated features of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from mindgspo.parallel.collectives.shared_memory import Numbers
from mindgspo.parallel.platform.parameter_memory import values_of, zero_parameter
from mindgspo_kernels.binding import call, graph_operator, graph_threads, panel_columns

zeros_like = ops.ZerosLike()
Weights = Sequence[Parameter]


def kernel(
    name: str,
    shapes: Callable[..., Sequence[int] | Sequence[Sequence[int]]],
    dtypes: Callable[..., ms.Type | Sequence[ms.Type]] | None = None,
    gradient: Callable[..., tuple] | None = None,
) -> ops.Custom:
    """Return the operator `graph_<name>` of `mindgspo_kernels/graph.cc`.

    shapes, dtypes: the outputs' as functions of the inputs'; without dtypes both are given by `shapes`, for outputs
    like some of the inputs. gradient: gradients of all inputs from the inputs, the outputs and the outputs' gradients,
    each a named argument, since MindSpore does not differentiate operators of variable arity.
    """
    return ops.Custom(graph_operator(name), shapes, dtypes or shapes, "aot", bprop=gradient)


class ForkKernel(nn.Cell):
    """construct(x) -> (x, x) for two readers, with the gradients added by Add.

    MindSpore would add them by AddN, which has no bfloat16 on CPU, so every differentiated value with a second reader
    passes through this cell.
    """

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.add = ops.Add()

    def construct(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x

    def bprop(self, x, out, dout):
        return (self.add(dout[0], dout[1]),)


class RMSNormKernel(nn.Cell):
    """See `device.RMSNormOp`; x: [M, H] or [M, A, D]."""

    def __init__(self, eps: float) -> None:
        super().__init__(auto_prefix=False)
        self.epsilon = Tensor([eps], ms.float32)
        normalize_gradient = kernel("rms_norm_grad", lambda dy, x, rstd, w, t: (x, w))
        add_gradient = kernel("add_rms_norm_grad", lambda dy, ds, x, rstd, w, t: (x, w))

        def gradient(x, weight, epsilon, tokens, out, dout):
            dx, dweight = normalize_gradient(dout[0], x, out[1], weight, tokens)
            return dx, dweight, zeros_like(epsilon), zeros_like(tokens)

        def gradient_of_sum(x, delta, weight, epsilon, tokens, out, dout):
            dx, dweight = add_gradient(dout[0], dout[1], out[1], out[2], weight, tokens)
            return dx, dx, dweight, zeros_like(epsilon), zeros_like(tokens)

        self.normalize = kernel(
            "rms_norm", lambda x, w, e, t: (x, [*x[:-1], 1]), lambda x, w, e, t: (x, ms.float32), gradient
        )
        self.normalize_sum = kernel(
            "add_rms_norm",
            lambda x, d, w, e, t: (x, x, [*x[:-1], 1]),
            lambda x, d, w, e, t: (x, x, ms.float32),
            gradient_of_sum,
        )

    def construct(self, x: Tensor, weight: Tensor, tokens: Tensor) -> Tensor:
        return self.normalize(x, weight, self.epsilon, tokens)[0]

    def of_sum(self, x: Tensor, delta: Tensor, weight: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return norm(x + delta) and x + delta."""
        y, total, _ = self.normalize_sum(x, delta, weight, self.epsilon, tokens)
        return y, total


def _outs_by_head(features: int, head_dim: int | None) -> list[int]:
    """Return the shape of a token's outputs: [O], or [O / D, D]."""
    return [features] if head_dim is None else [features // head_dim, head_dim]


def _gradient(name: str, is_frozen: bool, shapes: Callable[..., tuple]) -> ops.Custom:
    """Return the operator of a layer's gradients: of its input, then of its weights, float32. One number, which nobody
    reads, stands for that of a frozen weight.

    shapes: of all gradients as a function of the inputs' shapes, of which the first is that of the layer's input.
    """

    def each_weights(one):
        return lambda *inputs: (inputs[0], *(one for _ in shapes(*inputs)[1:]))

    name = f"{name}_input_grad" if is_frozen else f"{name}_grad"
    return kernel(name, each_weights([1]) if is_frozen else shapes, each_weights(ms.float32))


def _linear(
    num_layers: int, has_bias: bool, head_dim: int | None, dtype: ms.Type | None, is_frozen: bool
) -> ops.Custom:
    """Return the operator (x [M, I], tokens, biased, each layer's weight [O, I] and bias [O]) -> [M, O] or by head."""
    step = 2 if has_bias else 1
    last = num_layers * step
    grad = _gradient("linear", is_frozen, lambda x, t, b, *rest: (x, *rest[:last]))

    def one(x, tokens, biased, w, out, dout):
        g = grad(x, tokens, biased, w, dout)
        return g[0], zeros_like(tokens), zeros_like(biased), g[1]

    def two(x, tokens, biased, w, v, out, dout):
        g = grad(x, tokens, biased, w, v, dout[0], dout[1])
        return g[0], zeros_like(tokens), zeros_like(biased), g[1], g[2]

    def three(x, tokens, biased, w, v, u, out, dout):
        g = grad(x, tokens, biased, w, v, u, dout[0], dout[1], dout[2])
        return g[0], zeros_like(tokens), zeros_like(biased), g[1], g[2], g[3]

    def three_biased(x, tokens, biased, w, wb, v, vb, u, ub, out, dout):
        g = grad(x, tokens, biased, w, wb, v, vb, u, ub, dout[0], dout[1], dout[2])
        return g[0], zeros_like(tokens), zeros_like(biased), g[1], g[2], g[3], g[4], g[5], g[6]

    gradients = {(1, False): one, (2, False): two, (3, False): three, (3, True): three_biased}
    name = f"linear_{num_layers}{'_biased' * has_bias}{'_frozen' * is_frozen}"
    if num_layers == 1:
        return kernel(
            name,
            lambda x, t, b, w, *bias: [x[0], *_outs_by_head(w[0], head_dim)],
            lambda x, *rest: dtype or x,
            gradients[num_layers, has_bias],
        )
    return kernel(
        name,
        lambda x, t, b, *rest: tuple([x[0], *_outs_by_head(weight[0], head_dim)] for weight in rest[::step]),
        lambda x, *rest: (dtype or x,) * num_layers,
        gradients[num_layers, has_bias],
    )


class LinearKernel(nn.Cell):
    """construct(x_MI, tokens, weight_OI, [bias_O,] ...) -> x W^T + b [M, O] of 1 to 3 layers; 3 may have biases.

    head_dim: D if the outputs are heads, [M, O / D, D]. dtype: of the outputs; None: x's. is_frozen: only the gradient
    of x is computed.
    """

    def __init__(
        self,
        num_layers: int,
        *,
        has_bias: bool,
        head_dim: int | None = None,
        dtype: ms.Type | None = None,
        is_frozen: bool = False,
    ) -> None:
        super().__init__(auto_prefix=False)
        self.biased = Tensor(np.full(num_layers, has_bias, np.int32))
        self.linear = _linear(num_layers, has_bias, head_dim, dtype, is_frozen)

    def construct(self, x_MI: Tensor, tokens: Tensor, *weights: Tensor) -> Tensor | tuple[Tensor, ...]:
        return self.linear(x_MI, tokens, self.biased, *weights)


def _gradient_of_adapted(num_layers: int, has_bias: bool) -> Callable[..., tuple]:
    """Gradient of `AdaptedLinearKernel`: of x and of each layer's A and B. Nobody reads the zeros of the others, so
    they are never made."""
    step = 4 if has_bias else 3
    ends = range(step, (num_layers + 1) * step, step)
    grad = kernel(
        "adapted_linear_grad", lambda x, t, f, s, *rest: (x, *(one for end in ends for one in rest[end - 2 : end]))
    )

    def one(x, tokens, form, scale, w, a, b, out, dout):
        g = grad(x, tokens, form, scale, w, a, b, dout)
        return g[0], zeros_like(tokens), zeros_like(form), zeros_like(scale), zeros_like(w), g[1], g[2]

    def two(x, tokens, form, scale, w, a, b, v, c, d, out, dout):
        g = grad(x, tokens, form, scale, w, a, b, v, c, d, dout[0], dout[1])
        of_w, of_v = (zeros_like(w), g[1], g[2]), (zeros_like(v), g[3], g[4])
        return g[0], zeros_like(tokens), zeros_like(form), zeros_like(scale), *of_w, *of_v

    def three(x, tokens, form, scale, w, a, b, v, c, d, u, e, f, out, dout):
        g = grad(x, tokens, form, scale, w, a, b, v, c, d, u, e, f, dout[0], dout[1], dout[2])
        of_w, of_v, of_u = (zeros_like(w), g[1], g[2]), (zeros_like(v), g[3], g[4]), (zeros_like(u), g[5], g[6])
        return g[0], zeros_like(tokens), zeros_like(form), zeros_like(scale), *of_w, *of_v, *of_u

    def three_biased(x, tokens, form, scale, w, wb, a, b, v, vb, c, d, u, ub, e, f, out, dout):
        g = grad(x, tokens, form, scale, w, wb, a, b, v, vb, c, d, u, ub, e, f, dout[0], dout[1], dout[2])
        of_w = (zeros_like(w), zeros_like(wb), g[1], g[2])
        of_v = (zeros_like(v), zeros_like(vb), g[3], g[4])
        of_u = (zeros_like(u), zeros_like(ub), g[5], g[6])
        return g[0], zeros_like(tokens), zeros_like(form), zeros_like(scale), *of_w, *of_v, *of_u

    return {(1, False): one, (2, False): two, (3, False): three, (3, True): three_biased}[num_layers, has_bias]


class AdaptedLinearKernel(nn.Cell):
    """construct(x_MI, tokens, weight_OI, [bias_O,] A_RI, B_OR, ...) -> x W^T + b + scale (x A^T) B^T [M, O] of 1 to 3
    frozen layers; 3 may have biases. Gradients: of x, A and B.

    are_adapted: whether each layer has an adapter; A and B of one without are any tensors. scale: of the adapters.
    head_dim: as of `LinearKernel`.
    """

    def __init__(
        self, are_adapted: Sequence[bool], *, scale: float, has_bias: bool, head_dim: int | None = None
    ) -> None:
        super().__init__(auto_prefix=False)
        count, step = len(are_adapted), 4 if has_bias else 3
        self.form = Tensor(np.array([(has_bias, is_adapted) for is_adapted in are_adapted], np.int32))
        self.scale = Tensor([scale], ms.float32)

        def shapes(x, tokens, form, scale, *rest):
            outs = tuple([x[0], *_outs_by_head(weight[0], head_dim)] for weight in rest[::step])
            return outs[0] if count == 1 else outs

        name = f"adapted_linear_{count}{'_biased' if has_bias else ''}"
        dtypes = lambda x, *rest: x if count == 1 else (x,) * count  # noqa: E731
        self.linear = kernel(name, shapes, dtypes, _gradient_of_adapted(count, has_bias))

    def construct(self, x_MI: Tensor, tokens: Tensor, *layers: Tensor) -> Tensor | tuple[Tensor, ...]:
        return self.linear(x_MI, tokens, self.form, self.scale, *layers)


class RotaryKernel(nn.Cell):
    """Queries [M, A, D] and keys [M, B, D], rotated as by `device.RotaryOp`; cos, sin: tables [positions, R]."""

    def __init__(self, *, is_interleaved: bool = False) -> None:
        super().__init__(auto_prefix=False)
        name = f"rotary{'_interleaved' * is_interleaved}"
        grad = kernel(f"{name}_grad", lambda q, k, *rest: (q, k))

        def gradient(query, key, positions, cos, sin, tokens, out, dout):
            dquery, dkey = grad(dout[0], dout[1], positions, cos, sin, tokens)
            return dquery, dkey, zeros_like(positions), zeros_like(cos), zeros_like(sin), zeros_like(tokens)

        self.rotate = kernel(name, lambda q, k, *rest: (q, k), gradient=gradient)

    def construct(
        self, query: Tensor, key: Tensor, positions_M: Tensor, cos: Tensor, sin: Tensor, tokens: Tensor
    ) -> tuple[Tensor, Tensor]:
        return self.rotate(query, key, positions_M, cos, sin, tokens)


class AttentionKernel(nn.Cell):
    """See `device.CausalAttentionOp`.

    segments: int [sequences], end of each sequence among the tokens, or [sequences, 2], number of the earlier sequence
    that each continues (-1 for none) and its end.
    """

    def __init__(self, scale: float) -> None:
        super().__init__(auto_prefix=False)
        self.scale = Tensor([scale], ms.float32)
        grad = kernel("attention_grad", lambda q, k, v, *rest: (q, k, v))

        def gradient(query, key, value, segments, scale, out, dout):
            dquery, dkey, dvalue = grad(query, key, value, segments, scale, out[0], out[1], out[2], dout[0])
            return dquery, dkey, dvalue, zeros_like(segments), zeros_like(scale)

        self.attend = kernel(
            "attention",
            lambda q, k, v, e, s: ([q[0], q[1] * v[2]], q[:2], q[:2]),
            lambda q, k, v, e, s: (q, ms.float32, ms.float32),
            gradient,
        )

    def construct(self, query: Tensor, key: Tensor, value: Tensor, segments: Tensor) -> Tensor:
        return self.attend(query, key, value, segments, self.scale)[0]


class SwiGLUKernel(nn.Cell):
    """silu(gate) * up; both [M, I]."""

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        grad = kernel("gated_grad", lambda d, g, u, t: (g, u))

        def gradient(gate, up, tokens, out, dout):
            dgate, dup = grad(dout, gate, up, tokens)
            return dgate, dup, zeros_like(tokens)

        self.gated = kernel("gated", lambda g, u, t: g, gradient=gradient)

    def construct(self, gate: Tensor, up: Tensor, tokens: Tensor) -> Tensor:
        return self.gated(gate, up, tokens)


class RowsKernel(nn.Cell):
    """construct(ids_M, table_VH, tokens) -> the table's rows [M, H] in `dtype` (None: the table's).

    The table's gradient is float32 [V, H].
    """

    def __init__(self, dtype: ms.Type | None = None) -> None:
        super().__init__(auto_prefix=False)
        grad = kernel("embedding_grad", lambda i, table, t, d: table, lambda i, table, t, d: ms.float32)

        def gradient(ids, table, tokens, out, dout):
            dtable = ops.cast(grad(ids, table, tokens, dout), table.dtype)
            return zeros_like(ids), dtable, zeros_like(tokens)

        self.take = kernel(
            "embedding", lambda i, table, t: [i[0], table[1]], lambda i, table, t: dtype or table, gradient
        )

    def construct(self, ids_M: Tensor, table_VH: Tensor, tokens: Tensor) -> Tensor:
        return self.take(ids_M, table_VH, tokens)


class LogProbKernel(nn.Cell):
    """construct(hidden_MH, weight_VH, rows_P, targets_P, tokens) -> (logp_P, entropy_P), both float32.

    As `log_prob.ChunkedLogProb` of hidden_MH[rows_P]; 0 for negative rows. entropy_P is undefined without
    `with_entropy`. is_frozen: only the gradient of hidden is computed.
    """

    def __init__(self, *, temperature: float, with_entropy: bool, is_frozen: bool = False) -> None:
        super().__init__(auto_prefix=False)
        assert temperature > 0, temperature
        self.inverse_temperature = Tensor([1.0 / temperature], ms.float32)
        self.with_entropy = with_entropy
        name = "log_prob_entropy" if with_entropy else "log_prob"
        count = 3 if with_entropy else 2
        grad = _gradient(name, is_frozen, lambda h, w, *rest: (h, w))

        def gradients(found, weight, rows, targets, scale, tokens):
            # A tied table has a second reader, with whose gradient this one is added, so it has the table's shape.
            dweight = zeros_like(weight) if is_frozen else found[1]
            return found[0], dweight, zeros_like(rows), zeros_like(targets), zeros_like(scale), zeros_like(tokens)

        def gradient(hidden, weight, rows, targets, scale, tokens, out, dout):
            found = grad(hidden, weight, rows, targets, scale, tokens, out[1], dout[0])
            return gradients(found, weight, rows, targets, scale, tokens)

        def gradient_with_entropy(hidden, weight, rows, targets, scale, tokens, out, dout):
            found = grad(hidden, weight, rows, targets, scale, tokens, out[1], dout[0], out[2], dout[2])
            return gradients(found, weight, rows, targets, scale, tokens)

        self.log_prob = kernel(
            f"{name}{'_frozen' * is_frozen}",
            lambda h, w, rows, *rest: (rows,) * count,
            lambda *inputs: (ms.float32,) * count,
            gradient_with_entropy if with_entropy else gradient,
        )

    def construct(
        self, hidden_MH: Tensor, weight_VH: Tensor, rows_P: Tensor, targets_P: Tensor, tokens: Tensor
    ) -> tuple[Tensor, Tensor]:
        found = self.log_prob(hidden_MH, weight_VH, rows_P, targets_P, self.inverse_temperature, tokens)
        if self.with_entropy:
            return found[0], found[2]
        return found[0], ops.stop_gradient(found[0])


class GroupedLinearKernel(nn.Cell):
    """construct(x_SI, ends_E, weight_EOI, ...) -> (x W^T [S, O], ...) of 1 or 2 layers, each row by its expert's
    matrix. ends_E: int64, the rows up to and including each expert's. is_frozen: only the gradient of x is computed.
    """

    def __init__(self, num_layers: int, *, is_frozen: bool = False) -> None:
        super().__init__(auto_prefix=False)
        self.is_one, name = num_layers == 1, f"grouped_linear_{num_layers}{'_frozen' * is_frozen}"
        grad = _gradient("grouped_linear", is_frozen, lambda x, e, *rest: (x, *rest[:num_layers]))

        def one(x, ends, w, out, dout):
            dx, dw = grad(x, ends, w, dout)
            return dx, zeros_like(ends), dw

        def two(x, ends, w, v, out, dout):
            dx, dw, dv = grad(x, ends, w, v, dout[0], dout[1])
            return dx, zeros_like(ends), dw, dv

        if self.is_one:
            self.linear = kernel(name, lambda x, e, w: [x[0], w[1]], lambda x, *rest: x, one)
        else:
            self.linear = kernel(name, lambda x, e, w, v: ([x[0], w[1]], [x[0], v[1]]), lambda x, *rest: (x, x), two)

    def construct(self, x_SI: Tensor, ends_E: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        found = self.linear(x_SI, ends_E, *weights)
        return (found,) if self.is_one else found


class ExpertsKernel(nn.Cell):
    """Contribution of the own experts, or own slices of experts, to each token, [M, H]; see `mixture_of_experts`.

    rule: of the router, as `graph.cc` lists it. gate_up, down: cells like `GroupedLinearKernel`, of the projections.
    """

    def __init__(
        self, num_experts: int, num_chosen: int, *, rule: Sequence[float], own: range, gate_up: nn.Cell, down: nn.Cell
    ) -> None:
        super().__init__(auto_prefix=False)
        self.gate_up, self.down = gate_up, down
        self.rule, self.own = Tensor(np.array(rule, np.float32)), Tensor([own.start, num_experts], ms.int32)
        self.fork, self.rows, self.swiglu = ForkKernel(), RowsKernel(), SwiGLUKernel()
        route_gradient = kernel("route_grad", lambda x, w, *rest: (x, w), lambda x, w, *rest: (x, ms.float32))

        def gradient_of_route(x, weight, bias, rule, tokens, out, dout):
            dx, dweight = route_gradient(x, weight, rule, tokens, out[0], out[1], out[2], dout[1])
            return dx, dweight, zeros_like(bias), zeros_like(rule), zeros_like(tokens)

        self.route = kernel(
            "route",
            lambda x, w, b, r, t: ([x[0], num_chosen], [x[0], num_chosen], [x[0], w[0]]),
            lambda x, w, b, r, t: (ms.int32, ms.float32, ms.float32),
            gradient_of_route,
        )

        def gradient_of_route_given(x, weight, bias, given, rule, tokens, out, dout):
            dx, dweight = route_gradient(x, weight, rule, tokens, given, out[1], out[2], dout[1])
            return dx, dweight, zeros_like(bias), zeros_like(given), zeros_like(rule), zeros_like(tokens)

        self.route_given = kernel(
            "route_given",
            lambda x, w, b, g, r, t: (g, g, [x[0], w[0]]),
            lambda x, w, b, g, r, t: (ms.int32, ms.float32, ms.float32),
            gradient_of_route_given,
        )

        def no_gradient(experts, own, tokens, out, dout):
            return zeros_like(experts), zeros_like(own), zeros_like(tokens)

        self.slots = kernel(
            "expert_slots",
            lambda e, p, t: (e, [e[0] * e[1]], [len(own)]),
            lambda e, p, t: (ms.int32, ms.int32, ms.int64),
            no_gradient,
        )
        combine_gradient = kernel("combine_grad", lambda r, s, w, t, d: (r, w))

        def gradient_of_combine(rows, slots, weights, tokens, out, dout):
            drows, dweights = combine_gradient(rows, slots, weights, tokens, dout)
            return drows, zeros_like(slots), dweights, zeros_like(tokens)

        self.combine = kernel("combine", lambda r, s, w, t: [s[0], r[1]], lambda r, s, w, t: r, gradient_of_combine)

    def construct(
        self,
        x_MH: Tensor,
        gate_EH: Tensor,
        bias_E: Tensor,
        gate_EIH: Tensor,
        up_EIH: Tensor,
        down_EHI: Tensor,
        tokens: Tensor,
        given_MK: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the contributions and the experts chosen by the router.

        bias_E: added to the router's scores for choosing. given_MK: int32, experts used instead of the chosen ones.
        """
        x_MH, routed_MH = self.fork(x_MH)
        if given_MK is None:
            chosen_MK, weights_MK, _ = self.route(routed_MH, gate_EH, bias_E, self.rule, tokens)
            experts_MK = chosen_MK
        else:
            chosen_MK, weights_MK, _ = self.route_given(routed_MH, gate_EH, bias_E, given_MK, self.rule, tokens)
            experts_MK = given_MK
        slots_MK, token_S, ends_E = self.slots(experts_MK, self.own, tokens)
        x_SH = self.rows(token_S, x_MH, ends_E)
        gate_SI, up_SI = self.gate_up(x_SH, ends_E, gate_EIH, up_EIH)
        outs = self.down(self.swiglu(gate_SI, up_SI, ends_E), ends_E, down_EHI)
        return self.combine(outs[0], slots_MK, weights_MK, tokens), chosen_MK


class AccumulateKernel(nn.Cell):
    """construct(is_added, *gradients) adds the gradients to `sums`, or replaces these; returns the sum of squares of
    `sums`, float32 [1]."""

    def __init__(self, sums: ParameterTuple) -> None:
        super().__init__(auto_prefix=False)
        self.sums = sums
        self.accumulate = kernel("accumulate", lambda *shapes: [1], lambda *dtypes: ms.float32)

    def construct(self, is_added: Tensor, *gradients: Tensor) -> Tensor:
        return self.accumulate(is_added, *gradients, *self.sums)


class AdamWKernel(nn.Cell):
    """See `optim.adamw.AdamW`; takes its scalars, then the gradients."""

    def __init__(
        self,
        weights: ParameterTuple,
        moments: tuple[ParameterTuple, ParameterTuple],
        *,
        decays: Sequence[bool],
        betas: tuple[float, float],
    ) -> None:
        super().__init__(auto_prefix=False)
        self.written = ParameterTuple([*weights, *moments[0], *moments[1]])
        self.betas, self.decays = Tensor(betas, ms.float32), Tensor(np.array(decays, np.int32))
        self.step = kernel("adamw", lambda *shapes: [1], lambda *dtypes: ms.int32)

    def construct(
        self, clip_scale: Tensor, step_size: Tensor, root_eps: Tensor, decay: Tensor, *gradients: Tensor
    ) -> Tensor:
        scalars = (clip_scale, step_size, root_eps, decay, self.betas, self.decays)
        return self.step(*scalars, *self.written, *gradients)


class PackKernel(nn.Cell):
    """construct() packs the current `weights` [O, I] into `panels` for `PackedLinearKernel`.

    dtype: type of the tokens, which the weights are rounded to. are_given: of each weight, whether `put` packs what
    takes its place instead; None: of none.
    """

    def __init__(self, weights: ParameterTuple, dtype: ms.Type, are_given: Sequence[bool] | None = None) -> None:
        super().__init__(auto_prefix=False)
        columns, given = panel_columns(), are_given or [False] * len(weights)
        self.weights, self.like = weights, Tensor([0.0], dtype)
        self.panels = ParameterTuple(
            [
                zero_parameter(
                    (-(-weight.shape[0] // columns), weight.shape[1], columns),
                    f"packed.{weight.name}",
                    requires_grad=False,
                )
                for weight in weights
            ]
        )
        self.packed = ParameterTuple(
            [
                one
                for every in (self.weights, self.panels)
                for one, is_given in zip(every, given, strict=True)
                if not is_given
            ]
        )
        self.pack = kernel("pack_linears", lambda *shapes: [1], lambda *dtypes: ms.int32)

    def construct(self) -> Tensor:
        return self.pack(self.like, *self.packed)

    def put(self, number: int, weight_OI: np.ndarray) -> None:
        """Pack an array, float32, in the place of weight `number`."""
        arrays = (weight_OI, self.like.asnumpy(), values_of(self.panels[number]))
        call("pack_linear", *(Numbers(one.dtype.name, one) for one in arrays), graph_threads())


class PackedLinearKernel(nn.Cell):
    """`LinearKernel` of one layer without bias, with packed weights, for few tokens. size: output features."""

    def __init__(self, size: int, *, dtype: ms.Type) -> None:
        super().__init__(auto_prefix=False)
        self.linear = kernel("packed_linear", lambda x, *rest: [x[0], size], lambda x, *rest: dtype)

    def construct(self, x_MI: Tensor, tokens: Tensor, panels: Tensor) -> Tensor:
        return self.linear(x_MI, tokens, panels)


class SampleKernel(nn.Cell):
    """See `rollout.graphs.DecodeStep`."""

    def __init__(self, *, top_k: int, top_p: float) -> None:
        super().__init__(auto_prefix=False)
        self.top_k, self.top_p = Tensor([top_k], ms.int32), Tensor([top_p], ms.float32)
        self.sample = kernel("sample", lambda logits, u, *rest: (u, u), lambda logits, *rest: (ms.int32, ms.float32))

    def construct(
        self, logits_SV: Tensor, uniforms_S: Tensor, inverse_temperature_S: Tensor, greedy_S: Tensor, tokens: Tensor
    ) -> tuple[Tensor, Tensor]:
        return self.sample(logits_SV, uniforms_S, inverse_temperature_S, greedy_S, self.top_k, self.top_p, tokens)


class StoreKernel(nn.Cell):
    """Write keys and values [M, B, D] to a layer's cache; see `rollout.cache.StoreOp`."""

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.store = kernel("store_tokens", lambda *shapes: [1], lambda *dtypes: ms.int32)

    def construct(
        self, key_MBD: Tensor, value_MBD: Tensor, keys: Tensor, values: Tensor, cache_rows_M: Tensor, tokens: Tensor
    ) -> Tensor:
        return self.store(key_MBD, value_MBD, keys, values, cache_rows_M, tokens)


class PagedAttentionKernel(nn.Cell):
    """construct(query_SAD, keys, values, table_SP, lengths_S, tokens) -> attended values [S, A * E] of one token per
    sequence over the cache; see `DecodeAttentionKernel`."""

    def __init__(self, scale: float) -> None:
        super().__init__(auto_prefix=False)
        self.scale = Tensor([scale], ms.float32)
        self.attend = kernel("paged_attention", lambda q, k, v, *rest: [q[0], q[1] * v[3]], lambda q, *rest: q)

    def construct(
        self, query_SAD: Tensor, keys: Tensor, values: Tensor, table_SP: Tensor, lengths_S: Tensor, tokens: Tensor
    ) -> Tensor:
        return self.attend(query_SAD, keys, values, table_SP, lengths_S, self.scale, tokens)


class DecodeAttentionKernel(nn.Cell):
    """Norm, projections, rotation, storing, attention and output of one decoder layer, for one token per sequence; the
    same numbers as by the kernels of each.

    norm, epsilon: of the input. panels: packed weights of the output, query, key and value. biases: of the last three,
    if they have any. head_norms: weights of the norms of query and key, if there are any. is_interleaved: as of
    `device.RotaryOp`.
    """

    def __init__(
        self,
        norm: Parameter,
        epsilon: float,
        head_dim: int,
        panels: Weights,
        biases: Weights,
        head_norms: Weights,
        *,
        is_interleaved: bool,
    ) -> None:
        super().__init__(auto_prefix=False)
        self.norm, self.weights = norm, ParameterTuple([*panels, *biases, *head_norms])
        self.epsilon, self.scale = Tensor([epsilon], ms.float32), Tensor([head_dim**-0.5], ms.float32)
        form = (bool(biases), bool(head_norms), is_interleaved)
        self.first, self.later = (Tensor([has_delta, *form], ms.int32) for has_delta in (False, True))
        self.attend = kernel("decode_attention", lambda x, *rest: (x, x))

    def construct(
        self,
        x_SH: Tensor,
        delta_SH: Tensor | None,
        rotation: tuple[Tensor, Tensor, Tensor],
        cached: tuple[Tensor, Tensor],
        places: tuple[Tensor, ...],
    ) -> tuple[Tensor, Tensor]:
        """Return x + delta and the block's output. cached: keys and values of the layer, which are written. places: the
        rows of the cache [S], the block table [S, P], the lengths with the new token [S], and the rows in use [1]."""
        rows_S, table_SP, lengths_S, tokens = places
        form, delta = (self.first, x_SH) if delta_SH is None else (self.later, delta_SH)
        fixed = (*rotation, tokens, *cached, rows_S, table_SP, lengths_S, self.scale, form)
        return self.attend(x_SH, delta, self.norm, self.epsilon, *fixed, *self.weights)


class DecodeFeedForwardKernel(nn.Cell):
    """Norm and dense block of one decoder layer for few tokens; the same numbers as by the kernels of each.

    norm, epsilon: of the input. panels: packed weights of gate, up and down.
    """

    def __init__(self, norm: Parameter, epsilon: float, panels: Sequence[Parameter]) -> None:
        super().__init__(auto_prefix=False)
        self.norm, self.epsilon, self.panels = norm, Tensor([epsilon], ms.float32), ParameterTuple(panels)
        self.feed = kernel("decode_feed_forward", lambda x, *rest: (x, x))

    def construct(self, x_SH: Tensor, delta_SH: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return x + delta and the block's output."""
        return self.feed(x_SH, delta_SH, self.norm, self.epsilon, tokens, *self.panels)


class CopyBlocksKernel(nn.Cell):
    """construct(sources_W, targets_W) copies blocks within each of `caches`."""

    def __init__(self, caches: ParameterTuple) -> None:
        super().__init__(auto_prefix=False)
        self.caches = caches
        self.copy = kernel("copy_blocks", lambda *shapes: [1], lambda *dtypes: ms.int32)

    def construct(self, sources_W: Tensor, targets_W: Tensor) -> Tensor:
        return self.copy(sources_W, targets_W, *self.caches)
