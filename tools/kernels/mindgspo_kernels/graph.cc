// The operators as MindSpore's `ops.Custom` calls them on CPU (aot): raw memory, shapes and names of dtypes; inputs
// first, then outputs, all contiguous. `mindgspo.parallel.ops.kernels` has the Python side.
//
// `tokens` is an integer tensor whose last element says how many leading rows are in use. Others are neither read nor
// written: graphs have one shape, and cost what is in them.
#include <cstdio>
#include <mutex>
#include <numeric>
#include <string_view>

#include "common.h"

using namespace mindgspo;

namespace {

int32_t dtype_of(std::string_view name) {
  if (name == "float32") return kFloat32;
  if (name == "float16") return kFloat16;
  if (name == "bfloat16") return kBFloat16;
  if (name == "int16") return kInt16;
  if (name == "int32") return kInt32;
  if (name == "int64") return kInt64;
  if (name == "uint8") return kUint8;
  if (name == "bool") return kBool;
  throw std::invalid_argument("dtype " + std::string(name) + " is not known");
}

// A tensor with another number of axes over the same memory.
Tensor reshaped(const Tensor& x, std::initializer_list<int64_t> shape) {
  Tensor other{};
  other.data = x.data, other.dtype = x.dtype, other.rank = int32_t(shape.size());
  std::copy(shape.begin(), shape.end(), other.shape);
  int64_t stride = 1;
  for (int axis = other.rank - 1; axis >= 0; --axis) {
    other.strides[axis] = stride;
    stride *= other.shape[axis];
  }
  return other;
}

int64_t row_elements(const Tensor& x) {
  int64_t product = 1;
  for (int axis = 1; axis < x.rank; ++axis) product *= x.shape[axis];
  return product;
}

// What an operator is called with.
class Arguments {
 public:
  Arguments(int count, void** data, int* ranks, int64_t** shapes, const char** dtypes) {
    tensors_.reserve(count);
    for (int i = 0; i < count; ++i) {
      Tensor one{};
      REQUIRE(ranks[i] <= kMaxRank, "argument " + std::to_string(i) + " has " + std::to_string(ranks[i]) + " axes");
      one.data = data[i], one.dtype = dtype_of(dtypes[i]), one.rank = ranks[i];
      int64_t stride = 1;
      for (int axis = one.rank - 1; axis >= 0; --axis) {
        one.shape[axis] = shapes[i][axis], one.strides[axis] = stride;
        stride *= one.shape[axis];
      }
      tensors_.push_back(one);
    }
  }

  // The next argument; `used`: its leading rows alone.
  const Tensor* next() { return &tensors_.at(at_++); }
  const Tensor* next(int64_t used) {
    Tensor& one = tensors_.at(at_++);
    REQUIRE(one.rank >= 1 && used >= 0 && used <= one.shape[0],
            std::to_string(used) + " rows in use of " + text_of_shape(one));
    one.shape[0] = used;
    return &one;
  }
  // The same as rows of one axis: [M, ..] as [M, the rest].
  const Tensor* next_flat(int64_t used) {
    Tensor& one = tensors_.at(at_);
    REQUIRE(one.rank >= 1 && one.rank <= 3, text_of_shape(one) + " is not rows of features or heads");
    one = reshaped(one, {one.shape[0], row_elements(one)});
    return next(used);
  }
  size_t count() const { return tensors_.size(); }
  void skip(int64_t count) { at_ += count; }
  void go_to(int64_t argument) { at_ = argument; }

  float number(int64_t argument, int64_t i = 0) const { return static_cast<float*>(tensors_.at(argument).data)[i]; }
  int64_t integer(int64_t argument, int64_t i) const { return integer_at(tensors_.at(argument), i); }
  int64_t length(int64_t argument) const { return tensors_.at(argument).shape[0]; }
  const Tensor& tensor(int64_t argument) const { return tensors_.at(argument); }
  // The number of rows in use, of the argument `tokens`.
  int64_t used(int64_t argument) const {
    const Tensor& tokens = tensors_.at(argument);
    int64_t last = 1;
    for (int axis = 0; axis < tokens.rank; ++axis) last *= tokens.shape[axis];
    return integer(argument, last - 1);
  }

 private:
  std::vector<Tensor> tensors_;
  size_t at_ = 0;
};

int64_t processors = default_threads();

void check(int result) {
  if (result != 0) throw std::runtime_error(mindgspo_error());
}

std::mutex failing;
std::string failure;

// MindSpore knows only that an operator failed; why is written to standard error, and kept for who asks.
template <class Body>
int run(const char* name, int count, void** data, int* ranks, int64_t** shapes, const char** dtypes, Body body) {
  const int result = guarded([&] {
    Arguments arguments(count, data, ranks, shapes, dtypes);
    body(arguments);
  });
  if (result != 0) {
    std::lock_guard<std::mutex> lock(failing);
    failure = std::string(name) + ": " + mindgspo_error();
    std::fprintf(stderr, "mindgspo kernels: %s\n", failure.c_str());
  }
  return result;
}

// A weight [H] of a norm, rounded to the dtype of what it is multiplied with.
struct Rounded {
  std::vector<float> values;
  Tensor tensor;

  const Tensor* get() const { return &tensor; }

