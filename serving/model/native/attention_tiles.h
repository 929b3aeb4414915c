// A piece of a context in AMX tiles: what attention_piece.h does for bfloat16, sixteen keys by sixteen queries at once.
//
// Scores are computed as keys times queries, not as queries times keys: rows of the cache are then the left side
// without conversion, sixteen to a tile, and only the queries are transposed, once for all of a context. Latents are
// the right side of the weighted sum, for which the numbers of two rows are interleaved, once for all queries of an
// item.
#pragma once
#include "simd.h"
#include "tiles.h"

namespace cm::CM_ISA_NAMESPACE {

constexpr int kTileRows = 16;                      // keys, or queries, per tile
constexpr int kTileWidth = 32;                     // numbers in a row of a tile
constexpr int kTileNumbers = kTileRows * kTileWidth;
constexpr int kTileKeys = 4;                       // tiles of keys whose chains hide each other's latency

// All tiles are full. Missing rows make undefined rows of results, which are never read.
static CM_INLINE void set_up_full_tiles() {
    TileConfig config;
    for (int tile = 0; tile < 8; ++tile) config.set(tile, kTileRows);
    tile_configure(config);
}

// Rows of sixteen 32-bit numbers <-> columns.
static CM_INLINE void turn(__m512i (&r)[16]) {
    __m512i t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int half = 0; half < 2; ++half) {
            r[i + 2 * half] = _mm512_unpacklo_epi64(t[i + half], t[i + half + 2]);
            r[i + 2 * half + 1] = _mm512_unpackhi_epi64(t[i + half], t[i + half + 2]);
        }
    // Quarter q of r[i + j] now is column 4 q + j of rows i ... i + 3.
    for (int j = 0; j < 4; ++j) {
        const __m512i even = _mm512_shuffle_i32x4(r[j], r[4 + j], 0x88), odd = _mm512_shuffle_i32x4(r[j], r[4 + j], 0xdd);
        const __m512i even_below = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0x88);
        const __m512i odd_below = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0xdd);
        t[j] = _mm512_shuffle_i32x4(even, even_below, 0x88);
        t[4 + j] = _mm512_shuffle_i32x4(odd, odd_below, 0x88);
        t[8 + j] = _mm512_shuffle_i32x4(even, even_below, 0xdd);
        t[12 + j] = _mm512_shuffle_i32x4(odd, odd_below, 0xdd);
    }
    for (int i = 0; i < 16; ++i) r[i] = t[i];
}

// queries [queries][width] -> turned [groups of 16][width / 2][16][2]; a group's missing queries are zeros.
static CM_NOINLINE void turn_queries(const bf16* query, int queries, int width, bf16* turned) {
    for (int first = 0; first < queries; first += kTileRows) {
        const int rows = queries - first < kTileRows ? queries - first : kTileRows;
        for (int c = 0; c < width; c += kTileWidth, turned += kTileNumbers) {
            __m512i numbers[16];
            for (int r = 0; r < kTileRows; ++r) {
                const bf16* from = query + static_cast<int64_t>(first + r) * width + c;
                numbers[r] = r < rows ? _mm512_loadu_si512(from) : _mm512_setzero_si512();
            }
            turn(numbers);
            for (int r = 0; r < kTileRows; ++r) _mm512_store_si512(turned + r * kTileWidth, numbers[r]);
        }
    }
}

// One tile of sums, [16 keys][16 queries] -> scores [queries][stride].
template <int Tile>
CM_INLINE void store_scores(int queries, float* scores, int64_t stride) {
    alignas(64) float sums[kTileRows][kTileRows];
    __m512i numbers[16];
    tile_store<Tile>(sums, sizeof sums[0]);
    for (int r = 0; r < kTileRows; ++r) numbers[r] = _mm512_load_si512(sums[r]);
    turn(numbers);
    for (int r = 0; r < kTileRows && r < queries; ++r) _mm512_storeu_si512(scores + r * stride, numbers[r]);
}

struct TileKeys {
    const bf16* const* rows;  // sixteen consecutive ones each,
    int64_t stride;           // this many bytes apart
    int begin;                // start of the keys in their rows

    const bf16* tile(int index) const { return rows[index * kTileRows] + begin; }
};

// A part of the next tiles of keys, in memory order; for keys that have values before them, only the keys' cache lines.
static CM_INLINE void fetch_keys(const TileKeys& keys, int first, int tiles, int c) {
    for (int tile = first; tile < first + tiles; ++tile) {
        const char* from = reinterpret_cast<const char*>(keys.tile(tile)) + c * (keys.begin ? 2 : kTileWidth);
        const int64_t step = keys.begin ? keys.stride : 64;
        for (int line = 0; line < kTileRows; ++line) _mm_prefetch(from + line * step, _MM_HINT_T0);
    }
}

