// Attention over sequences of their own lengths, its gradients, and attention of one query over a cache in blocks.
//
// Scores exist for a block of kQueries x kKeys at a time. One task computes what belongs to one sequence and one
// key/value head, in a fixed order, so that no two tasks write the same gradient.
// Legend: T tokens, N query heads, K key/value heads, D head size of q and k, E of v.
#include "common.h"

namespace mindgspo {
namespace {

constexpr int64_t kQueries = 64, kKeys = 128;

int64_t rounded_up(int64_t n) { return (n + 15) / 16 * 16; }  // rows of work memory start at cache lines

struct Sequence {
  int64_t batch, q_first, queries, k_first, keys;
};

// What forward and backward are given, checked.
struct Problem {
  const Tensor &q, &k, &v, *mask;
  mindgspo_visible visible;
  float scale;
  int64_t d, e, group;  // group: query heads per key/value head
  std::vector<Sequence> sequences;

  Problem(const Tensor* q_, const Tensor* k_, const Tensor* v_, const Tensor* mask_, const int64_t* q_ends,
          const int64_t* k_ends, int64_t count, double scale_, mindgspo_visible visible_)
      : q(floats("q", q_, 4)), k(floats("k", k_, 4)), v(floats("v", v_, 4)), mask(mask_), visible(visible_),
        scale(float(scale_)), d(q.shape[3]), e(v.shape[3]) {
    require_shape("k", k, {q.shape[0], k.shape[1], k.shape[2], d});
    require_shape("v", v, {q.shape[0], k.shape[1], k.shape[2], e});
    require(k.shape[2] > 0 && q.shape[2] % k.shape[2] == 0,
            std::to_string(q.shape[2]) + " heads of queries are not a multiple of " + std::to_string(k.shape[2]));
    group = q.shape[2] / k.shape[2];
    if (q_ends == nullptr) {
      for (int64_t b = 0; b < q.shape[0]; ++b) sequences.push_back({b, 0, q.shape[1], 0, k.shape[1]});
    } else {
      require(q.shape[0] == 1 && k_ends != nullptr, "ends need both lists and one batch entry");
      int64_t q_first = 0, k_first = 0;
      for (int64_t s = 0; s < count; ++s) {
        require(q_ends[s] >= q_first && k_ends[s] >= k_first, "ends must not fall");
        sequences.push_back({0, q_first, q_ends[s] - q_first, k_first, k_ends[s] - k_first});
        q_first = q_ends[s], k_first = k_ends[s];
      }
      require(q_first == q.shape[1] && k_first == k.shape[1],
              "the last ends, " + std::to_string(q_first) + " and " + std::to_string(k_first) +
                  ", must be the tokens, " + std::to_string(q.shape[1]) + " and " + std::to_string(k.shape[1]));
    }
    if (mask != nullptr) check_mask();
  }

  void check_mask() const {
    integers("mask", mask, 4);
    require(mask->dtype == kUint8 || mask->dtype == kBool, "mask must be uint8 or bool");
    require(mask->shape[0] == 1 || mask->shape[0] == int64_t(sequences.size()), "mask has another number of sequences");
    require(mask->shape[1] == 1 || mask->shape[1] == q.shape[2], "mask has another number of heads");
    for (const Sequence& one : sequences)
      require(one.queries <= mask->shape[2] && one.keys <= mask->shape[3],
              "mask " + text_of_shape(*mask) + " is smaller than a sequence");
  }

  void require_statistics(const char* name, const Tensor* x) const {
    const Tensor& statistics = floats(name, x, 4);
    require(statistics.dtype == kFloat32, std::string(name) + " must be float32");
    require_shape(name, statistics, {q.shape[0], q.shape[1], q.shape[2], statistics.shape[3]});
  }

  // Of this query, the first visible key and the one behind the last; the mask is not counted.
  void bounds(const Sequence& one, int64_t query, int64_t* first, int64_t* last) const {
    const int64_t shift = visible.from_end ? one.keys - one.queries : 0;
    const auto limited = [](int64_t x) { return std::clamp<int64_t>(x, -(int64_t(1) << 40), int64_t(1) << 40); };
    *first = std::clamp<int64_t>(query + shift - limited(visible.before), 0, one.keys);
    *last = std::clamp<int64_t>(query + shift + limited(visible.after) + 1, *first, one.keys);
  }

