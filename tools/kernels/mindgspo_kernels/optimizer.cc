// Gradients added up, their norm, and AdamW, each in one pass over all weights.
#include <numeric>

#include "common.h"

namespace mindgspo {
namespace {

constexpr int64_t kPiece = 1 << 14;

float* values_of(const char* name, const Tensor* x, const Tensor& like) {
  const Tensor& checked = floats(name, x);
  REQUIRE(checked.dtype == kFloat32, std::string(name) + " must be float32");
  require_shape(name, checked, {like.shape, like.shape + like.rank});
  int64_t stride = 1;
  for (int axis = checked.rank - 1; axis >= 0; --axis) {
    REQUIRE(checked.shape[axis] == 1 || checked.strides[axis] == stride, std::string(name) + " must be contiguous");
    stride *= checked.shape[axis];
  }
  return static_cast<float*>(checked.data);
}

int64_t elements(const Tensor& x) {
  return std::accumulate(x.shape, x.shape + x.rank, int64_t(1), std::multiplies<int64_t>());
}

// All tensors in pieces: body(tensor, first element, elements, number of the piece); returns how many pieces.
template <class Body>
int64_t for_pieces(int64_t tensors, const Tensor* const* sizes, int64_t threads, Body body) {
  std::vector<std::pair<int64_t, int64_t>> pieces;
  for (int64_t i = 0; i < tensors; ++i)
    for (int64_t first = 0; first < elements(*sizes[i]); first += kPiece) pieces.emplace_back(i, first);
  parallel(int64_t(pieces.size()), threads, [&](int64_t piece) {
    const auto [tensor, first] = pieces[piece];
    body(tensor, first, std::min(kPiece, elements(*sizes[tensor]) - first), piece);
  });
  return int64_t(pieces.size());
}

}  // namespace
}  // namespace mindgspo

using namespace mindgspo;

extern "C" int mindgspo_accumulate(int64_t tensors, const mindgspo_tensor* const* gradients,
                                   const mindgspo_tensor* const* sums, int64_t is_added, double* squares,
                                   int64_t threads) {
  return guarded([&] {
    std::vector<const float*> from;
    std::vector<float*> to;
    int64_t most = 0;
    for (int64_t i = 0; i < tensors; ++i) {
      from.push_back(values_of("gradient", gradients[i], *gradients[i]));
      to.push_back(values_of("sum", sums[i], *gradients[i]));
      most += elements(*gradients[i]) / kPiece + 1;
    }
    std::vector<double> partial(most);
    for_pieces(tensors, gradients, threads, [&](int64_t tensor, int64_t first, int64_t n, int64_t piece) {
      const float* given = from[tensor] + first;
      float* sum = to[tensor] + first;
      constexpr int64_t kLanes = 8;
      double lanes[kLanes] = {};
      int64_t i = 0;
      const auto take = [&](int64_t i, int64_t lane) {
        const float value = is_added ? sum[i] + given[i] : given[i];
        sum[i] = value;
        lanes[lane] += double(value) * double(value);
      };
      for (; i + kLanes <= n; i += kLanes)
        for (int64_t lane = 0; lane < kLanes; ++lane) take(i + lane, lane);
      for (int64_t lane = 0; i < n; ++i, ++lane) take(i, lane);
      partial[piece] = std::accumulate(lanes, lanes + kLanes, 0.0);
    });
    *squares = std::accumulate(partial.begin(), partial.end(), 0.0);
  });
}

extern "C" int mindgspo_adamw(int64_t tensors, const mindgspo_tensor* const* weights,
                              const mindgspo_tensor* const* first_moments,
                              const mindgspo_tensor* const* second_moments, const mindgspo_tensor* const* gradients,
                              const int64_t* decays, mindgspo_adamw_step step, int64_t threads) {
  return guarded([&] {
    struct Of {
      float *p, *m, *v;
      const float* g;
    };
    std::vector<Of> all;
    for (int64_t i = 0; i < tensors; ++i)
      all.push_back({values_of("weight", weights[i], *weights[i]), values_of("m", first_moments[i], *weights[i]),
                     values_of("v", second_moments[i], *weights[i]), values_of("gradient", gradients[i], *weights[i])});
    const float clip = float(step.clip_scale), size = float(step.step_size), epsilon = float(step.root_epsilon);
    const float beta1 = float(step.beta1), beta2 = float(step.beta2), rest1 = 1.0f - beta1, rest2 = 1.0f - beta2;
    for_pieces(tensors, weights, threads, [&](int64_t tensor, int64_t first, int64_t n, int64_t) {
      const Of& of = all[tensor];
      const float decay = decays[tensor] ? float(step.decay) : 0.0f;
      float *p = of.p + first, *m = of.m + first, *v = of.v + first;
      const float* g = of.g + first;
      for (int64_t i = 0; i < n; ++i) {
        const float gradient = g[i] * clip;
        m[i] += rest1 * (gradient - m[i]);
        v[i] += rest2 * (gradient * gradient - v[i]);
        // p - decay p, not p (1 - decay): for a decay of 1e-8 the factor would be rounded.
        p[i] = (p[i] - p[i] * decay) - size * m[i] / (std::sqrt(v[i]) + epsilon);
      }
    });
  });
}
