// The common parts of dense, shared and routed networks: the division of their work, and their first stage.
#pragma once
#include <cstdint>
#include <cstring>

#include "isa.h"
#include "shares.h"
#include "workspace.h"

namespace cm::CM_ISA_NAMESPACE {

inline int columns_in(int out_features, int column) {
    return out_features - column < kPanel ? out_features - column : kPanel;
}

// How the inner widths of networks of one shape are divided.
struct NetItems {
    NetItems(const cm_linear& gate_up, int jobs, int rows, int threads) {
        const int width = gate_up.out_features / 2, whole = ceil_div(width, kPanel);
        int panels = panels_per_item(whole, jobs, 2 * panel_bytes(gate_up), rows, threads);
        if (panels > kFeedColumns / kPanel) panels = kFeedColumns / kPanel;
        columns = panels * kPanel;
        per_job = ceil_div(width, columns);
    }
    int columns;
    int per_job;
};

inline Opening opening_of_experts(const cm_model& m) { return {m.gate_alpha, m.gate_limit}; }

// silu(gate) * up, or the variant in `as`, in columns begin ... of a network's inner width, for x's rows -> rows first
// ... of `out`.
template <class T>
void open_gates(const Workspace<T>& space, const cm_linear& w, Opening as, const Rows& x, int begin, int size,
                const RowBuffer<T>& out, int first, int thread) {
    const int width = w.out_features / 2, end = begin + size < width ? begin + size : width;
    float* gate = space.threads[thread].gate;
    multiply(w, 0, x, begin / kPanel, ceil_div(end, kPanel), [&](int row, int rows, int column, const float* tile) {
        for (int r = 0; r < rows; ++r)
            convert_row(tile + r * kPanel, kPanel, gate + (row + r) * kFeedColumns + (column - begin));
    }, panel_at(w, 0, (width + begin) / kPanel));
    // The up half begins at any column: a panel may contain a few numbers before or after it.
    const int last_panel = ceil_div(width + end, kPanel);
    multiply(w, 0, x, (width + begin) / kPanel, last_panel, [&](int row, int rows, int column, const float* tile) {
        const int from = column - width < begin ? begin : column - width;
        const int to = column - width + kPanel < end ? column - width + kPanel : end;
        for (int r = 0; r < rows; ++r) {
            const float *own = gate + (row + r) * kFeedColumns + (from - begin),
                        *up = tile + r * kPanel + (from + width - column);
            T* opened = out.row(first + row + r) + from;
            if (as.limit > 0.0f) {
                clamped_swiglu(own, up, to - from, as, opened);
            } else {
                swiglu(own, up, to - from, opened);
            }
        }
    });
    if (end < width) return;
    const size_t pad = static_cast<size_t>(round_up(width, kInnerMultiple) - width) * sizeof(T);
    for (int r = 0; pad && r < x.count; ++r) std::memset(static_cast<void*>(out.row(first + r) + width), 0, pad);
}

}  // namespace cm::CM_ISA_NAMESPACE
