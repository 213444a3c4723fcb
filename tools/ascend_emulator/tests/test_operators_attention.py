"""Emulated attention, its cache and rotary embedding: beside numpy in float64 and torch, and what CANN rules out.

Legend: B batch, S sequence, T tokens of all sequences, N query heads, K key/value heads, D head size.
"""

import numpy as np
import pytest
from emulated_operators import FLOATS, attend, draw, exact, is_close, launch, of, zeros
from emulated_operators import documented_refusal as refusal

import ascend_emulator.operators.attention
import ascend_emulator.operators.cache
import ascend_emulator.operators.rotary  # noqa: F401  (they enter the operators into the table)
from ascend_emulator.tensors import DeviceTensor

ALL = 2147483647
TRIANGLE = of(np.triu(np.ones((2048, 2048)), 1), "uint8")


def zeros_like(x: DeviceTensor) -> DeviceTensor:
    return zeros(x.shape, x.dtype)


def hidden_by(mode: int, queries: int, keys: int, before: int, after: int) -> np.ndarray:
    """What sparseMode hides, by the drawings of CANN: the causal modes 2 and 3 are aligned at the left upper and the
    right lower corner, the band of mode 4 at the right lower one."""
    distance = np.arange(keys) - np.arange(queries)[:, None]
    if mode == 2:
        return (distance > 0)[None]
    distance = distance - (keys - queries)
    if mode == 3:
        return (distance > 0)[None]
    return ((distance > after) | (distance < -before))[None]


class Packed:
    """Arguments of attention over packed sequences, forward and backward; each may be changed by name."""

    def __init__(self, q_ends: list[int], k_ends: list[int], dtype: str = "float32", **changed: object) -> None:
        size = 32
        self.given = {
            "query": draw(q_ends[-1], 4, size, dtype=dtype), "key": draw(k_ends[-1], 2, size, dtype=dtype, seed=1),
            "value": draw(k_ends[-1], 2, size, dtype=dtype, seed=2), "mask": TRIANGLE, "q_ends": q_ends,
            "k_ends": k_ends, "scale": size**-0.5, "keep": 1.0, "before": ALL, "after": ALL, "heads": 4,
            "layout": "TND", "mode": 3, "highest": zeros((q_ends[-1], 4, 8)),
            "total": zeros((q_ends[-1], 4, 8)),
        } | changed  # fmt: skip
        self.given.setdefault("out", zeros_like(self.given["query"]))

    def settings(self, version: str) -> list[object]:
        names = ("scale", "keep", "before", "after", "heads", "layout")
        start, kind = ([None, None], [1]) if version else ([], [])
        values = [self.given[name] for name in names]
        return [None, self.given["q_ends"], self.given["k_ends"], *start, *values, 0, self.given["mode"], *kind]

    def forward(self, version: str = "") -> tuple[object, ...]:
        inputs = [self.given[name] for name in ("query", "key", "value")]
        results = self.given["highest"], self.given["total"], None, self.given["out"]
        name = f"aclnnFlashAttentionVarLenScore{version}"
        return (name, *inputs, None, None, None, self.given["mask"], *self.settings(version), *results)

    def backward(self, d_out: DeviceTensor, gradients: list[DeviceTensor], version: str = "") -> tuple[object, ...]:
        inputs = [self.given[name] for name in ("query", "key", "value")]
        results = self.given["highest"], self.given["total"], None, self.given["out"]
        name = f"aclnnFlashAttentionUnpaddingScoreGrad{version}"
        settings = self.settings(version)
        return (name, *inputs, d_out, None, None, None, self.given["mask"], *results, *settings, *gradients, None)


SETTINGS = {
    "causal from the end": ([30, 31, 180], [30, 40, 200], {}),
    "causal from the start": ([30, 31, 180], [30, 40, 100], {"mode": 2}),
    "band": ([30, 90], [30, 110], {"mode": 4, "before": 9, "after": 3}),
    "a query-less sequence": ([30, 30, 60], [30, 40, 70], {}),
}


