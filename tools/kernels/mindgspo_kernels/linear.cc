// Linear layers that read one input, of all tokens or of each expert's, and their gradients.
//
// Legend: M tokens, I input features, O output features of a layer, E experts.
#include <memory>

#include "common.h"

namespace mindgspo {
namespace {

// Rows of one task, few enough that two threads end together: whole tiles of registers, of 14 rows or 6, or of AMX, of 32.
constexpr int64_t kTaskRows = 126, kTaskRowsOfPairs = 128;

void convert(const float* values, int64_t n, const Tensor& out, int64_t row, int64_t column) {
  store(element(out, row * out.strides[0] + column * out.strides[1]), out.dtype, out.strides[1], n, values);
}

// What is added to a product before it is rounded: left @ panels, of as many rows and columns.
struct Addend {
  Matrix left;
  Panels panels;
};

// One product left @ panels -> out (+ addend + bias), cut into tasks for `parallel`.
struct Product {
  Matrix left;
  Panels panels;
  const Tensor* out;
  const Tensor* bias;
  bool is_added;  // to what out holds, which is float32 then
  const Addend* addend;
  int64_t rows_of_task, columns_of_task, row_tasks, column_tasks;

  Product(const Matrix& left, const Panels& panels, const Tensor& out, const Tensor* bias, bool is_added,
          int64_t threads, const Addend* addend = nullptr)
      : left(left), panels(panels), out(&out), bias(bias), is_added(is_added), addend(addend),
        rows_of_task(panels.are_pairs ? kTaskRowsOfPairs : kTaskRows),
        columns_of_task(panels_of(out.shape[1]) * kPanel) {
    row_tasks = (left.rows + rows_of_task - 1) / rows_of_task;
    column_tasks = 1;
    // Few rows: columns are shared out, too.
    const int64_t wanted = threads > 1 ? 3 * threads : 1, panels_in_all = panels_of(out.shape[1]);
    if (row_tasks > 0 && row_tasks < wanted) {
      column_tasks = std::min(panels_in_all, (wanted + row_tasks - 1) / row_tasks);
      const int64_t panels_of_task = (panels_in_all + column_tasks - 1) / column_tasks;
      column_tasks = (panels_in_all + panels_of_task - 1) / panels_of_task;
      columns_of_task = panels_of_task * kPanel;
    }
  }

  int64_t tasks() const { return row_tasks * column_tasks; }

  void run(int64_t task) const {
    const int64_t row = task / column_tasks * rows_of_task, column = task % column_tasks * columns_of_task;
    const int64_t rows = std::min(rows_of_task, left.rows - row);
    const int64_t columns = std::min(columns_of_task, out->shape[1] - column);
    const Matrix some = part(left, row, rows, 0, left.columns);
    char* place = element(*out, row * out->strides[0] + column * out->strides[1]);
    if (bias == nullptr && !is_added && addend == nullptr && out->dtype == kBFloat16 && out->strides[1] == 1)
      return multiply_packed(some, panels, column, columns, {place, out->strides[0], kBFloat16}, false);
    const bool is_direct = out->dtype == kFloat32 && out->strides[1] == 1;
    float* product = is_direct ? reinterpret_cast<float*>(place) : scratch(kProduct, rows * columns);
    const int64_t stride = is_direct ? out->strides[0] : columns;
    if (is_added && !is_direct)
      for (int64_t i = 0; i < rows; ++i)
        load(element(*out, (row + i) * out->strides[0] + column * out->strides[1]), out->dtype, out->strides[1], columns,
             product + i * stride);
    multiply_packed(some, panels, column, columns, {product, stride}, is_added);
    if (addend != nullptr)
      multiply_packed(part(addend->left, row, rows, 0, addend->left.columns), addend->panels, column, columns,
                      {product, stride}, true);
    if (bias != nullptr) {
      float* added = scratch(kRow0, columns);
      load(element(*bias, column * bias->strides[0]), bias->dtype, bias->strides[0], columns, added);
      round_to(left.dtype, columns, added);
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < columns; ++j) product[i * stride + j] += added[j];
    }
    if (!is_direct)
      for (int64_t i = 0; i < rows; ++i) convert(product + i * stride, columns, *out, row + i, column);
  }
};

void run_all(const std::vector<Product>& products, int64_t threads) {
  int64_t tasks = 0;
  for (const Product& one : products) tasks += one.tasks();
  parallel(tasks, threads, [&](int64_t task) {
    for (const Product& one : products) {
      if (task < one.tasks()) return one.run(task);
      task -= one.tasks();
    }
  });
}

int64_t features(const char* name, const Tensor* weight, int64_t inputs) {
  const Tensor& checked = floats(name, weight, 2);
  REQUIRE(checked.shape[1] == inputs, std::string(name) + " " + text_of_shape(checked) + " does not take " +
                                          std::to_string(inputs) + " features");
  return checked.shape[0];
}

}  // namespace
}  // namespace mindgspo

