// Log-probs of given tokens, their gradients, and drawing of tokens, over a vocabulary taken a part at a time.
//
// Scorer and sampler add up a token's softmax in the same order: the log-prob of a drawn token is the same number in
// both, bit for bit, where its logits are.
// Legend: P predictions, S sequences, V vocabulary entries, H hidden units.
#include <numeric>

#include "packing.h"

namespace mindgspo {
namespace {

constexpr int64_t kVocabulary = 4096;  // entries of a part
constexpr int64_t kTaskRows = 128;
constexpr int64_t kGradientRows = 1024;  // predictions whose gradients of logits exist at once
static_assert(kVocabulary % kPanel == 0, "a part is whole panels");

// Softmax over the parts seen so far: the highest logit, sums of e = exp(z - highest) and of e (z - highest).
struct Total {
  float top = -INFINITY, sum = 0.0f, weighted = 0.0f;

  void add(const float* logits, int64_t n, float* exponentials, bool with_entropy) {
    const float old = top;
    top = std::max(old, max_of(logits, n));
    const float anchor = top, moved = old == -INFINITY ? 0.0f : old - anchor;
    const float shrink = old == -INFINITY ? 0.0f : exp_of(moved);
    for (int64_t i = 0; i < n; ++i) exponentials[i] = exp_of(logits[i] - anchor);
    if (with_entropy)
      weighted = (weighted + sum * moved) * shrink +
                 sum_of(n, [&](int64_t i) { return exponentials[i] * (logits[i] - anchor); });
    sum = sum * shrink + sum_of(n, [&](int64_t i) { return exponentials[i]; });
  }

  float log_prob(float logit) const { return logit - top - std::log(sum); }
  float log_sum() const { return top + std::log(sum); }
  float entropy() const { return std::log(sum) - weighted / sum; }
};

struct Problem {
  const Tensor &hidden, &rows, &weight, &targets;
  float inverse_temperature;
  int64_t size, vocabulary;
  std::vector<int64_t> predictions;  // those that are asked for

  Problem(const Tensor* hidden_, const Tensor* rows_, const Tensor* weight_, const Tensor* targets_, double scale)
      : hidden(floats("hidden", hidden_, 2)), rows(integers("rows", rows_, 1)), weight(floats("weight", weight_, 2)),
        targets(integers("targets", targets_, 1)), inverse_temperature(float(scale)), size(hidden.shape[1]),
        vocabulary(weight.shape[0]) {
    REQUIRE(weight.shape[1] == size, "weight " + text_of_shape(weight) + " does not fit hidden " + text_of_shape(hidden));
    require_shape("targets", targets, {rows.shape[0]});
    for (int64_t i = 0; i < rows.shape[0]; ++i) {
      if (row(i) < 0) continue;
      REQUIRE(row(i) < hidden.shape[0], "prediction " + std::to_string(i) + " is of row " + std::to_string(row(i)) +
                                            " of " + std::to_string(hidden.shape[0]));
      REQUIRE(target(i) >= 0 && target(i) < vocabulary, "target " + std::to_string(target(i)) + " is not one of " +
                                                           std::to_string(vocabulary));
      predictions.push_back(i);
    }
  }

  int64_t count() const { return int64_t(predictions.size()); }
  int64_t row(int64_t i) const { return integer_at(rows, i * rows.strides[0]); }
  int64_t target(int64_t i) const { return integer_at(targets, i * targets.strides[0]); }

  bool is_bfloat16() const { return hidden.dtype == kBFloat16; }

  // Hidden states in front of predictions, [count, H]: bfloat16 as they are, others in float32.
  Matrix gathered(Slot slot, int64_t threads) const {
    const int64_t floats = is_bfloat16() ? (size + 1) / 2 : size;  // of a row
    float* out = scratch(slot, count() * floats);
    for_rows(count(), threads, [&](int64_t at) {
      const char* state = element(hidden, row(predictions[at]) * hidden.strides[0]);
      if (is_bfloat16())
        load_pairs(state, hidden.dtype, hidden.strides[1], size, out + at * floats);
      else
        load(state, hidden.dtype, hidden.strides[1], size, out + at * floats);
    });
    return {out, is_bfloat16() ? kBFloat16 : kFloat32, count(), size, is_bfloat16() ? 2 * floats : floats, 1};
  }

  Matrix entries(int64_t first, int64_t n) const { return part(matrix_of(weight), first, n, 0, size); }

