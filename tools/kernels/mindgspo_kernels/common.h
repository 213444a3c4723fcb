// What all operators share: dtypes, rows of strided tensors, threads, errors, and a vectorized exponential.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels.h"

namespace mindgspo {

using Tensor = mindgspo_tensor;

// Numbers of aclDataType (CANN's acl_base.h).
enum Dtype : int32_t { kFloat32 = 0, kFloat16 = 1, kInt32 = 3, kUint8 = 4, kInt16 = 6, kInt64 = 9, kBool = 12, kBFloat16 = 27 };

constexpr int kMaxRank = 8;

inline int64_t size_of(int32_t dtype) {
  switch (dtype) {
    case kFloat32:
    case kInt32:
      return 4;
    case kFloat16:
    case kBFloat16:
    case kInt16:
      return 2;
    case kInt64:
      return 8;
    case kUint8:
    case kBool:
      return 1;
  }
  throw std::invalid_argument("dtype " + std::to_string(dtype) + " is not known");
}

// A macro: the text is made only where the check fails.
#define REQUIRE(holds, ...)                                   \
  do {                                                        \
    if (!(holds)) throw std::invalid_argument(__VA_ARGS__);   \
  } while (false)

std::string text_of_shape(const Tensor& tensor);
// A tensor that is present, of float32, float16 or bfloat16 and of this rank (any rank if -1).
const Tensor& floats(const char* name, const Tensor* tensor, int rank = -1);
// The same for int32, int64, uint8 or bool.
const Tensor& integers(const char* name, const Tensor* tensor, int rank = -1);
int64_t integer_at(const Tensor& tensor, int64_t offset);
void require_shape(const char* name, const Tensor& tensor, const std::vector<int64_t>& shape);
// Not a negative one.
int normalized_axis(int64_t axis, const Tensor& tensor);
// Runs `body`; an exception becomes a message for mindgspo_error().
int guarded_call(void (*body)(void*), void* context);
template <class Body>
int guarded(Body body) {
  return guarded_call([](void* context) { (*static_cast<Body*>(context))(); }, &body);
}

inline char* element(const Tensor& tensor, int64_t offset) {
  return static_cast<char*>(tensor.data) + offset * size_of(tensor.dtype);
}

// ---- numbers

template <class To, class From>
inline To bits_of(From value) {
  static_assert(sizeof(To) == sizeof(From), "the same bits");
  To result;
  std::memcpy(&result, &value, sizeof result);
  return result;
}

inline float from_bfloat16(uint16_t half) { return bits_of<float>(uint32_t(half) << 16); }

inline uint16_t to_bfloat16(float value) {
  const uint32_t bits = bits_of<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  return uint16_t((bits & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FC0u : rounded);  // a NaN must not round to infinity
}

inline float from_float16(uint16_t half) {
  const uint32_t sign = uint32_t(half & 0x8000u) << 16, rest = uint32_t(half & 0x7FFFu);
  const uint32_t normal = (rest << 13) + (112u << 23), special = (rest << 13) | 0x7F800000u;  // bias: 127 in place of 15
  // Below 2^-14: as the end of 2^-14's mantissa. No number here is one that a thread may take for zero, as those below
  // 2^-126 are where its caller has set the processor so.
  const uint32_t tiny = bits_of<uint32_t>(bits_of<float>((rest << 13) + (113u << 23)) - 0x1p-14f);
  return bits_of<float>(sign | (rest < 0x400u ? tiny : rest >= 0x7C00u ? special : normal));
}

inline uint16_t to_float16(float value) {
  const uint32_t bits = bits_of<uint32_t>(value), sign = (bits >> 16) & 0x8000u, rest = bits & 0x7FFFFFFFu;
  // Normal results: round the 13 bits that go, exactly as for bfloat16, and change the exponent's bias.
  const uint32_t normal = (rest + 0xFFFu + ((rest >> 13) & 1u) - (112u << 23)) >> 13;
  // Results below 2^-14: adding 0.5 moves their last bit, 2^-24, to the end of float32's mantissa, rounded.
  const uint32_t tiny = bits_of<uint32_t>(bits_of<float>(rest) + 0.5f) - bits_of<uint32_t>(0.5f);
  const uint32_t finite = rest < (113u << 23) ? tiny : std::min(normal, 0x7C00u);
  return uint16_t(sign | (rest > 0x7F800000u ? 0x7E00u : finite));
}

// e^x within 2 units in the last place; NaN, infinities, 0 below -103.97 and infinity above 88.72 as of std::exp.
// Branch-free, so that loops over it are vectorized. The results below 2^-126 are reached in two steps of 2^n.
inline float exp_of(float x) {
  const float bounded = std::min(89.0f, std::max(-104.0f, x));  // in this order a NaN becomes a number
  const float shifted = bounded * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: rounds to an integer
  const float n = shifted - 12582912.0f;
  const float r = (bounded - n * 0.693145752f) - n * 1.42860677e-6f;
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const int32_t whole = int32_t(n), half = whole >> 1, rest = whole - half;
  const float result = p * bits_of<float>(uint32_t(half + 127) << 23) * bits_of<float>(uint32_t(rest + 127) << 23);
  return x == x ? result : x;
}

inline float sigmoid(float x) { return 1.0f / (1.0f + exp_of(-x)); }
inline float silu(float x) { return x * sigmoid(x); }

// Sums and maxima by 16 lanes: the compiler may not reorder additions by itself, and the order is always the same.
constexpr int kSumLanes = 16;
template <class Term>
inline float sum_of(int64_t n, Term term) {
  float lanes[kSumLanes] = {};
  int64_t i = 0;
  for (; i + kSumLanes <= n; i += kSumLanes)
    for (int lane = 0; lane < kSumLanes; ++lane) lanes[lane] += term(i + lane);
  for (int lane = 0; i < n; ++i, ++lane) lanes[lane] += term(i);
  for (int width = kSumLanes / 2; width > 0; width /= 2)
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  return lanes[0];
}

inline float max_of(const float* values, int64_t n) {  // of the numbers among them; -inf if there is none
  typedef float Lanes __attribute__((vector_size(kSumLanes * sizeof(float)), aligned(4), may_alias));
  float top = -INFINITY;
  int64_t i = 0;
  if (n >= kSumLanes) {
    Lanes tops = top - Lanes{};
    for (; i + kSumLanes <= n; i += kSumLanes) {
      const Lanes some = *reinterpret_cast<const Lanes*>(values + i);
      tops = tops < some ? some : tops;
    }
    for (int lane = 0; lane < kSumLanes; ++lane) top = std::max(top, tops[lane]);
  }
  for (; i < n; ++i) top = std::max(top, values[i]);
  return top;
}

// The three dtypes as types, for loops that the compiler can see through: body(Float32()), ...
struct Float32 {
  using Bits = float;
  static float read(float bits) { return bits; }
  static float write(float value) { return value; }
};
struct Float16 {
  using Bits = uint16_t;
  static float read(uint16_t bits) { return from_float16(bits); }
  static uint16_t write(float value) { return to_float16(value); }
};
struct BFloat16 {
  using Bits = uint16_t;
  static float read(uint16_t bits) { return from_bfloat16(bits); }
  static uint16_t write(float value) { return to_bfloat16(value); }
};
template <class Body>
inline void with_dtype(int32_t dtype, Body body) {
  if (dtype == kFloat32)
    body(Float32());
  else if (dtype == kBFloat16)
    body(BFloat16());
  else
    body(Float16());
}

// n numbers, `stride` elements apart. Values that lie there already are left as they are.
void load(const void* data, int32_t dtype, int64_t stride, int64_t n, float* out);
void store(void* data, int32_t dtype, int64_t stride, int64_t n, const float* values);
// The nearest values of a dtype, in place.
inline void round_to(int32_t dtype, int64_t n, float* values) {
  if (dtype == kFloat32) return;
  with_dtype(dtype, [&](auto numbers) {
    for (int64_t i = 0; i < n; ++i) values[i] = numbers.read(numbers.write(values[i]));
  });
}

// Turns the pairs (a, b) of x, n numbers: forward (a cos_a - b sin_a, b cos_b + a sin_b), backward its transpose. `step`
// from pair to pair and `apart` inside one: 1 and n / 2 for halves, 2 and 1 for neighbours. `out` may be x.
template <int step>
inline void rotate_pairs(const float* x, const float* cos, const float* sin, int64_t n, bool is_backward, float* out) {
  const int64_t apart = step == 1 ? n / 2 : 1;
  const float *sin_a = is_backward ? sin + apart : sin, *sin_b = is_backward ? sin : sin + apart;
  const float sign = is_backward ? -1.0f : 1.0f;
#pragma GCC ivdep
  for (int64_t at = 0; at < n / 2 * step; at += step) {
    const float a = x[at], b = x[at + apart];
    out[at] = a * cos[at] - sign * b * sin_a[at];
    out[at + apart] = b * cos[at + apart] + sign * a * sin_b[at];
  }
}

// ---- memory

// Memory of the calling thread that is used again by the next call; `slot` tells apart what is in use at once. Valid
// until the slot is asked for again.
enum Slot { kPackA, kPackB, kProduct, kRow0, kRow1, kRow2, kRow3, kWork0, kWork1, kWork2, kWork3, kWork4, kWork5,
            kWork6, kWork7, kWork8, kWork9, kShared0, kShared1, kShared2, kShared3, kSlots };
float* scratch(Slot slot, int64_t floats);

// ---- rows

// n numbers, `stride` elements apart, for reading: in place where they are float32 side by side, else a copy in `slot`.
inline const float* read(const char* place, int32_t dtype, int64_t stride, int64_t n, Slot slot) {
  if (dtype == kFloat32 && stride == 1) return reinterpret_cast<const float*>(place);
  float* copy = scratch(slot, n);
  load(place, dtype, stride, n, copy);
  return copy;
}
// Where n results are made: in place, or in `slot` until they are stored.
inline float* results_at(char* place, int32_t dtype, int64_t stride, int64_t n, Slot slot) {
  return dtype == kFloat32 && stride == 1 ? reinterpret_cast<float*>(place) : scratch(slot, n);
}

// x[row], as one series of numbers: axes behind the second lie side by side.
inline int64_t row_size(const Tensor& x) { return x.rank == 3 ? x.shape[1] * x.shape[2] : x.shape[1]; }
inline const float* read_row(const Tensor& x, int64_t row, Slot slot) {
  return read(element(x, row * x.strides[0]), x.dtype, x.strides[x.rank - 1], row_size(x), slot);
}
inline float* results_of_row(const Tensor& x, int64_t row, Slot slot) {
  return results_at(element(x, row * x.strides[0]), x.dtype, x.strides[x.rank - 1], row_size(x), slot);
}
inline void write_row(const Tensor& x, int64_t row, const float* values) {
  store(element(x, row * x.strides[0]), x.dtype, x.strides[x.rank - 1], row_size(x), values);
}

// One axis of several tensors, and all their other axes as one series of rows.
class Rows {
 public:
  // The first tensor gives the shape; the others' axes have its size or, being spread, 1. Along `axis` sizes may differ.
  Rows(std::vector<const Tensor*> tensors, int axis) : Rows(std::move(tensors), axis, false) {}
  // Element by element: rows as long as the memory's order allows, in pieces.
  static Rows of_elements(std::vector<const Tensor*> tensors) { return Rows(std::move(tensors), 0, true); }

  int64_t count() const { return count_ * pieces_; }
  int64_t length(int which, int64_t row) const;
  // Rows of one task: enough numbers to be worth one.
  int64_t task() const { return kTask / std::clamp<int64_t>(lengths_[0], 1, kPiece); }
  const float* read(int which, int64_t row, Slot slot) const;
  float* results(int which, int64_t row, Slot slot) const;
  void write(int which, int64_t row, const float* values) const;

 private:
  static constexpr int64_t kPiece = 4096, kTask = 8 * kPiece;
  Rows(std::vector<const Tensor*> tensors, int axis, bool is_by_element);
  char* start(int which, int64_t row) const;

  std::vector<const Tensor*> tensors_;
  std::vector<std::vector<int64_t>> strides_;  // by tensor, then by axis of `shape_`
  std::vector<int64_t> shape_, lengths_, row_strides_;
  int64_t count_ = 1, pieces_ = 1;
};

// ---- threads

// The processors of the thread that loaded this library.
int64_t default_threads();
void parallel_call(int64_t tasks, int64_t threads, void (*body)(void*, int64_t), void* context);
// body(task) for every task, on up to `threads` threads, which wait for work without turning for long. An exception in
// one of them is thrown again here. Where the threads are busy for another caller, the calling thread does it all.
template <class Body>
void parallel(int64_t tasks, int64_t threads, Body body) {
  parallel_call(tasks, threads, [](void* context, int64_t task) { (*static_cast<Body*>(context))(task); }, &body);
}

// body(row) for every row, in tasks of `rows_per_task`; by default of so many that each thread has several tasks.
template <class Body>
void for_rows(int64_t rows, int64_t threads, Body body, int64_t rows_per_task = 0) {
  if (rows_per_task == 0) rows_per_task = std::clamp<int64_t>(rows / (4 * std::max<int64_t>(1, threads)), 1, 64);
  parallel((rows + rows_per_task - 1) / rows_per_task, threads, [&](int64_t task) {
    const int64_t end = std::min(rows, (task + 1) * rows_per_task);
    for (int64_t row = task * rows_per_task; row < end; ++row) body(row);
  });
}

// ---- products

// rows x columns numbers; strides in elements.
struct Matrix {
  const void* data;
  int32_t dtype;
  int64_t rows, columns, row_stride, column_stride;
};

// x[.., r, c] of a tensor of two axes.
inline Matrix matrix_of(const Tensor& x) {
  return {x.data, x.dtype, x.shape[0], x.shape[1], x.strides[0], x.strides[1]};
}
inline Matrix transposed(const Matrix& x) { return {x.data, x.dtype, x.columns, x.rows, x.column_stride, x.row_stride}; }
inline Matrix part(const Matrix& whole, int64_t row, int64_t rows, int64_t column, int64_t columns) {
  const int64_t offset = row * whole.row_stride + column * whole.column_stride;
  return {static_cast<const char*>(whole.data) + offset * size_of(whole.dtype), whole.dtype, rows, columns,
          whole.row_stride, whole.column_stride};
}

// Every function below computes an element of a product by the same additions in the same order, whatever rows and
// columns are beside it: a token's results do not depend on its batch.

// c (float32 [a.rows, b.columns], rows `c_stride` apart) = a @ b, or c + a @ b. On the calling thread.
void multiply(const Matrix& a, const Matrix& b, float* c, int64_t c_stride, bool is_added);

// A right operand that many products read: panels of kPanel columns in float32, [panels, rows, kPanel], with zeros
// behind the last column.
#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif
constexpr int kPanel = 2 * kLanes;
inline int64_t panels_of(int64_t columns) { return (columns + kPanel - 1) / kPanel; }
inline int64_t packed_size(int64_t rows, int64_t columns) { return panels_of(columns) * kPanel * rows; }
// Packs on up to `threads` threads. The numbers are rounded to `rounded`, a dtype, first.
void pack(const Matrix& b, float* panels, int32_t rounded, int64_t threads);
// As `multiply`; `columns` of b, from a panel's first on. panel_rows: rows of b, where `a` has fewer columns.
void multiply_packed(const Matrix& a, const float* panels, int64_t columns, float* c, int64_t c_stride, bool is_added,
                     int64_t panel_rows = 0);

// Panels for left operands of numbers of one dtype, to which b's are rounded. Those of bfloat16, where the processor
// multiplies it, have pairs: two rows of b in the place of one float. Any other are as above.
struct Panels {
  const float* data;
  int64_t rows;  // of b
  bool are_pairs;

  // What `pack_for` makes of b at `data`, which has packed_size(rows, columns) floats.
  Panels(int32_t dtype, int64_t rows, const float* data);
  int64_t depth() const { return are_pairs ? (rows + 1) / 2 : rows; }
};
Panels pack_for(int32_t dtype, const Matrix& b, float* data, int64_t threads);
// Rows of results side by side, `stride` numbers apart: float32, or bfloat16 to which they are rounded once.
struct Result {
  void* data;
  int64_t stride;
  int32_t dtype = kFloat32;
};
// b's columns from `column` on, a panel's first. The numbers of `a` are of the panels' dtype, however they are stored.
// is_added: to what float32 results hold.
void multiply_packed(const Matrix& a, const Panels& b, int64_t column, int64_t columns, const Result& c, bool is_added);

}  // namespace mindgspo
