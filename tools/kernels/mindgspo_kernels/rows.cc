// Operators that go through their tensors row by row: norms, softmax, SwiGLU, rotary embedding, element by element.
#include "common.h"

using namespace mindgspo;

namespace {

void require_like(const char* name, const Tensor& tensor, const Tensor& other) {
  require_shape(name, tensor, {other.shape, other.shape + other.rank});
}

// The part `first` .. `first + n` along an axis.
Tensor narrowed(Tensor tensor, int64_t axis, int64_t first, int64_t n) {
  tensor.data = element(tensor, first * tensor.strides[axis]);
  tensor.shape[axis] = n;
  return tensor;
}

// The two halves that SwiGLU multiplies.
struct Halves {
  Tensor gate, value;
  Halves(const char* name, const Tensor& tensor, int64_t axis)
      : gate(narrowed(tensor, axis, 0, tensor.shape[axis] / 2)),
        value(narrowed(tensor, axis, tensor.shape[axis] / 2, tensor.shape[axis] / 2)) {
    REQUIRE(tensor.shape[axis] % 2 == 0, std::string(name) + " " + text_of_shape(tensor) + " cannot be halved");
  }
};

float silu_slope(float x) { return sigmoid(x) * (1.0f + x * (1.0f - sigmoid(x))); }

// out = silu(gate) * value.
void gated(const Tensor& gate, const Tensor& value, const Tensor& out, int64_t threads) {
  const Rows rows = Rows::of_elements({&gate, &value, &out});
  const auto body = [&](int64_t row) {
    const float *gates = rows.read(0, row, kRow0), *values = rows.read(1, row, kRow1);
    float* results = rows.results(2, row, kRow2);
    for (int64_t i = 0, n = rows.length(0, row); i < n; ++i) results[i] = silu(gates[i]) * values[i];
    rows.write(2, row, results);
  };
  for_rows(rows.count(), threads, body, rows.task());
}

void gated_backward(const Tensor& d_out, const Tensor& gate, const Tensor& value, const Tensor& d_gate,
                    const Tensor& d_value, int64_t threads) {
  const Rows rows = Rows::of_elements({&gate, &value, &d_out, &d_gate, &d_value});
  const auto body = [&](int64_t row) {
    const float *gates = rows.read(0, row, kRow0), *values = rows.read(1, row, kRow1), *d = rows.read(2, row, kRow2);
    float *d_gates = rows.results(3, row, kRow3), *d_values = rows.results(4, row, kWork0);
    for (int64_t i = 0, n = rows.length(0, row); i < n; ++i) {
      const float of_gate = d[i] * values[i] * silu_slope(gates[i]), of_value = d[i] * silu(gates[i]);
      d_gates[i] = of_gate;
      d_values[i] = of_value;
    }
    rows.write(3, row, d_gates);
    rows.write(4, row, d_values);
  };
  for_rows(rows.count(), threads, body, rows.task());
}

// Sum of [chunks, n] over the chunks, in their order.
void add_chunks(const std::vector<float>& partial, int64_t n, float* out) {
  std::copy(partial.begin(), partial.begin() + n, out);
  for (size_t at = n; at < partial.size(); at += n)
    for (int64_t i = 0; i < n; ++i) out[i] += partial[at + i];
}

}  // namespace

extern "C" int mindgspo_rms_norm(const mindgspo_tensor* x, const mindgspo_tensor* other, const mindgspo_tensor* gamma,
                                 double epsilon, const mindgspo_tensor* y, const mindgspo_tensor* rstd,
                                 const mindgspo_tensor* sum, int64_t threads) {
  return guarded([&] {
    REQUIRE(floats("x", x).rank >= 1, "x must have an axis");
    const int64_t axis = x->rank - 1;
    const int64_t n = x->shape[axis];
    require_shape("gamma", floats("gamma", gamma, 1), {n});
    require_like("y", floats("y", y), *x);
    if (other != nullptr) require_like("other", floats("other", other), *x);
    if (sum != nullptr) require_like("sum", floats("sum", sum), *x);
    std::vector<int64_t> rows_shape(x->shape, x->shape + x->rank);
    rows_shape[axis] = 1;
    if (rstd != nullptr) require_shape("rstd", floats("rstd", rstd), rows_shape);
    const Rows rows({x, y, other ? other : x, sum ? sum : y, rstd ? rstd : x}, axis);
    std::vector<float> weights(n);
    load(gamma->data, gamma->dtype, gamma->strides[0], n, weights.data());
    for_rows(rows.count(), threads, [&](int64_t row) {
      const float* values = rows.read(0, row, kRow0);
      if (other != nullptr) {
        const float* more = rows.read(2, row, kRow1);
        float* added = scratch(kRow2, n);
        for (int64_t i = 0; i < n; ++i) added[i] = values[i] + more[i];
        if (sum != nullptr) rows.write(3, row, added);
        values = added;
      }
      const float mean = sum_of(n, [&](int64_t i) { return values[i] * values[i]; }) / float(n);
      const float scale = 1.0f / std::sqrt(mean + float(epsilon));
      float* results = scratch(kRow3, n);
      for (int64_t i = 0; i < n; ++i) results[i] = values[i] * scale * weights[i];
      rows.write(1, row, results);
      if (rstd != nullptr) rows.write(4, row, &scale);
    });
  });
}