  // body(first entry, entries, panels of their transposed rows)
  template <class Body>
  void for_parts(int64_t threads, Body body) const {
    float* memory = scratch(kShared1, packed_size(size, std::min(kVocabulary, vocabulary)));
    for (int64_t first = 0; first < vocabulary; first += kVocabulary) {
      const int64_t n = std::min(kVocabulary, vocabulary - first);
      body(first, n, pack_for(hidden.dtype, transposed(entries(first, n)), memory, threads));
    }
  }

  // Logits of some states over a part, at the temperature, in rows of n.
  void logits(const Matrix& states, const Panels& panels, int64_t n, float* out) const {
    multiply_packed(states, panels, 0, n, {out, n}, false);
    if (inverse_temperature == 1.0f) return;
    for (int64_t i = 0; i < states.rows * n; ++i) out[i] *= inverse_temperature;
  }
};

float& at(const Tensor& x, int64_t i) { return *reinterpret_cast<float*>(element(x, i * x.strides[0])); }

void require_vector(const char* name, const Tensor* x, int64_t size) {
  REQUIRE(floats(name, x, 1).dtype == kFloat32, std::string(name) + " must be float32");
  require_shape(name, *x, {size});
}

template <class Body>
void for_row_blocks(int64_t rows, int64_t threads, Body body) {
  parallel((rows + kTaskRows - 1) / kTaskRows, threads, [&](int64_t task) {
    body(task * kTaskRows, std::min(kTaskRows, rows - task * kTaskRows));
  });
}

}  // namespace
}  // namespace mindgspo

using namespace mindgspo;

extern "C" int mindgspo_log_prob(const mindgspo_tensor* hidden, const mindgspo_tensor* rows,
                                 const mindgspo_tensor* weight, const mindgspo_tensor* targets,
                                 double inverse_temperature, const mindgspo_tensor* log_probs,
                                 const mindgspo_tensor* log_sums, const mindgspo_tensor* entropies, int64_t threads) {
  return guarded([&] {
    const Problem p(hidden, rows, weight, targets, inverse_temperature);
    require_vector("log_probs", log_probs, rows->shape[0]);
    require_vector("log_sums", log_sums, rows->shape[0]);
    if (entropies != nullptr) require_vector("entropies", entropies, rows->shape[0]);
    const Matrix states = p.gathered(kShared0, threads);
    std::vector<Total> totals(p.count());
    std::vector<float> chosen(p.count());
    p.for_parts(threads, [&](int64_t first, int64_t n, const Panels& panels) {
      for_row_blocks(p.count(), threads, [&](int64_t row0, int64_t some) {
        float* logits = scratch(kWork0, some * n);
        float* exponentials = scratch(kWork1, n);
        p.logits(part(states, row0, some, 0, p.size), panels, n, logits);
        for (int64_t i = 0; i < some; ++i) {
          const int64_t target = p.target(p.predictions[row0 + i]) - first;
          if (target >= 0 && target < n) chosen[row0 + i] = logits[i * n + target];
          totals[row0 + i].add(logits + i * n, n, exponentials, entropies != nullptr);
        }
      });
    });
    for (int64_t i = 0; i < rows->shape[0]; ++i) {
      at(*log_probs, i) = at(*log_sums, i) = 0.0f;
      if (entropies != nullptr) at(*entropies, i) = 0.0f;
    }
    for (int64_t i = 0; i < p.count(); ++i) {
      const int64_t place = p.predictions[i];
      at(*log_probs, place) = totals[i].log_prob(chosen[i]);
      at(*log_sums, place) = totals[i].log_sum();
      if (entropies != nullptr) at(*entropies, place) = totals[i].entropy();
    }
  });
}

