// From hidden states to logits, for the rows that need them.
#pragma once
#include "experts.h"
#include "isa.h"
#include "shares.h"
#include "workspace.h"

namespace cm::CM_ISA_NAMESPACE {

// Logits of rows row_of(0) ... row_of(count - 1) of the stream. Calls use(index, logits, thread) for each, from any
// thread.
template <class T, class RowOf, class Use>
void each_logits(cm_engine& engine, const Workspace<T>& w, const float* norm, const cm_linear& head, int count,
                 RowOf&& row_of, Use&& use) {
    const cm_model& m = engine.model;
    for (int begin = 0; begin < count; begin += kDrawnRows) {
        const int rows = count - begin < kDrawnRows ? count - begin : kDrawnRows;
        each_row(engine.team, rows, m.hidden, [&](int i, int) {
            rms_norm(w.x + row_of(begin + i) * w.x_stride, norm, m.hidden, m.norm_eps, w.normed.row(i));
            if (head.form == CM_INT8) w.normed.quantise(i, m.hidden);
        });
        product(engine.team, head, w.normed.rows(head, 0, rows),
                [&](int first, int some, int column, const float* tile) {
                    for (int r = 0; r < some; ++r) {
                        convert_row(tile + r * kPanel, columns_in(m.vocab, column),
                                    w.logits + (first + r) * w.logits_stride + column);
                    }
                });
        each_row(engine.team, rows, m.vocab,
                 [&](int i, int thread) { use(begin + i, w.logits + i * w.logits_stride, thread); });
    }
}

}  // namespace cm::CM_ISA_NAMESPACE