using namespace mindgspo;

extern "C" int mindgspo_linear(const mindgspo_tensor* x, int64_t layers, const mindgspo_tensor* const* weights,
                               const mindgspo_tensor* const* biases, const mindgspo_tensor* const* outs,
                               int64_t threads) {
  return guarded([&] {
    const int64_t tokens = floats("x", x, 2).shape[0], inputs = x->shape[1];
    int64_t size = 0;
    for (int64_t i = 0; i < layers; ++i) {
      const int64_t outputs = features("weight", weights[i], inputs);
      require_shape("out", floats("out", outs[i], 2), {tokens, outputs});
      if (biases[i] != nullptr) require_shape("bias", floats("bias", biases[i], 1), {outputs});
      size += packed_size(inputs, outputs);
    }
    if (tokens == 0) return;
    float* panels = scratch(kShared0, size);
    std::vector<Product> products;
    for (int64_t i = 0; i < layers; ++i) {
      const Panels own = pack_for(x->dtype, transposed(matrix_of(*weights[i])), panels, threads);
      products.emplace_back(matrix_of(*x), own, *outs[i], biases[i], false, threads);
      panels += packed_size(inputs, outs[i]->shape[1]);
    }
    run_all(products, threads);
  });
}

extern "C" int64_t mindgspo_panel_columns() { return kPanel; }

extern "C" int mindgspo_pack_linear(const mindgspo_tensor* weight, const mindgspo_tensor* like,
                                    const mindgspo_tensor* panels, int64_t threads) {
  return guarded([&] {
    floats("weight", weight, 2);
    require_shape("panels", floats("panels", panels, 3), {panels_of(weight->shape[0]), weight->shape[1], kPanel});
    REQUIRE(panels->dtype == kFloat32 && panels->strides[2] == 1 && panels->strides[1] == kPanel,
            "panels must be contiguous float32");
    pack_for(floats("like", like).dtype, transposed(matrix_of(*weight)), static_cast<float*>(panels->data), threads);
  });
}

extern "C" int mindgspo_packed_linear(const mindgspo_tensor* x, int64_t layers, const mindgspo_tensor* const* panels,
                                      const mindgspo_tensor* const* biases, const mindgspo_tensor* const* outs,
                                      int64_t threads) {
  return guarded([&] {
    const int64_t tokens = floats("x", x, 2).shape[0], inputs = x->shape[1];
    std::vector<Product> products;
    for (int64_t i = 0; i < layers; ++i) {
      const int64_t outputs = floats("out", outs[i], 2).shape[1];
      require_shape("out", *outs[i], {tokens, outputs});
      require_shape("panels", floats("panels", panels[i], 3), {panels_of(outputs), inputs, kPanel});
      if (biases[i] != nullptr) require_shape("bias", floats("bias", biases[i], 1), {outputs});
      const Panels own(x->dtype, inputs, static_cast<const float*>(panels[i]->data));
      products.emplace_back(matrix_of(*x), own, *outs[i], biases[i], false, threads);
    }
    run_all(products, threads);
  });
}