extern "C" int mindgspo_log_prob_backward(const mindgspo_tensor* hidden, const mindgspo_tensor* rows,
                                          const mindgspo_tensor* weight, const mindgspo_tensor* targets,
                                          double inverse_temperature, const mindgspo_tensor* log_sums,
                                          const mindgspo_tensor* entropies, const mindgspo_tensor* d_log_probs,
                                          const mindgspo_tensor* d_entropies, const mindgspo_tensor* d_hidden,
                                          const mindgspo_tensor* d_weight, int64_t threads) {
  return guarded([&] {
    const Problem p(hidden, rows, weight, targets, inverse_temperature);
    require_vector("log_sums", log_sums, rows->shape[0]);
    require_vector("d_log_probs", d_log_probs, rows->shape[0]);
    REQUIRE((entropies == nullptr) == (d_entropies == nullptr), "entropies and their gradients go together");
    if (entropies != nullptr) require_vector("entropies", entropies, rows->shape[0]);
    if (entropies != nullptr) require_vector("d_entropies", d_entropies, rows->shape[0]);
    REQUIRE(floats("d_hidden", d_hidden, 2).shape[1] == p.size && d_hidden->shape[0] <= hidden->shape[0],
            "d_hidden " + text_of_shape(*d_hidden) + " does not fit hidden " + text_of_shape(*hidden));
    const bool has_weight = d_weight != nullptr;
    if (has_weight) {
      require_shape("d_weight", floats("d_weight", d_weight, 2), {p.vocabulary, p.size});
      REQUIRE(d_weight->dtype == kFloat32 && d_weight->strides[1] == 1, "d_weight must be float32 in rows");
    }
    bool has_entropy_gradient = false;  // none where the entropy is only reported
    for (int64_t i = 0; entropies != nullptr && i < p.count(); ++i)
      has_entropy_gradient = has_entropy_gradient || at(*d_entropies, p.predictions[i]) != 0.0f;
    const Matrix states = p.gathered(kShared0, threads);
    float* d_states = scratch(kShared2, p.count() * p.size);
    std::fill(d_states, d_states + p.count() * p.size, 0.0f);
    const int64_t most = std::min(kVocabulary, p.vocabulary), most_rows = std::min(kGradientRows, p.count());
    // Gradients of logits in the type of the products, then panels of the states and of the entries.
    const int64_t of_states = has_weight ? packed_size(most_rows, p.size) : 0, of_entries = packed_size(most, p.size);
    float* memory = scratch(kShared3, most_rows * most + of_states + of_entries);
    float *state_panels = memory + most_rows * most, *entry_panels = state_panels + of_states;
    p.for_parts(threads, [&](int64_t first, int64_t n, const Panels& panels) {
      const Panels by_entry = pack_for(hidden->dtype, p.entries(first, n), entry_panels, threads);
      if (p.count() == 0 && has_weight)
        for (int64_t v = 0; v < n; ++v) std::fill(&at(*d_weight, first + v), &at(*d_weight, first + v) + p.size, 0.0f);
      for (int64_t top = 0; top < p.count(); top += kGradientRows) {
        const int64_t rows_here = std::min(kGradientRows, p.count() - top);
        const Matrix d_logits{memory, states.dtype, rows_here, n, n, 1};
        for_row_blocks(rows_here, threads, [&](int64_t row0, int64_t some) {
          float* own = p.is_bfloat16() ? scratch(kWork0, some * n) : memory + row0 * n;
          p.logits(part(states, top + row0, some, 0, p.size), panels, n, own);
          for (int64_t i = 0; i < some; ++i) {
            const int64_t place = p.predictions[top + row0 + i], target = p.target(place) - first;
            const float log_sum = at(*log_sums, place), d = at(*d_log_probs, place) * p.inverse_temperature;
            float* row = own + i * n;
            if (has_entropy_gradient) {
              // d entropy / dz = -p (log p + entropy)
              const float e = at(*d_entropies, place) * p.inverse_temperature, mean = at(*entropies, place);
              for (int64_t j = 0; j < n; ++j) {
                const float log_p = row[j] - log_sum;
                row[j] = -exp_of(log_p) * (d + e * (log_p + mean));
              }
            } else {
              for (int64_t j = 0; j < n; ++j) row[j] = -d * exp_of(row[j] - log_sum);
            }
            if (target >= 0 && target < n) row[target] += d;
            if (p.is_bfloat16()) store(reinterpret_cast<uint16_t*>(memory) + (row0 + i) * n, kBFloat16, 1, n, row);
          }
          multiply_packed(part(d_logits, row0, some, 0, n), by_entry, 0, p.size,
                          {d_states + (top + row0) * p.size, p.size}, true);
        });
        if (!has_weight) continue;
        const Panels by_state = pack_for(hidden->dtype, part(states, top, rows_here, 0, p.size), state_panels, threads);
        for_row_blocks(n, threads, [&](int64_t entry, int64_t some) {
          multiply_packed(transposed(part(d_logits, 0, rows_here, entry, some)), by_state, 0, p.size,
                          {&at(*d_weight, first + entry), d_weight->strides[0]}, top > 0);
        });
      }
    });
    // Of each row its predictions, in their order.
    std::vector<int64_t> first_of(d_hidden->shape[0], -1), next(p.count(), -1);
    for (int64_t i = p.count() - 1; i >= 0; --i) {
      const int64_t row = p.row(p.predictions[i]);
      REQUIRE(row < d_hidden->shape[0], "prediction of row " + std::to_string(row) + ", which is not in use");
      next[i] = first_of[row], first_of[row] = i;
    }
    for_rows(d_hidden->shape[0], threads, [&](int64_t row) {
      float* sum = scratch(kRow0, p.size);
      std::fill(sum, sum + p.size, 0.0f);
      for (int64_t i = first_of[row]; i >= 0; i = next[i])
        for (int64_t j = 0; j < p.size; ++j) sum[j] += d_states[i * p.size + j];
      store(element(*d_hidden, row * d_hidden->strides[0]), d_hidden->dtype, d_hidden->strides[1], p.size, sum);
    });
  });
}