  Rounded(const Tensor& weight, int32_t dtype) : tensor(weight) {
    if (dtype == kFloat32 || weight.dtype == dtype) return;
    values.resize(weight.shape[0]);
    load(weight.data, weight.dtype, 1, int64_t(values.size()), values.data());
    round_to(dtype, int64_t(values.size()), values.data());
    tensor.data = values.data(), tensor.dtype = kFloat32;
  }
};

}  // namespace

extern "C" const char* mindgspo_graph_failure() {
  std::lock_guard<std::mutex> lock(failing);
  static std::string told;
  told = failure;
  return told.c_str();
}

extern "C" int64_t mindgspo_threads(int64_t limit) {
  if (limit > 0) processors = std::min(limit, default_threads());
  return processors;
}

#define GRAPH_OPERATOR(name)                                                                                         \
  static void name##_body(Arguments& in);                                                                            \
  extern "C" int graph_##name(int count, void** data, int* ranks, int64_t** shapes, const char** dtypes, void*, void*) { \
    return run(#name, count, data, ranks, shapes, dtypes, name##_body);                                              \
  }                                                                                                                  \
  static void name##_body(Arguments& in)
// The same operator by another name: MindSpore remembers one gradient function per name, and thereby its inputs.
#define GRAPH_ALIAS(alias, name)                                                                                     \
  extern "C" int graph_##alias(int count, void** data, int* ranks, int64_t** shapes, const char** dtypes, void*, void*) { \
    return run(#name, count, data, ranks, shapes, dtypes, name##_body);                                              \
  }

// x, weight, epsilon, tokens -> y, rstd
GRAPH_OPERATOR(rms_norm) {
  const int64_t used = in.used(3);
  const Tensor *x = in.next(used), *weight = in.next();
  in.skip(2);
  const Tensor *y = in.next(used), *rstd = in.next(used);
  check(mindgspo_rms_norm(x, nullptr, Rounded(*weight, x->dtype).get(), in.number(2), y, rstd, nullptr, processors));
}

// d_y, x, rstd, weight, tokens -> d_x, d_weight
GRAPH_OPERATOR(rms_norm_grad) {
  const int64_t used = in.used(4);
  const Tensor *d_y = in.next(used), *x = in.next(used), *rstd = in.next(used), *weight = in.next();
  in.skip(1);
  const Tensor *d_x = in.next(used), *d_weight = in.next();
  check(mindgspo_rms_norm_backward(d_y, x, rstd, Rounded(*weight, x->dtype).get(), nullptr, d_x, d_weight,
                                   processors));
}

static void add_and_norm(const Tensor& x, const Tensor& delta, const Tensor& weight, float epsilon, const Tensor& y,
                         const Tensor& sum, const Tensor& rstd) {
  if (sum.dtype == kFloat32)
    return check(mindgspo_rms_norm(&x, &delta, &weight, epsilon, &y, &rstd, &sum, processors));
  // What is normed is the rounded sum: as where it is made in front of the norm, and as the backward pass reads it.
  check(mindgspo_elementwise(0, &x, &delta, &sum, processors));
  check(mindgspo_rms_norm(&sum, nullptr, Rounded(weight, x.dtype).get(), epsilon, &y, &rstd, nullptr, processors));
}

// x, delta, weight, epsilon, tokens -> y, x + delta, rstd
GRAPH_OPERATOR(add_rms_norm) {
  const int64_t used = in.used(4);
  const Tensor *x = in.next(used), *delta = in.next(used), *weight = in.next();
  in.skip(2);
  const Tensor *y = in.next(used), *sum = in.next(used), *rstd = in.next(used);
  add_and_norm(*x, *delta, *weight, in.number(3), *y, *sum, *rstd);
}

// d_y, d_sum, sum, rstd, weight, tokens -> the gradient of x, which is delta's too, d_weight
GRAPH_OPERATOR(add_rms_norm_grad) {
  const int64_t used = in.used(5);
  const Tensor *d_y = in.next(used), *d_sum = in.next(used), *sum = in.next(used), *rstd = in.next(used);
  const Tensor* weight = in.next();
  in.skip(1);
  const Tensor *d_x = in.next(used), *d_weight = in.next();
  check(mindgspo_rms_norm_backward(d_y, sum, rstd, Rounded(*weight, sum->dtype).get(), d_sum, d_x, d_weight,
                                   processors));
}

namespace {

// Of layers: weight, then bias where `biased` says so.
struct Layers {
  std::vector<const Tensor*> weights, biases;
  Layers(Arguments& in, int64_t biased) {
    for (int64_t i = 0; i < in.length(biased); ++i) {
      weights.push_back(in.next());
      biases.push_back(in.integer(biased, i) ? in.next() : nullptr);
    }
  }
};

std::vector<const Tensor*> rows_of(Arguments& in, size_t count, int64_t used) {
  std::vector<const Tensor*> tensors;
  for (size_t i = 0; i < count; ++i) tensors.push_back(in.next(used));
  return tensors;
}

// The same, as rows of one axis.
std::vector<const Tensor*> flat_rows_of(Arguments& in, size_t count, int64_t used) {
  std::vector<const Tensor*> tensors;
  for (size_t i = 0; i < count; ++i) tensors.push_back(in.next_flat(used));
  return tensors;
}

}  // namespace

