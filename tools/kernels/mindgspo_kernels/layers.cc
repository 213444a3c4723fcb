// Operators of a transformer's layers on whole rows of tokens: embedding, rotary positions.
//
// Legend: M tokens, H hidden units, V vocabulary entries, D head size, R rotated features of a head.
#include "common.h"

using namespace mindgspo;

namespace {

int64_t id_of(const Tensor& ids, int64_t token, int64_t entries) {
  const int64_t id = integer_at(ids, token * ids.strides[0]);
  REQUIRE(id >= 0 && id < entries, "id " + std::to_string(id) + " is not one of " + std::to_string(entries));
  return id;
}

}  // namespace

extern "C" int mindgspo_embedding(const mindgspo_tensor* ids, const mindgspo_tensor* table, const mindgspo_tensor* out,
                                  int64_t threads) {
  return guarded([&] {
    const int64_t tokens = integers("ids", ids, 1).shape[0], size = floats("table", table, 2).shape[1];
    require_shape("out", floats("out", out, 2), {tokens, size});
    for_rows(tokens, threads, [&](int64_t token) {
      write_row(*out, token, read_row(*table, id_of(*ids, token, table->shape[0]), kRow0));
    });
  });
}

extern "C" int mindgspo_embedding_backward(const mindgspo_tensor* ids, const mindgspo_tensor* d_out,
                                           const mindgspo_tensor* d_table, int64_t threads) {
  return guarded([&] {
    const int64_t tokens = integers("ids", ids, 1).shape[0], size = floats("d_table", d_table, 2).shape[1];
    require_shape("d_out", floats("d_out", d_out, 2), {tokens, size});
    REQUIRE(d_table->dtype == kFloat32 && d_table->strides[1] == 1, "d_table must be float32 in rows");
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
                                     const mindgspo_tensor* cos, const mindgspo_tensor* sin, int64_t is_interleaved,
                                     int64_t is_backward, const mindgspo_tensor* out, int64_t threads) {
  return guarded([&] {
    const int64_t tokens = floats("x", x, 3).shape[0], heads = x->shape[1], d = x->shape[2];
    const int64_t turned = floats("cos", cos, 2).shape[1];
    REQUIRE(turned % 2 == 0 && turned <= d,
            "cos must have an even last axis of at most " + std::to_string(d) + ", not " + std::to_string(turned));
    REQUIRE(x->strides[2] == 1 && x->strides[1] == d, "x must have its heads side by side");
    require_shape("out", floats("out", out, 3), {tokens, heads, d});
    REQUIRE(out->strides[2] == 1 && out->strides[1] == d, "out must have its heads side by side");
    require_shape("positions", integers("positions", positions, 1), {tokens});
    for (const auto& [name, table] : {std::pair{"cos", cos}, {"sin", sin}})
      REQUIRE(floats(name, table, 2).dtype == kFloat32 && table->shape[1] == turned && table->strides[1] == 1,
              std::string(name) + " " + text_of_shape(*table) + " does not fit x " + text_of_shape(*x));
    const auto table_row = [](const Tensor& table, int64_t position) {
      return reinterpret_cast<const float*>(element(table, position * table.strides[0]));
    };
    for_rows(tokens, threads, [&](int64_t token) {
      const int64_t position = id_of(*positions, token, cos->shape[0]);
      const float *c = table_row(*cos, position), *s = table_row(*sin, position);
      const float* values = read_row(*x, token, kRow0);
      float* results = results_of_row(*out, token, kRow1);
      for (int64_t first = 0; first < heads * d; first += d) {
        if (is_interleaved)
          rotate_pairs<2>(values + first, c, s, turned, is_backward, results + first);
        else
          rotate_pairs<1>(values + first, c, s, turned, is_backward, results + first);
        std::copy(values + first + turned, values + first + d, results + first + turned);
      }
      write_row(*out, token, results);
    });
  });
}