namespace {

// What top-k and top-p leave of probabilities `probs`; see `TokenSampler`.
float least_kept(const float* probs, int64_t n, int64_t top_k, float top_p) {
  std::vector<float> sorted(probs, probs + n);
  std::sort(sorted.begin(), sorted.end(), std::greater<float>());
  if (top_k > 0 && top_k < n)
    sorted.erase(std::partition_point(sorted.begin(), sorted.end(), [&](float x) { return x >= sorted[top_k - 1]; }),
                 sorted.end());
  const float limit = top_p * std::accumulate(sorted.begin(), sorted.end(), 0.0f);
  float before = 0.0f, least = 2.0f;
  for (float x : sorted) {
    if (!(before < limit && x > 0.0f)) break;
    least = x, before += x;
  }
  return least;
}

}  // namespace

extern "C" int mindgspo_sample(const mindgspo_tensor* logits, const mindgspo_tensor* uniforms,
                               const mindgspo_tensor* inverse_temperatures, const mindgspo_tensor* greedy,
                               int64_t top_k, double top_p, const mindgspo_tensor* ids,
                               const mindgspo_tensor* log_probs, int64_t threads) {
  return guarded([&] {
    const int64_t sequences = floats("logits", logits, 2).shape[0], vocabulary = logits->shape[1];
    REQUIRE(vocabulary > 0, "logits have no entries");
    require_vector("uniforms", uniforms, sequences);
    require_vector("inverse_temperatures", inverse_temperatures, sequences);
    require_vector("log_probs", log_probs, sequences);
    require_shape("greedy", integers("greedy", greedy, 1), {sequences});
    require_shape("ids", integers("ids", ids, 1), {sequences});
    REQUIRE(ids->dtype == kInt32, "ids must be int32");
    parallel(sequences, threads, [&](int64_t s) {
      float* z = scratch(kWork0, 2 * vocabulary);
      float* probs = z + vocabulary;
      load(element(*logits, s * logits->strides[0]), logits->dtype, logits->strides[1], vocabulary, z);
      const float scale = at(*inverse_temperatures, s);
      if (scale != 1.0f)
        for (int64_t v = 0; v < vocabulary; ++v) z[v] *= scale;
      Total total;
      for (int64_t first = 0; first < vocabulary; first += kVocabulary)
        total.add(z + first, std::min(kVocabulary, vocabulary - first), probs, false);
      int64_t id = 0;
      if (integer_at(*greedy, s * greedy->strides[0])) {
        for (int64_t v = 1; v < vocabulary; ++v)
          if (z[v] > z[id]) id = v;
      } else {
        const float log_sum = std::log(total.sum);
        for (int64_t v = 0; v < vocabulary; ++v) probs[v] = exp_of(z[v] - total.top - log_sum);
        if (top_k > 0 || top_p != 1.0) {
          const float least = least_kept(probs, vocabulary, top_k, float(top_p));
          for (int64_t v = 0; v < vocabulary; ++v) probs[v] = probs[v] >= least ? probs[v] : 0.0f;
        }
        for (int64_t v = 1; v < vocabulary; ++v) probs[v] += probs[v - 1];
        const float wanted = probs[vocabulary - 1] * at(*uniforms, s);
        id = std::min<int64_t>(std::lower_bound(probs, probs + vocabulary, wanted) - probs, vocabulary - 1);
      }
      *reinterpret_cast<int32_t*>(element(*ids, s * ids->strides[0])) = int32_t(id);
      at(*log_probs, s) = total.log_prob(z[id]);
    });
  });
}
