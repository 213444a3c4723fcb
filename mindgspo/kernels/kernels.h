// The operators' C interface: called through ctypes by `binding.py`, and by operators of CPU graphs.
//
// Every function returns 0, or 1 with the reason in mindgspo_error(). Numbers are computed in float32 and rounded once,
// to the nearest value of the output's dtype, ties to even. Results do not depend on `threads`.
//
// Legend: T tokens, N query heads, K key/value heads (N is a multiple of K), D head size, S sequences.
#pragma once
#include <cstdint>

extern "C" {

// A view of memory that someone else owns. dtype: a number of aclDataType, see `Dtype`. strides: in elements, 0 where
// an axis repeats one value. An absent tensor is a null pointer.
struct mindgspo_tensor {
  void* data;
  int32_t dtype, rank;
  int64_t shape[8], strides[8];
};

// What the last failure on this thread was.
const char* mindgspo_error();

// out[.., M, N] = alpha * a[.., M, K] @ b[.., K, N] + beta * bias[.., M, N]; batch axes and bias are spread to out's.
int mindgspo_matmul(const mindgspo_tensor* a, const mindgspo_tensor* b, const mindgspo_tensor* bias,
                    const mindgspo_tensor* out, double alpha, double beta, int64_t threads);

// softmax(scale * q k^T) v by sequences. q, out: [B, T, N, D]; k: [B, T2, K, D]; v: [B, T2, K, Dv <= D].
// q_ends, k_ends: cumulative lengths of the S sequences where B is 1; null where every batch entry is one sequence.
// Query i of a sequence with n queries and m keys sees key j if -before <= j - i - shift <= after, where shift is m - n
// if from_end and 0 otherwise, and if mask[s, head, i, j] is 0 (mask: uint8 or bool, first two axes spread; or null).
// highest, total: float32 [B, T, N, any]: maximum and sum of the exponentials of a query's scores, written along the
// last axis. A query that sees nothing has output 0, maximum -inf and sum 0.
struct mindgspo_visible {
  int64_t before, after;
  int64_t from_end;
};
int mindgspo_attention(const mindgspo_tensor* q, const mindgspo_tensor* k, const mindgspo_tensor* v,
                       const mindgspo_tensor* mask, const int64_t* q_ends, const int64_t* k_ends, int64_t sequences,
                       double scale, mindgspo_visible visible, const mindgspo_tensor* highest,
                       const mindgspo_tensor* total, const mindgspo_tensor* out, int64_t threads);
// Gradients of the same; `out`, `highest` and `total` are what the forward wrote.
int mindgspo_attention_backward(const mindgspo_tensor* q, const mindgspo_tensor* k, const mindgspo_tensor* v,
                                const mindgspo_tensor* mask, const int64_t* q_ends, const int64_t* k_ends,
                                int64_t sequences, double scale, mindgspo_visible visible,
                                const mindgspo_tensor* highest, const mindgspo_tensor* total,
                                const mindgspo_tensor* out, const mindgspo_tensor* d_out, const mindgspo_tensor* d_q,
                                const mindgspo_tensor* d_k, const mindgspo_tensor* d_v, int64_t threads);
// One query per sequence over a cache in blocks. q, out: [S, N, D]; key_cache, value_cache: [blocks, size, K, D];
// table: int32 [S, most blocks], the blocks of each sequence in order; lengths: int32 or int64 [S]; 0 gives output 0.
int mindgspo_paged_attention(const mindgspo_tensor* q, const mindgspo_tensor* key_cache,
                             const mindgspo_tensor* value_cache, const mindgspo_tensor* table,
                             const mindgspo_tensor* lengths, double scale, const mindgspo_tensor* out, int64_t threads);

// y = x * rstd * gamma[H], rstd = 1 / sqrt(mean(x^2) + epsilon) over the last axis of x [.., H]. rstd: [.., 1] or null.
// With other, x + other is normalized in place of x; it is also written to sum, unless null.
int mindgspo_rms_norm(const mindgspo_tensor* x, const mindgspo_tensor* other, const mindgspo_tensor* gamma,
                      double epsilon, const mindgspo_tensor* y, const mindgspo_tensor* rstd,
                      const mindgspo_tensor* sum, int64_t threads);
int mindgspo_rms_norm_backward(const mindgspo_tensor* d_y, const mindgspo_tensor* x, const mindgspo_tensor* rstd,
                               const mindgspo_tensor* gamma, const mindgspo_tensor* d_x,
                               const mindgspo_tensor* d_gamma, int64_t threads);

// Along `axis`, of any stride. The backward functions take what the forward returned, y.
int mindgspo_softmax(const mindgspo_tensor* x, int64_t axis, int64_t is_log, const mindgspo_tensor* y, int64_t threads);
int mindgspo_softmax_backward(const mindgspo_tensor* d_y, const mindgspo_tensor* y, int64_t axis, int64_t is_log,
                              const mindgspo_tensor* d_x, int64_t threads);

// silu(first half of x along `axis`) * second half.
int mindgspo_swiglu(const mindgspo_tensor* x, int64_t axis, const mindgspo_tensor* y, int64_t threads);
int mindgspo_swiglu_backward(const mindgspo_tensor* d_y, const mindgspo_tensor* x, int64_t axis,
                             const mindgspo_tensor* d_x, int64_t threads);

// y = x * cos + rotated(x) * sin over the last axis; rotated exchanges, with a change of sign, the halves or, if
// interleaved, neighbours. cos and sin are spread to x. Backward takes d_y for x and writes d_x for y.
int mindgspo_rotary(const mindgspo_tensor* x, const mindgspo_tensor* cos, const mindgspo_tensor* sin,
                    int64_t is_interleaved, int64_t is_backward, const mindgspo_tensor* y, int64_t threads);

// Operands are spread to the output's shape. which: 0 a + b, 1 a * b, 2 silu(a), 3 gradient a of silu at b.
int mindgspo_elementwise(int64_t which, const mindgspo_tensor* a, const mindgspo_tensor* b, const mindgspo_tensor* out,
                         int64_t threads);
}