  // scores[query, key] of a block becomes scale * scores, or -inf where the key is not seen.
  void apply_mask(const Sequence& one, int64_t sequence, int64_t head, int64_t query0, int64_t queries, int64_t key0,
                  int64_t keys, float* scores) const {
    for (int64_t i = 0; i < queries; ++i) {
      float* row = scores + i * kKeys;
      int64_t first, last;
      bounds(one, query0 + i, &first, &last);
      first = std::clamp<int64_t>(first - key0, 0, keys), last = std::clamp<int64_t>(last - key0, first, keys);
      std::fill(row, row + first, -INFINITY);
      for (int64_t j = first; j < last; ++j) row[j] *= scale;
      std::fill(row + last, row + keys, -INFINITY);
      if (mask == nullptr) continue;
      const auto stride = [&](int64_t axis) { return mask->shape[axis] == 1 ? 0 : mask->strides[axis]; };
      const uint8_t* hidden = reinterpret_cast<const uint8_t*>(
          element(*mask, sequence * stride(0) + head * stride(1) + (query0 + i) * mask->strides[2] + key0 * mask->strides[3]));
      for (int64_t j = first; j < last; ++j)
        if (hidden[j * mask->strides[3]]) row[j] = -INFINITY;
    }
  }
};

// x[batch, first:first + n, head] as a matrix [n, size].
Matrix head_of(const Tensor& x, int64_t batch, int64_t first, int64_t n, int64_t head) {
  return {element(x, batch * x.strides[0] + first * x.strides[1] + head * x.strides[2]), x.dtype, n, x.shape[3],
          x.strides[1], x.strides[3]};
}

void read_matrix(const Matrix& x, float* out, int64_t stride) {
  for (int64_t row = 0; row < x.rows; ++row)
    load(static_cast<const char*>(x.data) + row * x.row_stride * size_of(x.dtype), x.dtype, x.column_stride, x.columns,
         out + row * stride);
}

void write_matrix(const Matrix& x, const float* values, int64_t stride) {
  for (int64_t row = 0; row < x.rows; ++row) {
    const char* place = static_cast<const char*>(x.data) + row * x.row_stride * size_of(x.dtype);
    store(const_cast<char*>(place), x.dtype, x.column_stride, x.columns, values + row * stride);
  }
}

Matrix matrix_of(const float* x, int64_t rows, int64_t columns, int64_t stride) {
  return {x, kFloat32, rows, columns, stride, 1};
}

Matrix transposed_of(const float* x, int64_t rows, int64_t columns, int64_t stride) {  // of x [columns, rows]
  return {x, kFloat32, rows, columns, 1, stride};
}

float& statistic(const Tensor& x, int64_t batch, int64_t token, int64_t head) {
  return *reinterpret_cast<float*>(element(x, batch * x.strides[0] + token * x.strides[1] + head * x.strides[2]));
}

// Sequence and key/value head of a task, and their keys and values in float32 (rows kd and ke apart).
struct KeysAndValues {
  const Problem& p;
  const Sequence& one;
  int64_t sequence, kv_head, kd, ke;
  float *keys, *values;

  KeysAndValues(const Problem& p, int64_t task)
      : p(p), one(p.sequences[task / p.k.shape[2]]), sequence(task / p.k.shape[2]), kv_head(task % p.k.shape[2]),
        kd(rounded_up(p.d)), ke(rounded_up(p.e)), keys(scratch(kWork0, one.keys * kd)),
        values(scratch(kWork1, one.keys * ke)) {
    read_matrix(head_of(p.k, one.batch, one.k_first, one.keys, kv_head), keys, kd);
    read_matrix(head_of(p.v, one.batch, one.k_first, one.keys, kv_head), values, ke);
  }

  // scores [queries, keys] of a block, -inf where a key is not seen.
  void scores(const float* queries, int64_t head, int64_t query0, int64_t count, int64_t key0, int64_t n,
              float* out) const {
    multiply(matrix_of(queries, count, p.d, kd), transposed_of(keys + key0 * kd, p.d, n, kd), out, kKeys, false);
    p.apply_mask(one, sequence, head, query0, count, key0, n, out);
  }

