"""The kernels against numpy in float64: numbers, roundings, strides, threads, and refusals instead of crashes.

Legend: B batch, T tokens, N query heads, K key/value heads, D head size.
"""

import itertools
from pathlib import Path

import numpy as np
import pytest
from emulated_operators import TOLERANCE, attend, draw, exact, is_close, of, zeros

from ascend_emulator.tensors import DeviceTensor, round_to_bfloat16
from mindgspo_kernels import binding as kernels
from mindgspo_kernels import build

DTYPES = tuple(TOLERANCE)


def seen(x: DeviceTensor, bits: np.ndarray) -> DeviceTensor:
    return DeviceTensor(x.dtype, bits.shape, bits)


def test_every_half_is_read_and_written_as_it_is() -> None:
    bits = np.arange(65536, dtype=np.uint16)
    zero = zeros((65536,))
    for dtype, storage in (("float16", np.float16), ("bfloat16", np.uint16)):
        x, out = DeviceTensor(dtype, bits.shape, bits.view(storage)), zeros(bits.shape)
        kernels.add(x, zero, out=out)
        np.testing.assert_array_equal(out.bits, x.values())
        back = zeros(bits.shape, dtype)
        kernels.add(out, zero, out=back)
        numbers = ~np.isnan(out.bits) & (out.bits != 0)  # -0 + 0 is 0, and one NaN stands for all
        np.testing.assert_array_equal(back.bits.view(np.uint16)[numbers], bits[numbers])
        assert np.isnan(back.values()[np.isnan(out.bits)]).all()


def test_results_are_rounded_once_to_the_nearest_and_ties_to_even() -> None:
    random = np.random.default_rng(0).integers(0, 1 << 32, 200_000, dtype=np.uint32)
    ties = np.arange(65536, dtype=np.uint32) << 16 | 0x8000  # halfway between two bfloat16
    halfway = (np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64) + np.float64(2.0**-25)).astype(
        "f4"
    )
    values = np.concatenate(
        [random.view(np.float32), ties.view(np.float32), halfway, -halfway, np.float32([65519.99, 65520.0])]
    )
    x = of(values)
    for dtype in ("float16", "bfloat16"):
        out = zeros(x.shape, dtype)
        kernels.mul(x, of(np.ones_like(x.bits)), out=out)
        with np.errstate(over="ignore", invalid="ignore"):
            rounded = round_to_bfloat16(x.bits) if dtype == "bfloat16" else x.bits.astype(np.float16)
        numbers = ~np.isnan(x.bits)
        np.testing.assert_array_equal(out.bits[numbers], rounded[numbers])
        assert np.isnan(out.values()[~numbers]).all()


def test_exponentials_from_the_smallest_to_the_largest_number() -> None:
    shifts = np.linspace(-104, 0, 20_001, dtype=np.float32)
    out = zeros((20_001, 2))
    kernels.softmax(of(np.stack([np.zeros_like(shifts), shifts], 1)), 1, y=out)
    expected = np.exp(shifts.astype(np.float64)) / (1 + np.exp(shifts.astype(np.float64)))
    np.testing.assert_allclose(out.bits[:, 1], expected, rtol=4e-7, atol=1.5e-45)


