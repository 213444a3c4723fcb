// A mixture of experts around its products: router, slots by expert, and the sum of what the experts returned.
//
// Legend: M tokens, K experts per token, E experts, H hidden units, S slots.
#include <numeric>

#include "common.h"

using namespace mindgspo;

namespace {

float& number(const Tensor& x, int64_t row, int64_t column) {
  return *reinterpret_cast<float*>(element(x, row * x.strides[0] + column * x.strides[1]));
}

float number_at(const Tensor& x, int64_t at) { return *reinterpret_cast<float*>(element(x, at * x.strides[0])); }

int64_t index(const Tensor& x, int64_t row, int64_t column) {
  return integer_at(x, row * x.strides[0] + column * x.strides[1]);
}

int32_t& index_in(const Tensor& x, int64_t at) { return *reinterpret_cast<int32_t*>(element(x, at)); }

const Tensor& plain(const char* name, const Tensor* x, const std::vector<int64_t>& shape) {
  REQUIRE(floats(name, x, 2).dtype == kFloat32, std::string(name) + " must be float32");
  require_shape(name, *x, shape);
  return *x;
}

int64_t expert_of(const Tensor& experts, int64_t token, int64_t k, int64_t count) {
  const int64_t expert = index(experts, token, k);
  if (expert < 0 || expert >= count)
    throw std::invalid_argument("token " + std::to_string(token) + " goes to expert " + std::to_string(expert) + " of " +
                                std::to_string(count));
  return expert;
}

constexpr int64_t kTaskRows = 112;

// What experts are chosen by, scores [E] + bias, if there are groups: -infinity outside of the `best` of them, those with
// the largest sums of their two largest numbers. order: scratch, one per group.
void keep_best_groups(float* merits, int64_t count, int64_t groups, int64_t best, std::vector<int64_t>& order) {
  const int64_t size = count / groups;
  std::vector<float> sums(groups);
  for (int64_t g = 0; g < groups; ++g) {
    float first = -INFINITY, second = -INFINITY;
    for (int64_t e = g * size; e < (g + 1) * size; ++e) {
      second = std::max(second, std::min(first, merits[e])), first = std::max(first, merits[e]);
    }
    sums[g] = first + second, order[g] = g;
  }
  std::partial_sort(order.begin(), order.begin() + best, order.begin() + groups,
                    [&](int64_t a, int64_t b) { return sums[a] > sums[b] || (sums[a] == sums[b] && a < b); });
  for (int64_t i = best; i < groups; ++i)
    std::fill(merits + order[i] * size, merits + (order[i] + 1) * size, -INFINITY);
}

constexpr float kTiny = 1e-20f;  // what DeepSeek adds to the sum of a token's scores

}  // namespace

extern "C" int mindgspo_route(const mindgspo_tensor* x, const mindgspo_tensor* weight, const mindgspo_tensor* bias,
                              const mindgspo_tensor* given, int64_t is_sigmoid, int64_t is_normed, int64_t groups,
                              int64_t best_groups, double scale, const mindgspo_tensor* scores,
                              const mindgspo_tensor* experts, const mindgspo_tensor* weights, int64_t threads) {
  return guarded([&] {
    const int64_t tokens = floats("x", x, 2).shape[0], size = x->shape[1], count = floats("weight", weight, 2).shape[0];
    require_shape("weight", *weight, {count, size});
    plain("scores", scores, {tokens, count});
    const int64_t chosen = integers("experts", experts, 2).shape[1];
    REQUIRE(groups >= 1 && count % groups == 0 && best_groups >= 1 && best_groups <= groups,
            std::to_string(best_groups) + " of " + std::to_string(groups) + " groups of " + std::to_string(count));
    const int64_t most = count / groups * best_groups;
    REQUIRE(experts->dtype == kInt32 && chosen <= most, "experts must be int32, at most " + std::to_string(most));
    REQUIRE(floats("bias", bias, 1).dtype == kFloat32, "bias must be float32");
    require_shape("bias", *bias, {count});
    require_shape("experts", *experts, {tokens, chosen});
    plain("weights", weights, {tokens, chosen});
    if (given != nullptr) require_shape("given", integers("given", given, 2), {tokens, chosen});
    float* panels = scratch(kShared0, packed_size(size, count));
    pack(transposed(matrix_of(*weight)), panels, kFloat32, threads);
    parallel((tokens + kTaskRows - 1) / kTaskRows, threads, [&](int64_t task) {
      const int64_t first = task * kTaskRows, rows = std::min(kTaskRows, tokens - first);
      float *logits = scratch(kWork0, rows * count), *merits = scratch(kRow1, count);
      std::vector<int64_t> order(count);
      multiply_packed(part(matrix_of(*x), first, rows, 0, size), panels, count, logits, count, false);
      for (int64_t i = 0; i < rows; ++i) {
        float* row = logits + i * count;
        if (is_sigmoid) {
          for (int64_t e = 0; e < count; ++e) row[e] = sigmoid(row[e]);
        } else {
          const float top = max_of(row, count);
          for (int64_t e = 0; e < count; ++e) row[e] = exp_of(row[e] - top);
          const float factor = 1.0f / sum_of(count, [&](int64_t e) { return row[e]; });
          for (int64_t e = 0; e < count; ++e) row[e] *= factor;
        }
        write_row(*scores, first + i, row);
        for (int64_t e = 0; e < count; ++e) merits[e] = row[e] + number_at(*bias, e);
        if (best_groups < groups) keep_best_groups(merits, count, groups, best_groups, order);
        std::iota(order.begin(), order.end(), 0);
        std::partial_sort(order.begin(), order.begin() + chosen, order.end(), [&](int64_t a, int64_t b) {
          return merits[a] > merits[b] || (merits[a] == merits[b] && a < b);
        });
        for (int64_t k = 0; k < chosen; ++k)
          index_in(*experts, (first + i) * experts->strides[0] + k * experts->strides[1]) = int32_t(order[k]);
        if (given != nullptr)
          for (int64_t k = 0; k < chosen; ++k) order[k] = expert_of(*given, first + i, k, count);
        float sum = kTiny;
        for (int64_t k = 0; k < chosen; ++k) sum += row[order[k]];
        for (int64_t k = 0; k < chosen; ++k)
          number(*weights, first + i, k) = float(scale) * (is_normed ? row[order[k]] / sum : row[order[k]]);
      }
    });
  });
}