extern "C" int mindgspo_rms_norm_backward(const mindgspo_tensor* d_y, const mindgspo_tensor* x,
                                          const mindgspo_tensor* rstd, const mindgspo_tensor* gamma,
                                          const mindgspo_tensor* added, const mindgspo_tensor* d_x,
                                          const mindgspo_tensor* d_gamma, int64_t threads) {
  return guarded([&] {
    REQUIRE(floats("x", x).rank >= 1, "x must have an axis");
    const int64_t axis = x->rank - 1;
    const int64_t n = x->shape[axis];
    require_shape("gamma", floats("gamma", gamma, 1), {n});
    require_shape("d_gamma", floats("d_gamma", d_gamma, 1), {n});
    require_like("d_y", floats("d_y", d_y), *x);
    require_like("d_x", floats("d_x", d_x), *x);
    std::vector<int64_t> rows_shape(x->shape, x->shape + x->rank);
    rows_shape[axis] = 1;
    require_shape("rstd", floats("rstd", rstd), rows_shape);
    if (added != nullptr) require_like("added", floats("added", added), *x);
    const Rows rows({x, d_y, d_x, rstd, added ? added : x}, axis);
    std::vector<float> weights(n);
    load(gamma->data, gamma->dtype, gamma->strides[0], n, weights.data());
    // Chunks of rows, as many as the shape says: the order of the sum over rows does not depend on the threads.
    constexpr int64_t kMostChunks = 32, kFewestRows = 64;
    const int64_t chunk = std::max(kFewestRows, (rows.count() + kMostChunks - 1) / kMostChunks);
    const int64_t chunks = std::max<int64_t>(1, (rows.count() + chunk - 1) / chunk);
    std::vector<float> partial(chunks * n);
    parallel(chunks, threads, [&](int64_t task) {
      float* d_weights = partial.data() + task * n;
      const int64_t end = std::min(rows.count(), (task + 1) * chunk);
      for (int64_t row = task * chunk; row < end; ++row) {
        const float *values = rows.read(0, row, kRow0), *d_values = rows.read(1, row, kRow1);
        const float scale = *rows.read(3, row, kRow2);
        float* results = scratch(kRow3, n);
        const float mean =
            sum_of(n, [&](int64_t i) { return d_values[i] * weights[i] * (values[i] * scale); }) / float(n);
        for (int64_t i = 0; i < n; ++i) {
          const float normal = values[i] * scale;
          d_weights[i] += d_values[i] * normal;
          results[i] = scale * (d_values[i] * weights[i] - normal * mean);
        }
        if (added != nullptr) {
          const float* more = rows.read(4, row, kWork0);
          for (int64_t i = 0; i < n; ++i) results[i] += more[i];
        }
        rows.write(2, row, results);
      }
    });
    std::vector<float> whole(n);
    add_chunks(partial, n, whole.data());
    store(d_gamma->data, d_gamma->dtype, d_gamma->strides[0], n, whole.data());
  });
}

extern "C" int mindgspo_softmax(const mindgspo_tensor* x, int64_t axis, int64_t is_log, const mindgspo_tensor* y,
                                int64_t threads) {
  return guarded([&] {
    axis = normalized_axis(axis, floats("x", x));
    require_like("y", floats("y", y), *x);
    const int64_t n = x->shape[axis];
    if (n == 0) return;
    const Rows rows({x, y}, axis);
    for_rows(rows.count(), threads, [&](int64_t row) {
      const float* values = rows.read(0, row, kRow0);
      float* results = scratch(kRow1, n);
      const float top = max_of(values, n);
      for (int64_t i = 0; i < n; ++i) results[i] = exp_of(values[i] - top);
      const float total = sum_of(n, [&](int64_t i) { return results[i]; });
      if (is_log) {
        const float shift = std::log(total);
        for (int64_t i = 0; i < n; ++i) results[i] = values[i] - top - shift;
      } else {
        const float factor = 1.0f / total;
        for (int64_t i = 0; i < n; ++i) results[i] *= factor;
      }
      rows.write(1, row, results);
    });
  });
}

extern "C" int mindgspo_softmax_backward(const mindgspo_tensor* d_y, const mindgspo_tensor* y, int64_t axis, int64_t is_log,
                                         const mindgspo_tensor* d_x, int64_t threads) {
  return guarded([&] {
    axis = normalized_axis(axis, floats("y", y));
    require_like("d_y", floats("d_y", d_y), *y);
    require_like("d_x", floats("d_x", d_x), *y);
    const int64_t n = y->shape[axis];
    const Rows rows({y, d_y, d_x}, axis);
    for_rows(rows.count(), threads, [&](int64_t row) {
      const float *values = rows.read(0, row, kRow0), *d_values = rows.read(1, row, kRow1);
      float* results = scratch(kRow2, n);
      if (is_log) {
        const float total = sum_of(n, [&](int64_t i) { return d_values[i]; });
        for (int64_t i = 0; i < n; ++i) results[i] = d_values[i] - exp_of(values[i]) * total;
      } else {
        const float total = sum_of(n, [&](int64_t i) { return d_values[i] * values[i]; });
        for (int64_t i = 0; i < n; ++i) results[i] = values[i] * (d_values[i] - total);
      }
      rows.write(2, row, results);
    });
  });
}

