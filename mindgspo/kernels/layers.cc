// Operators of a transformer's layers on whole rows of tokens: embedding, rotary positions, gated activation.
//
// Legend: M tokens, H hidden units, I inner features, V vocabulary entries, D head size.
#include "common.h"

using namespace mindgspo;

namespace {

float silu(float x) { return x * sigmoid(x); }

int64_t id_of(const Tensor& ids, int64_t token, int64_t entries) {
  const int64_t id = integer_at(ids, token * ids.strides[0]);
  require(id >= 0 && id < entries, "id " + std::to_string(id) + " is not one of " + std::to_string(entries));
  return id;
}

// A row of `n` numbers in float32: in place, or a copy in `slot`.
const float* read_row(const Tensor& x, int64_t row, int64_t n, Slot slot) {
  const char* place = element(x, row * x.strides[0]);
  const int64_t stride = x.strides[x.rank - 1];
  if (x.dtype == kFloat32 && stride == 1) return reinterpret_cast<const float*>(place);
  float* copy = scratch(slot, n);
  load(place, x.dtype, stride, n, copy);
  return copy;
}

void write_row(const Tensor& x, int64_t row, int64_t n, const float* values) {
  store(element(x, row * x.strides[0]), x.dtype, x.strides[x.rank - 1], n, values);
}

// Where a row's results are made: in place, or in `slot` until `write_row`.
float* result_row(const Tensor& x, int64_t row, int64_t n, Slot slot) {
  if (x.dtype == kFloat32 && x.strides[x.rank - 1] == 1) return reinterpret_cast<float*>(element(x, row * x.strides[0]));
  return scratch(slot, n);
}

}  // namespace

extern "C" int mindgspo_embedding(const mindgspo_tensor* ids, const mindgspo_tensor* table, const mindgspo_tensor* out,
                                  int64_t threads) {
  return guarded([&] {
    const int64_t tokens = integers("ids", ids, 1).shape[0], size = floats("table", table, 2).shape[1];
    require_shape("out", floats("out", out, 2), {tokens, size});
    for_rows(tokens, threads, [&](int64_t token) {
      write_row(*out, token, size, read_row(*table, id_of(*ids, token, table->shape[0]), size, kRow0));
    });
  });
}

extern "C" int mindgspo_embedding_backward(const mindgspo_tensor* ids, const mindgspo_tensor* d_out,
                                           const mindgspo_tensor* d_table, int64_t threads) {
  return guarded([&] {
    const int64_t tokens = integers("ids", ids, 1).shape[0], size = floats("d_table", d_table, 2).shape[1];
    require_shape("d_out", floats("d_out", d_out, 2), {tokens, size});
    require(d_table->dtype == kFloat32 && d_table->strides[1] == 1, "d_table must be float32 in rows");
    const auto row_of = [&](int64_t row) { return reinterpret_cast<float*>(element(*d_table, row * d_table->strides[0])); };
    for_rows(d_table->shape[0], threads, [&](int64_t row) { std::fill(row_of(row), row_of(row) + size, 0.0f); });
    // Columns are shared out, not tokens: an id's rows add up in their order.
    constexpr int64_t kColumns = 64;
    parallel((size + kColumns - 1) / kColumns, threads, [&](int64_t task) {
      const int64_t first = task * kColumns, n = std::min(kColumns, size - first);
      float copy[kColumns];
      for (int64_t token = 0; token < tokens; ++token) {
        float* sums = row_of(id_of(*ids, token, d_table->shape[0])) + first;
        load(element(*d_out, token * d_out->strides[0] + first * d_out->strides[1]), d_out->dtype, d_out->strides[1], n,
             copy);
        for (int64_t i = 0; i < n; ++i) sums[i] += copy[i];
      }
    });
  });
}

