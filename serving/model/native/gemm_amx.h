// Products in AMX tiles: sixteen rows by sixteen columns each, sixteen steps of a panel at once, for any number of
// rows, so that a row's chain is always a tile's. F32 products, which are few, use vectors.
#pragma once
#include "gemm_avx512.h"
#include "gemm_parts.h"
#include "tiles.h"

namespace cm::CM_ISA_NAMESPACE {

struct TileForm {
    static constexpr int kMaxRows = 32;
    static constexpr int kMaxRestoredRows = kMaxRows;
    static constexpr int kMaxPairedRows = 16;
    static constexpr bool kUnsignedRows = false;
    static constexpr bool kTiles = true;
};

struct Bf16 : TileForm {
    using Number = uint16_t;
    template <int To, int A, int B>
    static CM_INLINE void add() { tile_add_bf16<To, A, B>(); }
};

struct Int8 : TileForm {
    using Number = int8_t;
    template <int To, int A, int B>
    static CM_INLINE void add() { tile_add_int8<To, A, B>(); }
};

constexpr int kTileSteps = 16;

static CM_INLINE void release_tiles() { tile_release(); }

// Sums in 0-3, rows of x in 4 and (the second sixteen) 5, weights in the rest: 16 steps x 16 columns.
static CM_INLINE void set_up(int rows, bool paired, int* tiles) {
    const int wanted = 2 * rows + paired;
    if (*tiles == wanted) return;
    *tiles = wanted;
    const int top = rows < kTileSteps ? rows : kTileSteps, bottom = rows - top;
    TileConfig config;
    for (int tile = 0; tile < 4; ++tile) config.set(tile, paired || tile < 2 ? top : bottom);
    config.set(4, top);
    config.set(5, paired || bottom == 0 ? kTileSteps : bottom);
    config.set(6, kTileSteps);
    config.set(7, kTileSteps);
    tile_configure(config);
}

// For the next sixteen steps; with two panels also the second, `panel_bytes` further on.
template <int P>
CM_INLINE void fetch_ahead(Ahead& ahead, int64_t panel_bytes) {
    const char* from = ahead.pass(kTileSteps);
    for (int step = 0; step < kTileSteps; ++step, from += ahead.step) {
        for (int p = 0; p < P; ++p) {
            _mm_prefetch(from + p * panel_bytes, _MM_HINT_T0);
            _mm_prefetch(from + p * panel_bytes + 64, _MM_HINT_T0);
        }
    }
}

// Up to sixteen rows and one panel or two.
template <class Form, int P>
CM_INLINE void few_rows(const Block<Form>& b) {
    constexpr int kNumbers = kStepBytes / 2 / sizeof(typename Form::Number);
    const int64_t stride = b.stride * static_cast<int64_t>(sizeof(typename Form::Number));
    Weights<Form, P> weights(b);
    const char *panel = nullptr, *second = nullptr;
    Ahead ahead = b.ahead;
    const auto* x = b.x;
    tile_zero<0>(), tile_zero<1>();
    if (P == 2) tile_zero<2>(), tile_zero<3>();
    for (int step = 0; step < b.steps; step += kTileSteps) {
        if (step % weights.steps() == 0) {
            panel = weights.next(0);
            if (P == 2) second = weights.next(1);
        }
        if (!is_short<Form>) fetch_ahead<P>(ahead, static_cast<int64_t>(b.steps) * kStepBytes);
        tile_load<4>(x, stride);
        tile_load<6>(panel, kStepBytes), Form::template add<0, 4, 6>();
        tile_load<7>(panel + 64, kStepBytes), Form::template add<1, 4, 7>();
        if (P == 2) {
            tile_load<5>(second, kStepBytes), Form::template add<2, 4, 5>();
            tile_load<6>(second + 64, kStepBytes), Form::template add<3, 4, 6>();
        }
        x += kNumbers;
        panel += kTileSteps * kStepBytes;
        second += kTileSteps * kStepBytes;
    }
    char* to = static_cast<char*>(b.sums);
    tile_store<0>(to, kStepBytes), tile_store<1>(to + 64, kStepBytes);
    to += b.rows * kStepBytes;
    if (P == 2) tile_store<2>(to, kStepBytes), tile_store<3>(to + 64, kStepBytes);
}

// Seventeen to 32 rows and one panel.
template <class Form>
CM_INLINE void many_rows(const Block<Form>& b) {
    constexpr int kNumbers = kStepBytes / 2 / sizeof(typename Form::Number);
    const int64_t stride = b.stride * static_cast<int64_t>(sizeof(typename Form::Number));
    Weights<Form, 1> weights(b);
    const char* panel = nullptr;
    Ahead ahead = b.ahead;
    const auto *x = b.x, *below = b.x + kTileSteps * b.stride;
    tile_zero<0>(), tile_zero<1>(), tile_zero<2>(), tile_zero<3>();
    for (int step = 0; step < b.steps; step += kTileSteps) {
        if (step % weights.steps() == 0) panel = weights.next(0);
        if (!is_short<Form>) fetch_ahead<1>(ahead, 0);
        tile_load<6>(panel, kStepBytes);
        tile_load<4>(x, stride), Form::template add<0, 4, 6>();
        tile_load<7>(panel + 64, kStepBytes), Form::template add<1, 4, 7>();
        tile_load<5>(below, stride), Form::template add<2, 5, 6>();
        Form::template add<3, 5, 7>();
        x += kNumbers;
        below += kNumbers;
        panel += kTileSteps * kStepBytes;
    }
    char *to = static_cast<char*>(b.sums), *under = to + kTileSteps * kStepBytes;
    tile_store<0>(to, kStepBytes), tile_store<1>(to + 64, kStepBytes);
    tile_store<2>(under, kStepBytes), tile_store<3>(under + 64, kStepBytes);
}

template <class Form>
CM_INLINE void tile_block(const Block<Form>& b) {
    set_up(b.rows, b.panels == 2, b.tiles);
    if (b.panels == 2) {
        few_rows<Form, 2>(b);
    } else if (b.rows <= kTileSteps) {
        few_rows<Form, 1>(b);
    } else {
        many_rows<Form>(b);
    }
}

}  // namespace cm::CM_ISA_NAMESPACE