@pytest.mark.parametrize("version", ["", "V2"])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("case", SETTINGS)
def test_attention_of_packed_sequences_and_its_gradients(case: str, dtype: str, version: str) -> None:
    q_ends, k_ends, changed = SETTINGS[case]
    one = Packed(q_ends, k_ends, dtype, **changed)
    given = one.given
    launch(*one.forward(version))
    expected = [[], [], []]
    for q0, q1, k0, k1 in zip([0, *q_ends[:-1]], q_ends, [0, *k_ends[:-1]], k_ends, strict=True):
        q, k, v = exact(given["query"])[q0:q1], exact(given["key"])[k0:k1], exact(given["value"])[k0:k1]
        hidden = hidden_by(given["mode"], q1 - q0, k1 - k0, given["before"], given["after"])
        for parts, part in zip(expected, attend(q, k, v, hidden, given["scale"]), strict=True):
            parts.append(part)
    out, top, total = (np.concatenate(parts) for parts in expected)
    assert is_close(given["out"], out)
    for lane in range(8):
        np.testing.assert_allclose(given["highest"].bits[..., lane], top, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(given["total"].bits[..., lane], total, rtol=1e-5)
    torch = pytest.importorskip("torch")
    d_out = draw(*given["query"].shape, dtype=dtype, seed=3)
    gradients = [zeros_like(given[name]) for name in ("query", "key", "value")]
    launch(*one.backward(d_out, gradients, version))
    leaves = [torch.tensor(exact(given[name]), requires_grad=True) for name in ("query", "key", "value")]
    q, k, v = leaves[0], *(leaf.repeat_interleave(2, 1) for leaf in leaves[1:])
    for q0, q1, k0, k1 in zip([0, *q_ends[:-1]], q_ends, [0, *k_ends[:-1]], k_ends, strict=True):
        hidden = torch.tensor(hidden_by(given["mode"], q1 - q0, k1 - k0, given["before"], given["after"]))
        scores = given["scale"] * torch.einsum("qnd,knd->nqk", q[q0:q1], k[k0:k1])
        part = torch.einsum("nqk,knd->qnd", torch.softmax(scores.masked_fill(hidden, -torch.inf), -1), v[k0:k1])
        part.backward(torch.tensor(exact(d_out))[q0:q1], retain_graph=True)
    for gradient, leaf in zip(gradients, leaves, strict=True):
        assert is_close(gradient, leaf.grad.numpy())


def test_a_mask_of_ones_own_is_read_by_sequence_and_head() -> None:
    q_ends, k_ends = [10, 25], [12, 30]
    hidden = np.random.default_rng(5).random((2, 4, 15, 18)) < 0.4
    hidden[..., 0] = False  # every query sees something
    one = Packed(q_ends, k_ends, mask=of(hidden, "bool"), mode=0)
    launch(*one.forward())
    given = {name: exact(one.given[name]) for name in ("query", "key", "value")}
    for s, (q, k) in enumerate([(slice(0, 10), slice(0, 12)), (slice(10, 25), slice(12, 30))]):
        seen = hidden[s, :, : q.stop - q.start, : k.stop - k.start]
        out, _, _ = attend(given["query"][q], given["key"][k], given["value"][k], seen, one.given["scale"])
        np.testing.assert_allclose(one.given["out"].bits[q], out, atol=1e-5)


def test_attention_without_a_mask_is_full() -> None:
    one = Packed([10, 25], [12, 30], mask=None, mode=0, before=3, after=0)  # the band is not looked at
    launch(*one.forward())
    given = {name: exact(one.given[name]) for name in ("query", "key", "value")}
    everything = np.zeros((1, 15, 18), bool)
    out, _, _ = attend(given["query"][10:], given["key"][12:], given["value"][12:], everything, one.given["scale"])
    np.testing.assert_allclose(one.given["out"].bits[10:], out, atol=1e-5)


REFUSED = [
    ({"q_ends": [20, 30], "k_ends": [30, 30]}, "actualSeqKvLenOptional must rise, as no sequence is empty: [30, 30]"),
    ({"q_ends": [31, 30]}, "actualSeqQLenOptional must not fall: [31, 30]"),
    ({"q_ends": [10, 29]}, "actualSeqQLenOptional must end with the 30 tokens of query, not 29"),
    ({"q_ends": None}, "actualSeqQLenOptional must have 1 to 2048 ends, not 0"),
    ({"k_ends": [30]}, "there must be as many ends of queries as of keys, not 2 and 1"),
    ({"q_ends": [20, 30], "k_ends": [10, 30]},
     "no sequence may have more queries than keys with sparseMode 3: (20, 10)"),
    ({"mask": None}, "attenMaskOptional must be given with sparseMode 3: without it attention is full"),
    ({"mask": zeros((64, 64), "bool")},
     "attenMaskOptional must be [2048, 2048] with sparseMode 3, not [64, 64]"),
    ({"mask": zeros((2048, 2048), "uint8")},
     "attenMaskOptional must be 1 above its diagonal and 0 elsewhere"),
    ({"mask": zeros((2048, 2048), "float16")}, "attenMaskOptional must be bool or uint8, not float16"),
    ({"mask": of(np.ones((20, 20)), "bool"), "mode": 0}, "attenMaskOptional must not have a row of ones"),
    ({"mask": zeros((9, 9), "bool"), "mode": 0},
     "attenMaskOptional must be [20, 20] in its last axes, not [9, 9]"),
    ({"mask": zeros((3, 1, 20, 20), "bool"), "mode": 0},
     "attenMaskOptional [3, 1, 20, 20] must have 1 or all of the sequences, and of the heads"),
    ({"mode": 4, "before": 2, "after": -3}, "preTokens 2 and nextTokens -3 must leave a band"),
    ({"mode": 6}, "sparseMode must be 0 or 1 or 2 or 3 or 4, not 6"),
    ({"layout": "BSND"}, "inputLayout must be 'TND', not 'BSND'"),
    ({"heads": 2}, "headNum 2 must be the number of heads of query TND [30, 4, 32]"),
    ({"heads": 257}, "headNum must be at most 256, not 257"),
    ({"keep": 0.9}, "keepProb 0.9 is not emulated, and must be 1"),
    ({"keep": 0.0}, "keepProb must be in (0, 1], not 0.0"),
    ({"key": draw(30, 2, 16)}, "batch, sequence and head size must fit"),
    ({"key": draw(30, 3, 32), "value": draw(30, 3, 32)}, "headNum 4 must be a multiple of the 3 heads of key"),
    ({"key": draw(30, 2, 32, dtype="float16")}, "must have the dtype of query, float32, not float16"),
    ({"query": draw(30, 128)}, "query must have 3 axes, not 2 [30, 128]"),
    ({"highest": zeros((4, 30, 8))}, "must be of shape [30, 4, 8], not float32[4, 30, 8]"),
    ({"total": zeros((30, 4, 8), "float16")}, "must be float32, not float16"),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "reason"), REFUSED)
