// Matrix products: blocks of both operands are converted to float32 and packed, and a tile of registers multiplies them.
//
// Every sum over K runs from its start to its end in blocks of kDepth, whatever the other sizes and the threads are.
// Where the processor multiplies bfloat16, those of linear layers are made of pairs: two numbers along K in 32 bits.
// Their products are added to float32 as any others; what is below 2^-126 counts as zero.
#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

#include "packing.h"

namespace mindgspo {
namespace {

// What a task computes: its block of `b` (kDepth x kBlockColumns) stays in the second-level cache.
constexpr int64_t kBlockRows = 36 * 14, kBlockColumns = 256;

// What a tile adds to its sums at each step along K: products of floats, or of pairs in their places.
struct Floats {
  static Vector add(Vector sums, const float* a, Vector b) { return sums + *a * b; }
};
#if defined(__AVX512BF16__)
constexpr bool kHasPairs = true;
struct Pairs {
  static Vector add(Vector sums, const float* a, Vector b) {
    const __m512i pair = _mm512_set1_epi32(*reinterpret_cast<const AnyInt*>(a));
    return Vector(_mm512_dpbf16_ps(__m512(sums), __m512bh(pair), __m512bh(b)));
  }
};
#else
constexpr bool kHasPairs = false;
using Pairs = Floats;
#endif

// c[R, columns] (+)= a[R, depth] @ b[depth, V * kLanes], b's rows b_stride apart. kAlongK: a's rows lie along K,
// kRowStride apart; else its columns are packed, kTileRows apart.
template <class Step, int R, int V, bool kAlongK>
void tile(int64_t depth, const float* a, const float* b, int64_t b_stride, float* c, int64_t c_stride, int64_t columns,
          bool is_added) {
  constexpr int64_t kRow = kAlongK ? kRowStride : 1, kStep = kAlongK ? 1 : kTileRows;
  Vector sums[R][V] = {};
  for (int64_t k = 0; k < depth; ++k, a += kStep, b += b_stride) {
    Vector of_b[V];
    for (int v = 0; v < V; ++v) of_b[v] = *reinterpret_cast<const AnyVector*>(b + v * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) sums[r][v] = Step::add(sums[r][v], a + r * kRow, of_b[v]);
  }
  if (columns == V * kLanes) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < V; ++v) {
        AnyVector* out = reinterpret_cast<AnyVector*>(c + r * c_stride + v * kLanes);
        *out = is_added ? *out + sums[r][v] : sums[r][v];
      }
    return;
  }
  float values[R][V * kLanes];
  std::memcpy(values, sums, sizeof values);
  for (int r = 0; r < R; ++r, c += c_stride)
    for (int64_t j = 0; j < columns; ++j) c[j] = is_added ? c[j] + values[r][j] : values[r][j];
}

using Tile = void (*)(int64_t, const float*, const float*, int64_t, float*, int64_t, int64_t, bool);

template <class Step, int V, bool kAlongK, int... R>
constexpr Tile tile_of(int rows, std::integer_sequence<int, R...>) {
  constexpr Tile tiles[] = {tile<Step, R + 1, V, kAlongK>...};
  return tiles[rows - 1];
}

constexpr auto kAllRows = std::make_integer_sequence<int, kTileRows>();

Tile tile_of(int rows, bool is_wide, bool along_k) {
  if (along_k) return is_wide ? tile_of<Floats, 2, true>(rows, kAllRows) : tile_of<Floats, 1, true>(rows, kAllRows);
  return is_wide ? tile_of<Floats, 2, false>(rows, kAllRows) : tile_of<Floats, 1, false>(rows, kAllRows);
}

Tile tile_of_pairs(int rows, bool along_k) {
  return along_k ? tile_of<Pairs, 2, true>(rows, kAllRows) : tile_of<Pairs, 2, false>(rows, kAllRows);
}

