// AMX's tile registers as functions of constants: the real ones, or (CM_SOFT_TILES) a model of them in software, for
// testing the kernels on any processor.
#pragma once
#include "isa.h"

namespace cm::CM_ISA_NAMESPACE {

// Input of LDTILECFG. Rows are up to 64 bytes long; all tiles use all of that.
struct alignas(64) TileConfig {
    uint8_t palette = 1, first_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};

    CM_INLINE void set(int tile, int count) {
        rows[tile] = static_cast<uint8_t>(count);
        row_bytes[tile] = count ? 64 : 0;
    }
};

}  // namespace cm::CM_ISA_NAMESPACE

#if defined(CM_SOFT_TILES)
#include "soft_tiles.h"
#else

namespace cm::CM_ISA_NAMESPACE {

// The compiler's intrinsics do not declare that they read and write memory.
static CM_INLINE void memory_settles() { __asm__ volatile("" ::: "memory"); }

static CM_INLINE void tile_configure(const TileConfig& config) {
    __asm__ volatile("ldtilecfg %0" ::"m"(config));
}
static CM_INLINE void tile_release() { _tile_release(); }

template <int Tile> void tile_zero();
template <int Tile> void tile_load(const void* from, int64_t stride);
template <int Tile> void tile_store(void* to, int64_t stride);
template <int To, int A, int B> void tile_add_bf16();
template <int To, int A, int B> void tile_add_int8();

// Register numbers are part of an instruction's text, so each is written out.
#define CM_TILE(N)                                                                                                 \
    template <> CM_INLINE void tile_zero<N>() { _tile_zero(N); }                                                   \
    template <> CM_INLINE void tile_load<N>(const void* from, int64_t stride) { memory_settles(); _tile_loadd(N, from, stride); } \
    template <> CM_INLINE void tile_store<N>(void* to, int64_t stride) { _tile_stored(N, to, stride); memory_settles(); }
#define CM_TILE_ADD(TO, A, B)                                                                      \
    template <> CM_INLINE void tile_add_bf16<TO, A, B>() { _tile_dpbf16ps(TO, A, B); }            \
    template <> CM_INLINE void tile_add_int8<TO, A, B>() { _tile_dpbssd(TO, A, B); }

CM_TILE(0)
CM_TILE(1)
CM_TILE(2)
CM_TILE(3)
CM_TILE(4)
CM_TILE(5)
CM_TILE(6)
CM_TILE(7)
CM_TILE_ADD(0, 4, 6)
CM_TILE_ADD(1, 4, 7)
CM_TILE_ADD(1, 5, 6)
CM_TILE_ADD(2, 4, 6)
CM_TILE_ADD(2, 4, 5)
CM_TILE_ADD(3, 4, 6)
CM_TILE_ADD(2, 5, 6)
CM_TILE_ADD(3, 5, 6)
CM_TILE_ADD(3, 5, 7)

#undef CM_TILE
#undef CM_TILE_ADD

}  // namespace cm::CM_ISA_NAMESPACE

#endif
