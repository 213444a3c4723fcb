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

// Linear layers that read one input: outs[i] [M, O_i] = x [M, I] @ weights[i]^T + biases[i]; weights[i]: [O_i, I],
// biases[i]: [O_i] or null. Weights and biases are rounded to x's dtype.
int mindgspo_linear(const mindgspo_tensor* x, int64_t layers, const mindgspo_tensor* const* weights,
                    const mindgspo_tensor* const* biases, const mindgspo_tensor* const* outs, int64_t threads);
// Gradients of the same; d_biases[i] may be null, and d_weights with d_biases: then only d_x is computed.
int mindgspo_linear_backward(const mindgspo_tensor* x, int64_t layers, const mindgspo_tensor* const* weights,
                             const mindgspo_tensor* const* d_outs, const mindgspo_tensor* d_x,
                             const mindgspo_tensor* const* d_weights, const mindgspo_tensor* const* d_biases,
                             int64_t threads);
// Frozen layers with low-rank adapters: outs[i] = x W_i^T + biases[i] + scale (x A_i^T) B_i^T, rounded once; as[i]
// [R_i, I], bs[i] [O_i, R_i], both null for a layer without. x (scale A_i)^T is rounded to x's dtype.
int mindgspo_adapted_linear(const mindgspo_tensor* x, int64_t layers, const mindgspo_tensor* const* weights,
                            const mindgspo_tensor* const* biases, const mindgspo_tensor* const* as,
                            const mindgspo_tensor* const* bs, double scale, const mindgspo_tensor* const* outs,
                            int64_t threads);
// Gradients of x and of the adapters; those of d_as are float32.
int mindgspo_adapted_linear_backward(const mindgspo_tensor* x, int64_t layers, const mindgspo_tensor* const* weights,
                                     const mindgspo_tensor* const* as, const mindgspo_tensor* const* bs, double scale,
                                     const mindgspo_tensor* const* d_outs, const mindgspo_tensor* d_x,
                                     const mindgspo_tensor* const* d_as, const mindgspo_tensor* const* d_bs,
                                     int64_t threads);
// Linear layers by expert: weights[i] [E, O_i, I]; x has the rows of expert 0 first, up to ends[0], then those of expert
// 1. d_weights may be null.
int mindgspo_grouped_linear(const mindgspo_tensor* x, const int64_t* ends, int64_t layers,
                            const mindgspo_tensor* const* weights, const mindgspo_tensor* const* outs, int64_t threads);
int mindgspo_grouped_linear_backward(const mindgspo_tensor* x, const int64_t* ends, int64_t layers,
                                     const mindgspo_tensor* const* weights, const mindgspo_tensor* const* d_outs,
                                     const mindgspo_tensor* d_x, const mindgspo_tensor* const* d_weights,
                                     int64_t threads);
// Router of a mixture: scores [M, E] = softmax(x [M, H] @ weight^T), or their sigmoids; experts int32 [M, K], those with
// the largest scores + bias [E], the largest first; weights [M, K] their scores, divided by their sum if `is_normed`, times
// scale; all float32. Of equal groups of experts, in order, only the best_groups are chosen from: those with the largest
// sums of their two largest scores + bias. given: null, or [M, K], the experts that weights are of instead. Gradients of x
// and weight from those of weights, for the experts that these are of.
int mindgspo_route(const mindgspo_tensor* x, const mindgspo_tensor* weight, const mindgspo_tensor* bias,
                   const mindgspo_tensor* given, int64_t is_sigmoid, int64_t is_normed, int64_t groups,
                   int64_t best_groups, double scale, const mindgspo_tensor* scores, const mindgspo_tensor* experts,
                   const mindgspo_tensor* weights, int64_t threads);
int mindgspo_route_backward(const mindgspo_tensor* x, const mindgspo_tensor* weight, int64_t is_sigmoid,
                            int64_t is_normed, double scale, const mindgspo_tensor* scores,
                            const mindgspo_tensor* experts, const mindgspo_tensor* weights,
                            const mindgspo_tensor* d_weights, const mindgspo_tensor* d_x,
                            const mindgspo_tensor* d_weight, int64_t threads);