def test_refused_packed_attention(changed: dict[str, object], reason: str) -> None:
    one = Packed([10, 30], [10, 30])
    one.given |= changed
    one.given["out"] = zeros_like(one.given["query"])
    assert reason in refusal(*one.forward()).replace("keyIn", "key")
    gradients = [zeros_like(one.given[name]) for name in ("query", "key", "value")]
    assert reason in refusal(*one.backward(one.given["out"], gradients)).replace("keyIn", "key")


@pytest.mark.parametrize(("size", "version", "most"), [(24, "", 768), (784, "", 768), (528, "V2", 512)])
def test_refused_head_sizes(size: int, version: str, most: int) -> None:
    heads = {"query": draw(30, 4, size), "key": draw(30, 2, size), "value": draw(30, 2, size)}
    one = Packed([10, 30], [10, 30], **heads)
    assert f"the head size must be a multiple of 16 up to {most}, not {size}" in refusal(*one.forward(version))
    gradients = [zeros_like(x) for x in heads.values()]
    assert "a multiple of 16 up to 512" in refusal(*one.backward(one.given["out"], gradients, version))


def test_documented_and_not_emulated_inputs_are_refused() -> None:
    arguments = list(Packed([10, 30], [10, 30]).forward())
    for position, name in ((4, "realShiftOptional"), (5, "dropMaskOptional"), (8, "prefixOptional")):
        changed = list(arguments)
        changed[position] = draw(3)
        assert f"{name} is not emulated, and must be absent" in refusal(*changed)


LAYOUTS = {"BSH": (0, 1, 2, 3), "BSND": (0, 1, 2, 3), "SBH": (1, 0, 2, 3), "BNSD": (0, 2, 1, 3)}


def dense(layout: str, mask: DeviceTensor | None, mode: int, version: str) -> list[object]:
    """What forward and backward take after the tensors; two sequences of 20 queries and 40 keys."""
    start, kind = ([None, None], [1]) if version else ([], [])
    return [mask, None, *start, 0.25, 1.0, ALL, ALL, 4, layout, 0, mode, *kind]