extern "C" int mindgspo_route_backward(const mindgspo_tensor* x, const mindgspo_tensor* weight, int64_t is_sigmoid,
                                       int64_t is_normed, double scale, const mindgspo_tensor* scores,
                                       const mindgspo_tensor* experts, const mindgspo_tensor* weights,
                                       const mindgspo_tensor* d_weights, const mindgspo_tensor* d_x,
                                       const mindgspo_tensor* d_weight, int64_t threads) {
  return guarded([&] {
    const int64_t tokens = floats("x", x, 2).shape[0], count = floats("weight", weight, 2).shape[0];
    plain("scores", scores, {tokens, count});
    const int64_t chosen = integers("experts", experts, 2).shape[1];
    plain("weights", weights, {tokens, chosen}), plain("d_weights", d_weights, {tokens, chosen});
    Tensor d_logits = *scores;
    d_logits.data = scratch(kShared3, tokens * count);
    d_logits.strides[0] = count, d_logits.strides[1] = 1;
    for_rows(tokens, threads, [&](int64_t token) {
      const float* p = read_row(*scores, token, kRow0);
      float* d = static_cast<float*>(d_logits.data) + token * count;  // first of the scores
      std::fill(d, d + count, 0.0f);
      float sum = kTiny, weighted = 0.0f;
      for (int64_t k = 0; k < chosen; ++k) {
        sum += p[index(*experts, token, k)];
        weighted += number(*d_weights, token, k) * number(*weights, token, k);
      }
      for (int64_t k = 0; k < chosen; ++k) {
        const float own = float(scale) * number(*d_weights, token, k);
        d[index(*experts, token, k)] = is_normed ? (own - weighted) / sum : own;
      }
      if (is_sigmoid) {
        for (int64_t e = 0; e < count; ++e) d[e] *= p[e] * (1.0f - p[e]);
        return;
      }
      const float mean = sum_of(count, [&](int64_t e) { return d[e] * p[e]; });
      for (int64_t e = 0; e < count; ++e) d[e] = p[e] * (d[e] - mean);
    });
    const Tensor *layer = weight, *d_out = &d_logits, *d_layer = d_weight, *no_bias = nullptr;
    Tensor wide = *x;  // float32 in all products, whatever x is: an upcast x takes the weight as it is
    std::vector<float> copy;
    if (x->dtype != kFloat32) {
      copy.resize(tokens * x->shape[1]);
      for (int64_t token = 0; token < tokens; ++token)
        load(element(*x, token * x->strides[0]), x->dtype, x->strides[1], x->shape[1], &copy[token * x->shape[1]]);
      wide.data = copy.data(), wide.dtype = kFloat32, wide.strides[0] = x->shape[1], wide.strides[1] = 1;
    }
    if (mindgspo_linear_backward(&wide, 1, &layer, &d_out, d_x, &d_layer, &no_bias, threads))
      throw std::invalid_argument(mindgspo_error());
  });
}