extern "C" int mindgspo_linear_backward(const mindgspo_tensor* x, int64_t layers,
                                        const mindgspo_tensor* const* weights, const mindgspo_tensor* const* d_outs,
                                        const mindgspo_tensor* d_x, const mindgspo_tensor* const* d_weights,
                                        const mindgspo_tensor* const* d_biases, int64_t threads) {
  return guarded([&] {
    const int64_t tokens = floats("x", x, 2).shape[0], inputs = x->shape[1];
    require_shape("d_x", floats("d_x", d_x, 2), {tokens, inputs});
    int64_t most = 0;
    for (int64_t i = 0; i < layers; ++i) {
      const int64_t outputs = features("weight", weights[i], inputs);
      require_shape("d_out", floats("d_out", d_outs[i], 2), {tokens, outputs});
      if (d_weights != nullptr) require_shape("d_weight", floats("d_weight", d_weights[i], 2), {outputs, inputs});
      if (d_biases != nullptr && d_biases[i] != nullptr) require_shape("d_bias", floats("d_bias", d_biases[i], 1), {outputs});
      most = std::max(most, packed_size(outputs, inputs));
    }
    bool are_bfloat16 = x->dtype == kBFloat16;
    for (int64_t i = 0; i < layers; ++i) are_bfloat16 = are_bfloat16 && d_outs[i]->dtype == kBFloat16;
    // Gradients of the weights: d_out^T x, the sum over tokens from the first on.
    if (d_weights != nullptr) {
      float* of_x = scratch(kShared1, packed_size(tokens, inputs));
      const Panels all_x = pack_for(are_bfloat16 ? kBFloat16 : kFloat32, matrix_of(*x), of_x, threads);
      std::vector<Product> products;
      for (int64_t i = 0; i < layers; ++i)
        products.emplace_back(transposed(matrix_of(*d_outs[i])), all_x, *d_weights[i], nullptr, false, threads);
      run_all(products, threads);
    }
    // That of the input: sum over the layers of d_out W, in float32 where there are several.
    const bool is_direct = d_x->dtype == kFloat32 || layers == 1;
    Tensor sum = *d_x;
    if (!is_direct) {
      sum.data = scratch(kShared2, tokens * inputs);
      sum.dtype = kFloat32, sum.strides[0] = inputs, sum.strides[1] = 1;
    }
    float* panels = scratch(kShared0, most);
    for (int64_t i = 0; i < layers; ++i) {
      const Matrix weight = matrix_of(*weights[i]);
      Panels own(kFloat32, weight.rows, panels);
      if (are_bfloat16)
        own = pack_for(kBFloat16, weight, panels, threads);
      else
        pack(weight, panels, x->dtype, threads);
      run_all({Product(matrix_of(*d_outs[i]), own, sum, nullptr, i > 0, threads)}, threads);
    }
    if (!is_direct)
      for_rows(tokens, threads, [&](int64_t row) {
        convert(static_cast<const float*>(sum.data) + row * inputs, inputs, *d_x, row, 0);
      });
    for (int64_t i = 0; i < layers; ++i) {
      if (d_biases == nullptr || d_biases[i] == nullptr) continue;
      const int64_t outputs = d_biases[i]->shape[0];
      constexpr int64_t kColumns = 64;
      parallel((outputs + kColumns - 1) / kColumns, threads, [&](int64_t task) {
        const int64_t first = task * kColumns, n = std::min(kColumns, outputs - first);
        float total[kColumns] = {}, row[kColumns];
        for (int64_t token = 0; token < tokens; ++token) {
          const Tensor& d = *d_outs[i];
          load(element(d, token * d.strides[0] + first * d.strides[1]), d.dtype, d.strides[1], n, row);
          for (int64_t j = 0; j < n; ++j) total[j] += row[j];
        }
        const Tensor& out = *d_biases[i];
        store(element(out, first * out.strides[0]), out.dtype, out.strides[0], n, total);
      });
    }
  });
}

namespace {

// A layer's adapter, scale (x A^T) B^T: scale A, and x's rows or gradients times one of its matrices, in work memory.
struct Adapter {
  const Tensor *a, *b;
  int64_t rank;
  Tensor scaled, low, d_low;

  // work: `work_size` floats. like: tokens [M, I] with the dtype of `low` and `d_low`, [M, rank].
  Adapter(const Tensor* a, const Tensor* b, double scale, const Tensor& like, bool is_backward, float*& work)
      : a(a), b(b), rank(a->shape[0]) {
    const int64_t inputs = like.shape[1];
    scaled = taken(work, kFloat32, rank, inputs);
    low = taken(work, like.dtype, like.shape[0], rank);
    if (is_backward) d_low = taken(work, like.dtype, like.shape[0], rank);
    float* values = static_cast<float*>(scaled.data);
    for (int64_t row = 0; row < rank; ++row, values += inputs) {
      load(element(*a, row * a->strides[0]), a->dtype, a->strides[1], inputs, values);
      for (int64_t i = 0; i < inputs; ++i) values[i] *= float(scale);
    }
  }

  static int64_t work_size(int64_t rank, const Tensor& like) {
    return aligned(rank * like.shape[1]) + 2 * aligned(rank * like.shape[0]);
  }

