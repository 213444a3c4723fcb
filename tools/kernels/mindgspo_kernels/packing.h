// Blocks of operands in the order in which products read them: float32, or pairs of bfloat16 along K in 32 bits.
#pragma once

#include "common.h"

namespace mindgspo {

constexpr int kTileRows = kLanes == 16 ? 14 : 6;
constexpr int kTileColumns = kPanel;
constexpr int64_t kDepth = 256;
// Rows of packed `a` that lie along K are a little longer than kDepth: at a power of two they would fight for cache sets.
constexpr int64_t kRowStride = kDepth + 16;

typedef int32_t AnyInt __attribute__((may_alias));
typedef uint16_t AnyHalf __attribute__((may_alias));

inline const char* row_of(const Matrix& x, int64_t row) {
  return static_cast<const char*>(x.data) + row * x.row_stride * size_of(x.dtype);
}

// out[row, column] = x[row, column] in float32, as rows of 1 float `stride` apart in `out`: out[row * stride + column].
inline void copy_rows(const Matrix& x, float* out, int64_t stride) {
  for (int64_t row = 0; row < x.rows; ++row)
    load(row_of(x, row), x.dtype, x.column_stride, x.columns, out + row * stride);
}

typedef float Vector __attribute__((vector_size(kLanes * sizeof(float))));
typedef float AnyVector __attribute__((vector_size(kLanes * sizeof(float)), aligned(4), may_alias));

// rows[i][j] becomes rows[j][i]: in each round, of two rows `Apart` apart, the places that are Apart apart change sides.
template <int Apart = 1>
inline void transpose(Vector* rows) {
  typedef int32_t Places __attribute__((vector_size(kLanes * sizeof(int32_t))));
  Places low, high;
  for (int i = 0; i < kLanes; ++i) {
    low[i] = i & Apart ? kLanes + i - Apart : i;
    high[i] = i & Apart ? kLanes + i : i + Apart;
  }
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    if (i & Apart) continue;
    const Vector upper = rows[i], lower = rows[i + Apart];
    rows[i] = __builtin_shuffle(upper, lower, low), rows[i + Apart] = __builtin_shuffle(upper, lower, high);
  }
  if constexpr (2 * Apart < kLanes) transpose<2 * Apart>(rows);
}

// out[column * stride + row] = x[row, column], read along x's rows, kLanes of them at once.
inline void copy_transposed(const Matrix& x, float* out, int64_t stride) {
  alignas(64) float copies[kLanes][kDepth];
  for (int64_t row = 0; row < x.rows; row += kLanes) {
    const int64_t some = std::min<int64_t>(kLanes, x.rows - row);
    for (int64_t first = 0; first < x.columns; first += kDepth) {
      const int64_t columns = std::min(kDepth, x.columns - first);
      const Matrix piece = part(x, row, some, first, columns);
      const float* from[kLanes];
      for (int64_t i = 0; i < some; ++i) {
        from[i] = copies[i];
        if (x.dtype == kFloat32 && x.column_stride == 1)
          from[i] = reinterpret_cast<const float*>(row_of(piece, i));
        else
          load(row_of(piece, i), x.dtype, x.column_stride, columns, copies[i]);
      }
      float* to = out + first * stride + row;
      int64_t column = 0;
      for (; some == kLanes && column + kLanes <= columns; column += kLanes) {
        Vector rows[kLanes];
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) rows[i] = *reinterpret_cast<const AnyVector*>(from[i] + column);
        transpose(rows);
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) *reinterpret_cast<AnyVector*>(to + (column + i) * stride) = rows[i];
      }
      for (; column < columns; ++column)
        for (int64_t i = 0; i < some; ++i) to[column * stride + i] = from[i][column];
    }
  }
}

// The same of `kColumns` columns that lie side by side, in rows of as many floats.
template <int kColumns>
void copy_panel(const Matrix& x, float* out) {
  with_dtype(x.dtype, [&](auto dtype) {
    const auto* bits = static_cast<const typename decltype(dtype)::Bits*>(x.data);
    for (int64_t row = 0; row < x.rows; ++row, bits += x.row_stride, out += kColumns)
      for (int column = 0; column < kColumns; ++column) out[column] = dtype.read(bits[column]);
  });
}

// A block of `b` as panels of kTileColumns columns, zeros behind its last column.
inline void pack_columns(const Matrix& b, float* out) {
  for (int64_t first = 0; first < b.columns; first += kTileColumns, out += b.rows * kTileColumns) {
    const int64_t columns = std::min<int64_t>(kTileColumns, b.columns - first);
    const Matrix panel = part(b, 0, b.rows, first, columns);
    if (columns == kTileColumns && b.column_stride == 1) {
      copy_panel<kTileColumns>(panel, out);
      continue;
    }
    if (columns < kTileColumns) std::fill(out, out + b.rows * kTileColumns, 0.0f);
    if (b.row_stride == 1)
      copy_transposed(transposed(panel), out, kTileColumns);
    else
      copy_rows(panel, out, kTileColumns);
  }
}

// A block of `a`: rows along K, or panels of kTileRows rows where a's memory goes along its columns.
inline bool pack_rows(const Matrix& a, float* out) {
  const bool along_k = a.row_stride != 1 || a.column_stride == 1;
  if (along_k) {
    copy_rows(a, out, kRowStride);
    return true;
  }
  for (int64_t first = 0; first < a.rows; first += kTileRows, out += a.columns * kTileRows) {
    const int64_t rows = std::min<int64_t>(kTileRows, a.rows - first);
    const Matrix panel = transposed(part(a, first, rows, 0, a.columns));
    if (rows == kTileRows)
      copy_panel<kTileRows>(panel, out);
    else
      copy_rows(panel, out, kTileRows);
  }
  return false;
}