// x, tokens, biased [layers], then each layer's weight and bias -> outs [M, O], or by heads, [M, heads, O / heads]
GRAPH_OPERATOR(linear) {
  const int64_t used = in.used(1);
  const Tensor* x = in.next(used);
  in.go_to(3);
  const Layers layers(in, 2);
  const auto outs = flat_rows_of(in, layers.weights.size(), used);
  check(mindgspo_linear(x, int64_t(outs.size()), layers.weights.data(), layers.biases.data(), outs.data(), processors));
}

GRAPH_ALIAS(linear_1, linear)
GRAPH_ALIAS(linear_1_biased, linear)
GRAPH_ALIAS(linear_2, linear)
GRAPH_ALIAS(linear_3, linear)
GRAPH_ALIAS(linear_3_biased, linear)
GRAPH_ALIAS(linear_1_frozen, linear)
GRAPH_ALIAS(linear_2_frozen, linear)
GRAPH_ALIAS(linear_3_frozen, linear)
GRAPH_ALIAS(linear_3_biased_frozen, linear)

// x, tokens, biased, weights and biases, d_outs -> d_x, then each layer's d_weight and d_bias, not written where frozen
static void linear_backward(Arguments& in, bool is_frozen) {
  const int64_t used = in.used(1);
  const Tensor* x = in.next(used);
  in.go_to(3);
  const Layers layers(in, 2);
  const auto d_outs = flat_rows_of(in, layers.weights.size(), used);
  const Tensor* d_x = in.next(used);
  const auto backward = [&](const Tensor* const* d_weights, const Tensor* const* d_biases) {
    check(mindgspo_linear_backward(x, int64_t(d_outs.size()), layers.weights.data(), d_outs.data(), d_x, d_weights,
                                   d_biases, processors));
  };
  if (is_frozen) return backward(nullptr, nullptr);
  const Layers gradients(in, 2);
  backward(gradients.weights.data(), gradients.biases.data());
}
GRAPH_OPERATOR(linear_grad) { linear_backward(in, false); }
GRAPH_OPERATOR(linear_input_grad) { linear_backward(in, true); }

namespace {

// Of layers: weight, bias where `form` [layers, 2] says so, and an adapter's A and B, which mean nothing where it says
// that there is none.
struct AdaptedLayers {
  std::vector<const Tensor*> weights, biases, as, bs;
  AdaptedLayers(Arguments& in, int64_t form) {
    for (int64_t i = 0; i < in.length(form); ++i) {
      weights.push_back(in.next());
      biases.push_back(in.integer(form, 2 * i) ? in.next() : nullptr);
      for (auto* matrices : {&as, &bs}) {
        const Tensor* one = in.next();
        matrices->push_back(in.integer(form, 2 * i + 1) ? one : nullptr);
      }
    }
  }
};

}  // namespace

// x, tokens, form, scale, then each layer's weight, bias, A and B -> outs [M, O], or by heads, [M, heads, O / heads]
GRAPH_OPERATOR(adapted_linear) {
  const int64_t used = in.used(1);
  const Tensor* x = in.next(used);
  in.go_to(4);
  const AdaptedLayers layers(in, 2);
  const auto outs = flat_rows_of(in, layers.weights.size(), used);
  check(mindgspo_adapted_linear(x, int64_t(outs.size()), layers.weights.data(), layers.biases.data(), layers.as.data(),
                                layers.bs.data(), in.number(3), outs.data(), processors));
}

GRAPH_ALIAS(adapted_linear_1, adapted_linear)
GRAPH_ALIAS(adapted_linear_2, adapted_linear)
GRAPH_ALIAS(adapted_linear_3, adapted_linear)
GRAPH_ALIAS(adapted_linear_3_biased, adapted_linear)

// x, tokens, form, scale, the layers, d_outs -> d_x, then each layer's d_A and d_B, not written without an adapter
GRAPH_OPERATOR(adapted_linear_grad) {
  const int64_t used = in.used(1);
  const Tensor* x = in.next(used);
  in.go_to(4);
  const AdaptedLayers layers(in, 2);
  const auto d_outs = flat_rows_of(in, layers.weights.size(), used);
  const Tensor* d_x = in.next(used);
  std::vector<const Tensor*> d_as, d_bs;
  for (size_t i = 0; i < d_outs.size(); ++i) d_as.push_back(in.next()), d_bs.push_back(in.next());
  check(mindgspo_adapted_linear_backward(x, int64_t(d_outs.size()), layers.weights.data(), layers.as.data(),
                                         layers.bs.data(), in.number(3), d_outs.data(), d_x, d_as.data(), d_bs.data(),
                                         processors));
}

// query, key, positions, cos, sin, tokens -> rotated query, rotated key
static void rotate(Arguments& in, bool is_interleaved, bool is_backward) {
  const int64_t used = in.used(5);
  const Tensor *query = in.next(used), *key = in.next(used), *positions = in.next(used), *cos = in.next();
  const Tensor* sin = in.next();
  in.skip(1);
  const Tensor *rotated_query = in.next(used), *rotated_key = in.next(used);
  check(mindgspo_rotate_heads(query, positions, cos, sin, is_interleaved, is_backward, rotated_query, processors));
  check(mindgspo_rotate_heads(key, positions, cos, sin, is_interleaved, is_backward, rotated_key, processors));
}
GRAPH_OPERATOR(rotary) { rotate(in, false, false); }
GRAPH_OPERATOR(rotary_interleaved) { rotate(in, true, false); }
// d_query, d_key, positions, cos, sin, tokens -> gradients of query and key
GRAPH_OPERATOR(rotary_grad) { rotate(in, false, true); }
GRAPH_OPERATOR(rotary_interleaved_grad) { rotate(in, true, true); }