  // body(key0, keys) for the blocks of keys that some of these queries see.
  template <class Body>
  void for_blocks(int64_t query0, int64_t count, Body body) const {
    int64_t first, last, unused;
    p.bounds(one, query0, &first, &unused);
    p.bounds(one, query0 + count - 1, &unused, &last);
    for (int64_t key0 = first / kKeys * kKeys; key0 < last; key0 += kKeys) body(key0, std::min(kKeys, one.keys - key0));
  }
};

void forward_of(const Problem& p, int64_t task, const Tensor& highest, const Tensor& total, const Tensor& out) {
  const KeysAndValues kv(p, task);
  const Sequence& one = kv.one;
  float* queries = scratch(kWork2, kQueries * kv.kd);
  float* scores = scratch(kWork3, kQueries * kKeys);
  float* sums = scratch(kWork4, kQueries * kv.ke);
  for (int64_t head = kv.kv_head * p.group; head < (kv.kv_head + 1) * p.group; ++head) {
    for (int64_t query0 = 0; query0 < one.queries; query0 += kQueries) {
      const int64_t count = std::min(kQueries, one.queries - query0);
      float top[kQueries], weight[kQueries] = {};
      std::fill(top, top + kQueries, -INFINITY);
      std::fill(sums, sums + kQueries * kv.ke, 0.0f);
      read_matrix(head_of(p.q, one.batch, one.q_first + query0, count, head), queries, kv.kd);
      kv.for_blocks(query0, count, [&](int64_t key0, int64_t n) {
        kv.scores(queries, head, query0, count, key0, n, scores);
        for (int64_t i = 0; i < count; ++i) {
          float* row = scores + i * kKeys;
          const float old = top[i];
          top[i] = std::max(old, max_of(row, n));  // a NaN comes back in the sum of exponentials
          const float anchor = top[i] == -INFINITY ? 0.0f : top[i], shrink = exp_of(old - anchor);
          for (int64_t j = 0; j < n; ++j) row[j] = exp_of(row[j] - anchor);
          weight[i] = weight[i] * shrink + sum_of(n, [&](int64_t j) { return row[j]; });
          for (int64_t j = 0; j < p.e; ++j) sums[i * kv.ke + j] *= shrink;
        }
        multiply(matrix_of(scores, count, n, kKeys), matrix_of(kv.values + key0 * kv.ke, n, p.e, kv.ke), sums, kv.ke,
                 true);
      });
      for (int64_t i = 0; i < count; ++i) {
        const float factor = weight[i] == 0.0f ? 0.0f : 1.0f / weight[i];
        for (int64_t j = 0; j < p.e; ++j) sums[i * kv.ke + j] *= factor;
        for (int64_t lane = 0; lane < highest.shape[3]; ++lane)
          (&statistic(highest, one.batch, one.q_first + query0 + i, head))[lane * highest.strides[3]] = top[i];
        for (int64_t lane = 0; lane < total.shape[3]; ++lane)
          (&statistic(total, one.batch, one.q_first + query0 + i, head))[lane * total.strides[3]] = weight[i];
      }
      write_matrix(head_of(out, one.batch, one.q_first + query0, count, head), sums, kv.ke);
    }
  }
}

struct Gradients {
  const Tensor &highest, &total, &out, &d_out, &d_q, &d_k, &d_v;
};

void backward_of(const Problem& p, int64_t task, const Gradients& g) {
  const KeysAndValues kv(p, task);
  const Sequence& one = kv.one;
  float* queries = scratch(kWork2, kQueries * kv.kd);
  float* weights = scratch(kWork3, kQueries * kKeys);  // softmax of a block
  float* of_out = scratch(kWork4, kQueries * kv.ke);
  float* d_scores = scratch(kWork5, kQueries * kKeys);
  float* d_queries = scratch(kWork6, kQueries * kv.kd);
  float* d_keys = scratch(kWork7, one.keys * kv.kd);
  float* d_values = scratch(kWork8, one.keys * kv.ke);
  float* outputs = scratch(kWork9, kQueries * kv.ke);
  std::fill(d_keys, d_keys + one.keys * kv.kd, 0.0f);
  std::fill(d_values, d_values + one.keys * kv.ke, 0.0f);
  for (int64_t head = kv.kv_head * p.group; head < (kv.kv_head + 1) * p.group; ++head) {
    for (int64_t query0 = 0; query0 < one.queries; query0 += kQueries) {
      const int64_t count = std::min(kQueries, one.queries - query0), token0 = one.q_first + query0;
      float anchor[kQueries], factor[kQueries], delta[kQueries];
      read_matrix(head_of(p.q, one.batch, token0, count, head), queries, kv.kd);
      read_matrix(head_of(g.d_out, one.batch, token0, count, head), of_out, kv.ke);
      read_matrix(head_of(g.out, one.batch, token0, count, head), outputs, kv.ke);
      for (int64_t i = 0; i < count; ++i) {
        const float top = statistic(g.highest, one.batch, token0 + i, head);
        const float weight = statistic(g.total, one.batch, token0 + i, head);
        anchor[i] = top == -INFINITY ? 0.0f : top;
        factor[i] = weight == 0.0f ? 0.0f : 1.0f / weight;
        const float *dy = of_out + i * kv.ke, *y = outputs + i * kv.ke;
        delta[i] = sum_of(p.e, [&](int64_t j) { return dy[j] * y[j]; });
      }
      std::fill(d_queries, d_queries + count * kv.kd, 0.0f);
      kv.for_blocks(query0, count, [&](int64_t key0, int64_t n) {
        kv.scores(queries, head, query0, count, key0, n, weights);
        multiply(matrix_of(of_out, count, p.e, kv.ke), transposed_of(kv.values + key0 * kv.ke, p.e, n, kv.ke), d_scores,
                 kKeys, false);
        for (int64_t i = 0; i < count; ++i) {
          float *weight = weights + i * kKeys, *d_score = d_scores + i * kKeys;
          for (int64_t j = 0; j < n; ++j) {
            weight[j] = exp_of(weight[j] - anchor[i]) * factor[i];
            d_score[j] = weight[j] * (d_score[j] - delta[i]) * p.scale;
          }
        }
        multiply(matrix_of(d_scores, count, n, kKeys), matrix_of(kv.keys + key0 * kv.kd, n, p.d, kv.kd), d_queries,
                 kv.kd, true);
        multiply(transposed_of(d_scores, n, count, kKeys), matrix_of(queries, count, p.d, kv.kd),
                 d_keys + key0 * kv.kd, kv.kd, true);
        multiply(transposed_of(weights, n, count, kKeys), matrix_of(of_out, count, p.e, kv.ke),
                 d_values + key0 * kv.ke, kv.ke, true);
      });
      write_matrix(head_of(g.d_q, one.batch, token0, count, head), d_queries, kv.kd);
    }
  }
  write_matrix(head_of(g.d_k, one.batch, one.k_first, one.keys, kv.kv_head), d_keys, kv.kd);
  write_matrix(head_of(g.d_v, one.batch, one.k_first, one.keys, kv.kv_head), d_values, kv.ke);
}

// Sequence `s` and key/value head `kv_head` of paged attention.
void paged_of(const Tensor& q, const Tensor& key_cache, const Tensor& value_cache, const Tensor& table, int64_t length,
              float scale, const Tensor& out, int64_t s, int64_t kv_head) {
  const int64_t d = q.shape[2], size = key_cache.shape[1], group = q.shape[1] / key_cache.shape[2];
  float* keys = scratch(kWork0, length * d);
  float* values = scratch(kWork1, length * d);
  float* weights = scratch(kWork2, group * length);
  float* results = scratch(kWork3, group * d);
  for (int64_t token = 0; token < length; token += size) {
    const int64_t block = integer_at(table, s * table.strides[0] + token / size * table.strides[1]);
    const int64_t n = std::min(size, length - token);
    read_matrix(head_of(key_cache, block, 0, n, kv_head), keys + token * d, d);
    read_matrix(head_of(value_cache, block, 0, n, kv_head), values + token * d, d);
  }
  const auto heads = [&](const Tensor& x) {
    return Matrix{element(x, s * x.strides[0] + kv_head * group * x.strides[1]), x.dtype, group, d, x.strides[1],
                  x.strides[2]};
  };
  multiply(heads(q), transposed_of(keys, d, length, d), weights, length, false);
  for (int64_t i = 0; i < group; ++i) {
    float* row = weights + i * length;
    for (int64_t j = 0; j < length; ++j) row[j] *= scale;
    const float top = length ? max_of(row, length) : 0.0f;
    for (int64_t j = 0; j < length; ++j) row[j] = exp_of(row[j] - top);
    const float factor = 1.0f / sum_of(length, [&](int64_t j) { return row[j]; });
    for (int64_t j = 0; j < length; ++j) row[j] *= factor;
  }
  multiply(matrix_of(weights, group, length, length), matrix_of(values, length, d, d), results, d, false);
  write_matrix(heads(out), results, d);
}

}  // namespace
}  // namespace mindgspo