@pytest.mark.parametrize("version", ["", "V2"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_attention_of_a_batch_in_every_layout(layout: str, version: str) -> None:
    tensors = [draw(2, 20, 4, 16), draw(2, 40, 2, 16, seed=1), draw(2, 40, 2, 16, seed=2), draw(2, 20, 4, 16, seed=3)]

    def lay_out(x: DeviceTensor) -> DeviceTensor:
        bits = np.ascontiguousarray(x.bits.transpose(LAYOUTS[layout]))
        bits = bits.reshape(*bits.shape[:2], -1) if layout.endswith("H") else bits
        return DeviceTensor(x.dtype, bits.shape, bits)

    query, key, value, d_out = map(lay_out, tensors)
    highest, total, out = zeros((2, 4, 20, 8)), zeros((2, 4, 20, 8)), zeros_like(query)
    mask, *settings = dense(layout, TRIANGLE, 3, version)
    name = f"aclnnFlashAttentionScore{version}"
    launch(name, query, key, value, None, None, None, mask, *settings, highest, total, None, out)
    packed = Packed([20, 40], [40, 80], scale=0.25)
    packed.given |= {
        name: x.view(-1, *x.shape[2:]) for name, x in zip(("query", "key", "value"), tensors, strict=False)
    }
    packed.given["out"] = zeros_like(packed.given["query"])
    launch(*packed.forward())
    np.testing.assert_array_equal(out.bits, lay_out(packed.given["out"].view(2, 20, 4, 16)).bits)
    np.testing.assert_array_equal(total.bits, packed.given["total"].bits.reshape(2, 20, 4, 8).swapaxes(1, 2))
    gradients, name = [zeros_like(x) for x in (query, key, value)], f"aclnnFlashAttentionScoreGrad{version}"
    results = highest, total, None, out
    launch(name, query, key, value, d_out, None, None, None, mask, *results, *settings, *gradients, None)
    others = [zeros_like(packed.given[name]) for name in ("query", "key", "value")]
    launch(*packed.backward(tensors[3].view(40, 4, 16), others))
    for gradient, other, like in zip(gradients, others, tensors, strict=False):
        np.testing.assert_array_equal(gradient.bits, lay_out(other.view(*like.shape)).bits)


def test_refused_attention_of_a_batch() -> None:
    query, key = draw(2, 20, 4, 16), draw(2, 40, 2, 16)
    statistics = zeros((2, 4, 20, 8))

    def answer(query: DeviceTensor, key: DeviceTensor, layout: str) -> str:
        mask, *settings = dense(layout, None, 0, "")
        results = statistics, statistics, None, zeros_like(query)
        return refusal("aclnnFlashAttentionScore", query, key, key, None, None, None, mask, *settings, *results)

    assert "query must have the axes BSH, not [2, 20, 4, 16]" in answer(query, key, "BSH")
    assert "headNum 4 must be the number of heads of query BNSD [2, 20, 4, 16]" in answer(query, key, "BNSD")
    assert "inputLayout must be 'BSH' or 'SBH' or 'BSND' or 'BNSD', not 'TND'" in answer(query, key, "TND")
    assert "batch, sequence and head size must fit: query [2, 20, 4, 16], key [1, 40, 2, 16]" in answer(
        query, draw(1, 40, 2, 16), "BSND"
    )


def paged(dtype: str = "bfloat16", **changed: object) -> tuple[str, list, list, dict]:
    lengths = [1, 17, 48, 33]
    given = {
        "query": draw(4, 4, 32, dtype=dtype), "keys": draw(12, 16, 2, 32, dtype=dtype, seed=1),
        "values": draw(12, 16, 2, 32, dtype=dtype, seed=2), "lengths": lengths, "heads": 4, "scale": 0.2,
        "on_host": lengths,
    } | changed  # fmt: skip
    tables = np.random.default_rng(0).permutation(12).reshape(4, 3)
    inputs = [given["query"], given["keys"], given["values"], of(tables, "int32")]
    inputs += [of(given["lengths"], "int32"), None, None, None, None]
    parameters = {"num_heads": given["heads"], "num_kv_heads": 2, "scale": given["scale"], "q_seq_len": []}
    parameters |= {"kv_seq_len": given["on_host"], "mla_v_dim": 0}
    return "internal:PagedAttention", inputs, [zeros_like(given["query"])], parameters


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_paged_attention_reads_what_reshape_and_cache_has_written(dtype: str) -> None:
    name, inputs, outputs, parameters = paged(dtype)
    query, keys, values, tables, lengths = inputs[:5]
    for row, (table, length) in enumerate(zip(tables.bits, lengths.bits, strict=True)):
        new = [draw(length, 64, dtype=dtype, seed=10 * row + kind) for kind in range(2)]
        slots = of([table[at // 16] * 16 + at % 16 for at in range(length)], "int32")
        launch("internal:ReshapeAndCache", [*new, keys, values, slots], [new[0]], {})
        expected = [exact(one).reshape(length, 2, 32) for one in new]
        launch(name, inputs, outputs, parameters)
        out, _, _ = attend(exact(query)[row][None], *expected, np.zeros((1, 1, length), bool), 0.2)
        assert is_close(DeviceTensor(dtype, (4, 32), outputs[0].bits[row]), out[0])


def paged_latents(*, features: int = 48, **changed: object) -> tuple[str, list, list, dict]:
    """Two sequences of three heads over latents of 32 features with rotated keys of 16."""
    lengths = of([5, 20], "int32")
    cache = draw(4, 16, 1, features, dtype="bfloat16", seed=1)
    inputs = [draw(2, 3 * features, dtype="bfloat16"), cache, cache, of([[3, 0], [2, 1]], "int32"), lengths]
    parameters = {"num_heads": 3, "num_kv_heads": 1, "scale": 0.2, "q_seq_len": [], "kv_seq_len": [5, 20]}
    parameters |= {"mla_v_dim": 32} | changed
    return "internal:PagedAttention", [*inputs, None, None, None, None], [zeros((2, 96), "bfloat16")], parameters


def test_paged_attention_over_latents_that_reshape_and_cache_has_written() -> None:
    name, inputs, outputs, parameters = paged_latents()
    query, cache, _, tables, lengths = inputs[:5]
    for row, (table, length) in enumerate(zip(tables.bits, lengths.bits, strict=True)):
        new = draw(length, 48, dtype="bfloat16", seed=10 + row)
        slots = of([table[at // 16] * 16 + at % 16 for at in range(length)], "int32")
        launch("internal:ReshapeAndCache", [new, None, cache, None, slots], [new], {})
        launch(name, inputs, outputs, parameters)
        scores = exact(query)[row].reshape(3, 48) @ exact(new).T * 0.2
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        out = weights / weights.sum(-1, keepdims=True) @ exact(new)[:, :32]
        assert is_close(DeviceTensor("bfloat16", (96,), outputs[0].bits[row]), out.reshape(96))


@pytest.mark.parametrize(("call", "reason"), [
    (paged_latents(features=592), "mla_v_dim 32 takes one head of 32 to 576 features, not [4, 16, 1, 592]"),
    (paged_latents(mla_v_dim=64), "mla_v_dim 64 takes one head of 64 to 576 features"),
    (paged_latents(num_heads=2), "query and out must be [2, 2 x 48] and [2, 2 x 32], not [2, 144] and [2, 96]"),
])  # fmt: skip
def test_refused_latents(call: tuple[str, list, list, dict], reason: str) -> None:
    assert reason in refusal(*call)


def test_a_negative_slot_is_not_stored() -> None:
    new, cache = draw(3, 32, dtype="float16"), zeros((2, 4, 1, 32), "float16")
    launch("internal:ReshapeAndCache", [new, new, cache, cache, of([5, -1, 0], "int32")], [], {})
    np.testing.assert_array_equal(cache.bits.reshape(8, 32)[[5, 0]], new.bits[[0, 2]])
    assert np.count_nonzero(cache.bits.any(-1)) == 2


@pytest.mark.parametrize(("changed", "reason"), [
    ({"on_host": []}, "kv_seq_len of the host [] must be context_lens of the device [1, 17, 48, 33]"),
    ({"on_host": [1, 17, 48, 32]}, "kv_seq_len of the host [1, 17, 48, 32] must be context_lens"),
    ({"query": draw(4, 4, 32)}, "query must be bfloat16 or float16, not float32"),
    ({"keys": draw(12, 16, 2, 32, dtype="int8")}, "key_cache must have the dtype of query, bfloat16, not int8"),
    ({"values": draw(12, 16, 4, 32, dtype="bfloat16")}, "must have one shape: key_cache"),
    ({"heads": 3}, "3 and 2 heads of a multiple of 16 must fit key_cache [12, 16, 2, 32]"),
    (dict.fromkeys(("keys", "values"), draw(2, 128, 2, 256, dtype="bfloat16")), "numbers per head, not 128 x 256"),
    (dict.fromkeys(("keys", "values"), draw(2, 8, 2, 32, dtype="bfloat16")), "blocks must be of (16, 32, 64, 128)"),
    ({"query": draw(5, 4, 32, dtype="bfloat16")}, "query [5, 4, 32] must be 4 x 4 heads x 32"),
])  # fmt: skip
def test_refused_paged_attention(changed: dict[str, object], reason: str) -> None:
    assert reason in refusal(*paged(**changed))


def test_refused_slots() -> None:
    new, cache = draw(3, 32, dtype="float16"), zeros((2, 4, 1, 32), "float16")
    slots = of([0, 1, 8], "int32")
    assert "slot_mapping must be below 8, not 8" in refusal(
        "internal:ReshapeAndCache", [new, new, cache, cache, slots], [], {}
    )
    assert "key and value must be 3 rows of 32" in refusal(
        "internal:ReshapeAndCache", [draw(3, 16, dtype="float16")] * 2 + [cache, cache, slots], [], {}
    )
    assert "value and value_cache must both be given or both be absent" in refusal(
        "internal:ReshapeAndCache", [new, None, cache, cache, slots], [], {}
    )
    many = draw(9, 32, dtype="float16"), of(range(9), "int32")
    assert "9 tokens must be no more than 2 blocks of 4" in refusal(
        "internal:ReshapeAndCache", [many[0], many[0], cache, cache, many[1]], [], {}
    )
    assert "must be bfloat16 or float16 or int8, not float32" in refusal(
        "internal:ReshapeAndCache", [draw(3, 32)] * 2 + [cache, cache, slots], [], {}
    )


def internal_flash(**changed: object) -> tuple[str, list, list, dict]:
    query, key, value = draw(30, 64, dtype="bfloat16"), *(draw(40, 32, dtype="bfloat16", seed=s) for s in (1, 2))
    parameters = {"num_heads": 4, "scale": 0.25, "input_layout": 5, "sparse_mode": 3}
    parameters |= {"q_seq_len": [10, 20], "kv_seq_len": [10, 30]} | changed
    return "internal:FlashAttentionScore", [query, key, value, None, TRIANGLE], [zeros_like(query)], parameters


def test_internal_flash_attention_of_packed_sequences() -> None:
    name, inputs, outputs, parameters = internal_flash()
    launch(name, inputs, outputs, parameters)
    q, k, v = exact(inputs[0]).reshape(30, 4, 16), *(exact(x).reshape(40, 2, 16) for x in inputs[1:3])
    for rows, columns in ((slice(0, 10), slice(0, 10)), (slice(10, 30), slice(10, 40))):
        hidden = hidden_by(3, rows.stop - rows.start, columns.stop - columns.start, 0, 0)
        out, _, _ = attend(q[rows], k[columns], v[columns], hidden, 0.25)
        assert is_close(DeviceTensor("bfloat16", out.shape, outputs[0].bits.reshape(30, 4, 16)[rows]), out)
    assert "q_seq_len and kv_seq_len of the host must be given" in refusal(*internal_flash(q_seq_len=[]))
    assert "must be the 30 and 40 tokens of query and key" in refusal(*internal_flash(q_seq_len=[10, 19]))
    assert "attn_mask is emulated with sparse_mode 3 only, not 0" in refusal(*internal_flash(sparse_mode=0))
    assert "input_layout must be 4 or 5, not 0" in refusal(*internal_flash(input_layout=0))


def rotated(x: np.ndarray, mode: int) -> np.ndarray:
    half = x.shape[-1] // 2
    if mode == 0:
        return np.concatenate([-x[..., half:], x[..., :half]], -1)
    return np.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(x.shape)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("table", "mode"), [((1, 7, 1), 0), ((2, 7, 1), 0), ((2, 7, 3), 0), ((1, 1, 3), 0), ((1, 7, 1), 1), ((2, 1, 1), 1)]
)
def test_rotary_embedding_and_its_gradients(table: tuple[int, ...], mode: int, dtype: str) -> None:
    x, d_y = draw(2, 7, 3, 16, dtype=dtype), draw(2, 7, 3, 16, dtype=dtype, seed=1)
    cos, sin = draw(*table, 16, dtype=dtype, seed=2), draw(*table, 16, dtype=dtype, seed=3)
    y, d_x, d_cos, d_sin = zeros_like(x), zeros_like(x), zeros_like(cos), zeros_like(sin)
    launch("aclnnRotaryPositionEmbedding", x, cos, sin, mode, y)
    assert is_close(y, exact(x) * exact(cos) + rotated(exact(x), mode) * exact(sin))
    launch("aclnnRotaryPositionEmbeddingGrad", d_y, cos, sin, x, mode, d_x, d_cos, d_sin)
    # rotated() is its own transpose but for the sign.
    assert is_close(d_x, exact(d_y) * exact(cos) - rotated(exact(d_y) * exact(sin), mode))
    spread = tuple(axis for axis in range(3) if table[axis] == 1)
    assert is_close(d_cos, (exact(d_y) * exact(x)).sum(spread, keepdims=True))
    assert is_close(d_sin, (exact(d_y) * rotated(exact(x), mode)).sum(spread, keepdims=True))
    launch("aclnnRotaryPositionEmbeddingGrad", d_y, cos, sin, None, mode, d_x, None, None)


def test_refused_rotary_embedding() -> None:
    x, table = draw(2, 7, 3, 16), draw(1, 7, 1, 16)

    def answer(x: DeviceTensor, cos: DeviceTensor, sin: DeviceTensor, mode: int) -> str:
        return refusal("aclnnRotaryPositionEmbedding", x, cos, sin, mode, zeros_like(x))

    assert "must have 4 axes, not 3" in answer(draw(7, 3, 16), table, table, 0)
    assert "mode must be 0 or 1, not 2" in answer(x, table, table, 2)
    assert "cos must have the dtype of x, float32, not float16" in answer(
        x, draw(1, 7, 1, 16, dtype="float16"), table, 0
    )
    assert "must have one shape: cos [1, 7, 1, 16], sin [1, 7, 3, 16]" in answer(x, table, draw(1, 7, 3, 16), 0)
    assert "cos [1, 7, 3, 16] and x [2, 7, 3, 16] must fit" in answer(x, *[draw(1, 7, 3, 16)] * 2, 0)
    assert "must fit in one of the layouts" in answer(x, *[draw(2, 7, 1, 16)] * 2, 1)  # by batch in mode 0 only
    assert "one even number below 896, not 15" in answer(draw(2, 7, 3, 15), *[draw(1, 7, 1, 15)] * 2, 0)
    assert "one even number below 896, not 896" in answer(draw(1, 1, 1, 896), *[draw(1, 1, 1, 896)] * 2, 0)
    assert "must fit in one of the layouts" in answer(draw(1, 7, 1000, 2), *[draw(1, 7, 1, 2)] * 2, 0)


def test_rotary_embedding_in_place_and_by_token() -> None:
    query, key = draw(2, 5, 4, 128), draw(2, 5, 1, 128, seed=1)
    cos, sin = draw(2, 5, 1, 128, seed=2), draw(2, 5, 1, 128, seed=3)
    expected = [exact(x) * exact(cos) + rotated(exact(x), 0) * exact(sin) for x in (query, key)]
    rows = [x.view(10, -1) for x in (query, key)]
    outputs = [zeros_like(x) for x in rows]
    tables = [x.view(10, 128) for x in (cos, sin)]
    launch("internal:ApplyRotaryPosEmb", [*rows, *tables, None], outputs, {"cos_format": 2})
    launch("aclnnApplyRotaryPosEmb", query, key, cos, sin, 1)
    for in_place, by_token, whole in zip((query, key), outputs, expected, strict=True):
        assert is_close(in_place, whole) and is_close(by_token, whole.reshape(10, -1))
    small = draw(2, 5, 4, 64), draw(2, 5, 1, 64), *[draw(2, 5, 1, 64)] * 2
    assert "the last axis must be 128, not 64" in refusal("aclnnApplyRotaryPosEmb", *small, 1)
    assert "layout must be 1, not 3" in refusal("aclnnApplyRotaryPosEmb", query, key, cos, sin, 3)
    assert "cos [5, 128] must have a row for each token of query [10, 512]" in refusal(
        "internal:ApplyRotaryPosEmb", [*rows, *[draw(5, 128)] * 2, None], outputs, {"cos_format": 2}
    )