def test_infinities_and_nan_in_softmax() -> None:
    rows = of([[0.0, -np.inf, 1.0], [np.nan, 0.0, 1.0], [3e38, 3e38, -3e38]])
    out = zeros(rows.shape)
    kernels.softmax(rows, -1, y=out)
    np.testing.assert_allclose(out.bits[0], [1 / (1 + np.e), 0, np.e / (1 + np.e)], rtol=1e-6)
    assert np.isnan(out.bits[1]).all()
    np.testing.assert_array_equal(out.bits[2], [0.5, 0.5, 0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_gradients_of_softmax_and_swiglu(axis: int, dtype: str) -> None:
    shape = (6, 70, 4)
    y, d_y, d_x = draw(*shape, dtype=dtype), draw(*shape, dtype=dtype, seed=1), zeros(shape, dtype)
    of_y, of_d = exact(y), exact(d_y)
    kernels.softmax_backward(d_y, y, axis, d_x=d_x)
    assert is_close(d_x, of_y * (of_d - (of_d * of_y).sum(axis=axis, keepdims=True)))
    kernels.softmax_backward(d_y, y, axis, d_x=d_x, is_log=True)
    assert is_close(d_x, of_d - np.exp(of_y) * of_d.sum(axis=axis, keepdims=True))

    d_half = draw(*(size // 2 if number == axis else size for number, size in enumerate(shape)), dtype=dtype, seed=2)
    kernels.swiglu_backward(d_half, y, axis, d_x=d_x)
    gate, up = np.split(of_y, 2, axis)
    share, d_out = 1 / (1 + np.exp(-gate)), exact(d_half)
    d_gate = d_out * up * share * (1 + gate * (1 - share))
    assert is_close(d_x, np.concatenate([d_gate, d_out * gate * share], axis))


SIZES = [(1, 1, 1), (3, 17, 5), (1, 300, 70), (4, 257, 33), (5, 40, 300), (14, 256, 32), (600, 70, 300), (37, 513, 45)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("m", "k", "n"), SIZES)
def test_products_of_every_orientation(m: int, k: int, n: int, dtype: str) -> None:
    for a_down, b_down in itertools.product((False, True), repeat=2):
        a, b = (
            draw(*((k, m) if a_down else (m, k)), dtype=dtype),
            draw(*((n, k) if b_down else (k, n)), dtype=dtype, seed=1),
        )
        a, b = (seen(a, a.bits.T) if a_down else a), (seen(b, b.bits.T) if b_down else b)
        out = zeros((m, n), dtype)
        kernels.matmul(a, b, out)
        assert is_close(out, exact(a) @ exact(b)), (a_down, b_down)


def test_a_product_is_summed_in_float32_and_rounded_once() -> None:
    """4,096 ones: bfloat16 cannot count beyond 256."""
    a, b = of(np.ones((8, 4096)), "bfloat16"), of(np.ones((4096, 40)), "bfloat16")
    out = zeros((8, 40), "bfloat16")
    kernels.matmul(a, b, out)
    assert (out.values() == 4096).all()


def test_batches_are_spread_and_biases_added() -> None:
    a, b, bias = draw(3, 1, 20, 30), draw(2, 30, 10, seed=1), draw(2, 1, 10, seed=2)
    out = zeros((3, 2, 20, 10))
    kernels.matmul(a, b, out, bias=bias, alpha=0.5, beta=-2.0, threads=2)
    assert is_close(out, 0.5 * exact(a) @ exact(b) - 2 * exact(bias))


def test_a_product_of_views_with_gaps() -> None:
    a, b, out = draw(40, 60), draw(90, 64, seed=1), zeros((20, 128))
    left, right = seen(a, a.bits[::2, ::3]), seen(b, b.bits[:80:4, ::-1])
    kernels.matmul(left, right, seen(out, out.bits[:, ::2]))
    assert is_close(seen(out, out.bits[:, ::2]), exact(left) @ exact(right))
    assert not out.bits[:, 1::2].any()


def test_products_over_nothing_are_zero() -> None:
    out = of(np.ones((6, 4)))
    kernels.matmul(zeros((6, 0)), zeros((0, 4)), out)
    assert not out.bits.any()
    kernels.matmul(zeros((0, 5)), zeros((5, 4)), zeros((0, 4)))


def visible_to(visible: kernels.Visible, queries: int, keys: int) -> np.ndarray:
    distance = np.arange(keys) - np.arange(queries)[:, None] - (keys - queries if visible.from_end else 0)
    return (distance >= -visible.before) & (distance <= visible.after)


CASES = {
    "full": (kernels.Visible(), [70, 71, 200], [70, 71, 200]),
    "causal": (kernels.Visible(after=0), [64, 200], [64, 200]),
    "causal from the end": (kernels.Visible(after=0, from_end=True), [3, 130], [150, 290]),
    "more queries than keys": (kernels.Visible(after=0, from_end=True), [150], [100]),
    "band": (kernels.Visible(20, 7, True), [100, 230], [100, 300]),
    "empty sequences": (kernels.Visible(after=0, from_end=True), [0, 5, 5, 60], [4, 9, 12, 80]),
}


def packed(case: str, *, value_size: int = 32, dtype: str = "float32") -> tuple[list[DeviceTensor], dict]:
    visible, q_ends, k_ends = CASES[case]
    q, k = draw(1, q_ends[-1], 4, 32, dtype=dtype), draw(1, k_ends[-1], 2, 32, dtype=dtype, seed=1)
    v = draw(1, k_ends[-1], 2, value_size, dtype=dtype, seed=2)
    return [q, k, v], {"visible": visible, "q_ends": q_ends, "k_ends": k_ends, "scale": 32**-0.5}


def expected_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, settings: dict) -> list[np.ndarray]:
    """Output, maximum and sum of packed sequences."""
    ends = settings["q_ends"], settings["k_ends"]
    starts = [[0, *one[:-1]] for one in ends]
    parts = []
    for q0, q1, k0, k1 in zip(starts[0], ends[0], starts[1], ends[1], strict=True):
        allowed = visible_to(settings["visible"], q1 - q0, k1 - k0)
        parts.append(attend(q[q0:q1], k[k0:k1], v[k0:k1], ~allowed, settings["scale"]))
    return [np.concatenate(one) for one in zip(*parts, strict=True)]


def results_for(q: DeviceTensor, v: DeviceTensor) -> dict[str, DeviceTensor]:
    shape = q.shape[:3]
    return {"out": zeros((*shape, v.shape[3]), q.dtype), "highest": zeros((*shape, 8)), "total": zeros((*shape, 8))}


def both_ways(inputs: list[DeviceTensor], d_out: DeviceTensor, **settings: object) -> tuple[dict, list[DeviceTensor]]:
    """Results, and gradients of query, key and value."""
    results, gradients = results_for(inputs[0], inputs[2]), [zeros(x.shape, x.dtype) for x in inputs]
    kernels.attention(*inputs, **settings, **results)
    named = dict(zip(("d_q", "d_k", "d_v"), gradients, strict=True))
    kernels.attention_backward(*inputs, **settings, **results, d_out=d_out, **named)
    return results, gradients


@pytest.mark.parametrize("case", CASES)
def test_attention_of_packed_sequences(case: str) -> None:
    inputs, settings = packed(case, value_size=16)
    results = results_for(inputs[0], inputs[2])
    kernels.attention(*inputs, **settings, **results)
    out, top, total = expected_attention(*(exact(x)[0] for x in inputs), settings)
    np.testing.assert_allclose(results["out"].bits[0], out, atol=3e-6)
    for lane in range(8):
        np.testing.assert_allclose(results["highest"].bits[0, ..., lane], top, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(results["total"].bits[0, ..., lane], total, rtol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_gradients_of_attention_are_its_slopes(case: str) -> None:
    """Along random directions, by central differences of the float64 twin."""
    inputs, settings = packed(case)
    d_out = draw(*inputs[0].shape, seed=3)
    _, gradients = both_ways(inputs, d_out, **settings)

    def loss(arrays: list[np.ndarray]) -> float:
        return (expected_attention(*arrays, settings)[0] * exact(d_out)[0]).sum()

    step = 1e-5
    for which, gradient in enumerate(gradients):
        direction = np.random.default_rng(which).standard_normal(gradient.shape[1:])
        slopes = []
        for sign in (1, -1):
            moved = [exact(x)[0] for x in inputs]
            moved[which] = moved[which] + sign * step * direction
            slopes.append(loss(moved))
        expected = (slopes[0] - slopes[1]) / (2 * step)
        found = (exact(gradient)[0] * direction).sum()
        size = np.linalg.norm(exact(gradient)) * np.linalg.norm(direction)
        assert abs(found - expected) <= 1e-6 * size, (which, found, expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_attention_and_its_gradients_in_halves_are_those_of_float32_rounded(dtype: str) -> None:
    inputs, settings = packed("causal", dtype=dtype)
    wide = [of(x.values()) for x in inputs]
    d_out = draw(*inputs[0].shape, dtype=dtype, seed=3)
    found = []
    for tensors, upstream in ((inputs, d_out), (wide, of(d_out.values()))):
        results, gradients = both_ways(tensors, upstream, **settings)
        found.append([results["out"], *gradients])
    for half, full in zip(*found, strict=True):
        assert is_close(half, exact(full))
    np.testing.assert_array_equal(found[0][0].bits, of(found[1][0].bits, dtype).bits)


@pytest.mark.parametrize(("prefix", "lengths", "other", "threads"), [
    (1, [1], 0, 1), (5, [3, 0, 9], 4, 2), (130, [70, 1, 40], 9, 3), (128, [0, 64], 0, 2), (60, [57, 200], 3, 1),
])  # fmt: skip
def test_a_shared_prefix_is_a_copy_of_it_in_front_of_each_sequence(
    prefix: int, lengths: list[int], other: int, threads: int
) -> None:
    """Results bit for bit, and its gradients those of all copies together. A sequence of its own stands before."""
    order = [range(other), range(other, other + prefix)]
    for length in lengths:
        order.append(range(order[-1].stop, order[-1].stop + length))
    copies = [order[0], order[1], *([*order[1], *own] for own in order[2:])]
    columns = np.concatenate([np.asarray(one, int) for one in copies])
    causal = {"visible": kernels.Visible(after=0, from_end=True), "scale": 0.3, "threads": threads}
    ends = np.cumsum([len(one) for one in order]).tolist()
    shared = causal | {"q_ends": ends, "k_ends": ends, "prefixes": [-1, -1] + [1] * len(lengths)}
    ends = np.cumsum([len(one) for one in copies]).tolist()
    copied = causal | {"q_ends": ends, "k_ends": ends}
    q, k, v, d_out = (draw(1, order[-1].stop, heads, 16, seed=heads) for heads in (4, 2, 2, 4))
    # A copied prefix has results, but no gradient flows into them.
    repeated = np.concatenate(
        [np.arange(len(one)) < len(one) - len(own) for one, own in zip(copies, order, strict=True)]
    )
    found = []
    for settings_, at in ((shared, np.arange(order[-1].stop)), (copied, columns)):
        inputs = [of(np.ascontiguousarray(x.bits[:, at])) for x in (q, k, v)]
        upstream = d_out.bits[:, at].copy()
        if len(at) == len(repeated):
            upstream[:, repeated] = 0
        results, gradients = both_ways(inputs, of(upstream), **settings_)
        sums = [np.zeros(x.shape) for x in (q, k, v)]
        for total, gradient in zip(sums, gradients, strict=True):
            np.add.at(total[0], at, gradient.bits[0])
        found.append((results["out"].bits[0], sums))
    np.testing.assert_array_equal(found[0][0], found[1][0][~repeated])
    for one, other_one in zip(found[0][1], found[1][1], strict=True):
        np.testing.assert_allclose(one, other_one, rtol=0, atol=1e-5 * max(np.abs(other_one).max(initial=0), 1e-3))


def test_attention_of_a_batch_with_a_mask_in_any_layout() -> None:
    """Heads before the sequence, as BNSD lies in memory; a mask for each entry and head."""
    q, k, v = draw(2, 3, 40, 16), draw(2, 3, 150, 16, seed=1), draw(2, 3, 150, 16, seed=2)
    hidden = np.random.default_rng(3).random((2, 3, 40, 150)) < 0.5
    hidden[0, 0, 7] = True
    mask, swapped = of(hidden, "bool"), [seen(x, x.bits.swapaxes(1, 2)) for x in (q, k, v)]
    results = results_for(swapped[0], swapped[2])
    kernels.attention(*swapped, scale=0.25, mask=mask, **results)
    for entry in range(2):
        out, top, _ = attend(*(exact(x)[entry] for x in swapped), hidden[entry], 0.25)
        np.testing.assert_allclose(results["out"].bits[entry], out, atol=3e-6)
        np.testing.assert_allclose(results["highest"].bits[entry, ..., 0], top, rtol=1e-5)
    assert not results["out"].bits[0, 7, 0].any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_paged_attention_reads_the_blocks_of_each_sequence(dtype: str) -> None:
    lengths, size = [1, 0, 50, 33], 16
    tables = np.random.default_rng(0).permutation(16).reshape(4, 4)
    q, keys, values = (
        draw(4, 6, 32, dtype=dtype),
        draw(16, size, 2, 32, dtype=dtype),
        draw(16, size, 2, 32, dtype=dtype),
    )
    out = zeros(q.shape, dtype)
    kernels.paged_attention(q, keys, values, of(tables, "int32"), of(lengths, "int32"), scale=0.2, out=out)
    expected = np.zeros(q.shape)
    for row, length in enumerate(lengths):
        if length:
            k, v = (exact(x)[tables[row]].reshape(-1, 2, 32)[:length] for x in (keys, values))
            expected[row] = attend(exact(q)[row][None], k, v, np.zeros((1, 1, length), bool), 0.2)[0][0]
    assert is_close(out, expected)


def test_element_by_element_in_views_of_any_order() -> None:
    a, b = draw(6, 5, 4), draw(5, 1, seed=1)
    left, right = seen(a, a.bits.transpose(2, 1, 0)[::-1]), b.view(1, 5, 1)
    out = zeros((4, 6, 5))
    kernels.add(left, right, out=seen(out, out.bits.swapaxes(1, 2)))
    np.testing.assert_array_equal(out.bits.swapaxes(1, 2), left.bits + right.bits)
    kernels.mul(a, a, out=a)  # in its own memory
    assert (a.bits >= 0).all()


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    a, b, x, gamma = draw(700, 300), draw(300, 600, seed=1), draw(3000, 64, seed=2), draw(64, seed=3)
    inputs, settings = packed("causal from the end")
    d_out = draw(*inputs[0].shape, seed=4)
    found = []
    for threads in (1, 2, 5):
        product, y, rstd = zeros((700, 600)), zeros(x.shape), zeros((3000, 1))
        d_x, d_gamma = zeros(x.shape), zeros((64,))
        kernels.matmul(a, b, product, threads=threads)
        kernels.rms_norm(x, gamma, epsilon=1e-6, y=y, rstd=rstd, threads=threads)
        kernels.rms_norm_backward(x, x, rstd, gamma, d_x=d_x, d_gamma=d_gamma, threads=threads)
        results, gradients = both_ways(inputs, d_out, **settings, threads=threads)
        found.append([product, y, d_x, d_gamma, *results.values(), *gradients])
    for one, two, five in zip(*found, strict=True):
        np.testing.assert_array_equal(one.bits, two.bits)
        np.testing.assert_array_equal(one.bits, five.bits)


def refused(call, *given: object, **named: object) -> str:
    with pytest.raises(ValueError) as caught:
        call(*given, **named)
    return str(caught.value)


def test_wrong_arguments_are_refused_by_name_and_value() -> None:
    x, y = draw(4, 6), zeros((4, 6))
    assert refused(kernels.matmul, x, x, y) == "matmul: a [4, 6] and b [4, 6] do not make [4, 6]"
    assert "bias [3] cannot be spread to [4, 4]" in refused(
        kernels.matmul, x, seen(x, x.bits.T), zeros((4, 4)), bias=draw(3)
    )
    assert "a must be float32, float16 or bfloat16, not dtype 9" in refused(
        kernels.matmul, of(np.ones((4, 6)), "int64"), x, y
    )
    assert "axis 2 is not one of [4, 6]" in refused(kernels.softmax, x, 2, y=y)
    assert "y must have the shape [4, 6], not [6, 4]" in refused(kernels.softmax, x, 1, y=zeros((6, 4)))
    assert "x [4, 6] cannot be halved" not in refused(kernels.swiglu, x, 0, y=y)
    assert "x [3, 5] cannot be halved" in refused(kernels.swiglu, draw(3, 5), 1, y=y)
    assert "gamma must have the shape [6], not [4]" in refused(kernels.rms_norm, x, draw(4), epsilon=0.1, y=y)
    assert "[4, 5] cannot be spread to [4, 6]" in refused(kernels.add, x, draw(4, 5), out=y)
    assert "must have an even last axis, not 5" in refused(kernels.rotary, *[draw(3, 5)] * 3, y=draw(3, 5))
    assert "has no memory" in refused(kernels.silu, DeviceTensor("float32", (4, 6), None), y=y)
    assert "is not computed" in refused(kernels.silu, zeros((4, 6), "float64"), y=y)


def test_wrong_sequences_are_refused() -> None:
    inputs, settings = packed("causal")
    results = results_for(inputs[0], inputs[2])

    def answer(**changed: object) -> str:
        return refused(kernels.attention, *inputs, **(settings | results | changed))

    assert "the last ends, 199 and 200, must be the tokens, 200 and 200" in answer(q_ends=[64, 199])
    assert "ends must not fall" in answer(q_ends=[201, 200])
    assert "total must have 4 axes" in answer(total=zeros((1, 200, 4)))
    assert "mask [1, 1, 64, 136] is smaller than a sequence" in answer(mask=zeros((1, 1, 64, 136), "bool"))
    assert "4 heads of queries are not a multiple of 3" in refused(
        kernels.attention, inputs[0], *[draw(1, 200, 3, 32)] * 2, **settings, **results
    )
    q, cache, out = draw(1, 2, 16), draw(4, 8, 1, 16), zeros((1, 2, 16))
    for table, length, reason in (([[7]], 3, "block 7 of sequence 0"), ([[0]], 9, "length 9 and a table for 8")):
        given = of(table, "int32"), of([length], "int32")
        assert reason in refused(kernels.paged_attention, q, cache, cache, *given, scale=1.0, out=out)


def test_the_library_is_compiled_once_and_put_in_place_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []

    def compile_aside(target: Path) -> None:
        compiled.append(target)
        assert not (target.parent.parent / target.name).exists()  # no one may load a half-written file
        target.write_bytes(b"half of the ")
        if len(compiled) == 1:
            build.library_in(tmp_path)  # another process is faster
        target.write_bytes(b"library")

    monkeypatch.setattr(build, "compile_library", compile_aside)
    path = build.library_in(tmp_path)
    assert path == build.library_in(tmp_path) and len(set(compiled)) == 2
    assert path.read_bytes()[:-32] == b"library" and list(path.parent.iterdir()) == [path]
    monkeypatch.setattr(build, "_processor", lambda: "flags: another processor")
    assert build.library_in(tmp_path).parent != path.parent


def test_where_nothing_can_be_written_the_library_is_compiled_for_the_process(tmp_path, monkeypatch, capsys) -> None:
    occupied = tmp_path / "file"
    occupied.touch()
    monkeypatch.setattr(build, "compile_library", Path.touch)
    path = build.library_in(occupied)
    assert path.is_file() and tmp_path not in path.parents
    assert "compiled at each start: [Errno 20]" in capsys.readouterr().err


def test_without_a_compiler_the_reason_is_told(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(build.KernelsUnavailable, match="apt-get install g\\+\\+"):
        build.library_in(tmp_path)