extern "C" int mindgspo_expert_slots(const mindgspo_tensor* experts, int64_t first, int64_t all,
                                     const mindgspo_tensor* slots, const mindgspo_tensor* tokens,
                                     const mindgspo_tensor* ends) {
  return guarded([&] {
    const int64_t rows = integers("experts", experts, 2).shape[0], chosen = experts->shape[1];
    const int64_t count = integers("ends", ends, 1).shape[0];
    require_shape("slots", integers("slots", slots, 2), {rows, chosen});
    require_shape("tokens", integers("tokens", tokens, 1), {rows * chosen});
    REQUIRE(slots->dtype == kInt32 && tokens->dtype == kInt32 && ends->dtype == kInt64,
            "slots and tokens must be int32, ends int64");
    std::vector<int64_t> next(count + 1);
    const auto own = [&](int64_t m, int64_t k) {
      const int64_t expert = expert_of(*experts, m, k, all) - first;
      return expert >= 0 && expert < count ? expert : -1;
    };
    for (int64_t m = 0; m < rows; ++m)
      for (int64_t k = 0; k < chosen; ++k) {
        const int64_t expert = own(m, k);
        if (expert >= 0) ++next[expert + 1];
      }
    for (int64_t e = 0; e < count; ++e) {
      next[e + 1] += next[e];
      *reinterpret_cast<int64_t*>(element(*ends, e * ends->strides[0])) = next[e + 1];
    }
    for (int64_t m = 0; m < rows; ++m)
      for (int64_t k = 0; k < chosen; ++k) {
        const int64_t expert = own(m, k), slot = expert < 0 ? -1 : next[expert]++;
        index_in(*slots, m * slots->strides[0] + k * slots->strides[1]) = int32_t(slot);
        if (slot >= 0) index_in(*tokens, slot * tokens->strides[0]) = int32_t(m);
      }
  });
}

extern "C" int mindgspo_combine(const mindgspo_tensor* rows, const mindgspo_tensor* slots,
                                const mindgspo_tensor* weights, const mindgspo_tensor* out, int64_t threads) {
  return guarded([&] {
    const int64_t tokens = floats("out", out, 2).shape[0], size = out->shape[1];
    const int64_t chosen = integers("slots", slots, 2).shape[1];
    require_shape("rows", floats("rows", rows, 2), {rows->shape[0], size});
    require_shape("slots", *slots, {tokens, chosen});
    plain("weights", weights, {tokens, chosen});
    for_rows(tokens, threads, [&](int64_t token) {
      float* sums = scratch(kRow1, size);
      std::fill(sums, sums + size, 0.0f);
      for (int64_t k = 0; k < chosen; ++k) {
        const int64_t slot = index(*slots, token, k);
        if (slot < 0) continue;
        const float *values = read_row(*rows, slot, kRow0), weight = number(*weights, token, k);
        for (int64_t i = 0; i < size; ++i) sums[i] += weight * values[i];
      }
      write_row(*out, token, sums);
    });
  });
}

extern "C" int mindgspo_combine_backward(const mindgspo_tensor* rows, const mindgspo_tensor* slots,
                                         const mindgspo_tensor* weights, const mindgspo_tensor* d_out,
                                         const mindgspo_tensor* d_rows, const mindgspo_tensor* d_weights,
                                         int64_t threads) {
  return guarded([&] {
    const int64_t tokens = floats("d_out", d_out, 2).shape[0], size = d_out->shape[1];
    const int64_t chosen = integers("slots", slots, 2).shape[1];
    require_shape("d_rows", floats("d_rows", d_rows, 2), {d_rows->shape[0], size});
    plain("weights", weights, {tokens, chosen}), plain("d_weights", d_weights, {tokens, chosen});
    for_rows(tokens, threads, [&](int64_t token) {
      const float* d = read_row(*d_out, token, kRow0);
      float* results = scratch(kRow1, size);
      for (int64_t k = 0; k < chosen; ++k) {
        const int64_t slot = index(*slots, token, k);
        if (slot < 0) {
          number(*d_weights, token, k) = 0.0f;
          continue;
        }
        const float *values = read_row(*rows, slot, kRow2), weight = number(*weights, token, k);
        number(*d_weights, token, k) = sum_of(size, [&](int64_t i) { return d[i] * values[i]; });
        for (int64_t i = 0; i < size; ++i) results[i] = weight * d[i];
        write_row(*d_rows, slot, results);
      }
    });
  });
}
