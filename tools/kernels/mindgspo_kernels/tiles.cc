// Products of pairs of bfloat16 on AMX's tiles: 16 rows of 16 pairs, or of 16 float32 sums.
//
// An element's products are added in one order, whatever rows and columns are beside it. What is below 2^-126 counts as
// zero, as in the products of pairs without tiles, whose sums may differ in their last bits.
#include "packing.h"

#if defined(__AMX_BF16__) && defined(__linux__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace mindgspo {
namespace {

constexpr int64_t kTileSide = 16;

// Whether this process may use the tiles: Linux is asked once, for all threads.
bool has_tiles() {
  static const bool is_granted = [] {
    constexpr long kRequestState = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, kRequestState, kTileData) == 0;
  }();
  return is_granted;
}

// The calling thread's tiles while this lives: all of 16 rows of 64 bytes.
class Tiles {
 public:
  Tiles() {
    struct alignas(64) Config {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } config;
    std::fill_n(config.row_bytes, 8, uint16_t(64));
    std::fill_n(config.rows, 8, uint8_t(kTileSide));
    _tile_loadconfig(&config);
  }
  ~Tiles() { _tile_release(); }
};

// out[32, 32] = a[32, steps * 16] @ b[steps * 16, 32] of pairs; of the first 16 rows where `lower` is null. upper, lower:
// tiles of 16 rows of `a`, one after the other along K. Rows of `b` lie 32 floats apart, those of `out` out_stride; the
// last `steps` - `whole` steps are in b_end.
void multiply_tiles(int64_t whole, int64_t steps, const float* upper, const float* lower, const float* b,
                           const float* b_end, float* out, int64_t out_stride) {
  constexpr int64_t kBytes = sizeof(float), kRow = kTileSide * kBytes, kTwoRows = 2 * kRow;
  constexpr int64_t kTile = kTileSide * kTileSide;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t step = 0; step < steps; ++step) {
    const float* of_b = step < whole ? b + step * 2 * kTile : b_end;
    _tile_loadd(4, upper + step * kTile, kRow);
    _tile_loadd(6, of_b, kTwoRows);
    _tile_loadd(7, of_b + kTileSide, kTwoRows);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (lower == nullptr) continue;
    _tile_loadd(5, lower + step * kTile, kRow);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, out, out_stride * kBytes);
  _tile_stored(1, out + kTileSide, out_stride * kBytes);
  if (lower == nullptr) return;
  _tile_stored(2, out + kTileSide * out_stride, out_stride * kBytes);
  _tile_stored(3, out + kTileSide * out_stride + kTileSide, out_stride * kBytes);
}

// Of a task on tiles: rows of its block of `a`, and pairs along K.
constexpr int64_t kTilesRows = 256, kTilesDepth = 512, kTile = kTileSide * kTileSide;

// A block of `a` as tiles: those of 16 rows one after the other along K, with zeros behind its last column and row.
void pack_tiles(const Matrix& a, float* out) {
  const int64_t steps = (a.columns + 2 * kTileSide - 1) / (2 * kTileSide);
  const bool along_k = a.row_stride != 1 || a.column_stride == 1;
  if (a.columns % (2 * kTileSide) != 0 || a.rows % kTileSide != 0)
    std::fill(out, out + (a.rows + kTileSide - 1) / kTileSide * steps * kTile, 0.0f);
  float* pairs = scratch(kPackB, kTileSide * kTilesRows);
  for (int64_t step = 0; step < steps; ++step, out += kTile) {
    const int64_t first = step * 2 * kTileSide, some = std::min(2 * kTileSide, a.columns - first);
    const Matrix block = part(a, 0, a.rows, first, some);
    if (!along_k) load_row_pairs(transposed(block), pairs, kTilesRows);
    for (int64_t row = 0; row < a.rows; row += kTileSide) {
      const int64_t rows = std::min(kTileSide, a.rows - row);
      float* tile = out + row / kTileSide * steps * kTile;
      if (along_k)
        copy_row_pairs(part(block, row, rows, 0, some), tile, kTileSide);
      else
        copy_transposed({pairs + row, kFloat32, (some + 1) / 2, rows, kTilesRows, 1}, tile, kTileSide);
    }
  }
}

}  // namespace

// Sums along K run over kTilesDepth pairs each.
bool multiply_on_tiles(const Matrix& a, const Panels& b, int64_t column, int64_t columns, float* c, int64_t c_stride,
                       bool is_added) {
  static_assert(kPanel == 2 * kTileSide, "a panel is two tiles wide");
  if (!has_tiles()) return false;
  const Tiles tiles;
  alignas(64) float sums[kPanel * kPanel], b_end[kTileSide * kPanel];
  float* of_a = scratch(kPackA, (kTilesRows + kTileSide) * kTilesDepth);
  for (int64_t top = 0; top < a.rows; top += kTilesRows) {
    const int64_t rows = std::min(kTilesRows, a.rows - top);
    for (int64_t first = 0; first < a.columns; first += 2 * kTilesDepth) {
      const Matrix block = part(a, top, rows, first, std::min(2 * kTilesDepth, a.columns - first));
      const int64_t depth = (block.columns + 1) / 2, whole = depth / kTileSide;
      const int64_t steps = (depth + kTileSide - 1) / kTileSide;
      pack_tiles(block, of_a);
      for (int64_t j = 0; j < columns; j += kPanel) {
        const float* panel = b.data + (column + j) * b.depth() + first / 2 * kPanel;
        if (whole < steps) {
          const float* rest = panel + whole * kTileSide * kPanel;
          std::fill(std::copy(rest, panel + depth * kPanel, b_end), std::end(b_end), 0.0f);
        }
        const int64_t wide = std::min<int64_t>(kPanel, columns - j);
        for (int64_t row = 0; row < rows; row += kPanel) {
          const int64_t some = std::min<int64_t>(kPanel, rows - row);
          const float* upper = of_a + row / kTileSide * steps * kTile;
          const bool is_sum = is_added || first > 0;
          const bool is_direct = !is_sum && wide == kPanel && (some == kTileSide || some == kPanel);
          float* out = c + (top + row) * c_stride + j;
          multiply_tiles(whole, steps, upper, some > kTileSide ? upper + steps * kTile : nullptr, panel, b_end,
                         is_direct ? out : sums, is_direct ? c_stride : kPanel);
          for (int64_t i = 0; i < some && !is_direct; ++i, out += c_stride)
            for (int64_t n = 0; n < wide; ++n) out[n] = is_sum ? out[n] + sums[i * kPanel + n] : sums[i * kPanel + n];
        }
      }
    }
  }
  return true;
}

}  // namespace mindgspo
#else
namespace mindgspo {
bool multiply_on_tiles(const Matrix&, const Panels&, int64_t, int64_t, float*, int64_t, bool) { return false; }
}  // namespace mindgspo
#endif
