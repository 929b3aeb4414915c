// A model of AMX's tile registers, after the operation sections of TILELOADD, TILESTORED, TDPBF16PS and TDPBSSD in Intel's
// instruction set reference. For tests: exact, not fast.
#pragma once
#include "tiles.h"

namespace cm::CM_ISA_NAMESPACE {

struct SoftTiles {
    TileConfig config;
    alignas(64) unsigned char bytes[8][16][64];
};
static thread_local SoftTiles soft_tiles;

// A tile without configuration is a fault on a processor, and a bug of ours.
static inline int tile_rows(int tile) {
    const int rows = soft_tiles.config.rows[tile];
    if (rows < 1 || rows > 16 || soft_tiles.config.row_bytes[tile] != 64) __builtin_trap();
    return rows;
}

template <class Number>
static inline Number tile_number(int tile, int row, int place) {
    Number number;
    __builtin_memcpy(&number, soft_tiles.bytes[tile][row] + place * static_cast<int>(sizeof(Number)), sizeof number);
    return number;
}

template <class Number>
static inline void set_tile_number(int tile, int row, int place, Number number) {
    __builtin_memcpy(soft_tiles.bytes[tile][row] + place * static_cast<int>(sizeof(Number)), &number, sizeof number);
}

static inline void tile_configure(const TileConfig& config) { soft_tiles.config = config; }
static inline void tile_release() { soft_tiles.config = TileConfig{}; }

template <int Tile>
inline void tile_zero() {
    tile_rows(Tile);
    __builtin_memset(soft_tiles.bytes[Tile], 0, sizeof soft_tiles.bytes[Tile]);
}

template <int Tile>
inline void tile_load(const void* from, int64_t stride) {
    __builtin_memset(soft_tiles.bytes[Tile], 0, sizeof soft_tiles.bytes[Tile]);
    for (int row = 0; row < tile_rows(Tile); ++row)
        __builtin_memcpy(soft_tiles.bytes[Tile][row], static_cast<const char*>(from) + row * stride, 64);
}

template <int Tile>
inline void tile_store(void* to, int64_t stride) {
    for (int row = 0; row < tile_rows(Tile); ++row)
        __builtin_memcpy(static_cast<char*>(to) + row * stride, soft_tiles.bytes[Tile][row], 64);
}

// Denormal numbers count as zero, as input and as output.
static inline float flushed(float value) {
    return __builtin_fabsf(value) < __FLT_MIN__ ? __builtin_copysignf(0.0f, value) : value;
}

static inline float tile_bf16(int tile, int row, int place) {
    const uint32_t bits = static_cast<uint32_t>(tile_number<uint16_t>(tile, row, place)) << 16;
    float value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return flushed(value);
}

// Even and odd places of the inner dimension are summed separately, by fused products; then both are added, then the
// previous content.
template <int To, int A, int B>
inline void tile_add_bf16() {
    for (int row = 0; row < tile_rows(To); ++row)
        for (int column = 0; column < 16; ++column) {
            float sums[2] = {0.0f, 0.0f};
            for (int k = 0; k < tile_rows(B); ++k)
                for (int odd = 0; odd < 2; ++odd)
                    sums[odd] = flushed(__builtin_fmaf(tile_bf16(A, row, 2 * k + odd), tile_bf16(B, k, 2 * column + odd), sums[odd]));
            const float both = flushed(sums[0] + sums[1]);
            set_tile_number(To, row, column, flushed(flushed(tile_number<float>(To, row, column)) + both));
        }
}

template <int To, int A, int B>
inline void tile_add_int8() {
    for (int row = 0; row < tile_rows(To); ++row)
        for (int column = 0; column < 16; ++column) {
            int32_t sum = tile_number<int32_t>(To, row, column);
            for (int k = 0; k < tile_rows(B); ++k)
                for (int i = 0; i < 4; ++i) sum += tile_number<int8_t>(A, row, 4 * k + i) * tile_number<int8_t>(B, k, 4 * column + i);
            set_tile_number(To, row, column, sum);
        }
}

}  // namespace cm::CM_ISA_NAMESPACE