extern "C" int mindgspo_rotate_heads(const mindgspo_tensor* x, const mindgspo_tensor* positions,
                                     const mindgspo_tensor* cos, const mindgspo_tensor* sin, int64_t is_backward,
                                     const mindgspo_tensor* out, int64_t threads) {
  return guarded([&] {
    const int64_t tokens = floats("x", x, 3).shape[0], heads = x->shape[1], d = x->shape[2], half = d / 2;
    require(d % 2 == 0, "x must have an even last axis, not " + std::to_string(d));
    require(x->strides[2] == 1 && x->strides[1] == d, "x must have its heads side by side");
    require_shape("out", floats("out", out, 3), {tokens, heads, d});
    require(out->strides[2] == 1 && out->strides[1] == d, "out must have its heads side by side");
    require_shape("positions", integers("positions", positions, 1), {tokens});
    for (const auto& [name, table] : {std::pair{"cos", cos}, {"sin", sin}})
      require(floats(name, table, 2).dtype == kFloat32 && table->shape[1] == d && table->strides[1] == 1,
              std::string(name) + " " + text_of_shape(*table) + " does not fit x " + text_of_shape(*x));
    const auto table_row = [](const Tensor& table, int64_t position) {
      return reinterpret_cast<const float*>(element(table, position * table.strides[0]));
    };
    for_rows(tokens, threads, [&](int64_t token) {
      const int64_t position = id_of(*positions, token, cos->shape[0]);
      const float *c = table_row(*cos, position), *s = table_row(*sin, position);
      const float* values = read_row(*x, token, heads * d, kRow0);
      float* results = result_row(*out, token, heads * d, kRow1);
      // Of a pair (a, b) of a head: forward (a cos_a - b sin_a, b cos_b + a sin_b); backward its transpose.
      const float *s_a = is_backward ? s + half : s, *s_b = is_backward ? s : s + half;
      const float sign = is_backward ? -1.0f : 1.0f;
      for (int64_t head = 0; head < heads; ++head, values += d, results += d)
        for (int64_t i = 0; i < half; ++i) {
          const float a = values[i], b = values[i + half];
          results[i] = a * c[i] - sign * b * s_a[i];
          results[i + half] = b * c[i + half] + sign * a * s_b[i];
        }
      results -= heads * d;
      if (out->dtype != kFloat32) write_row(*out, token, heads * d, results);
    });
  });
}

extern "C" int mindgspo_gated(const mindgspo_tensor* gate, const mindgspo_tensor* up, const mindgspo_tensor* out,
                              int64_t threads) {
  return guarded([&] {
    const int64_t tokens = floats("gate", gate, 2).shape[0], size = gate->shape[1];
    require_shape("up", floats("up", up, 2), {tokens, size});
    require_shape("out", floats("out", out, 2), {tokens, size});
    for_rows(tokens, threads, [&](int64_t token) {
      const float *g = read_row(*gate, token, size, kRow0), *u = read_row(*up, token, size, kRow1);
      float* results = result_row(*out, token, size, kRow2);
      for (int64_t i = 0; i < size; ++i) results[i] = silu(g[i]) * u[i];
      if (out->dtype != kFloat32 || out->strides[1] != 1) write_row(*out, token, size, results);
    });
  });
}

extern "C" int mindgspo_gated_backward(const mindgspo_tensor* d_out, const mindgspo_tensor* gate,
                                       const mindgspo_tensor* up, const mindgspo_tensor* d_gate,
                                       const mindgspo_tensor* d_up, int64_t threads) {
  return guarded([&] {
    const int64_t tokens = floats("gate", gate, 2).shape[0], size = gate->shape[1];
    for (const auto& [name, x] : {std::pair{"up", up}, {"d_out", d_out}, {"d_gate", d_gate}, {"d_up", d_up}})
      require_shape(name, floats(name, x, 2), {tokens, size});
    for_rows(tokens, threads, [&](int64_t token) {
      const float *g = read_row(*gate, token, size, kRow0), *u = read_row(*up, token, size, kRow1);
      const float* d = read_row(*d_out, token, size, kRow2);
      float *of_gate = result_row(*d_gate, token, size, kRow3), *of_up = result_row(*d_up, token, size, kWork0);
      for (int64_t i = 0; i < size; ++i) {
        const float sigma = sigmoid(g[i]);
        of_gate[i] = d[i] * u[i] * (sigma * (1.0f + g[i] * (1.0f - sigma)));
        of_up[i] = d[i] * (g[i] * sigma);
      }
      if (d_gate->dtype != kFloat32 || d_gate->strides[1] != 1) write_row(*d_gate, token, size, of_gate);
      if (d_up->dtype != kFloat32 || d_up->strides[1] != 1) write_row(*d_up, token, size, of_up);
    });
  });
}