// A few rows times columns that lie along K: the packing would take longer than the product.
constexpr int64_t kFewRows = 4;
void multiply_by_dots(const Matrix& a, const Matrix& b, float* c, int64_t c_stride) {
  float* rows = scratch(kPackA, kFewRows * kDepth);
  float* column = scratch(kPackB, kDepth);
  for (int64_t first = 0; first < a.columns; first += kDepth) {
    const int64_t depth = std::min(kDepth, a.columns - first);
    copy_rows(part(a, 0, a.rows, first, depth), rows, kDepth);
    for (int64_t j = 0; j < b.columns; ++j) {
      const Matrix piece = part(b, first, depth, j, 1);
      const float* values = column;
      if (b.dtype == kFloat32)
        values = static_cast<const float*>(piece.data);
      else
        load(piece.data, b.dtype, 1, depth, column);
      for (int64_t i = 0; i < a.rows; ++i) {
        const float* row = rows + i * kDepth;
        const float dot = sum_of(depth, [&](int64_t k) { return row[k] * values[k]; });
        float& out = c[i * c_stride + j];
        out = first > 0 ? out + dot : dot;
      }
    }
  }
}

// One task's block; a.rows <= kBlockRows, b.columns <= kBlockColumns.
void multiply_block(const Matrix& a, const Matrix& b, float* c, int64_t c_stride, bool is_added) {
  float* of_a = scratch(kPackA, (a.rows + kTileRows) * kRowStride);
  float* of_b = scratch(kPackB, (b.columns + kTileColumns) * kDepth);
  const int64_t tiles = (a.rows + kTileRows - 1) / kTileRows;
  // Columns that one row of tiles reads once are read where they are, as far as they fill a tile.
  const bool in_place = tiles == 1 && b.dtype == kFloat32 && b.column_stride == 1;
  const int64_t unpacked = in_place ? b.columns / kTileColumns * kTileColumns : 0;
  for (int64_t first = 0; first < a.columns; first += kDepth) {
    const int64_t depth = std::min(kDepth, a.columns - first);
    const float* b_rows = reinterpret_cast<const float*>(row_of(b, first));
    pack_columns(part(b, first, depth, unpacked, b.columns - unpacked), of_b);
    const bool along_k = pack_rows(part(a, 0, a.rows, first, depth), of_a);
    for (int64_t j = 0; j < b.columns; j += kTileColumns) {
      const int64_t columns = std::min<int64_t>(kTileColumns, b.columns - j);
      const float* panel = j < unpacked ? b_rows + j : of_b + (j - unpacked) * depth;
      for (int64_t t = 0; t < tiles; ++t) {
        const int64_t row = t * kTileRows;
        const Tile run = tile_of(int(std::min<int64_t>(kTileRows, a.rows - row)), columns > kLanes, along_k);
        run(depth, of_a + (along_k ? row * kRowStride : row * depth), panel, j < unpacked ? b.row_stride : kTileColumns,
            c + row * c_stride + j, c_stride, columns, is_added || first > 0);
      }
    }
  }
}

// body(some of b's columns, the first of them), in tasks of a few panels.
template <class Body>
void for_panels(const Matrix& b, int64_t threads, Body body) {
  constexpr int64_t kPanelsOfTask = 4;
  parallel((panels_of(b.columns) + kPanelsOfTask - 1) / kPanelsOfTask, threads, [&](int64_t task) {
    const int64_t first = task * kPanelsOfTask * kPanel;
    body(part(b, 0, b.rows, first, std::min(kPanelsOfTask * kPanel, b.columns - first)), first);
  });
}

}  // namespace

void pack(const Matrix& b, float* panels, int32_t rounded, int64_t threads) {
  for_panels(b, threads, [&](const Matrix& some, int64_t first) {
    pack_columns(some, panels + first * b.rows);
    if (rounded != b.dtype) round_to(rounded, packed_size(b.rows, some.columns), panels + first * b.rows);
  });
}

Panels::Panels(int32_t dtype, int64_t rows, const float* data)
    : data(data), rows(rows), are_pairs(kHasPairs && dtype == kBFloat16) {}

Panels pack_for(int32_t dtype, const Matrix& b, float* data, int64_t threads) {
  const Panels panels(dtype, b.rows, data);
  if (panels.are_pairs)
    for_panels(b, threads, [&](const Matrix& some, int64_t first) {
      pack_column_pairs(some, data + first * panels.depth());
    });
  else
    pack(b, data, dtype, threads);
  return panels;
}

void multiply_packed(const Matrix& a, const float* panels, int64_t columns, float* c, int64_t c_stride, bool is_added,
                     int64_t panel_rows) {
  const Panels b(kFloat32, panel_rows == 0 ? a.columns : panel_rows, panels);
  multiply_packed(a, b, 0, columns, {c, c_stride}, is_added);
}

