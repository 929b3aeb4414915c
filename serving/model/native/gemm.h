// Products of rows with packed weights, y = x W^T + b, for any number of rows and any range of panels.
//
// Theory of operation. Few rows are bound by reading the weights: each panel streams by once, fetched ahead, two panels
// at once where the registers suffice, so that their chains hide each other's latency. More rows run over each panel in
// even blocks while the next panel is fetched; thousands go in runs of rows that stay in the second-level cache. None of
// this changes a result: an output element is one chain over the inner dimension in one order.
#pragma once
#include <type_traits>

#include "gemm_parts.h"
#if defined(CM_AMX)
#include "gemm_amx.h"
#elif defined(CM_AVX512)
#include "gemm_avx512.h"
#elif defined(CM_AVX2)
#include "gemm_avx2.h"
#else
#include "gemm_portable.h"
#endif
#include "gemm_block.h"

namespace cm::CM_ISA_NAMESPACE {

// Rows of activations in the weights' form. All are readable, and finite, up to padded_in of the product. The digits of
// a row (W8A16) lie behind one another.
struct Rows {
    const void* data;
    int64_t stride;      // in numbers
    const float* scale;  // one per row, INT8 and W8A16 only
    int count;
};

// Where results go: a function and what it is called with, so that products are compiled once, not once per use.
struct Sink {
    void (*store)(void* context, int first_row, int rows, int first_column, const float* tile);
    void* context;
};

constexpr int64_t kRunBytes = 384 << 10;  // of x that stay in cache while all panels pass
constexpr int kAheadBytes = 4096;

#if !defined(CM_AMX)
static CM_INLINE void release_tiles() {}
#endif

// From exact sums of rows of digits, kParts to a row, to what the rows are.
template <bool kUnsignedRows, int kParts>
CM_INLINE void scale_sums(float* tile, int rows, const int32_t* sums, const float* scales, const float* row_scale) {
    uint32_t offset[kPanel];
    for (int n = 0; n < kPanel; ++n) {
        offset[n] = kUnsignedRows ? static_cast<uint32_t>(sums[n]) * (kParts == 2 ? 257u : 1u) : 0;
    }
    for (int r = 0; r < rows; ++r) {
        uint32_t exact[kPanel];  // at the end, whatever overflows on the way
        __builtin_memcpy(exact, tile + r * kParts * kPanel, sizeof exact);
        if (kParts == 2) {
            uint32_t low[kPanel];
            __builtin_memcpy(low, tile + (r * kParts + 1) * kPanel, sizeof low);
            for (int n = 0; n < kPanel; ++n) exact[n] = exact[n] * 256 + low[n];
        }
        for (int n = 0; n < kPanel; ++n) {
            const auto sum = static_cast<int32_t>(exact[n] - offset[n]);
            tile[r * kPanel + n] = static_cast<float>(sum) * row_scale[r] * scales[n];
        }
    }
}

// Scales, offsets and bias of 32 columns: from what a kernel summed up to what the product is. A row's digits become one
// row.
template <bool kUnsignedRows>
CM_INLINE void finish(float* tile, int rows, const cm_linear& w, int group, int panel, const float* row_scale) {
    if (has_int8_weights(w.form)) {
        const float* scales = scales_at(w, group, panel);
        const int32_t* sums = sums_at(w, group, panel);
        if (digits(w.form) == 2) {
            scale_sums<kUnsignedRows, 2>(tile, rows, sums, scales, row_scale);
        } else {
            scale_sums<kUnsignedRows, 1>(tile, rows, sums, scales, row_scale);
        }
    }
    if (w.bias == nullptr) return;
    const float* bias = w.bias + static_cast<int64_t>(group) * w.out_features + panel * kPanel;
    const int real = w.out_features - panel * kPanel < kPanel ? w.out_features - panel * kPanel : kPanel;
    for (int r = 0; r < rows; ++r)
        for (int n = 0; n < real; ++n) tile[r * kPanel + n] += bias[n];
}

struct Ahead {
    const char* from;
    int step;
};

// What block `block` of `blocks` fetches while it passes over a panel. The first over the first panel: that very panel, a
// little ahead of itself (a fetch past the end harms nobody). All others: their share of the next panel, if it is ours.
static CM_INLINE Ahead fetch(const char* panel, int64_t bytes, int block, int blocks, bool first, const char* end) {
    if (blocks == 1 || (first && block == 0)) return {panel + kAheadBytes, kStepBytes};
    if (panel + 2 * bytes > end) return {panel, 0};
    const int shares = first ? blocks - 1 : blocks, share = first ? block - 1 : block;
    return {panel + bytes + bytes / shares * share, kStepBytes / shares};
}

// One run of rows with all panels of the range.
template <class Form>
CM_INLINE void multiply_run(const cm_linear& w, int group, const Rows& x, int first, int count, int first_panel,
                            int last_panel, Sink sink) {
    alignas(64) float tile[Form::kMaxRows * kPanel];
    static_assert(Form::kMaxPairedRows * 2 <= Form::kMaxRows, "two panels of few rows fit into one tile");
    static_assert(Form::kMaxRows % 2 == 0, "both digits of a row are in one block");
    const int parts = digits(w.form), most = Form::kMaxRows / parts;
    const int blocks = (count + most - 1) / most;
    int tiles = 0;
    const int64_t bytes = panel_bytes(w);
    const char* const end = panel_at(w, group, last_panel);
    const auto* data = static_cast<const typename Form::Number*>(x.data) + first * parts * x.stride;
    for (int panel = first_panel; panel < last_panel;) {
        const int together = count * parts <= Form::kMaxPairedRows && panel + 1 < last_panel ? 2 : 1;
        const char* here = panel_at(w, group, panel);
        for (int b = 0; b < blocks; ++b) {
            const int begin = count * b / blocks, rows = count * (b + 1) / blocks - begin;
            const Ahead ahead = fetch(here, bytes, b, blocks, panel == first_panel, end);
            const Block<Form> block{data + begin * parts * x.stride, x.stride,   rows * parts, here,   together,
                                    steps(w),                        ahead.from, ahead.step,   &tiles, tile};
            multiply_block(block);
            for (int p = 0; p < together; ++p) {
                float* part = tile + p * rows * parts * kPanel;
                const float* row_scale = has_int8_weights(w.form) ? x.scale + first + begin : nullptr;
                finish<Form::kUnsignedRows>(part, rows, w, group, panel + p, row_scale);
                sink.store(sink.context, first + begin, rows, (panel + p) * kPanel, part);
            }
        }
        panel += together;
    }
    if (tiles != 0) release_tiles();
}

template <class Form>
CM_NOINLINE void multiply_form(const cm_linear& w, int group, const Rows& x, int first_panel, int last_panel,
                               Sink sink) {
    const int64_t row_bytes =
        static_cast<int64_t>(padded_in(w)) * digits(w.form) * static_cast<int64_t>(sizeof(typename Form::Number));
    const int64_t fits = kRunBytes / row_bytes / Form::kMaxRows * Form::kMaxRows;
    const int run = fits < 2 * Form::kMaxRows ? 2 * Form::kMaxRows : static_cast<int>(fits);
    for (int first = 0; first < x.count; first += run) {
        const int count = x.count - first < run ? x.count - first : run;
        multiply_run<Form>(w, group, x, first, count, first_panel, last_panel, sink);
    }
}

// x times the panels first_panel ... last_panel - 1 of one group. Calls store(first_row, rows, first_column, tile) for
// every part of the result: tile [rows][32] float32 at a multiple of 64; columns past out_features hold zeros.
template <class Store>
void multiply(const cm_linear& w, int group, const Rows& x, int first_panel, int last_panel, Store&& store) {
    using Stored = std::remove_reference_t<Store>;
    const Sink sink{[](void* context, int first_row, int rows, int first_column, const float* tile) {
                        (*static_cast<Stored*>(context))(first_row, rows, first_column, tile);
                    },
                    const_cast<void*>(static_cast<const void*>(&store))};
    switch (w.form) {
        case CM_F32: return multiply_form<F32>(w, group, x, first_panel, last_panel, sink);
        case CM_BF16: return multiply_form<Bf16>(w, group, x, first_panel, last_panel, sink);
        default: return multiply_form<Int8>(w, group, x, first_panel, last_panel, sink);
    }
}

}  // namespace cm::CM_ISA_NAMESPACE