// Assignments experts [M, K], each below `all`, to the E experts from `first` on, sorted by expert, then token: slots
// int32 [M, K], where each stands, -1 for other experts; tokens int32 [M K], the token in each slot; ends int64 [E], slots up to and
// including each expert's.
int mindgspo_expert_slots(const mindgspo_tensor* experts, int64_t first, int64_t all, const mindgspo_tensor* slots,
                          const mindgspo_tensor* tokens, const mindgspo_tensor* ends);
// out [M, H] = sum over k of weights[m, k] * rows[slots[m, k]] where there is a slot, and its gradients.
int mindgspo_combine(const mindgspo_tensor* rows, const mindgspo_tensor* slots, const mindgspo_tensor* weights,
                     const mindgspo_tensor* out, int64_t threads);
int mindgspo_combine_backward(const mindgspo_tensor* rows, const mindgspo_tensor* slots, const mindgspo_tensor* weights,
                              const mindgspo_tensor* d_out, const mindgspo_tensor* d_rows,
                              const mindgspo_tensor* d_weights, int64_t threads);
// Layers whose weights [O, I] were packed for many products of few tokens: panels, float32 [P, I, columns of a panel],
// of numbers that were rounded to the dtype of `like`, which must be x's.
int mindgspo_pack_linear(const mindgspo_tensor* weight, const mindgspo_tensor* like, const mindgspo_tensor* panels,
                         int64_t threads);
int mindgspo_packed_linear(const mindgspo_tensor* x, int64_t layers, const mindgspo_tensor* const* panels,
                           const mindgspo_tensor* const* biases, const mindgspo_tensor* const* outs, int64_t threads);
// Columns of a panel on this processor.
int64_t mindgspo_panel_columns();

// softmax(scale * q k^T) v by sequences. q, out: [B, T, N, D]; k: [B, T2, K, D]; v: [B, T2, K, Dv <= D].
// q_ends, k_ends: cumulative lengths of the S sequences where B is 1; null where every batch entry is one sequence.
// prefixes: by sequence an earlier one, itself without prefix, whose keys come before its own; or -1. Null: none has.
// Query i of a sequence with n queries and m keys sees key j if -before <= j - i - shift <= after, where shift is m - n
// if from_end and 0 otherwise, and if mask[s, head, i, j] is 0 (mask: uint8 or bool, first two axes spread; or null).
// highest, total: float32 [B, T, N, any]: maximum and sum of the exponentials of a query's scores, written along the
// last axis. A query that sees nothing has output 0, maximum -inf and sum 0.
struct mindgspo_visible {
  int64_t before, after;
  int64_t from_end;
};
int mindgspo_attention(const mindgspo_tensor* q, const mindgspo_tensor* k, const mindgspo_tensor* v,
                       const mindgspo_tensor* mask, const int64_t* q_ends, const int64_t* k_ends,
                       const int64_t* prefixes, int64_t sequences, double scale, mindgspo_visible visible,
                       const mindgspo_tensor* highest, const mindgspo_tensor* total, const mindgspo_tensor* out,
                       int64_t threads);
// Gradients of the same; `out`, `highest` and `total` are what the forward wrote.
int mindgspo_attention_backward(const mindgspo_tensor* q, const mindgspo_tensor* k, const mindgspo_tensor* v,
                                const mindgspo_tensor* mask, const int64_t* q_ends, const int64_t* k_ends,
                                const int64_t* prefixes, int64_t sequences, double scale, mindgspo_visible visible,
                                const mindgspo_tensor* highest, const mindgspo_tensor* total,
                                const mindgspo_tensor* out, const mindgspo_tensor* d_out, const mindgspo_tensor* d_q,
                                const mindgspo_tensor* d_k, const mindgspo_tensor* d_v, int64_t threads);
// One query per sequence over a cache in blocks. q: [S, N, D]; out: [S, N, E]; key_cache: [blocks, size, K, D];
// value_cache: [blocks, size, K, E]; table: int32 [S, most blocks], the blocks of each sequence in order; lengths: int32 or int64 [S]; 0 gives output 0.
int mindgspo_paged_attention(const mindgspo_tensor* q, const mindgspo_tensor* key_cache,
                             const mindgspo_tensor* value_cache, const mindgspo_tensor* table,
                             const mindgspo_tensor* lengths, double scale, const mindgspo_tensor* out, int64_t threads);