namespace {

constexpr mindgspo_visible kCausal{int64_t(1) << 40, 0, 1};

// The argument `segments`: where each sequence ends among the tokens, cumulative; or, in two columns, which earlier
// sequence each continues (-1: none), and its end.
struct Segments {
  std::vector<int64_t> prefixes, ends;

  Segments(const Arguments& in, int64_t argument) {
    const bool has_prefixes = in.tensor(argument).rank == 2;
    for (int64_t i = 0; i < in.length(argument); ++i) {
      prefixes.push_back(has_prefixes ? in.integer(argument, 2 * i) : -1);
      ends.push_back(in.integer(argument, has_prefixes ? 2 * i + 1 : i));
    }
  }
  int64_t used() const { return ends.back(); }
  int64_t count() const { return int64_t(ends.size()); }
};

// [M, heads, D] as the one batch entry [1, M, heads, D]; statistics [M, heads] as [1, M, heads, 1].
Tensor one_entry(const Tensor& x) {
  return x.rank == 3 ? reshaped(x, {1, x.shape[0], x.shape[1], x.shape[2]}) : reshaped(x, {1, x.shape[0], x.shape[1], 1});
}
// The same of [M, heads * E], with the heads of q and the features of v, each with one entry.
Tensor one_entry(const Tensor& x, const Tensor& q, const Tensor& v) {
  REQUIRE(x.shape[1] == q.shape[2] * v.shape[3],
          text_of_shape(x) + " does not have the heads of " + text_of_shape(q) + " and features of " + text_of_shape(v));
  return reshaped(x, {1, x.shape[0], q.shape[2], v.shape[3]});
}

}  // namespace

// query, key, value, segments, scale -> out [M, heads * E], highest, total
GRAPH_OPERATOR(attention) {
  const Segments of(in, 3);
  const int64_t used = of.used();
  const Tensor q = one_entry(*in.next(used)), k = one_entry(*in.next(used)), v = one_entry(*in.next(used));
  in.skip(2);
  const Tensor out = one_entry(*in.next(used), q, v), highest = one_entry(*in.next(used)), total = one_entry(*in.next(used));
  check(mindgspo_attention(&q, &k, &v, nullptr, of.ends.data(), of.ends.data(), of.prefixes.data(), of.count(),
                           in.number(4), kCausal, &highest, &total, &out, processors));
}

// query, key, value, segments, scale, out, highest, total, d_out -> d_query, d_key, d_value
GRAPH_OPERATOR(attention_grad) {
  const Segments of(in, 3);
  const int64_t used = of.used();
  const Tensor q = one_entry(*in.next(used)), k = one_entry(*in.next(used)), v = one_entry(*in.next(used));
  in.skip(2);
  const Tensor out = one_entry(*in.next(used), q, v), highest = one_entry(*in.next(used)), total = one_entry(*in.next(used));
  const Tensor d_out = one_entry(*in.next(used), q, v), d_q = one_entry(*in.next(used)), d_k = one_entry(*in.next(used));
  const Tensor d_v = one_entry(*in.next(used));
  check(mindgspo_attention_backward(&q, &k, &v, nullptr, of.ends.data(), of.ends.data(), of.prefixes.data(), of.count(),
                                    in.number(4), kCausal, &highest, &total, &out, &d_out, &d_q, &d_k, &d_v, processors));
}

// gate, up, tokens -> out
GRAPH_OPERATOR(gated) {
  const int64_t used = in.used(2);
  const Tensor *gate = in.next(used), *up = in.next(used);
  in.skip(1);
  check(mindgspo_gated(gate, up, in.next(used), processors));
}

// d_out, gate, up, tokens -> d_gate, d_up
GRAPH_OPERATOR(gated_grad) {
  const int64_t used = in.used(3);
  const Tensor *d_out = in.next(used), *gate = in.next(used), *up = in.next(used);
  in.skip(1);
  const Tensor *d_gate = in.next(used), *d_up = in.next(used);
  check(mindgspo_gated_backward(d_out, gate, up, d_gate, d_up, processors));
}

// ids, table, tokens -> out
GRAPH_OPERATOR(embedding) {
  const int64_t used = in.used(2);
  const Tensor *ids = in.next(used), *table = in.next();
  in.skip(1);
  check(mindgspo_embedding(ids, table, in.next(used), processors));
}

// ids, table, tokens, d_out -> d_table
GRAPH_OPERATOR(embedding_grad) {
  const int64_t used = in.used(2);
  const Tensor* ids = in.next(used);
  in.skip(2);
  const Tensor* d_out = in.next(used);
  check(mindgspo_embedding_backward(ids, d_out, in.next(), processors));
}

// hidden, weight, rows, targets, inverse_temperature, tokens -> log_probs, log_sums
static void log_prob(Arguments& in, bool with_entropy) {
  const Tensor *hidden = in.next(), *weight = in.next(), *rows = in.next(), *targets = in.next();
  in.skip(2);
  const Tensor *log_probs = in.next(), *log_sums = in.next(), *entropies = with_entropy ? in.next() : nullptr;
  check(mindgspo_log_prob(hidden, rows, weight, targets, in.number(4), log_probs, log_sums, entropies, processors));
}
GRAPH_OPERATOR(log_prob) { log_prob(in, false); }
// the same -> log_probs, log_sums, entropies
GRAPH_OPERATOR(log_prob_entropy) { log_prob(in, true); }