 private:
  static int64_t aligned(int64_t floats) { return (floats + 15) / 16 * 16; }
  static Tensor taken(float*& work, int32_t dtype, int64_t rows, int64_t columns) {
    Tensor made{};
    made.data = work, made.dtype = dtype, made.rank = 2;
    made.shape[0] = rows, made.shape[1] = columns, made.strides[0] = columns, made.strides[1] = 1;
    work += aligned(rows * columns);
    return made;
  }
};

// Of layers with and without adapters: checked sizes, and the adapters that there are.
struct AdaptedLayers {
  int64_t most = 0, panels = 0;  // floats of the largest weight's panels, and of all adapters'
  std::vector<std::unique_ptr<Adapter>> adapters;

  AdaptedLayers(const Tensor& x, int64_t layers, const Tensor* const* weights, const Tensor* const* as,
                const Tensor* const* bs, double scale, bool is_backward) {
    const int64_t tokens = x.shape[0], inputs = x.shape[1];
    int64_t size = 0;
    for (int64_t i = 0; i < layers; ++i) {
      const int64_t outputs = features("weight", weights[i], inputs);
      most = std::max(most, packed_size(outputs, inputs));
      if (as[i] == nullptr) continue;
      const int64_t rank = features("a", as[i], inputs);
      require_shape("b", floats("b", bs[i], 2), {outputs, rank});
      size += Adapter::work_size(rank, x);
      // Forward: of A^T and B^T. Backward: those of A^T, B, scale A and the product with A.
      panels += packed_size(inputs, rank) + (is_backward ? packed_size(outputs, rank) + packed_size(rank, inputs) +
                                                               packed_size(tokens, rank)
                                                         : packed_size(rank, outputs));
    }
    float* work = scratch(kShared3, size);
    for (int64_t i = 0; i < layers; ++i)
      adapters.push_back(as[i] == nullptr ? nullptr
                                          : std::make_unique<Adapter>(as[i], bs[i], scale, x, is_backward, work));
  }
};

// Numbers of b for left operands of x's dtype at `place`, which goes on behind them. are_bfloat16: those are bfloat16.
Panels packed(const Matrix& b, bool are_bfloat16, int32_t rounded, float*& place, int64_t threads) {
  float* own = place;
  place += packed_size(b.rows, b.columns);
  if (are_bfloat16) return pack_for(kBFloat16, b, own, threads);
  pack(b, own, rounded, threads);
  return Panels(kFloat32, b.rows, own);
}

}  // namespace

extern "C" int mindgspo_adapted_linear(const mindgspo_tensor* x, int64_t layers, const mindgspo_tensor* const* weights,
                                       const mindgspo_tensor* const* biases, const mindgspo_tensor* const* as,
                                       const mindgspo_tensor* const* bs, double scale,
                                       const mindgspo_tensor* const* outs, int64_t threads) {
  return guarded([&] {
    const int64_t tokens = floats("x", x, 2).shape[0], inputs = x->shape[1];
    const AdaptedLayers adapted(*x, layers, weights, as, bs, scale, false);
    int64_t size = adapted.panels;
    for (int64_t i = 0; i < layers; ++i) {
      require_shape("out", floats("out", outs[i], 2), {tokens, weights[i]->shape[0]});
      if (biases[i] != nullptr) require_shape("bias", floats("bias", biases[i], 1), {weights[i]->shape[0]});
      size += packed_size(inputs, weights[i]->shape[0]);
    }
    if (tokens == 0) return;
    float* place = scratch(kShared0, size);
    const auto pack_next = [&](const Matrix& b) {
      float* own = place;
      place += packed_size(b.rows, b.columns);
      return pack_for(x->dtype, b, own, threads);
    };
    std::vector<Product> downs, products;
    for (const auto& one : adapted.adapters)
      if (one)
        downs.emplace_back(matrix_of(*x), pack_next(transposed(matrix_of(one->scaled))), one->low, nullptr, false,
                           threads);
    run_all(downs, threads);
    std::vector<Addend> addends;
    addends.reserve(layers);
    for (int64_t i = 0; i < layers; ++i) {
      const Adapter* own = adapted.adapters[i].get();
      if (own) addends.push_back({matrix_of(own->low), pack_next(transposed(matrix_of(*own->b)))});
      products.emplace_back(matrix_of(*x), pack_next(transposed(matrix_of(*weights[i]))), *outs[i], biases[i], false,
                            threads, own ? &addends.back() : nullptr);
    }
    run_all(products, threads);
  });
}