// K tiles of keys times one group of queries.
template <int K>
CM_INLINE void score_group(const TileKeys& keys, const bf16* turned, int width, int queries, float* scores,
                           int64_t stride, int next) {
    tile_zero<0>(), tile_zero<1>(), tile_zero<2>(), tile_zero<3>();
    for (int c = 0; c < width; c += kTileWidth, turned += kTileNumbers) {
        fetch_keys(keys, K, next, c);
        tile_load<6>(turned, 64);
        tile_load<4>(keys.tile(0) + c, keys.stride), tile_add_bf16<0, 4, 6>();
        if (K > 1) tile_load<5>(keys.tile(1) + c, keys.stride), tile_add_bf16<1, 5, 6>();
        if (K > 2) tile_load<4>(keys.tile(2) + c, keys.stride), tile_add_bf16<2, 4, 6>();
        if (K > 3) tile_load<5>(keys.tile(3) + c, keys.stride), tile_add_bf16<3, 5, 6>();
    }
    store_scores<0>(queries, scores, stride);
    if (K > 1) store_scores<1>(queries, scores + kTileRows, stride);
    if (K > 2) store_scores<2>(queries, scores + 2 * kTileRows, stride);
    if (K > 3) store_scores<3>(queries, scores + 3 * kTileRows, stride);
}

// scores [queries][stride] = queries times keys; columns up to the next multiple of sixteen are undefined, and the keys
// there must be readable. The list names `named` rows, `count` or more: the next ones are prefetched.
static CM_NOINLINE void score_in_tiles(const TileKeys& keys, int count, int named, const bf16* turned, int queries,
                                       int width, float* scores, int64_t stride) {
    for (int k = 0; k < count; k += kTileKeys * kTileRows) {
        const int tiles = (count - k + kTileRows - 1) / kTileRows;
        const int later = (named - k + kTileRows - 1) / kTileRows - kTileKeys;
        const int next = later < 0 ? 0 : later < kTileKeys ? later : kTileKeys;
        const TileKeys own{keys.rows + k, keys.stride, keys.begin};
        for (int q = 0; q < queries; q += kTileRows) {
            const bf16* side = turned + static_cast<int64_t>(q) * width;
            float* to = scores + q * stride + k;
            switch (tiles) {
                case 1: score_group<1>(own, side, width, queries - q, to, stride, q ? 0 : next); break;
                case 2: score_group<2>(own, side, width, queries - q, to, stride, q ? 0 : next); break;
                case 3: score_group<3>(own, side, width, queries - q, to, stride, q ? 0 : next); break;
                default: score_group<4>(own, side, width, queries - q, to, stride, q ? 0 : next);
            }
        }
    }
}

// Two tiles of sums, of columns as interleaved by `across` -> out [queries][stride].
template <int Front, int Back>
CM_INLINE void store_means(int queries, float* out, int64_t stride) {
    alignas(64) float sums[2][kTileRows][kTileRows];
    tile_store<Front>(sums[0], sizeof sums[0][0]);
    tile_store<Back>(sums[1], sizeof sums[1][0]);
    for (int r = 0; r < kTileRows && r < queries; ++r) {
        const Vec both[] = {load(sums[0][r]), load(sums[1][r])};
        Product<bf16>::unmix(out + r * stride, both);
    }
}

// G groups of queries' weights times 32 columns of rows.
template <int G>
CM_INLINE void mean_in_tiles(const bf16* const* rows, int count, int column, const bf16* weights, int64_t weight_stride,
                             int queries, float* out, int64_t stride) {
    alignas(64) __m512i pairs[2][kTileRows];
    const int64_t weight_bytes = weight_stride * static_cast<int64_t>(sizeof(bf16));
    tile_zero<0>(), tile_zero<1>(), tile_zero<2>(), tile_zero<3>();
    for (int i = 0; i < count; i += kTileWidth) {
        for (int p = 0; p < kTileRows; ++p) {
            __m512i wide[2];
            Product<bf16>::across(rows + i + 2 * p, column, wide);
            pairs[0][p] = wide[0], pairs[1][p] = wide[1];
        }
        tile_load<4>(weights + i, weight_bytes);
        tile_load<6>(pairs[0], 64), tile_add_bf16<0, 4, 6>();
        tile_load<7>(pairs[1], 64), tile_add_bf16<1, 4, 7>();
        if (G == 1) continue;
        tile_load<5>(weights + kTileRows * weight_stride + i, weight_bytes);
        tile_add_bf16<2, 5, 6>(), tile_add_bf16<3, 5, 7>();
    }
    store_means<0, 1>(queries, out, stride);
    if (G == 2) store_means<2, 3>(queries - kTileRows, out + kTileRows * stride, stride);
}

// out [queries][stride] = weights [queries, at most 32][weight_stride] times the first `columns` of rows; `count`, a
// multiple of 32, rows, whose weights are zero if there is no token.
static CM_NOINLINE void weighted_sum_in_tiles(const bf16* const* rows, int count, const bf16* weights,
                                              int64_t weight_stride, int queries, int columns, float* out,
                                              int64_t stride) {
    for (int column = 0; column < columns; column += kTileWidth) {
        if (queries > kTileRows) {
            mean_in_tiles<2>(rows, count, column, weights, weight_stride, queries, out + column, stride);
        } else {
            mean_in_tiles<1>(rows, count, column, weights, weight_stride, queries, out + column, stride);
        }
    }
}

}  // namespace cm::CM_ISA_NAMESPACE