// hidden, weight, rows, targets, inverse_temperature, tokens, log_sums, d_log_probs -> d_hidden, d_weight
static void log_prob_backward(Arguments& in, bool with_entropy, bool is_frozen = false) {
  const Tensor *hidden = in.next(), *weight = in.next(), *rows = in.next(), *targets = in.next();
  in.skip(2);
  const Tensor *log_sums = in.next(), *d_log_probs = in.next();
  const Tensor *entropies = with_entropy ? in.next() : nullptr, *d_entropies = with_entropy ? in.next() : nullptr;
  const Tensor *d_hidden = in.next(in.used(5)), *d_weight = is_frozen ? nullptr : in.next();
  check(mindgspo_log_prob_backward(hidden, rows, weight, targets, in.number(4), log_sums, entropies, d_log_probs,
                                   d_entropies, d_hidden, d_weight, processors));
}
GRAPH_OPERATOR(log_prob_grad) { log_prob_backward(in, false); }
// the same, then entropies, d_entropies -> d_hidden, d_weight
GRAPH_OPERATOR(log_prob_entropy_grad) { log_prob_backward(in, true); }
// the same for a weight that is not trained -> d_hidden
GRAPH_OPERATOR(log_prob_input_grad) { log_prob_backward(in, false, true); }
GRAPH_OPERATOR(log_prob_entropy_input_grad) { log_prob_backward(in, true, true); }
GRAPH_ALIAS(log_prob_frozen, log_prob)
GRAPH_ALIAS(log_prob_entropy_frozen, log_prob_entropy)

// rule, float32: is_sigmoid, is_normed, groups, best_groups, scale
static void route(Arguments& in, bool is_given) {
  const int64_t used = in.used(4 + is_given), rule = 3 + is_given;
  const Tensor *x = in.next(used), *weight = in.next(), *bias = in.next();
  const Tensor* given = is_given ? in.next(used) : nullptr;
  in.skip(2);
  const Tensor *experts = in.next(used), *weights = in.next(used), *scores = in.next(used);
  const auto integer = [&](int64_t i) { return int64_t(in.number(rule, i)); };
  check(mindgspo_route(x, weight, bias, given, integer(0), integer(1), integer(2), integer(3), in.number(rule, 4), scores,
                       experts, weights, processors));
}
// x, weight, bias, rule, tokens -> experts, weights, scores
GRAPH_OPERATOR(route) { route(in, false); }
// x, weight, bias, given experts, rule, tokens -> the experts that it would choose, weights of the given ones, scores
GRAPH_OPERATOR(route_given) { route(in, true); }

// x, weight, rule, tokens, experts, weights, scores, d_weights -> d_x, d_weight
GRAPH_OPERATOR(route_grad) {
  const int64_t used = in.used(3);
  const Tensor *x = in.next(used), *weight = in.next();
  in.skip(2);
  const Tensor *experts = in.next(used), *weights = in.next(used), *scores = in.next(used), *d_weights = in.next(used);
  const Tensor *d_x = in.next(used), *d_weight = in.next();
  check(mindgspo_route_backward(x, weight, int64_t(in.number(2, 0)), int64_t(in.number(2, 1)), in.number(2, 4), scores,
                                experts, weights, d_weights, d_x, d_weight, processors));
}

// experts, [first of the own ones, number of all], tokens -> slots, token of each slot, ends
GRAPH_OPERATOR(expert_slots) {
  const int64_t used = in.used(2);
  const Tensor* experts = in.next(used);
  in.skip(2);
  const Tensor *slots = in.next(used), *tokens = in.next(used * experts->shape[1]), *ends = in.next();
  check(mindgspo_expert_slots(experts, in.integer(1, 0), in.integer(1, 1), slots, tokens, ends));
}

// x, ends, then weights -> outs
GRAPH_OPERATOR(grouped_linear) {
  const std::vector<int64_t> ends = Segments(in, 1).ends;
  const Tensor* x = in.next(ends.back());
  in.skip(1);
  const size_t layers = (in.count() - 2) / 2;
  std::vector<const Tensor*> weights;
  for (size_t i = 0; i < layers; ++i) weights.push_back(in.next());
  const auto outs = rows_of(in, layers, ends.back());
  check(mindgspo_grouped_linear(x, ends.data(), int64_t(layers), weights.data(), outs.data(), processors));
}

GRAPH_ALIAS(grouped_linear_1, grouped_linear)
GRAPH_ALIAS(grouped_linear_2, grouped_linear)
GRAPH_ALIAS(grouped_linear_1_frozen, grouped_linear)
GRAPH_ALIAS(grouped_linear_2_frozen, grouped_linear)

// x, ends, weights, d_outs -> d_x, and d_weights, not written where frozen
static void grouped_linear_backward(Arguments& in, bool is_frozen) {
  const std::vector<int64_t> ends = Segments(in, 1).ends;
  const Tensor* x = in.next(ends.back());
  in.skip(1);
  const size_t layers = (in.count() - 3) / 3;
  std::vector<const Tensor*> weights, d_weights;
  for (size_t i = 0; i < layers; ++i) weights.push_back(in.next());
  const auto d_outs = rows_of(in, layers, ends.back());
  const Tensor* d_x = in.next(ends.back());
  for (size_t i = 0; i < layers && !is_frozen; ++i) d_weights.push_back(in.next());
  check(mindgspo_grouped_linear_backward(x, ends.data(), int64_t(layers), weights.data(), d_outs.data(), d_x,
                                         is_frozen ? nullptr : d_weights.data(), processors));
}
GRAPH_OPERATOR(grouped_linear_grad) { grouped_linear_backward(in, false); }
GRAPH_OPERATOR(grouped_linear_input_grad) { grouped_linear_backward(in, true); }

