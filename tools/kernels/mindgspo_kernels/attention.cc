// Attention over sequences of their own lengths, its gradients, and attention of one query over a cache in blocks.
//
// Scores exist for a block of kQueries x kKeys at a time. One task computes what belongs to one sequence and one
// key/value head, in a fixed order, so that no two tasks write the same gradient; what several sequences add to the
// gradients of a prefix that they share is summed afterwards. A query's result is the same, bit for bit, among all
// queries of its sequence, behind a shared prefix, and alone over a float32 cache.
// Legend: T tokens, N query heads, K key/value heads, D head size of q and k, E of v.
#include "common.h"

namespace mindgspo {
namespace {

constexpr int64_t kQueries = 56, kKeys = 128;
static_assert(kKeys % kPanel == 0, "blocks of keys are whole panels");

// Columns of a block of scores that are computed: whole panels.
int64_t computed(int64_t keys) { return panels_of(keys) * kPanel; }

int64_t rounded_up(int64_t n) { return (n + 15) / 16 * 16; }  // rows of work memory start at cache lines

// keys: all that it has, those of its prefix first; its own begin at token k_first.
struct Sequence {
  int64_t batch, q_first, queries, k_first, keys;
  int64_t prefix = -1;  // the sequence whose keys come before its own
  int64_t p_first = 0, p_keys = 0;
  bool is_prefix = false;

  int64_t own_keys() const { return keys - p_keys; }
};

// What forward and backward are given, checked.
struct Problem {
  const Tensor &q, &k, &v, *mask;
  mindgspo_visible visible;
  float scale;
  int64_t d, e, group;  // group: query heads per key/value head
  std::vector<Sequence> sequences;

  Problem(const Tensor* q_, const Tensor* k_, const Tensor* v_, const Tensor* mask_, const int64_t* q_ends,
          const int64_t* k_ends, const int64_t* prefixes, int64_t count, double scale_, mindgspo_visible visible_)
      : q(floats("q", q_, 4)), k(floats("k", k_, 4)), v(floats("v", v_, 4)), mask(mask_), visible(visible_),
        scale(float(scale_)), d(q.shape[3]), e(v.shape[3]) {
    require_shape("k", k, {q.shape[0], k.shape[1], k.shape[2], d});
    require_shape("v", v, {q.shape[0], k.shape[1], k.shape[2], e});
    REQUIRE(k.shape[2] > 0 && q.shape[2] % k.shape[2] == 0,
            std::to_string(q.shape[2]) + " heads of queries are not a multiple of " + std::to_string(k.shape[2]));
    group = q.shape[2] / k.shape[2];
    if (q_ends == nullptr) {
      for (int64_t b = 0; b < q.shape[0]; ++b) sequences.push_back({b, 0, q.shape[1], 0, k.shape[1]});
    } else {
      REQUIRE(q.shape[0] == 1 && k_ends != nullptr, "ends need both lists and one batch entry");
      int64_t q_first = 0, k_first = 0;
      for (int64_t s = 0; s < count; ++s) {
        REQUIRE(q_ends[s] >= q_first && k_ends[s] >= k_first, "ends must not fall");
        sequences.push_back({0, q_first, q_ends[s] - q_first, k_first, k_ends[s] - k_first});
        if (prefixes != nullptr && prefixes[s] >= 0) put_behind(prefixes[s]);
        q_first = q_ends[s], k_first = k_ends[s];
      }
      REQUIRE(q_first == q.shape[1] && k_first == k.shape[1],
              "the last ends, " + std::to_string(q_first) + " and " + std::to_string(k_first) +
                  ", must be the tokens, " + std::to_string(q.shape[1]) + " and " + std::to_string(k.shape[1]));
    }
    if (mask != nullptr) check_mask();
  }