// cache [blocks, size, K, D], at token slots[m] counted over blocks, = x[m], x: [M, K, D]; where a slot is negative
// nothing is written.
int mindgspo_store_tokens(const mindgspo_tensor* x, const mindgspo_tensor* slots, const mindgspo_tensor* cache,
                          int64_t threads);

// y = x * rstd * gamma[H], rstd = 1 / sqrt(mean(x^2) + epsilon) over the last axis of x [.., H]. rstd: [.., 1] or null.
// With other, x + other is normalized in place of x; it is also written to sum, unless null.
int mindgspo_rms_norm(const mindgspo_tensor* x, const mindgspo_tensor* other, const mindgspo_tensor* gamma,
                      double epsilon, const mindgspo_tensor* y, const mindgspo_tensor* rstd,
                      const mindgspo_tensor* sum, int64_t threads);
// x: what was normalized. added: more of its gradient, which has reached it by another way; or null.
int mindgspo_rms_norm_backward(const mindgspo_tensor* d_y, const mindgspo_tensor* x, const mindgspo_tensor* rstd,
                               const mindgspo_tensor* gamma, const mindgspo_tensor* added, const mindgspo_tensor* d_x,
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

// Of hidden states [M, H], weight [V, H] and a temperature: log_probs[i] of targets[i] under softmax(hidden[rows[i]]
// weight^T * inverse_temperature), the logarithm of the softmax's denominator, and its entropy (or null), float32 [P].
// rows: int32 or int64 [P]; 0 comes out where one is negative. Weights are rounded to hidden's dtype.
int mindgspo_log_prob(const mindgspo_tensor* hidden, const mindgspo_tensor* rows, const mindgspo_tensor* weight,
                      const mindgspo_tensor* targets, double inverse_temperature, const mindgspo_tensor* log_probs,
                      const mindgspo_tensor* log_sums, const mindgspo_tensor* entropies, int64_t threads);
// Gradients of the same; d_hidden may have fewer rows than hidden. entropies and d_entropies may
// be null, together, and d_weight: then only d_hidden is computed.
int mindgspo_log_prob_backward(const mindgspo_tensor* hidden, const mindgspo_tensor* rows,
                               const mindgspo_tensor* weight, const mindgspo_tensor* targets,
                               double inverse_temperature, const mindgspo_tensor* log_sums,
                               const mindgspo_tensor* entropies, const mindgspo_tensor* d_log_probs,
                               const mindgspo_tensor* d_entropies, const mindgspo_tensor* d_hidden,
                               const mindgspo_tensor* d_weight, int64_t threads);
// Draws an id per row of logits [S, V] by its uniform in (0, 1], or takes the likeliest where greedy [S]; log_probs: at
// the temperature and before top_k (0: off) and top_p (1: off) cut the distribution. ids: int32 [S].
int mindgspo_sample(const mindgspo_tensor* logits, const mindgspo_tensor* uniforms,
                    const mindgspo_tensor* inverse_temperatures, const mindgspo_tensor* greedy, int64_t top_k,
                    double top_p, const mindgspo_tensor* ids, const mindgspo_tensor* log_probs, int64_t threads);

// Rows of a table [V, H] by ids [M], and the table's gradient, float32: the sum of d_out's rows in their order.
int mindgspo_embedding(const mindgspo_tensor* ids, const mindgspo_tensor* table, const mindgspo_tensor* out,
                       int64_t threads);
int mindgspo_embedding_backward(const mindgspo_tensor* ids, const mindgspo_tensor* d_out,
                                const mindgspo_tensor* d_table, int64_t threads);
// out = x * cos + rotated(x) * sin of the first R features of each head, or its transpose for gradients, and x of the
// others; x: [M, heads, D], cos, sin: float32 tables [positions, R], whose rows the positions [M] name. rotated: as of
// `mindgspo_rotary`.
int mindgspo_rotate_heads(const mindgspo_tensor* x, const mindgspo_tensor* positions, const mindgspo_tensor* cos,
                          const mindgspo_tensor* sin, int64_t is_interleaved, int64_t is_backward,
                          const mindgspo_tensor* out, int64_t threads);
// out = silu(gate) * up, all [M, I], and its gradients.
int mindgspo_gated(const mindgspo_tensor* gate, const mindgspo_tensor* up, const mindgspo_tensor* out, int64_t threads);
int mindgspo_gated_backward(const mindgspo_tensor* d_out, const mindgspo_tensor* gate, const mindgspo_tensor* up,
                            const mindgspo_tensor* d_gate, const mindgspo_tensor* d_up, int64_t threads);

// Optimizer, over contiguous float32 tensors. accumulate: sums[i] = gradients[i], or += where `is_added`; *squares: the
// sum of the squares of all sums, in double.
int mindgspo_accumulate(int64_t tensors, const mindgspo_tensor* const* gradients, const mindgspo_tensor* const* sums,
                        int64_t is_added, double* squares, int64_t threads);
// p -= decay * p where decays[i]; m, v and p as `ops.Adam` without its own bias corrections.
struct mindgspo_adamw_step {
  double clip_scale, step_size, root_epsilon, decay, beta1, beta2;
};
int mindgspo_adamw(int64_t tensors, const mindgspo_tensor* const* weights, const mindgspo_tensor* const* first_moments,
                   const mindgspo_tensor* const* second_moments, const mindgspo_tensor* const* gradients,
                   const int64_t* decays, mindgspo_adamw_step step, int64_t threads);

// Memory that the ranks of a CPU cluster share: zeros, so many bytes of a file, in whole pages.
int64_t mindgspo_group_bytes(int64_t world_size, int64_t slot_bytes, int64_t num_slots);
// One rank's view of it, from `offset` of the file on. *waiting: where it writes, as text of at most 112 bytes, what it
// waits for; null: nowhere. ended: called in a wait every now and then, but by operators of graphs; not 0 ends the wait
// with an error. May be null.
int mindgspo_open_shared_memory(int64_t file, int64_t offset, int64_t rank, int64_t world_size, int64_t slot_bytes,
                          int64_t num_slots, char* const* waiting, int (*ended)(), void** group_ptr);
// From now on the group of operators in graphs, which is the one below where `group_ptr` is null.
int mindgspo_use_in_graphs(void* group_ptr);
// Collectives of `count` ranks, ascending, this one among them: all of them call the same ones in one order, with the
// same `number`; what differs is an error that names both. 16-bit types are added up in float32, in the order of ranks.
int mindgspo_barrier(void* group_ptr, const int64_t* ranks, int64_t count);
// Between the two the sender writes the bytes of a message, at most slot_bytes, to *place, and others read them there.
int mindgspo_begin_message(void* group_ptr, int64_t bytes, int64_t sender, void** place);
int mindgspo_end_message(void* group_ptr, const int64_t* ranks, int64_t count, int64_t bytes, int64_t sender);
int mindgspo_broadcast(void* group_ptr, const int64_t* ranks, int64_t count, int64_t sender, const mindgspo_tensor* x);
// outs[i]: the sum of all ranks' xs[i], which it may be; one dtype.
int mindgspo_all_reduce(void* group_ptr, const int64_t* ranks, int64_t count, int64_t number, int64_t tensors,
                        const mindgspo_tensor* const* xs, const mindgspo_tensor* const* outs);
// out [count * M, ..]: x [M, ..] of all, with zeros behind the `used` rows of each.
int mindgspo_all_gather(void* group_ptr, const int64_t* ranks, int64_t count, int64_t number, const mindgspo_tensor* x,
                        int64_t used, const mindgspo_tensor* out);
// out [M / count, ..]: this rank's rows of the sum.
int mindgspo_reduce_scatter(void* group_ptr, const int64_t* ranks, int64_t count, int64_t number,
                            const mindgspo_tensor* x, const mindgspo_tensor* out);
// Block i of x along split_axis goes to rank i of the group; what comes from it is block i of out along concat_axis.
int mindgspo_all_to_all(void* group_ptr, const int64_t* ranks, int64_t count, int64_t number, const mindgspo_tensor* x,
                        int64_t split_axis, int64_t concat_axis, const mindgspo_tensor* out);

// Why an operator of a graph has failed last, on whatever thread; empty where none has.
const char* mindgspo_graph_failure();

// Threads of operators in graphs: the processors of the thread that loaded this library, `limit` of them if it is
// positive. Called before the first operator.
int64_t mindgspo_threads(int64_t limit);
}