namespace {

// `multiply_packed` by tiles of registers.
void multiply_in_registers(const Matrix& a, const Panels& b, int64_t column, int64_t columns, float* c, int64_t c_stride,
                           bool is_added) {
  const int64_t step = b.are_pairs ? 2 : 1;  // numbers along K in the place of a float
  for (int64_t top = 0; top < a.rows; top += kBlockRows) {
    const int64_t rows = std::min(kBlockRows, a.rows - top), tiles = (rows + kTileRows - 1) / kTileRows;
    float* of_a = scratch(kPackA, (rows + kTileRows) * kRowStride);
    for (int64_t first = 0; first < a.columns; first += step * kDepth) {
      const Matrix block = part(a, top, rows, first, std::min(step * kDepth, a.columns - first));
      const int64_t depth = (block.columns + step - 1) / step;
      const bool along_k = b.are_pairs ? pack_row_pairs(block, of_a) : pack_rows(block, of_a);
      for (int64_t j = 0; j < columns; j += kPanel) {
        const float* panel = b.data + (column + j) * b.depth() + first / step * kPanel;
        for (int64_t t = 0; t < tiles; ++t) {
          const int64_t row = t * kTileRows, wide = std::min<int64_t>(kPanel, columns - j);
          const int some = int(std::min<int64_t>(kTileRows, rows - row));
          const Tile run = b.are_pairs ? tile_of_pairs(some, along_k) : tile_of(some, true, along_k);
          run(depth, of_a + (along_k ? row * kRowStride : row * depth), panel, kPanel, c + (top + row) * c_stride + j,
              c_stride, wide, is_added || first > 0);
        }
      }
    }
  }
}

}  // namespace

void multiply_packed(const Matrix& a, const Panels& b, int64_t column, int64_t columns, const Result& c, bool is_added) {
  const bool is_direct = c.dtype == kFloat32;
  if (b.are_pairs && a.columns > 0 && multiply_on_tiles(a, b, column, columns, c, is_added)) return;
  float* product = is_direct ? static_cast<float*>(c.data) : scratch(kProduct, a.rows * columns);
  const int64_t stride = is_direct ? c.stride : columns;
  if (a.columns == 0 && !is_added)
    for (int64_t row = 0; row < a.rows; ++row) std::fill(product + row * stride, product + row * stride + columns, 0.0f);
  multiply_in_registers(a, b, column, columns, product, stride, is_added);
  for (int64_t row = 0; row < a.rows && !is_direct; ++row)
    store(static_cast<uint16_t*>(c.data) + row * c.stride, c.dtype, 1, columns, product + row * columns);
}

void multiply(const Matrix& a, const Matrix& b, float* c, int64_t c_stride, bool is_added) {
  if (a.columns == 0 && !is_added)
    for (int64_t row = 0; row < a.rows; ++row) std::fill(c + row * c_stride, c + row * c_stride + b.columns, 0.0f);
  for (int64_t i = 0; i < a.rows; i += kBlockRows)
    for (int64_t j = 0; j < b.columns; j += kBlockColumns) {
      const int64_t rows = std::min(kBlockRows, a.rows - i), columns = std::min(kBlockColumns, b.columns - j);
      multiply_block(part(a, i, rows, 0, a.columns), part(b, 0, b.rows, j, columns), c + i * c_stride + j, c_stride,
                     is_added);
    }
}

namespace {

// The operands of out[.., M, N] = a @ b by batch entry.
struct Batches {
  const Tensor &a, &b, *bias, &out;
  int64_t m, n, k, count = 1;

  Batches(const Tensor& a, const Tensor& b, const Tensor* bias, const Tensor& out)
      : a(a), b(b), bias(bias), out(out), m(out.shape[out.rank - 2]), n(out.shape[out.rank - 1]),
        k(a.shape[a.rank - 1]) {
    REQUIRE(a.shape[a.rank - 2] == m && b.shape[b.rank - 2] == k && b.shape[b.rank - 1] == n,
            "a " + text_of_shape(a) + " and b " + text_of_shape(b) + " do not make " + text_of_shape(out));
    check_spread("a", a, 2);
    check_spread("b", b, 2);
    if (bias != nullptr) check_spread("bias", *bias, 0);
    for (int64_t axis = 0; axis < out.rank - 2; ++axis) count *= out.shape[axis];
  }

