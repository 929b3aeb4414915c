// Products of rows with packed weights, y = x W^T + b, for any number of rows and any range of panels.
//
// Theory of operation. With few rows, reading the weights is the bound: each panel is read once, prefetched, two panels
// at once if the registers suffice, so that their chains hide each other's latency. More rows pass over each panel in
// even blocks while the next panel is fetched; thousands are processed in runs of rows that stay in the second-level
// cache. Panels in short form are first restored in cache, and rows converted where instructions lack products of their
// form (AVX2). None of this changes a result: an output element is one
// chain over the inner dimension in one order.
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
#include "rows.h"

namespace cm::CM_ISA_NAMESPACE {

// Rows of activations in the weights' form. All are readable, and finite, up to padded_in of the product. The digits of
// a row (W8A16) are consecutive.
struct Rows {
    const void* data;
    int64_t stride;      // in numbers
    const float* scale;  // one per row, INT8 and W8A16 only
    int count;
    int first = 0;  // number of the first row, as results name it
};

// Destination of results: a function and its argument, so that products are compiled once, not once per use.
struct Sink {
    void (*store)(void* context, int first_row, int rows, int first_column, const float* tile);
    void* context;
};

constexpr int64_t kRunBytes = 384 << 10;    // of x that stay in cache while all panels pass
constexpr int64_t kWidenBytes = 192 << 10;  // of x after conversion, likewise
constexpr int kAheadSteps = 32;

#if !defined(CM_AMX)
static CM_INLINE void release_tiles() {}
#endif

// From exact sums of rows of digits, kParts per row, to the rows' values.
template <bool kUnsignedRows, int kParts>
CM_INLINE void scale_sums(float* tile, int rows, const int32_t* sums, const float* scales, const float* row_scale) {
    uint32_t offset[kPanel];
    for (int n = 0; n < kPanel; ++n) {
        offset[n] = kUnsignedRows ? static_cast<uint32_t>(sums[n]) * (kParts == 2 ? 257u : 1u) : 0;
    }
    for (int r = 0; r < rows; ++r) {
        uint32_t exact[kPanel];  // correct at the end, even if intermediate sums overflow
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

// Scales, offsets and bias of 32 columns: from a kernel's sums to the product. A row's digits become one row.
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

// Location of the current panel, and the memory needed after it.
struct Stream {
    const char* here;
    bool from_memory;  // not yet in cache
    const char* next;  // null: none
    int64_t bytes;
};

// Prefetches of block `block` of `blocks` during its pass over a panel. The first pass over a panel from memory fetches
// that panel, a little ahead of itself, and the start of the next. All others fetch their share of the next.
static CM_INLINE Ahead fetch(const Stream& stream, int block, int blocks, int steps) {
    const char* next = stream.next ? stream.next : stream.here;
    if (stream.from_memory && block == 0) {
        const int lead = steps < kAheadSteps ? steps : kAheadSteps;
        if (lead == steps) return {next, kStepBytes, 0, next};
        return {stream.here + lead * kStepBytes, kStepBytes, steps - lead, next};
    }
    if (stream.next == nullptr) return {next, 0, 0, next};
    const int shares = blocks - stream.from_memory, share = block - stream.from_memory;
    return {next + stream.bytes / shares * share, kStepBytes / shares, 0, next};
}

// Some rows and all panels of a range, one or two at a time.
template <class Form>
class PanelRun {
  public:
    CM_INLINE PanelRun(const cm_linear& w, int group, const Rows& x, int first, int count, Sink sink)
        : w_(w), x_(x), sink_(sink), group_(group), first_(first), count_(count), parts_(digits(w.form)) {
        static_assert(Form::kMaxPairedRows * 2 <= Form::kMaxRows, "two panels of few rows fit into one tile");
        static_assert(Form::kMaxRows % 2 == 0, "both digits of a row are in one block");
        blocks_ = (count * parts_ + Form::kMaxRows - 1) / Form::kMaxRows;
    }
    PanelRun(const PanelRun&) = delete;
    PanelRun& operator=(const PanelRun&) = delete;

    int blocks() const { return blocks_; }
    bool pairs() const { return count_ * parts_ <= Form::kMaxPairedRows; }
    // Call at the end. Not a destructor, which would also run for exceptions and include code shared by all instruction
    // sets.
    CM_INLINE void release() const {
        if (tiles_ != 0) release_tiles();
    }

    // Panel number `panel`, and the next if two are computed `together`: they are consecutive at stream.here.
    CM_INLINE void multiply(int panel, int together, const Stream& stream) {
        alignas(64) float tile[Form::kMaxRows * kPanel];
        const auto* data = static_cast<const typename Form::Number*>(x_.data) + first_ * parts_ * x_.stride;
        if (has_int8_weights(w_.form)) fetch_scales(panel, together);
        for (int b = 0; b < blocks_; ++b) {
            const int begin = count_ * b / blocks_, rows = count_ * (b + 1) / blocks_ - begin;
            // Constructed in place: a copy would be read before its parts are written, and wait for them.
            const Block<Form> block{data + begin * parts_ * x_.stride,
                                    x_.stride,
                                    rows * parts_,
                                    stream.here,
                                    together,
                                    steps(w_),
                                    fetch(stream, b, blocks_, steps(w_)),
                                    &tiles_,
                                    tile};
            multiply_block(block);
            for (int p = 0; p < together; ++p) {
                float* part = tile + p * rows * parts_ * kPanel;
                const float* row_scale = has_int8_weights(w_.form) ? x_.scale + first_ + begin : nullptr;
                finish<Form::kUnsignedRows>(part, rows, w_, group_, panel + p, row_scale);
                sink_.store(sink_.context, x_.first + first_ + begin, rows, (panel + p) * kPanel, part);
            }
        }
    }

  private:
    // The data for these panels that finish() will need: a few lines of memory that it would otherwise wait for.
    CM_INLINE void fetch_scales(int panel, int together) const {
        const float* scales = scales_at(w_, group_, panel);
        const int32_t* sums = sums_at(w_, group_, panel);
        for (int column = 0; column < together * kPanel; column += 16) {
            __builtin_prefetch(scales + column);
            if (Form::kUnsignedRows) __builtin_prefetch(sums + column);
        }
    }

    const cm_linear& w_;
    const Rows& x_;
    const Sink sink_;
    const int group_, first_, count_, parts_;
    int blocks_, tiles_ = 0;
};

template <class Form>
CM_INLINE void multiply_run(const cm_linear& w, int group, const Rows& x, int first, int count, int first_panel,
                            int last_panel, Sink sink, const char* after) {
    PanelRun<Form> run(w, group, x, first, count, sink);
    const int64_t bytes = panel_bytes(w);
    for (int panel = first_panel, together; panel < last_panel; panel += together) {
        together = run.pairs() && panel + 1 < last_panel ? 2 : 1;
        const char* here = panel_at(w, group, panel);
        const char* next = panel + together < last_panel ? here + together * bytes : after;
        run.multiply(panel, together, {here, run.blocks() == 1 || panel == first_panel, next, bytes});
    }
    run.release();
}

template <class Form>
CM_NOINLINE void multiply_form(const cm_linear& w, int group, const Rows& x, int first_panel, int last_panel, Sink sink,
                               const char* after) {
    const int64_t row_bytes =
        static_cast<int64_t>(padded_in(w)) * digits(w.form) * static_cast<int64_t>(sizeof(typename Form::Number));
    const int64_t fits = kRunBytes / row_bytes / Form::kMaxRows * Form::kMaxRows;
    const int run = fits < 2 * Form::kMaxRows ? 2 * Form::kMaxRows : static_cast<int>(fits);
    for (int first = 0; first < x.count; first += run) {
        const int count = x.count - first < run ? x.count - first : run;
        multiply_run<Form>(w, group, x, first, count, first_panel, last_panel, sink, after);
    }
}

#if defined(CM_AVX2)
static CM_INLINE void widen_row(const int8_t* from, int n, int16_t* to) {
    for (int i = 0; i < n; ++i) to[i] = from[i];
}
static CM_INLINE void widen_row(const uint16_t* from, int n, float* to) {
    convert_row(reinterpret_cast<const bf16*>(from), n, to);
}

// Rows as numbers of twice as many bits, which kernels otherwise make of them for every panel. At least two blocks fit.
template <class Form>
CM_NOINLINE void multiply_widened(const cm_linear& w, int group, const Rows& x, int first_panel, int last_panel,
                                  Sink sink, const char* after) {
    using Number = typename Form::Wide::Number;
    alignas(64) Number numbers[kWidenBytes / sizeof(Number)];
    const int padded = padded_in(w), parts = digits(w.form);
    const int run = static_cast<int>(kWidenBytes / sizeof(Number)) / (padded * parts);
    for (int first = 0; first < x.count; first += run) {
        const int count = x.count - first < run ? x.count - first : run;
        const auto* from = static_cast<const typename Form::Number*>(x.data) + first * parts * x.stride;
        for (int r = 0; r < count * parts; ++r) widen_row(from + r * x.stride, padded, numbers + r * padded);
        const Rows rows{numbers, padded, x.scale ? x.scale + first : nullptr, count, x.first + first};
        multiply_run<typename Form::Wide>(w, group, rows, 0, count, first_panel, last_panel, sink, after);
    }
}
#endif

template <class Form>
CM_INLINE void multiply_rows(const cm_linear& w, int group, const Rows& x, int first_panel, int last_panel, Sink sink,
                             const char* after) {
#if defined(CM_AVX2)
    const int64_t row_bytes = 2ll * padded_in(w) * digits(w.form) * static_cast<int64_t>(sizeof(typename Form::Number));
    if (x.count >= Form::kWidenedRows && 2 * Form::kMaxRows * row_bytes <= kWidenBytes)
        return multiply_widened<Form>(w, group, x, first_panel, last_panel, sink, after);
#endif
    multiply_form<Form>(w, group, x, first_panel, last_panel, sink, after);
}

// Panels of short_bf16.h, each restored once before all rows pass over it.
static CM_NOINLINE void multiply_restored(const cm_linear& w, int group, const Rows& x, int first_panel, int last_panel,
                                          Sink sink, const char* after) {
    alignas(64) char restored[kMostShortInputs * kPanel * 2];
    PanelRun<Bf16> run(w, group, x, 0, x.count, sink);
    for (int panel = first_panel; panel < last_panel; ++panel) {
        const char* here = panel_at(w, group, panel);
        const char* next = panel + 1 < last_panel ? here + panel_bytes(w) : after;
        Restoring(here, padded_in(w), next ? next : here).next(steps(w) / 2, restored);
        run.multiply(panel, 1, {restored, false, next, panel_bytes(w)});
    }
    run.release();
}

// The same; with few rows the kernel restores them step by step.
static CM_INLINE void multiply_short(const cm_linear& w, int group, const Rows& x, int first_panel, int last_panel,
                                     Sink sink, const char* after) {
    if (x.count > Bf16::kMaxRestoredRows) return multiply_restored(w, group, x, first_panel, last_panel, sink, after);
    multiply_form<Short<Bf16>>(w, group, x, first_panel, last_panel, sink, after);
}

// x times the panels first_panel ... last_panel - 1 of one group. Calls store(first_row, rows, first_column, tile) for
// every part of the result: tile [rows][32] float32 at a multiple of 64; columns past out_features are zero. After: the
// caller's next panels, of the same size, if known.
template <class Store>
void multiply(const cm_linear& w, int group, const Rows& x, int first_panel, int last_panel, Store&& store,
              const char* after = nullptr) {
    using Stored = std::remove_reference_t<Store>;
    const Sink sink{[](void* context, int first_row, int rows, int first_column, const float* tile) {
                        (*static_cast<Stored*>(context))(first_row, rows, first_column, tile);
                    },
                    const_cast<void*>(static_cast<const void*>(&store))};
    switch (w.form) {
        case CM_F32: return multiply_form<F32>(w, group, x, first_panel, last_panel, sink, after);
        case CM_BF16: return multiply_rows<Bf16>(w, group, x, first_panel, last_panel, sink, after);
        case CM_BF16_SHORT: return multiply_short(w, group, x, first_panel, last_panel, sink, after);
        default: return multiply_rows<Int8>(w, group, x, first_panel, last_panel, sink, after);
    }
}

}  // namespace cm::CM_ISA_NAMESPACE