// rows, slots, weights, tokens -> out
GRAPH_OPERATOR(combine) {
  const int64_t used = in.used(3);
  const Tensor *rows = in.next(), *slots = in.next(used), *weights = in.next(used);
  in.skip(1);
  check(mindgspo_combine(rows, slots, weights, in.next(used), processors));
}

// rows, slots, weights, tokens, d_out -> d_rows, d_weights
GRAPH_OPERATOR(combine_grad) {
  const int64_t used = in.used(3);
  const Tensor *rows = in.next(), *slots = in.next(used), *weights = in.next(used);
  in.skip(1);
  const Tensor *d_out = in.next(used), *d_rows = in.next(), *d_weights = in.next(used);
  check(mindgspo_combine_backward(rows, slots, weights, d_out, d_rows, d_weights, processors));
}

static void packed_product(const Tensor& x, const Tensor* panels, const Tensor& out) {
  const Tensor *none = nullptr, *to = &out;
  check(mindgspo_packed_linear(&x, 1, &panels, &none, &to, processors));
}

// x, tokens, panels -> out
GRAPH_OPERATOR(packed_linear) {
  const int64_t used = in.used(1);
  const Tensor* x = in.next(used);
  in.skip(1);
  const Tensor* panels = in.next();
  packed_product(*x, panels, *in.next(used));
}

// like: of the dtype to round to, weights, then the panels of each, which are written -> 0
GRAPH_OPERATOR(pack_linears) {
  const size_t layers = (in.count() - 2) / 2;
  for (size_t i = 1; i <= layers; ++i)
    check(mindgspo_pack_linear(&in.tensor(i), &in.tensor(0), &in.tensor(layers + i), processors));
  static_cast<int32_t*>(in.tensor(2 * layers + 1).data)[0] = 0;
}

namespace {

// A cache [blocks, size, heads, D] whose keys lie by columns inside a block, [heads, D, size], and values by rows,
// [heads, size, D]: attention reads both where they are.
Tensor by_columns(const Tensor& cache) {
  REQUIRE(cache.rank == 4, "a cache has four axes, not " + text_of_shape(cache));
  Tensor view = cache;
  view.strides[1] = 1, view.strides[2] = cache.shape[1] * cache.shape[3], view.strides[3] = cache.shape[1];
  return view;
}
Tensor by_rows(const Tensor& cache) {
  REQUIRE(cache.rank == 4, "a cache has four axes, not " + text_of_shape(cache));
  Tensor view = cache;
  view.strides[1] = cache.shape[3], view.strides[2] = cache.shape[1] * cache.shape[3], view.strides[3] = 1;
  return view;
}

}  // namespace

// keys [M, heads, D], values, key cache, value cache, which are written, slots [M], tokens -> 0
GRAPH_OPERATOR(store_tokens) {
  const int64_t used = in.used(5);
  const Tensor *keys = in.next(used), *values = in.next(used), key_cache = by_columns(*in.next());
  const Tensor value_cache = by_rows(*in.next()), *slots = in.next(used);
  check(mindgspo_store_tokens(keys, slots, &key_cache, processors));
  check(mindgspo_store_tokens(values, slots, &value_cache, processors));
  in.skip(1);
  static_cast<int32_t*>(in.next()->data)[0] = 0;
}

namespace {

// Results that the next kernel of an operator reads; valid until the thread's next operator.
class Intermediates {
 public:
  Tensor make(int32_t dtype, std::initializer_list<int64_t> shape) {
    static thread_local std::vector<std::vector<Line>> memory;
    if (next_ == memory.size()) memory.emplace_back();
    std::vector<Line>& own = memory[next_++];
    const int64_t bytes = std::accumulate(shape.begin(), shape.end(), size_of(dtype), std::multiplies<int64_t>());
    own.resize(std::max(own.size(), size_t(bytes / sizeof(Line) + 1)));
    Tensor made{};
    made.dtype = dtype, made.data = own.data();
    return reshaped(made, shape);
  }

 private:
  struct alignas(64) Line {
    char bytes[64];
  };
  size_t next_ = 0;
};

// norm(x + delta), or of x alone without a delta; `sum` becomes what was normed.
Tensor normed_sum(const Tensor& x, const Tensor* delta, const Tensor& weight, float epsilon, const Tensor& sum,
                  Intermediates& between) {
  const Tensor y = between.make(x.dtype, {x.shape[0], x.shape[1]}), rstd = between.make(kFloat32, {x.shape[0], 1});
  if (delta != nullptr)
    add_and_norm(x, *delta, weight, epsilon, y, sum, rstd);
  else {
    std::memcpy(sum.data, x.data, x.shape[0] * x.shape[1] * size_of(x.dtype));
    check(mindgspo_rms_norm(&x, nullptr, Rounded(weight, x.dtype).get(), epsilon, &y, &rstd, nullptr, processors));
  }
  return y;
}

}  // namespace