extern "C" int mindgspo_swiglu(const mindgspo_tensor* x, int64_t axis, const mindgspo_tensor* y, int64_t threads) {
  return guarded([&] {
    axis = normalized_axis(axis, floats("x", x));
    const Halves halves("x", *x, axis);
    require_like("y", floats("y", y), halves.gate);
    gated(halves.gate, halves.value, *y, threads);
  });
}

extern "C" int mindgspo_swiglu_backward(const mindgspo_tensor* d_y, const mindgspo_tensor* x, int64_t axis,
                                        const mindgspo_tensor* d_x, int64_t threads) {
  return guarded([&] {
    axis = normalized_axis(axis, floats("x", x));
    require_like("d_x", floats("d_x", d_x), *x);
    const Halves halves("x", *x, axis), d_halves("d_x", *d_x, axis);
    require_like("d_y", floats("d_y", d_y), halves.gate);
    gated_backward(*d_y, halves.gate, halves.value, d_halves.gate, d_halves.value, threads);
  });
}

extern "C" int mindgspo_gated(const mindgspo_tensor* gate, const mindgspo_tensor* up, const mindgspo_tensor* out,
                              int64_t threads) {
  return guarded([&] {
    require_like("up", floats("up", up), floats("gate", gate));
    require_like("out", floats("out", out), *gate);
    gated(*gate, *up, *out, threads);
  });
}

extern "C" int mindgspo_gated_backward(const mindgspo_tensor* d_out, const mindgspo_tensor* gate,
                                       const mindgspo_tensor* up, const mindgspo_tensor* d_gate,
                                       const mindgspo_tensor* d_up, int64_t threads) {
  return guarded([&] {
    floats("gate", gate);
    for (const auto& [name, x] : {std::pair{"up", up}, {"d_out", d_out}, {"d_gate", d_gate}, {"d_up", d_up}})
      require_like(name, floats(name, x), *gate);
    gated_backward(*d_out, *gate, *up, *d_gate, *d_up, threads);
  });
}

extern "C" int mindgspo_rotary(const mindgspo_tensor* x, const mindgspo_tensor* cos, const mindgspo_tensor* sin,
                               int64_t is_interleaved, int64_t is_backward, const mindgspo_tensor* y, int64_t threads) {
  return guarded([&] {
    REQUIRE(floats("x", x).rank >= 1, "x must have an axis");
    const int64_t axis = x->rank - 1;
    const int64_t n = x->shape[axis];
    REQUIRE(n % 2 == 0, "x must have an even last axis, not " + std::to_string(n));
    require_like("y", floats("y", y), *x);
    for (const auto& [name, table] : {std::pair{"cos", cos}, {"sin", sin}})
      REQUIRE(floats(name, table).rank == x->rank && table->shape[axis] == n,
              std::string(name) + " " + text_of_shape(*table) + " does not fit x " + text_of_shape(*x));
    const Rows rows({x, y, cos, sin}, axis);
    for_rows(rows.count(), threads, [&](int64_t row) {
      const float *values = rows.read(0, row, kRow0), *c = rows.read(2, row, kRow1), *s = rows.read(3, row, kRow2);
      float* results = scratch(kRow3, n);
      if (is_interleaved)
        rotate_pairs<2>(values, c, s, n, is_backward, results);
      else
        rotate_pairs<1>(values, c, s, n, is_backward, results);
      rows.write(1, row, results);
    });
  });
}

extern "C" int mindgspo_elementwise(int64_t which, const mindgspo_tensor* a, const mindgspo_tensor* b,
                                    const mindgspo_tensor* out, int64_t threads) {
  return guarded([&] {
    REQUIRE(which >= 0 && which <= 3, "operation " + std::to_string(which) + " is not one of 0 to 3");
    floats("a", a), floats("out", out);
    if (which != 2) floats("b", b);
    const Rows rows = Rows::of_elements({out, a, which == 2 ? a : b});
    for_rows(rows.count(), threads, [&](int64_t row) {
      const int64_t n = rows.length(0, row);
      const float *left = rows.read(1, row, kRow0), *right = which == 2 ? left : rows.read(2, row, kRow1);
      float* results = scratch(kRow2, n);
      const auto apply = [&](auto of) {
        for (int64_t i = 0; i < n; ++i) results[i] = of(left[i], right[i]);
      };
      if (which == 0) apply([](float x, float y) { return x + y; });
      if (which == 1) apply([](float x, float y) { return x * y; });
      if (which == 2) apply([](float x, float) { return silu(x); });
      if (which == 3) apply([](float x, float y) { return x * silu_slope(y); });
      rows.write(0, row, results);
    });
  });
}
