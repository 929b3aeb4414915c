// Experts of a group: a layer's rows are sent to the ranks with their experts, and the results are returned.
//
// The source stages each row once, in the experts' input form, and lists its destinations; the experts' rank reads it
// in place, and writes each result to its canonical place, [row][choice] of the source. So the source adds the same
// numbers in the same order as one process with all experts, independent of their location.
#pragma once
#include <cstdint>
#include <cstring>

#include "expert_nets.h"
#include "isa.h"
#include "round.h"
#include "shares.h"
#include "workspace.h"

namespace cm::CM_ISA_NAMESPACE {

template <class T>
class RemoteExperts {
  public:
    RemoteExperts(cm_engine& engine, const Workspace<T>& space)
        : m_(engine.model),
          team_(engine.team),
          w_(space),
          round_(*engine.group, space.half, space.first),
          width_(static_cast<size_t>(round_up(m_.hidden, kInnerMultiple))) {}

    // ---- the source's part; rows and their choices are in the workspace

    // Stage a normed row for its experts. Call it after the results of the previous layer, or at the step's start.
    void stage(int row, bool int8) const {
        char* to = round_.stage(row);
        if (!int8) {
            std::memcpy(to, w_.normed.row(row), width_ * sizeof(T));
            return;
        }
        std::memcpy(to, w_.normed.bytes + row * w_.normed.stride, width_);
        std::memcpy(to + width_, w_.normed.scale + row, sizeof(float));
    }

    // Effects: each row's choices are in order of expert ids from now on.
    void ask(const cm_block* block, int rows) {
        for (int row = 0; row < rows; ++row) {
            const int64_t at = static_cast<int64_t>(row) * m_.top_k;
            sort_choices(w_.chosen + at, w_.chosen_weight + at);
        }
        const bool int8 = block->expert_gate_up[0].form == CM_INT8;
        const size_t row_bytes = int8 ? width_ + sizeof(float) : width_ * sizeof(T);
        round_.ask(block, w_.chosen, rows, static_cast<int64_t>(row_bytes));
    }

    // Whoever has asked meanwhile is served.
    bool await_results() {
        while (!round_.answered())
            if (!round_.await() || !serve()) return false;
        round_.end();
        return true;
    }

    // Add a row's results to the stream.
    void add_results(int row) const {
        const float* weight = w_.chosen_weight + static_cast<int64_t>(row) * m_.top_k;
        float* x = w_.x + row * w_.x_stride;
        for (int choice = 0; choice < m_.top_k; ++choice) {
            const char* result = round_.result(row, choice);
            if (m_.bf16_results)
                add_scaled_into(x, weight[choice], reinterpret_cast<const bf16*>(result), m_.hidden);
            else
                add_scaled_into(x, weight[choice], reinterpret_cast<const float*>(result), m_.hidden);
        }
        if (round_.sends_shared()) add_into(x, reinterpret_cast<const float*>(round_.result(row, m_.top_k)), m_.hidden);
    }

    // Whether shared experts are at other ranks, too.
    bool sends_shared() const { return round_.sends_shared(); }

    // ---- the experts' part

    // Compute the rows of those who have asked for few, this rank among them, and answer; then some rows of those who have
    // asked for many. So a long prompt's rows hold up nobody for long, and are not held up for ever.
    bool serve() {
        for (const bool large : {false, true}) {
            if (!round_.take(large)) return false;
            for (Piece piece; round_.next_piece(piece);) compute(piece);
            round_.answer();
        }
        return true;
    }

    // The same after a little wait for those who are about to ask.
    bool gather_and_serve() {
        round_.gather();
        return serve();
    }

  private:
    void compute(const Piece& piece) {
        if (piece.job_count == 0) return;
        open_all_gates(piece);
        const cm_linear& down = round_.down(piece.jobs[0].expert);
        if (down.form == CM_INT8)
            each_row(team_, piece.row_count, down.in_features,
                     [&](int row, int) { w_.inner.quantise(row, down.in_features); });
        multiply_down(piece);
    }