  void check_spread(const char* name, const Tensor& x, int own) const {
    REQUIRE(x.rank <= out.rank, std::string(name) + " has more axes than out");
    for (int64_t axis = 1 + own; axis <= x.rank; ++axis)
      REQUIRE(x.shape[x.rank - axis] == out.shape[out.rank - axis] || x.shape[x.rank - axis] == 1,
              std::string(name) + " " + text_of_shape(x) + " cannot be spread to " + text_of_shape(out));
  }

  // Offset of batch entry `batch` in x, whose axes are aligned with out's at the end.
  int64_t offset(const Tensor& x, int64_t batch) const {
    int64_t offset = 0;
    for (int64_t axis = 3; axis <= out.rank; ++axis) {
      const int64_t size = out.shape[out.rank - axis], at = batch % size;
      if (axis <= x.rank && x.shape[x.rank - axis] != 1) offset += at * x.strides[x.rank - axis];
      batch /= size;
    }
    return offset;
  }

  Matrix matrix(const Tensor& x, int64_t batch) const {
    return {element(x, offset(x, batch)), x.dtype,           x.shape[x.rank - 2], x.shape[x.rank - 1],
            x.strides[x.rank - 2],        x.strides[x.rank - 1]};
  }

  // Writes rows of float32 products, or columns of them if `is_transposed`, as alpha * product + beta * bias.
  void write(int64_t batch, int64_t row, int64_t rows, int64_t column, int64_t columns, float* product, float alpha,
             float beta) const {
    const int64_t row_stride = out.strides[out.rank - 2], column_stride = out.strides[out.rank - 1];
    float* added = bias ? scratch(kRow0, columns) : nullptr;
    for (int64_t i = 0; i < rows; ++i) {
      float* values = product + i * columns;
      if (alpha != 1.0f)
        for (int64_t j = 0; j < columns; ++j) values[j] *= alpha;
      if (bias != nullptr) {
        const auto stride = [&](int64_t axis) {
          return bias->rank < axis || bias->shape[bias->rank - axis] == 1 ? 0 : bias->strides[bias->rank - axis];
        };
        const int64_t at = offset(*bias, batch) + (row + i) * stride(2) + column * stride(1);
        load(element(*bias, at), bias->dtype, stride(1), columns, added);
        for (int64_t j = 0; j < columns; ++j) values[j] += beta * added[j];
      }
      store(element(out, offset(out, batch) + (row + i) * row_stride + column * column_stride), out.dtype, column_stride,
            columns, values);
    }
  }
};

}  // namespace
}  // namespace mindgspo

using namespace mindgspo;

extern "C" int mindgspo_matmul(const mindgspo_tensor* a, const mindgspo_tensor* b, const mindgspo_tensor* bias,
                               const mindgspo_tensor* out, double alpha, double beta, int64_t threads) {
  return guarded([&] {
    REQUIRE(floats("a", a).rank >= 2 && floats("b", b).rank >= 2 && floats("out", out).rank >= 2,
            "a, b and out must have at least 2 axes");
    if (bias != nullptr) floats("bias", bias);
    const Batches batches(*a, *b, bias, *out);
    const int64_t m = batches.m, n = batches.n;
    const int64_t row_blocks = (m + kBlockRows - 1) / kBlockRows, column_blocks = (n + kBlockColumns - 1) / kBlockColumns;
    parallel(batches.count * row_blocks * column_blocks, threads, [&](int64_t task) {
      const int64_t batch = task / (row_blocks * column_blocks), block = task % (row_blocks * column_blocks);
      const int64_t row = block % row_blocks * kBlockRows, column = block / row_blocks * kBlockColumns;
      const int64_t rows = std::min(kBlockRows, m - row), columns = std::min(kBlockColumns, n - column);
      const Matrix left = part(batches.matrix(*a, batch), row, rows, 0, batches.k);
      const Matrix right = part(batches.matrix(*b, batch), 0, batches.k, column, columns);
      float* product = scratch(kProduct, rows * columns);
      if (rows <= kFewRows && right.row_stride == 1)
        multiply_by_dots(left, right, product, columns);
      else
        multiply(left, right, product, columns, false);
      batches.write(batch, row, rows, column, columns, product, float(alpha), float(beta));
    });
  });
}