// n numbers, `stride` elements apart, in bfloat16; behind an odd number of them a zero.
inline void load_pairs(const char* place, int32_t dtype, int64_t stride, int64_t n, float* out) {
  AnyHalf* halves = reinterpret_cast<AnyHalf*>(out);
  if (n % 2 == 1) halves[n] = 0;
  if (dtype == kBFloat16 && stride == 1) {
    std::memcpy(out, place, n * sizeof(uint16_t));
    return;
  }
  with_dtype(dtype, [&](auto numbers) {
    const auto* bits = reinterpret_cast<const typename decltype(numbers)::Bits*>(place);
    if (stride == 1)
#pragma GCC ivdep
      for (int64_t i = 0; i < n; ++i) halves[i] = to_bfloat16(numbers.read(bits[i]));
    else
      for (int64_t i = 0; i < n; ++i) halves[i] = to_bfloat16(numbers.read(bits[i * stride]));
  });
}

template <class Numbers>
uint32_t half_of(Numbers numbers, typename Numbers::Bits bits) {
  if constexpr (std::is_same_v<Numbers, BFloat16>)
    return bits;
  else
    return to_bfloat16(numbers.read(bits));
}

// Pairs of x's rows, whose numbers lie side by side: a row of pairs each `stride` floats.
inline void load_row_pairs(const Matrix& x, float* out, int64_t stride) {
  with_dtype(x.dtype, [&](auto numbers) {
    for (int64_t row = 0; row < x.rows; row += 2, out += stride) {
      const auto* upper = reinterpret_cast<const typename decltype(numbers)::Bits*>(row_of(x, row));
      const auto* lower = row + 1 < x.rows ? upper + x.row_stride : nullptr;
      AnyInt* pairs = reinterpret_cast<AnyInt*>(out);
      if (lower == nullptr)
        for (int64_t i = 0; i < x.columns; ++i) pairs[i] = int32_t(half_of(numbers, upper[i]));
      else
#pragma GCC ivdep
        for (int64_t i = 0; i < x.columns; ++i)
          pairs[i] = int32_t(half_of(numbers, upper[i]) | half_of(numbers, lower[i]) << 16);
    }
  });
}

// `copy_rows`, `pack_rows` and `pack_columns` with pairs.
inline void copy_row_pairs(const Matrix& x, float* out, int64_t stride) {
  for (int64_t row = 0; row < x.rows; ++row)
    load_pairs(row_of(x, row), x.dtype, x.column_stride, x.columns, out + row * stride);
}

inline bool pack_row_pairs(const Matrix& a, float* out) {
  const bool along_k = a.row_stride != 1 || a.column_stride == 1;
  if (along_k) {
    copy_row_pairs(a, out, kRowStride);
    return true;
  }
  for (int64_t first = 0; first < a.rows; first += kTileRows, out += (a.columns + 1) / 2 * kTileRows) {
    const int64_t rows = std::min<int64_t>(kTileRows, a.rows - first);
    load_row_pairs(transposed(part(a, first, rows, 0, a.columns)), out, kTileRows);
  }
  return false;
}

inline void pack_column_pairs(const Matrix& b, float* out) {
  if (b.column_stride == 1) {
    constexpr int64_t kRows = 64;  // their columns of all panels stay in the first-level cache
    const int64_t panel = (b.rows + 1) / 2 * kTileColumns;
    if (b.columns % kTileColumns != 0)
      std::fill(out + b.columns / kTileColumns * panel, out + panels_of(b.columns) * panel, 0.0f);
    for (int64_t row = 0; row < b.rows; row += kRows)
      for (int64_t first = 0; first < b.columns; first += kTileColumns)
        load_row_pairs(part(b, row, std::min(kRows, b.rows - row), first,
                            std::min<int64_t>(kTileColumns, b.columns - first)),
                       out + first / kTileColumns * panel + row / 2 * kTileColumns, kTileColumns);
    return;
  }
  float* pairs = scratch(kPackB, kTileColumns * kRowStride);
  const int64_t depth = (b.rows + 1) / 2;
  for (int64_t first = 0; first < b.columns; first += kTileColumns, out += depth * kTileColumns) {
    const int64_t columns = std::min<int64_t>(kTileColumns, b.columns - first);
    if (columns < kTileColumns) std::fill(out, out + depth * kTileColumns, 0.0f);
    for (int64_t row = 0; row < b.rows; row += 2 * kDepth) {
      const int64_t rows = std::min(2 * kDepth, b.rows - row);
      copy_row_pairs(transposed(part(b, row, rows, first, columns)), pairs, kRowStride);
      const Matrix packed{pairs, kFloat32, columns, (rows + 1) / 2, kRowStride, 1};
      copy_transposed(packed, out + row / 2 * kTileColumns, kTileColumns);
    }
  }
}

// `multiply_packed` of panels of pairs on the processor's tiles; false, and nothing is done, where it has none.
bool multiply_on_tiles(const Matrix& a, const Panels& b, int64_t column, int64_t columns, const Result& c,
                       bool is_added);

}  // namespace mindgspo