    void sort_choices(int32_t* chosen, float* weight) const {
        for (int i = 1; i < m_.top_k; ++i) {
            const int32_t id = chosen[i];
            const float own = weight[i];
            int j = i;
            for (; j > 0 && chosen[j - 1] > id; --j) {
                chosen[j] = chosen[j - 1];
                weight[j] = weight[j - 1];
            }
            chosen[j] = id;
            weight[j] = own;
        }
    }

    void open_all_gates(const Piece& piece) const {
        const NetItems net(round_.gate_up(piece.jobs[0].expert), piece.job_count,
                           ceil_div(piece.row_count, piece.job_count), team_.threads());
        team_.each(piece.job_count * net.per_job, [&](int item, int thread) {
            const ExpertJob& job = piece.jobs[item / net.per_job];
            const cm_linear& gate_up = round_.gate_up(job.expert);
            const Rows x = rows_of(gate_up, job.count, piece.rows + job.first, thread);
            const Opening opening = round_.is_shared(job.expert) ? Opening{} : opening_of_experts(m_);
            open_gates(w_, gate_up, opening, x, item % net.per_job * net.columns, net.columns, w_.inner,
                       job.first, thread);
        });
    }

    // A single row is read in place; several are gathered.
    Rows rows_of(const cm_linear& gate_up, int count, const Received* from, int thread) const {
        const bool int8 = gate_up.form == CM_INT8;
        const RowBuffer<T>& to = w_.threads[thread].gathered;
        if (count == 1) return {from->row, to.stride, int8 ? scale_of(*from) : nullptr, 1};
        for (int i = 0; i < count; ++i) {
            if (int8) {
                std::memcpy(to.bytes + i * to.stride, from[i].row, width_);
                to.scale[i] = *scale_of(from[i]);
            } else {
                std::memcpy(static_cast<void*>(to.row(i)), from[i].row, width_ * sizeof(T));
            }
        }
        return to.rows(gate_up, 0, count);
    }

    const float* scale_of(const Received& from) const { return reinterpret_cast<const float*>(from.row + width_); }

    void multiply_down(const Piece& piece) const {
        const int all = ceil_div(m_.hidden, kPanel);
        const int64_t bytes = piece.job_count * panel_bytes(round_.down(piece.jobs[0].expert));
        const int panels = panels_per_item(all, 1, bytes, piece.row_count, team_.threads());
        team_.each(ceil_div(all, panels), [&](int item, int) {
            const int begin = item * panels, end = begin + panels < all ? begin + panels : all;
            for (int job = 0; job < piece.job_count; ++job) {
                const bool last = job + 1 == piece.job_count;
                const char* after = last ? nullptr : panel_at(round_.down(piece.jobs[job + 1].expert), 0, begin);
                write_results(piece, piece.jobs[job], begin, end, after);
            }
        });
    }

    void write_results(const Piece& piece, const ExpertJob& job, int begin, int end, const char* after) const {
        const cm_linear& w = round_.down(job.expert);
        const bool rounded = m_.bf16_results && !round_.is_shared(job.expert);
        multiply(
            w, 0, w_.inner.rows(w, job.first, job.count), begin, end,
            [&](int row, int rows, int column, const float* tile) {
                for (int r = 0; r < rows; ++r) {
                    char* result = piece.rows[job.first + row + r].result;
                    if (rounded)
                        convert_row(tile + r * kPanel, columns_in(m_.hidden, column),
                                    reinterpret_cast<bf16*>(result) + column);
                    else
                        convert_row(tile + r * kPanel, columns_in(m_.hidden, column),
                                    reinterpret_cast<float*>(result) + column);
                }
            },
            after);
    }

    const cm_model& m_;
    Team& team_;
    const Workspace<T>& w_;
    Round round_;
    const size_t width_;
};

static void serve(cm_engine& engine) {
    if (engine.model.form == CM_F32) {
        RemoteExperts<float>(engine, Workspace<float>(engine, engine.scratch)).serve();
    } else {
        RemoteExperts<bf16>(engine, Workspace<bf16>(engine, engine.scratch)).serve();
    }
}

}  // namespace cm::CM_ISA_NAMESPACE