extern "C" int mindgspo_adapted_linear_backward(const mindgspo_tensor* x, int64_t layers,
                                                const mindgspo_tensor* const* weights, const mindgspo_tensor* const* as,
                                                const mindgspo_tensor* const* bs, double scale,
                                                const mindgspo_tensor* const* d_outs, const mindgspo_tensor* d_x,
                                                const mindgspo_tensor* const* d_as, const mindgspo_tensor* const* d_bs,
                                                int64_t threads) {
  return guarded([&] {
    const int64_t tokens = floats("x", x, 2).shape[0], inputs = x->shape[1];
    require_shape("d_x", floats("d_x", d_x, 2), {tokens, inputs});
    const AdaptedLayers adapted(*x, layers, weights, as, bs, scale, true);
    bool are_bfloat16 = x->dtype == kBFloat16;
    for (int64_t i = 0; i < layers; ++i) {
      require_shape("d_out", floats("d_out", d_outs[i], 2), {tokens, weights[i]->shape[0]});
      are_bfloat16 = are_bfloat16 && d_outs[i]->dtype == kBFloat16;
      if (as[i] == nullptr) continue;
      const int64_t rank = as[i]->shape[0];
      require_shape("d_a", floats("d_a", d_as[i], 2), {rank, inputs});
      require_shape("d_b", floats("d_b", d_bs[i], 2), {weights[i]->shape[0], rank});
      REQUIRE(d_as[i]->dtype == kFloat32 && d_as[i]->strides[1] == 1, "d_a must be float32, its rows contiguous");
    }
    float* place = scratch(kShared0, adapted.most + adapted.panels);
    const auto pack_next = [&](const Matrix& b) { return packed(b, are_bfloat16, x->dtype, place, threads); };
    // Made again: x A^T. And the gradients that come to it: d_out B.
    std::vector<Product> lows, gradients;
    for (int64_t i = 0; i < layers; ++i) {
      const Adapter* own = adapted.adapters[i].get();
      if (!own) continue;
      lows.emplace_back(matrix_of(*x), pack_next(transposed(matrix_of(own->scaled))), own->low, nullptr, false, threads);
      lows.emplace_back(matrix_of(*d_outs[i]), pack_next(matrix_of(*own->b)), own->d_low, nullptr, false, threads);
    }
    run_all(lows, threads);
    // Sums over tokens from the first on: d_B = d_out^T (x A^T), d_A = (d_out B)^T x.
    float* of_x = scratch(kShared1, packed_size(tokens, inputs));
    const Panels all_x = pack_for(are_bfloat16 ? kBFloat16 : kFloat32, matrix_of(*x), of_x, threads);
    for (int64_t i = 0; i < layers; ++i) {
      const Adapter* own = adapted.adapters[i].get();
      if (!own) continue;
      gradients.emplace_back(transposed(matrix_of(*d_outs[i])), pack_next(matrix_of(own->low)), *d_bs[i], nullptr,
                             false, threads);
      gradients.emplace_back(transposed(matrix_of(own->d_low)), all_x, *d_as[i], nullptr, false, threads);
    }
    run_all(gradients, threads);
    for (int64_t i = 0; i < layers; ++i)
      for (int64_t row = 0; as[i] != nullptr && row < as[i]->shape[0]; ++row) {
        float* values = reinterpret_cast<float*>(element(*d_as[i], row * d_as[i]->strides[0]));
        for (int64_t j = 0; j < inputs; ++j) values[j] *= float(scale);
      }
    // That of the input: sum over the layers of d_out W + (d_out B) A, rounded once.
    const bool is_direct = d_x->dtype == kFloat32 || layers == 1;
    Tensor sum = *d_x;
    if (!is_direct) {
      sum.data = scratch(kShared2, tokens * inputs);
      sum.dtype = kFloat32, sum.strides[0] = inputs, sum.strides[1] = 1;
    }
    for (int64_t i = 0; i < layers; ++i) {
      const Adapter* own = adapted.adapters[i].get();
      Addend addend{own ? matrix_of(own->d_low) : matrix_of(*x), all_x};
      if (own) addend.panels = pack_next(matrix_of(own->scaled));
      float* of_weight = place;
      const Panels panels = packed(matrix_of(*weights[i]), are_bfloat16, x->dtype, of_weight, threads);
      run_all({Product(matrix_of(*d_outs[i]), panels, sum, nullptr, i > 0, threads, own ? &addend : nullptr)}, threads);
    }
    if (!is_direct)
      for_rows(tokens, threads, [&](int64_t row) {
        convert(static_cast<const float*>(sum.data) + row * inputs, inputs, *d_x, row, 0);
      });
  });
}