using namespace mindgspo;

extern "C" int mindgspo_attention(const mindgspo_tensor* q, const mindgspo_tensor* k, const mindgspo_tensor* v,
                                  const mindgspo_tensor* mask, const int64_t* q_ends, const int64_t* k_ends,
                                  int64_t sequences, double scale, mindgspo_visible visible,
                                  const mindgspo_tensor* highest, const mindgspo_tensor* total,
                                  const mindgspo_tensor* out, int64_t threads) {
  return guarded([&] {
    const Problem p(q, k, v, mask, q_ends, k_ends, sequences, scale, visible);
    require_shape("out", floats("out", out), {q->shape[0], q->shape[1], q->shape[2], p.e});
    p.require_statistics("highest", highest);
    p.require_statistics("total", total);
    parallel(int64_t(p.sequences.size()) * k->shape[2], threads,
             [&](int64_t task) { forward_of(p, task, *highest, *total, *out); });
  });
}

extern "C" int mindgspo_attention_backward(
    const mindgspo_tensor* q, const mindgspo_tensor* k, const mindgspo_tensor* v, const mindgspo_tensor* mask,
    const int64_t* q_ends, const int64_t* k_ends, int64_t sequences, double scale, mindgspo_visible visible,
    const mindgspo_tensor* highest, const mindgspo_tensor* total, const mindgspo_tensor* out,
    const mindgspo_tensor* d_out, const mindgspo_tensor* d_q, const mindgspo_tensor* d_k, const mindgspo_tensor* d_v,
    int64_t threads) {
  return guarded([&] {
    const Problem p(q, k, v, mask, q_ends, k_ends, sequences, scale, visible);
    p.require_statistics("highest", highest);
    p.require_statistics("total", total);
    for (const auto& [name, x] : {std::pair{"out", out}, {"d_out", d_out}})
      require_shape(name, floats(name, x), {q->shape[0], q->shape[1], q->shape[2], p.e});
    require_shape("d_q", floats("d_q", d_q), {q->shape, q->shape + 4});
    require_shape("d_k", floats("d_k", d_k), {k->shape, k->shape + 4});
    require_shape("d_v", floats("d_v", d_v), {v->shape, v->shape + 4});
    const Gradients gradients{*highest, *total, *out, *d_out, *d_q, *d_k, *d_v};
    parallel(int64_t(p.sequences.size()) * k->shape[2], threads,
             [&](int64_t task) { backward_of(p, task, gradients); });
  });
}