// query [S, heads, D], key cache, value cache, table, lengths, scale, tokens -> out [S, heads * E]
GRAPH_OPERATOR(paged_attention) {
  const int64_t used = in.used(6);
  const Tensor *query = in.next(used), keys = by_columns(*in.next()), values = by_rows(*in.next());
  const Tensor *table = in.next(used), *lengths = in.next(used);
  const float scale = in.number(5);
  in.go_to(7);
  const Tensor out = reshaped(*in.next(used), {used, query->shape[1], values.shape[3]});
  check(mindgspo_paged_attention(query, &keys, &values, table, lengths, scale, &out, processors));
}

// A decoder layer's attention of one token per sequence, in one operator: `add_rms_norm`, `packed_linear`, norms of heads,
// `rotary`, `store_tokens`, `paged_attention` and `packed_linear` again.
// x [S, H], delta, norm's weight, epsilon, positions, cos, sin, tokens, key cache, value cache, which are written, slots,
// table, lengths, scale, [has delta, has biases, has norms of heads, is interleaved], panels of output, query, key and
// value, biases of the last three, weights of the norms of query and key -> x + delta, out
GRAPH_OPERATOR(decode_attention) {
  const int64_t used = in.used(7);
  const Tensor *x = in.next(used), *delta = in.next(used), *weight = in.next();
  const float epsilon = in.number(3), scale = in.number(13);
  in.skip(1);
  const Tensor *positions = in.next(used), *cos = in.next(), *sin = in.next();
  in.skip(1);
  const Tensor keys = by_columns(*in.next()), values = by_rows(*in.next());
  const Tensor *slots = in.next(used), *table = in.next(used), *lengths = in.next(used);
  in.go_to(15);
  const Tensor* output = in.next();
  std::vector<const Tensor*> panels, biases, norms;
  for (int i = 0; i < 3; ++i) panels.push_back(in.next());
  for (int i = 0; i < 3; ++i) biases.push_back(in.integer(14, 1) ? in.next() : nullptr);
  for (int i = 0; i < 2; ++i) norms.push_back(in.integer(14, 2) ? in.next() : nullptr);
  const Tensor *sum = in.next(used), *out = in.next(used);

  Intermediates between;
  const Tensor y = normed_sum(*x, in.integer(14, 0) ? delta : nullptr, *weight, epsilon, *sum, between);
  const int64_t size = keys.shape[3], kv_heads = keys.shape[2], heads = output->shape[1] / size;
  std::vector<Tensor> projected, flat;
  std::vector<const Tensor*> outs;
  for (const int64_t count : {heads, kv_heads, kv_heads}) {
    projected.push_back(between.make(x->dtype, {used, count, size}));
    flat.push_back(reshaped(projected.back(), {used, count * size}));
  }
  for (const Tensor& one : flat) outs.push_back(&one);
  check(mindgspo_packed_linear(&y, 3, panels.data(), biases.data(), outs.data(), processors));
  for (int i = 0; i < 2; ++i) {
    Tensor& of_heads = projected[i];
    if (norms[i] != nullptr) {
      const Tensor normed = between.make(x->dtype, {used, of_heads.shape[1], size});
      const Tensor rstd = between.make(kFloat32, {used, of_heads.shape[1], 1});
      const Rounded rounded(*norms[i], x->dtype);
      check(mindgspo_rms_norm(&of_heads, nullptr, rounded.get(), epsilon, &normed, &rstd, nullptr, processors));
      of_heads = normed;
    }
    const Tensor rotated = between.make(x->dtype, {used, of_heads.shape[1], size});
    check(mindgspo_rotate_heads(&of_heads, positions, cos, sin, in.integer(14, 3), false, &rotated, processors));
    of_heads = rotated;
  }
  check(mindgspo_store_tokens(&projected[1], slots, &keys, processors));
  check(mindgspo_store_tokens(&projected[2], slots, &values, processors));
  const Tensor attended = between.make(x->dtype, {used, heads, size});
  check(mindgspo_paged_attention(&projected[0], &keys, &values, table, lengths, scale, &attended, processors));
  packed_product(reshaped(attended, {used, heads * size}), output, *out);
}

// A dense block of few tokens: `add_rms_norm`, `packed_linear`, `gated` and `packed_linear` again.
// x [S, H], delta, norm's weight, epsilon, tokens, panels of gate, up and down -> x + delta, out
GRAPH_OPERATOR(decode_feed_forward) {
  const int64_t used = in.used(4);
  const Tensor *x = in.next(used), *delta = in.next(used), *weight = in.next();
  in.skip(2);
  const Tensor* panels[2] = {in.next(), in.next()};
  const Tensor *down = in.next(), *biases[2] = {nullptr, nullptr};
  const Tensor *sum = in.next(used), *out = in.next(used);

  Intermediates between;
  const Tensor y = normed_sum(*x, delta, *weight, in.number(3), *sum, between);
  const int64_t inner = down->shape[1];
  const Tensor gate = between.make(x->dtype, {used, inner}), up = between.make(x->dtype, {used, inner});
  const Tensor *outs[2] = {&gate, &up}, gated = between.make(x->dtype, {used, inner});
  check(mindgspo_packed_linear(&y, 2, panels, biases, outs, processors));
  check(mindgspo_gated(&gate, &up, &gated, processors));
  packed_product(gated, down, *out);
}

