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

constexpr int64_t kTileSide = 16, kTile = kTileSide * kTileSide;
constexpr int64_t kAhead = 8;  // steps along K

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

// Where tiles of 16 rows of `a` lie: `step` bytes apart along K, their rows `row` bytes apart.
struct RowTiles {
  const char* data;
  int64_t step, row;
};

// out[32, 32] = a[32, steps * 16] @ b[steps * 16, 32] of pairs; of the first 16 rows where `lower` is null. Rows of `b`
// lie 32 floats apart, those of `out` out_stride; the last `steps` - `whole` steps are in b_end. is_first: `b` has not
// been read yet and is fetched ahead, and so is the begin of the next panel, which lies behind it.
void multiply_tiles(int64_t whole, int64_t steps, RowTiles upper, const char* lower, const float* b, const float* b_end,
                    float* out, int64_t out_stride, bool is_first) {
  constexpr int64_t kBytes = sizeof(float), kTwoRows = 2 * kTileSide * kBytes;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t step = 0; step < steps; ++step, upper.data += upper.step) {
    const float* of_b = step < whole ? b + step * 2 * kTile : b_end;
    if (is_first)
      for (int64_t line = 0; line < 2 * kTileSide; ++line)
        __builtin_prefetch(b + (step + kAhead) * 2 * kTile + line * kTileSide);
    _tile_loadd(4, upper.data, upper.row);
    _tile_loadd(6, of_b, kTwoRows);
    _tile_loadd(7, of_b + kTileSide, kTwoRows);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (lower == nullptr) continue;
    _tile_loadd(5, lower + step * upper.step, upper.row);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, out, out_stride * kBytes);
  _tile_stored(1, out + kTileSide, out_stride * kBytes);
  if (lower == nullptr) return;
  _tile_stored(2, out + kTileSide * out_stride, out_stride * kBytes);
  _tile_stored(3, out + kTileSide * out_stride + kTileSide, out_stride * kBytes);
}

// Rows of `a` that every panel meets, so many of them that they stay in the second-level cache.
constexpr int64_t kTilesRows = 256, kTilesFloats = 192 * 1024;

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

// What the tiles of a block of sums become. What is below 2^-126 counts as zero in bfloat16, too.
void write_sums(const float* sums, int64_t rows, int64_t columns, const Result& c, int64_t row, int64_t column,
                bool is_added) {
  for (int64_t i = 0; i < rows; ++i, sums += kPanel) {
    if (c.dtype == kBFloat16) {
      uint16_t* out = static_cast<uint16_t*>(c.data) + (row + i) * c.stride + column;
      const __m512bh both = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(sums + kTileSide), _mm512_loadu_ps(sums));
      _mm512_mask_storeu_epi16(out, ~0u >> (kPanel - columns), __m512i(both));
    } else {
      float* out = static_cast<float*>(c.data) + (row + i) * c.stride + column;
      for (int64_t n = 0; n < columns; ++n) out[n] = is_added ? out[n] + sums[n] : sums[n];
    }
  }
}

}  // namespace

bool multiply_on_tiles(const Matrix& a, const Panels& b, int64_t column, int64_t columns, const Result& c,
                       bool is_added) {
  static_assert(kPanel == 2 * kTileSide, "a panel is two tiles wide");
  if (!has_tiles()) return false;
  const Tiles tiles;
  alignas(64) float sums[kPanel * kPanel], b_end[kTileSide * kPanel];
  const int64_t depth = (a.columns + 1) / 2, whole = depth / kTileSide, steps = (depth + kTileSide - 1) / kTileSide;
  const int64_t most = std::clamp(kTilesFloats / std::max<int64_t>(1, steps * kTileSide) / kPanel * kPanel,
                                  int64_t(kPanel), kTilesRows);
  const bool is_in_place = a.dtype == kBFloat16 && a.column_stride == 1 && a.columns % (2 * kTileSide) == 0;
  for (int64_t top = 0; top < a.rows; top += most) {
    const int64_t rows = std::min(most, a.rows - top);
    // Whole tiles are read where they are, if their rows are what tiles have.
    const int64_t read = is_in_place ? rows / kTileSide * kTileSide : 0;
    const Matrix rest = part(a, top + read, rows - read, 0, a.columns);
    float* packed = scratch(kPackA, (rest.rows + kTileSide) * steps * kTileSide);
    if (rest.rows > 0) pack_tiles(rest, packed);
    const auto tiles_of = [&](int64_t row) {
      constexpr int64_t kRow = kTileSide * sizeof(float);
      if (row < read) return RowTiles{row_of(a, top + row), kRow, a.row_stride * 2};
      return RowTiles{reinterpret_cast<const char*>(packed + (row - read) * steps * kTileSide), kTileSide * kRow, kRow};
    };
    for (int64_t j = 0; j < columns; j += kPanel) {
      const float* panel = b.data + (column + j) * b.depth();
      if (whole < steps)
        std::fill(std::copy(panel + whole * kTileSide * kPanel, panel + depth * kPanel, b_end), std::end(b_end), 0.0f);
      const int64_t wide = std::min<int64_t>(kPanel, columns - j);
      for (int64_t row = 0, some; row < rows; row += some) {
        some = std::min<int64_t>(kPanel, rows - row);
        if (row < read && read < row + some) some = read - row;  // one tile in place, then one that is packed
        const RowTiles upper = tiles_of(row);
        const char* lower = some > kTileSide ? tiles_of(row + kTileSide).data : nullptr;
        const bool is_direct =
            c.dtype == kFloat32 && !is_added && wide == kPanel && (some == kTileSide || some == kPanel);
        float* out = is_direct ? static_cast<float*>(c.data) + (top + row) * c.stride + j : sums;
        multiply_tiles(whole, steps, upper, lower, panel, b_end, out, is_direct ? c.stride : kPanel, row == 0);
        if (!is_direct) write_sums(sums, some, wide, c, top + row, j, is_added);
      }
    }
  }
  return true;
}

}  // namespace mindgspo
#else
namespace mindgspo {
bool multiply_on_tiles(const Matrix&, const Panels&, int64_t, int64_t, const Result&, bool) { return false; }
}  // namespace mindgspo
#endif