extern "C" int mindgspo_paged_attention(const mindgspo_tensor* q, const mindgspo_tensor* key_cache,
                                        const mindgspo_tensor* value_cache, const mindgspo_tensor* table,
                                        const mindgspo_tensor* lengths, double scale, const mindgspo_tensor* out,
                                        int64_t threads) {
  return guarded([&] {
    floats("q", q, 3), floats("key_cache", key_cache, 4), floats("out", out, 3);
    integers("table", table, 2), integers("lengths", lengths, 1);
    const int64_t sequences = q->shape[0], kv_heads = key_cache->shape[2], size = key_cache->shape[1];
    require(kv_heads > 0 && q->shape[1] % kv_heads == 0 && key_cache->shape[3] == q->shape[2],
            "q " + text_of_shape(*q) + " and key_cache " + text_of_shape(*key_cache) + " do not fit");
    require_shape("value_cache", floats("value_cache", value_cache), {key_cache->shape, key_cache->shape + 4});
    require_shape("out", *out, {q->shape, q->shape + 3});
    require_shape("lengths", *lengths, {sequences});
    require_shape("table", *table, {sequences, table->shape[1]});
    std::vector<int64_t> lens;
    for (int64_t s = 0; s < sequences; ++s) {
      lens.push_back(integer_at(*lengths, s * lengths->strides[0]));
      require(lens[s] >= 0 && lens[s] <= table->shape[1] * size,
              "sequence " + std::to_string(s) + " has length " + std::to_string(lens[s]) + " and a table for " +
                  std::to_string(table->shape[1] * size));
      for (int64_t at = 0; at * size < lens[s]; ++at) {
        const int64_t block = integer_at(*table, s * table->strides[0] + at * table->strides[1]);
        require(block >= 0 && block < key_cache->shape[0], "block " + std::to_string(block) + " of sequence " +
                                                              std::to_string(s) + " is not in the cache");
      }
    }
    parallel(sequences * kv_heads, threads, [&](int64_t task) {
      const int64_t s = task / kv_heads;
      paged_of(*q, *key_cache, *value_cache, *table, lens[s], float(scale), *out, s, task % kv_heads);
    });
  });
}