// sources [n], targets [n], then caches, which are written -> 0
GRAPH_OPERATOR(copy_blocks) {
  const int64_t blocks = in.length(0);
  const size_t caches = in.count() - 3;
  parallel(blocks * int64_t(caches), processors, [&](int64_t task) {
    const Tensor& cache = in.tensor(2 + task / blocks);
    const int64_t source = in.integer(0, task % blocks), target = in.integer(1, task % blocks);
    if (source == target) return;
    REQUIRE(source >= 0 && source < cache.shape[0] && target >= 0 && target < cache.shape[0],
            "blocks " + std::to_string(source) + " and " + std::to_string(target) + " of " + text_of_shape(cache));
    std::memcpy(element(cache, target * cache.strides[0]), element(cache, source * cache.strides[0]),
                cache.strides[0] * size_of(cache.dtype));
  });
  static_cast<int32_t*>(in.tensor(2 + caches).data)[0] = 0;
}

// logits, uniforms, inverse_temperatures, greedy, top_k, top_p, tokens -> ids, log_probs
GRAPH_OPERATOR(sample) {
  const int64_t used = in.used(6);
  const auto rows = rows_of(in, 4, used);
  in.skip(3);
  const Tensor *ids = in.next(used), *log_probs = in.next(used);
  check(mindgspo_sample(rows[0], rows[1], rows[2], rows[3], in.integer(4, 0), in.number(5), ids, log_probs, processors));
}

// is_added, gradients, then their sums, which are written -> the sum of their squares
GRAPH_OPERATOR(accumulate) {
  const size_t count = (in.count() - 2) / 2;
  in.skip(1);
  const auto take = [&] {
    std::vector<const Tensor*> tensors;
    for (size_t i = 0; i < count; ++i) tensors.push_back(in.next());
    return tensors;
  };
  const auto gradients = take(), sums = take();
  double squares = 0.0;
  check(mindgspo_accumulate(int64_t(count), gradients.data(), sums.data(), in.integer(0, 0), &squares, processors));
  static_cast<float*>(in.next()->data)[0] = float(squares);
}

// clip_scale, step_size, root_epsilon, decay, betas [2], decays [n], then weights, both moments, which are written, and
// gradients -> 0
GRAPH_OPERATOR(adamw) {
  const size_t count = (in.count() - 7) / 4;
  const mindgspo_adamw_step step{in.number(0), in.number(1), in.number(2), in.number(3), in.number(4, 0), in.number(4, 1)};
  std::vector<int64_t> decays;
  for (int64_t i = 0; i < in.length(5); ++i) decays.push_back(in.integer(5, i));
  REQUIRE(decays.size() == count, std::to_string(decays.size()) + " decays for " + std::to_string(count) + " weights");
  in.skip(6);
  std::vector<std::vector<const Tensor*>> groups(4);
  for (auto& group : groups)
    for (size_t i = 0; i < count; ++i) group.push_back(in.next());
  check(mindgspo_adamw(int64_t(count), groups[0].data(), groups[1].data(), groups[2].data(), groups[3].data(),
                       decays.data(), step, processors));
  static_cast<int32_t*>(in.next()->data)[0] = 0;
}

namespace {

// The argument `cell` of a collective: a number that tells this one from others, two axes, then the ranks, ascending.
struct Group {
  int64_t number, split_axis, concat_axis;
  std::vector<int64_t> ranks;

  Group(const Arguments& in, int64_t argument)
      : number(in.integer(argument, 0)), split_axis(in.integer(argument, 1)), concat_axis(in.integer(argument, 2)) {
    for (int64_t i = 3; i < in.length(argument); ++i) ranks.push_back(in.integer(argument, i));
  }
  int64_t count() const { return int64_t(ranks.size()); }
};

}  // namespace

// x, cell -> the sum of all ranks' x
GRAPH_OPERATOR(all_reduce) {
  const Group group(in, 1);
  const Tensor *x = &in.tensor(0), *out = &in.tensor(2);
  check(mindgspo_all_reduce(nullptr, group.ranks.data(), group.count(), group.number, 1, &x, &out));
}

// x [M, ..], cell -> [ranks * M, ..]
GRAPH_OPERATOR(all_gather) {
  const Group group(in, 1);
  check(mindgspo_all_gather(nullptr, group.ranks.data(), group.count(), group.number, &in.tensor(0), in.length(0),
                            &in.tensor(2)));
}

// x [M, ..], tokens, cell -> [ranks * M, ..], zeros in the rows that are not in use
GRAPH_OPERATOR(all_gather_used) {
  const Group group(in, 2);
  check(mindgspo_all_gather(nullptr, group.ranks.data(), group.count(), group.number, &in.tensor(0), in.used(1),
                            &in.tensor(3)));
}

// x [M, ..], cell -> this rank's rows of the sum [M / ranks, ..]
GRAPH_OPERATOR(reduce_scatter) {
  const Group group(in, 1);
  check(mindgspo_reduce_scatter(nullptr, group.ranks.data(), group.count(), group.number, &in.tensor(0), &in.tensor(2)));
}

// x, cell -> the blocks that all ranks have for this one
GRAPH_OPERATOR(all_to_all) {
  const Group group(in, 1);
  check(mindgspo_all_to_all(nullptr, group.ranks.data(), group.count(), group.number, &in.tensor(0), group.split_axis,
                            group.concat_axis, &in.tensor(2)));
}