namespace {

// Of tensors [E, O, I] and rows sorted by expert: what belongs to one expert.
struct Expert {
  int64_t number, first, rows;

  Tensor tokens(const Tensor& x) const {
    Tensor own = x;
    own.data = element(x, first * x.strides[0]), own.shape[0] = rows;
    return own;
  }
  Tensor weight(const Tensor& x) const {
    Tensor own = x;
    own.data = element(x, number * x.strides[0]), own.rank = 2;
    std::copy(x.shape + 1, x.shape + 3, own.shape), std::copy(x.strides + 1, x.strides + 3, own.strides);
    return own;
  }
};

// body(expert, its layers' weights, theirs of `outs`) for every expert.
template <class Body>
void for_experts(const Tensor& x, const int64_t* ends, int64_t experts, Body body) {
  int64_t first = 0;
  for (int64_t e = 0; e < experts; ++e) {
    REQUIRE(ends[e] >= first && ends[e] <= x.shape[0], "expert " + std::to_string(e) + " ends at row " +
                                                           std::to_string(ends[e]) + " of " + std::to_string(x.shape[0]));
    body(Expert{e, first, ends[e] - first});
    first = ends[e];
  }
}

// Pointers to copies of tensors, one made by `of` for each.
template <class Of>
struct Tensors {
  std::vector<Tensor> own;
  std::vector<const Tensor*> pointers;
  Tensors(const Tensor* const* given, int64_t count, Of of) {
    for (int64_t i = 0; i < count; ++i) own.push_back(of(*given[i]));
    for (const Tensor& one : own) pointers.push_back(&one);
  }
};

}  // namespace

extern "C" int mindgspo_grouped_linear(const mindgspo_tensor* x, const int64_t* ends, int64_t layers,
                                       const mindgspo_tensor* const* weights, const mindgspo_tensor* const* outs,
                                       int64_t threads) {
  return guarded([&] {
    floats("x", x, 2);
    for (int64_t i = 0; i < layers; ++i) floats("weight", weights[i], 3), floats("out", outs[i], 2);
    const std::vector<const Tensor*> none(layers, nullptr);
    for_experts(*x, ends, weights[0]->shape[0], [&](const Expert& expert) {
      if (expert.rows == 0) return;
      const Tensor tokens = expert.tokens(*x);
      const Tensors of_weights(weights, layers, [&](const Tensor& w) { return expert.weight(w); });
      const Tensors of_outs(outs, layers, [&](const Tensor& y) { return expert.tokens(y); });
      if (mindgspo_linear(&tokens, layers, of_weights.pointers.data(), none.data(), of_outs.pointers.data(), threads))
        throw std::invalid_argument(mindgspo_error());
    });
  });
}

extern "C" int mindgspo_grouped_linear_backward(const mindgspo_tensor* x, const int64_t* ends, int64_t layers,
                                                const mindgspo_tensor* const* weights,
                                                const mindgspo_tensor* const* d_outs, const mindgspo_tensor* d_x,
                                                const mindgspo_tensor* const* d_weights, int64_t threads) {
  return guarded([&] {
    floats("x", x, 2), floats("d_x", d_x, 2);
    for (int64_t i = 0; i < layers; ++i) {
      floats("weight", weights[i], 3), floats("d_out", d_outs[i], 2);
      if (d_weights != nullptr) floats("d_weight", d_weights[i], 3);
    }
    const std::vector<const Tensor*> none(layers, nullptr);
    for_experts(*x, ends, weights[0]->shape[0], [&](const Expert& expert) {
      if (d_weights == nullptr && expert.rows == 0) return;
      const Tensor tokens = expert.tokens(*x), d_tokens = expert.tokens(*d_x);
      const Tensors of_weights(weights, layers, [&](const Tensor& w) { return expert.weight(w); });
      const Tensors of_outs(d_outs, layers, [&](const Tensor& y) { return expert.tokens(y); });
      const Tensors of_d_weights(d_weights, d_weights == nullptr ? 0 : layers,
                                 [&](const Tensor& w) { return expert.weight(w); });
      if (mindgspo_linear_backward(&tokens, layers, of_weights.pointers.data(), of_outs.pointers.data(), &d_tokens,
                                   d_weights == nullptr ? nullptr : of_d_weights.pointers.data(), none.data(), threads))
        throw std::invalid_argument(mindgspo_error());
    });
  });
}