  // The last sequence continues another one.
  void put_behind(int64_t prefix) {
    Sequence& one = sequences.back();
    REQUIRE(prefix < int64_t(sequences.size()) - 1 && sequences[prefix].prefix < 0,
            "sequence " + std::to_string(sequences.size() - 1) + " cannot continue sequence " + std::to_string(prefix) +
                ", which must be an earlier one that continues none");
    sequences[prefix].is_prefix = true;
    one.prefix = prefix, one.p_first = sequences[prefix].k_first, one.p_keys = sequences[prefix].keys;
    one.keys += one.p_keys;
  }

  void check_mask() const {
    integers("mask", mask, 4);
    REQUIRE(mask->dtype == kUint8 || mask->dtype == kBool, "mask must be uint8 or bool");
    REQUIRE(mask->shape[0] == 1 || mask->shape[0] == int64_t(sequences.size()), "mask has another number of sequences");
    REQUIRE(mask->shape[1] == 1 || mask->shape[1] == q.shape[2], "mask has another number of heads");
    for (const Sequence& one : sequences)
      REQUIRE(one.queries <= mask->shape[2] && one.keys <= mask->shape[3],
              "mask " + text_of_shape(*mask) + " is smaller than a sequence");
  }

  void require_statistics(const char* name, const Tensor* x) const {
    const Tensor& statistics = floats(name, x, 4);
    REQUIRE(statistics.dtype == kFloat32, std::string(name) + " must be float32");
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

float& statistic(const Tensor& x, int64_t batch, int64_t token, int64_t head) {
  return *reinterpret_cast<float*>(element(x, batch * x.strides[0] + token * x.strides[1] + head * x.strides[2]));
}

// What a query has seen so far: the highest score, the sum of exp(score - highest), and that sum weighted by values.
struct Softmax {
  float top = -INFINITY, weight = 0.0f;

  float anchor() const { return top == -INFINITY ? 0.0f : top; }
  // `scores` of n more keys become their weights.
  void add(float* scores, int64_t n, float* sums, int64_t size) {
    const float old = top;
    top = std::max(old, max_of(scores, n));  // a NaN comes back in the sum of exponentials
    const float anchored = anchor(), shrink = exp_of(old - anchored);
    for (int64_t j = 0; j < n; ++j) scores[j] = exp_of(scores[j] - anchored);
    weight = weight * shrink + sum_of(n, [&](int64_t j) { return scores[j]; });
    for (int64_t j = 0; j < size; ++j) sums[j] *= shrink;
  }
  void finish(float* sums, int64_t size) const {
    const float factor = weight == 0.0f ? 0.0f : 1.0f / weight;
    for (int64_t j = 0; j < size; ++j) sums[j] *= factor;
  }
};

// Sequence and key/value head of a task, and the panels that its queries are multiplied with.
struct KeysAndValues {
  const Problem& p;
  const Sequence& one;
  int64_t sequence, kv_head, ke;
  Matrix keys, values;

  KeysAndValues(const Problem& p, int64_t task)
      : p(p), one(p.sequences[task / p.k.shape[2]]), sequence(task / p.k.shape[2]), kv_head(task % p.k.shape[2]),
        ke(rounded_up(p.e)), keys(head_of(p.k, one.batch, one.k_first, one.own_keys(), kv_head)),
        values(head_of(p.v, one.batch, one.k_first, one.own_keys(), kv_head)) {
    if (one.prefix < 0) return;
    float* copies = scratch(kWork9, one.keys * (p.d + p.e));
    keys = joined(p.k, keys, copies), values = joined(p.v, values, copies + one.keys * p.d);
  }

  // The prefix's rows, then its own.
  Matrix joined(const Tensor& x, const Matrix& own, float* copies) const {
    read_matrix(head_of(x, one.batch, one.p_first, one.p_keys, kv_head), copies, own.columns);
    read_matrix(own, copies + one.p_keys * own.columns, own.columns);
    return matrix_of(copies, one.keys, own.columns, own.columns);
  }

  // Panels of x^T [size, keys], whose columns are the keys.
  static float* by_columns(Slot slot, const Matrix& x) {
    float* panels = scratch(slot, packed_size(x.columns, x.rows));
    pack(transposed(x), panels, kFloat32, 1);
    return panels;
  }
  // Panels of x [keys, size], those of each block of keys by themselves.
  static float* by_blocks(Slot slot, const Matrix& x) {
    float* panels = scratch(slot, packed_size(x.rows, x.columns));
    for (int64_t first = 0; first < x.rows; first += kKeys)
      pack(part(x, first, std::min(kKeys, x.rows - first), 0, x.columns), panels + packed_size(first, x.columns), kFloat32,
           1);
    return panels;
  }

  // scores [count, keys] of a block, -inf where a key is not seen.
  void scores(const float* of_keys, const float* queries, int64_t stride, int64_t head, int64_t query0, int64_t count,
              int64_t key0, int64_t n, float* out) const {
    multiply_packed(matrix_of(queries, count, p.d, stride), of_keys + key0 * p.d, computed(n), out, kKeys, false);
    p.apply_mask(one, sequence, head, query0, count, key0, n, out);
  }

  // body(key0, keys) for the blocks of keys that some of these queries see.
  template <class Body>
  void for_blocks(int64_t query0, int64_t count, Body body) const {
    int64_t first, last, unused;
    p.bounds(one, query0, &first, &unused);
    p.bounds(one, query0 + count - 1, &unused, &last);
    for (int64_t key0 = first / kKeys * kKeys; key0 < last; key0 += kKeys) body(key0, std::min(kKeys, last - key0));
  }
};

void forward_of(const Problem& p, int64_t task, const Tensor& highest, const Tensor& total, const Tensor& out) {
  const KeysAndValues kv(p, task);
  const Sequence& one = kv.one;
  const int64_t kd = rounded_up(p.d);
  const float *of_keys = kv.by_columns(kWork0, kv.keys), *of_values = kv.by_blocks(kWork1, kv.values);
  float* queries = scratch(kWork2, kQueries * kd);
  float* scores = scratch(kWork3, kQueries * kKeys);
  float* sums = scratch(kWork4, kQueries * kv.ke);
  for (int64_t head = kv.kv_head * p.group; head < (kv.kv_head + 1) * p.group; ++head) {
    for (int64_t query0 = 0; query0 < one.queries; query0 += kQueries) {
      const int64_t count = std::min(kQueries, one.queries - query0);
      Softmax rows[kQueries];
      std::fill(sums, sums + kQueries * kv.ke, 0.0f);
      read_matrix(head_of(p.q, one.batch, one.q_first + query0, count, head), queries, kd);
      kv.for_blocks(query0, count, [&](int64_t key0, int64_t n) {
        kv.scores(of_keys, queries, kd, head, query0, count, key0, n, scores);
        for (int64_t i = 0; i < count; ++i) rows[i].add(scores + i * kKeys, n, sums + i * kv.ke, p.e);
        multiply_packed(matrix_of(scores, count, n, kKeys), of_values + packed_size(key0, p.e), p.e, sums, kv.ke, true,
                        std::min(kKeys, one.keys - key0));
      });
      for (int64_t i = 0; i < count; ++i) {
        rows[i].finish(sums + i * kv.ke, p.e);
        for (int64_t lane = 0; lane < highest.shape[3]; ++lane)
          (&statistic(highest, one.batch, one.q_first + query0 + i, head))[lane * highest.strides[3]] = rows[i].top;
        for (int64_t lane = 0; lane < total.shape[3]; ++lane)
          (&statistic(total, one.batch, one.q_first + query0 + i, head))[lane * total.strides[3]] = rows[i].weight;
      }
      write_matrix(head_of(out, one.batch, one.q_first + query0, count, head), sums, kv.ke);
    }
  }
}

// Gradients of prefixes' keys and values, [keys, D + E] of each sequence that continues or is continued and each
// key/value head.
class PrefixGradients {
 public:
  explicit PrefixGradients(const Problem& p) : p_(p) {
    int64_t size = 0;
    for (const Sequence& one : p.sequences) {
      offsets_.push_back(size);
      size += keys_of(one) * (p.d + p.e) * p.k.shape[2];
    }
    data_ = scratch(kShared0, size);
  }

  // d_keys, d_values: of a task, rows kd and ke apart, the prefix's first.
  void keep(int64_t sequence, int64_t kv_head, const float* d_keys, int64_t kd, const float* d_values, int64_t ke) {
    const int64_t n = keys_of(p_.sequences[sequence]);
    float* place = at(sequence, kv_head);
    for (int64_t key = 0; key < n; ++key) {
      std::copy(d_keys + key * kd, d_keys + key * kd + p_.d, place + key * p_.d);
      std::copy(d_values + key * ke, d_values + key * ke + p_.e, place + n * p_.d + key * p_.e);
    }
  }

  // Sums what the prefix itself and those that continue it have found, in their order, and writes it.
  void write(int64_t prefix, int64_t kv_head, const Tensor& d_k, const Tensor& d_v) {
    const Sequence& one = p_.sequences[prefix];
    float* sum = at(prefix, kv_head);
    for (size_t s = prefix + 1; s < p_.sequences.size(); ++s) {
      if (p_.sequences[s].prefix != prefix) continue;
      const float* more = at(s, kv_head);
      for (int64_t i = 0; i < one.keys * (p_.d + p_.e); ++i) sum[i] += more[i];
    }
    write_matrix(head_of(d_k, one.batch, one.k_first, one.keys, kv_head), sum, p_.d);
    write_matrix(head_of(d_v, one.batch, one.k_first, one.keys, kv_head), sum + one.keys * p_.d, p_.e);
  }

 private:
  static int64_t keys_of(const Sequence& one) { return one.is_prefix ? one.keys : one.p_keys; }
  float* at(int64_t sequence, int64_t kv_head) const {
    return data_ + offsets_[sequence] + kv_head * keys_of(p_.sequences[sequence]) * (p_.d + p_.e);
  }

  const Problem& p_;
  std::vector<int64_t> offsets_;
  float* data_;
};

struct Gradients {
  const Tensor &highest, &total, &out, &d_out, &d_q, &d_k, &d_v;
};

void backward_of(const Problem& p, int64_t task, const Gradients& g, PrefixGradients& of_prefixes) {
  const KeysAndValues kv(p, task);
  const Sequence& one = kv.one;
  const int64_t kd = rounded_up(p.d), ke = kv.ke;
  const float *of_keys = kv.by_columns(kWork0, kv.keys), *of_values = kv.by_columns(kWork1, kv.values);
  const float* keys = kv.by_blocks(kWork2, kv.keys);
  float* queries = scratch(kWork3, kQueries * (kd + 2 * ke));
  float *of_out = queries + kQueries * kd, *outputs = of_out + kQueries * ke;
  float* query_panels = scratch(kWork4, packed_size(kQueries, p.d) + packed_size(kQueries, p.e));
  float* out_panels = query_panels + packed_size(kQueries, p.d);
  float* weights = scratch(kWork5, 2 * kQueries * kKeys);  // softmax of a block
  float* d_scores = weights + kQueries * kKeys;
  float* d_queries = scratch(kWork6, kQueries * kd);
  float* d_keys = scratch(kWork7, one.keys * kd);
  float* d_values = scratch(kWork8, one.keys * ke);
  std::fill(d_keys, d_keys + one.keys * kd, 0.0f);
  std::fill(d_values, d_values + one.keys * ke, 0.0f);
  for (int64_t head = kv.kv_head * p.group; head < (kv.kv_head + 1) * p.group; ++head) {
    for (int64_t query0 = 0; query0 < one.queries; query0 += kQueries) {
      const int64_t count = std::min(kQueries, one.queries - query0), token0 = one.q_first + query0;
      float anchor[kQueries], factor[kQueries], delta[kQueries];
      read_matrix(head_of(p.q, one.batch, token0, count, head), queries, kd);
      read_matrix(head_of(g.d_out, one.batch, token0, count, head), of_out, ke);
      read_matrix(head_of(g.out, one.batch, token0, count, head), outputs, ke);
      pack(matrix_of(queries, count, p.d, kd), query_panels, kFloat32, 1);
      pack(matrix_of(of_out, count, p.e, ke), out_panels, kFloat32, 1);
      for (int64_t i = 0; i < count; ++i) {
        const Softmax seen{statistic(g.highest, one.batch, token0 + i, head),
                           statistic(g.total, one.batch, token0 + i, head)};
        anchor[i] = seen.anchor();
        factor[i] = seen.weight == 0.0f ? 0.0f : 1.0f / seen.weight;
        const float *dy = of_out + i * ke, *y = outputs + i * ke;
        delta[i] = sum_of(p.e, [&](int64_t j) { return dy[j] * y[j]; });
      }
      std::fill(d_queries, d_queries + count * kd, 0.0f);
      kv.for_blocks(query0, count, [&](int64_t key0, int64_t n) {
        kv.scores(of_keys, queries, kd, head, query0, count, key0, n, weights);
        multiply_packed(matrix_of(of_out, count, p.e, ke), of_values + key0 * p.e, computed(n), d_scores, kKeys, false);
        for (int64_t i = 0; i < count; ++i) {
          float *weight = weights + i * kKeys, *d_score = d_scores + i * kKeys;
          for (int64_t j = 0; j < n; ++j) {
            weight[j] = exp_of(weight[j] - anchor[i]) * factor[i];
            d_score[j] = weight[j] * (d_score[j] - delta[i]) * p.scale;
          }
        }
        const Matrix of_scores = matrix_of(d_scores, count, n, kKeys), of_weights = matrix_of(weights, count, n, kKeys);
        multiply_packed(of_scores, keys + packed_size(key0, p.d), p.d, d_queries, kd, true,
                        std::min(kKeys, one.keys - key0));
        multiply_packed(transposed(of_scores), query_panels, p.d, d_keys + key0 * kd, kd, true);
        multiply_packed(transposed(of_weights), out_panels, p.e, d_values + key0 * ke, ke, true);
      });
      write_matrix(head_of(g.d_q, one.batch, token0, count, head), d_queries, kd);
    }
  }
  if (one.is_prefix || one.prefix >= 0) of_prefixes.keep(kv.sequence, kv.kv_head, d_keys, kd, d_values, ke);
  if (one.is_prefix) return;
  const int64_t own = one.own_keys();
  write_matrix(head_of(g.d_k, one.batch, one.k_first, own, kv.kv_head), d_keys + one.p_keys * kd, kd);
  write_matrix(head_of(g.d_v, one.batch, one.k_first, own, kv.kv_head), d_values + one.p_keys * ke, ke);
}

// What paged attention is given, checked. Blocks of other sizes than kKeys are brought together to that.
struct Pages {
  const Tensor &q, &keys, &values, &table;
  std::vector<int64_t> lengths;
  float scale;

  int64_t block(int64_t s, int64_t at) const {
    return integer_at(table, s * table.strides[0] + at * table.strides[1]);
  }
  // Tokens key0 .. key0 + n of a sequence, [n, D]; computed(n) of them can be read.
  Matrix tokens(const Tensor& cache, Slot slot, int64_t s, int64_t kv_head, int64_t key0, int64_t n) const {
    const int64_t size = cache.shape[1];
    if (size == kKeys) return head_of(cache, block(s, key0 / size), 0, kKeys, kv_head);
    const int64_t d = cache.shape[3];
    float* copies = scratch(slot, kKeys * d);
    std::fill(copies, copies + kKeys * d, 0.0f);
    for (int64_t done = 0; done < n;) {
      const int64_t token = key0 + done, some = std::min(n - done, size - token % size);
      read_matrix(head_of(cache, block(s, token / size), token % size, some, kv_head), copies + done * d, d);
      done += some;
    }
    return matrix_of(copies, kKeys, d, d);
  }
};

// Sequence `s` and key/value head `kv_head` of paged attention.
void paged_of(const Pages& p, const Tensor& out, int64_t s, int64_t kv_head) {
  const int64_t d = p.q.shape[2], e = out.shape[2], group = p.q.shape[1] / p.keys.shape[2], stride = rounded_up(e);
  const auto heads = [&](const Tensor& x) {
    return Matrix{element(x, s * x.strides[0] + kv_head * group * x.strides[1]), x.dtype, group, x.shape[2],
                  x.strides[1], x.strides[2]};
  };
  float* scores = scratch(kWork2, group * kKeys);
  float* sums = scratch(kWork3, group * stride);
  std::fill(sums, sums + group * stride, 0.0f);
  std::vector<Softmax> rows(group);
  for (int64_t key0 = 0; key0 < p.lengths[s]; key0 += kKeys) {
    const int64_t n = std::min(kKeys, p.lengths[s] - key0);
    const Matrix keys = part(p.tokens(p.keys, kWork0, s, kv_head, key0, n), 0, computed(n), 0, d);
    multiply(heads(p.q), transposed(keys), scores, kKeys, false);
    for (int64_t i = 0; i < group; ++i) {
      float* row = scores + i * kKeys;
      for (int64_t j = 0; j < n; ++j) row[j] *= p.scale;
      rows[i].add(row, n, sums + i * stride, e);
    }
    const Matrix values = part(p.tokens(p.values, kWork1, s, kv_head, key0, n), 0, n, 0, e);
    multiply(matrix_of(scores, group, n, kKeys), values, sums, stride, true);
  }
  for (int64_t i = 0; i < group; ++i) rows[i].finish(sums + i * stride, e);
  write_matrix(heads(out), sums, stride);
}

}  // namespace
}  // namespace mindgspo

using namespace mindgspo;

extern "C" int mindgspo_attention(const mindgspo_tensor* q, const mindgspo_tensor* k, const mindgspo_tensor* v,
                                  const mindgspo_tensor* mask, const int64_t* q_ends, const int64_t* k_ends,
                                  const int64_t* prefixes, int64_t sequences, double scale, mindgspo_visible visible,
                                  const mindgspo_tensor* highest, const mindgspo_tensor* total,
                                  const mindgspo_tensor* out, int64_t threads) {
  return guarded([&] {
    const Problem p(q, k, v, mask, q_ends, k_ends, prefixes, sequences, scale, visible);
    require_shape("out", floats("out", out), {q->shape[0], q->shape[1], q->shape[2], p.e});
    p.require_statistics("highest", highest);
    p.require_statistics("total", total);
    parallel(int64_t(p.sequences.size()) * k->shape[2], threads,
             [&](int64_t task) { forward_of(p, task, *highest, *total, *out); });
  });
}

extern "C" int mindgspo_attention_backward(
    const mindgspo_tensor* q, const mindgspo_tensor* k, const mindgspo_tensor* v, const mindgspo_tensor* mask,
    const int64_t* q_ends, const int64_t* k_ends, const int64_t* prefixes, int64_t sequences, double scale,
    mindgspo_visible visible, const mindgspo_tensor* highest, const mindgspo_tensor* total, const mindgspo_tensor* out,
    const mindgspo_tensor* d_out, const mindgspo_tensor* d_q, const mindgspo_tensor* d_k, const mindgspo_tensor* d_v,
    int64_t threads) {
  return guarded([&] {
    const Problem p(q, k, v, mask, q_ends, k_ends, prefixes, sequences, scale, visible);
    p.require_statistics("highest", highest);
    p.require_statistics("total", total);
    for (const auto& [name, x] : {std::pair{"out", out}, {"d_out", d_out}})
      require_shape(name, floats(name, x), {q->shape[0], q->shape[1], q->shape[2], p.e});
    require_shape("d_q", floats("d_q", d_q), {q->shape, q->shape + 4});
    require_shape("d_k", floats("d_k", d_k), {k->shape, k->shape + 4});
    require_shape("d_v", floats("d_v", d_v), {v->shape, v->shape + 4});
    const Gradients gradients{*highest, *total, *out, *d_out, *d_q, *d_k, *d_v};
    const int64_t tasks = int64_t(p.sequences.size()) * k->shape[2];
    PrefixGradients of_prefixes(p);
    parallel(tasks, threads, [&](int64_t task) { backward_of(p, task, gradients, of_prefixes); });
    parallel(tasks, threads, [&](int64_t task) {
      const int64_t sequence = task / k->shape[2];
      if (p.sequences[sequence].is_prefix) of_prefixes.write(sequence, task % k->shape[2], *d_k, *d_v);
    });
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
    REQUIRE(kv_heads > 0 && q->shape[1] % kv_heads == 0 && key_cache->shape[3] == q->shape[2],
            "q " + text_of_shape(*q) + " and key_cache " + text_of_shape(*key_cache) + " do not fit");
    require_shape("value_cache", floats("value_cache", value_cache, 4),
                  {key_cache->shape[0], size, kv_heads, value_cache->shape[3]});
    require_shape("out", *out, {sequences, q->shape[1], value_cache->shape[3]});
    require_shape("lengths", *lengths, {sequences});
    require_shape("table", *table, {sequences, table->shape[1]});
    Pages pages{*q, *key_cache, *value_cache, *table, {}, float(scale)};
    for (int64_t s = 0; s < sequences; ++s) {
      const int64_t length = integer_at(*lengths, s * lengths->strides[0]);
      REQUIRE(length >= 0 && length <= table->shape[1] * size,
              "sequence " + std::to_string(s) + " has length " + std::to_string(length) + " and a table for " +
                  std::to_string(table->shape[1] * size));
      for (int64_t at = 0; at * size < length; ++at) {
        const int64_t block = pages.block(s, at);
        REQUIRE(block >= 0 && block < key_cache->shape[0], "block " + std::to_string(block) + " of sequence " +
                                                              std::to_string(s) + " is not in the cache");
      }
      pages.lengths.push_back(length);
    }
    parallel(sequences * kv_heads, threads, [&](int64_t task) {
      paged_of(pages, *out, task / kv_heads, task % kv_heads);
    });
  });
}

extern "C" int mindgspo_store_tokens(const mindgspo_tensor* x, const mindgspo_tensor* slots, const mindgspo_tensor* cache,
                                     int64_t threads) {
  return guarded([&] {
    const int64_t tokens = floats("x", x, 3).shape[0], size = floats("cache", cache, 4).shape[1];
    require_shape("x", *x, {tokens, cache->shape[2], cache->shape[3]});
    require_shape("slots", integers("slots", slots, 1), {tokens});
    for_rows(tokens, threads, [&](int64_t token) {
      const int64_t slot = integer_at(*slots, token * slots->strides[0]);
      if (slot < 0) return;
      REQUIRE(slot < cache->shape[0] * size, "slot " + std::to_string(slot) + " is not in the cache");
      for (int64_t head = 0; head < x->shape[1]; ++head) {
        const Matrix one = head_of(*cache, slot / size, slot % size, 1, head);
        float* values = scratch(kRow0, x->shape[2]);
        load(element(*x, token * x->strides[0] + head * x->strides[1]), x->dtype, x->strides[2], x->shape[2], values);
        write_matrix(one, values, x->shape[2]);
      }
    });
  });
}
