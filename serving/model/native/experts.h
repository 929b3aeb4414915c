// The feed-forward half of a block: one dense network, or routed experts with shared ones.
//
// Two stages do the work for every kind: (1) gate and up of every network with rows, then silu(gate) * up, or the
// variant that cm_model defines for experts; (2) down of all networks, added to the residual stream. Experts need the
// gate's result first; the dense or shared network does not, so it runs concurrently with the gate. In (2) an item owns
// some columns of the stream and adds all networks to them, experts in order of their ids and the shared network last:
// no two threads share a column, and a row's sum has one order. If the experts are on several ranks, the same happens
// in the same order around an exchange of rows and results.
#pragma once
#include <cstdint>
#include <cstring>

#include "expert_nets.h"
#include "gate.h"
#include "isa.h"
#include "remote_experts.h"
#include "shares.h"
#include "workspace.h"

namespace cm::CM_ISA_NAMESPACE {

// Tiles of a product -> the residual stream, added.
template <class T>
struct AddToStream {
    const cm_model& m;
    const Workspace<T>& w;
    void operator()(int first, int rows, int column, const float* tile) const {
        for (int r = 0; r < rows; ++r) {
            add_into(w.x + (first + r) * w.x_stride + column, tile + r * kPanel, columns_in(m.hidden, column));
        }
    }
};

template <class T>
class Feed {
  public:
    Feed(cm_engine& engine, const Workspace<T>& space, int rows, const cm_block& block)
        : e_(engine), m_(engine.model), team_(engine.team), w_(space), rows_(rows), b_(block) {}

    void run() {
        const bool routed = b_.gate.out_features > 0;
        if (routed && e_.group) return run_with_peers();
        normalise(routed, [](int) {});
        gate_and_net(routed, true);
        if (routed) {
            choose_all();
            group();
            expert_nets();
        }
        quantise(routed);
        down(routed);
    }

  private:
    // `run` with experts at other ranks. While those are at work, the shared net is computed.
    void run_with_peers() {
        ask();
        collect(true);
    }

    // keep(row): called for each row as soon as it is complete.
    template <class Keep>
    void normalise(bool routed, Keep&& keep) {
        const bool net_int8 = b_.gate_up.form == CM_INT8 && b_.gate_up.out_features;
        const bool quantised = net_int8 || (routed && b_.expert_gate_up[0].form == CM_INT8);
        each_row(team_, rows_, m_.hidden, [&](int row, int) {
            rms_norm(w_.x + row * w_.x_stride, b_.feed_norm, m_.hidden, m_.norm_eps, w_.normed.row(row));
            if (quantised) w_.normed.quantise(row, m_.hidden);
            if (routed) convert_row(w_.normed.row(row), m_.hidden, w_.wide + row * w_.normed.stride);
            keep(row);
        });
    }

    // Stage 1 for the parts without routing: the gate's scores, the dense or shared network.
    void gate_and_net(bool routed, bool with_net) {
        const int64_t score_width = round_up(m_.experts, kPanel);
        auto keep_scores = [&](int first, int rows, int column, const float* tile) {
            for (int r = 0; r < rows; ++r)
                convert_row(tile + r * kPanel, kPanel, w_.gate_logits + (first + r) * score_width + column);
        };
        const Rows wide{w_.wide, w_.normed.stride, nullptr, routed ? rows_ : 0};
        const ProductItems scores(b_.gate, wide, 0, routed ? panels(b_.gate) : 0, team_.threads());
        const int blocks = with_net && b_.gate_up.out_features ? ceil_div(rows_, kFeedRows) : 0;
        const NetItems net(b_.gate_up, blocks, rows_, team_.threads());
        team_.each(scores.count() + blocks * net.per_job, [&](int item, int thread) {
            if (item < scores.count()) return scores.run(item, keep_scores);
            const int part = item - scores.count(), first = part / net.per_job * kFeedRows;
            const int count = rows_ - first < kFeedRows ? rows_ - first : kFeedRows;
            const Rows x = w_.normed.rows(b_.gate_up, first, count);
            open_gates(w_, b_.gate_up, Opening{}, x, part % net.per_job * net.columns, net.columns, w_.net, first,
                       thread);
        });
    }

  public:
    // The two parts of `run` with peers, for micro-batches: the other one is computed between them.
    void ask() {
        if (has_failed(*e_.group)) return;
        RemoteExperts<T> remote(e_, w_);
        normalise(true, [&](int row) { remote.stage(row, b_.expert_gate_up[0].form == CM_INT8); });
        gate_and_net(true, false);
        choose_all();
        remote.ask(&b_, rows_);
    }

    // gathers: whether to wait a little for the asks of others.
    void collect(bool gathers) {
        if (has_failed(*e_.group)) return;
        RemoteExperts<T> remote(e_, w_);
        const bool shared = b_.down.out_features > 0 && !remote.sends_shared();
        if (shared) gate_and_net(false, true);
        if (gathers ? !remote.gather_and_serve() : !remote.serve()) return;
        if (shared) {
            quantise(false);
            product(team_, b_.down, w_.net.rows(b_.down, 0, rows_),
                    [&](int first, int rows, int column, const float* tile) {
                        for (int r = 0; r < rows; ++r)
                            convert_row(tile + r * kPanel, columns_in(m_.hidden, column),
                                        w_.wide + (first + r) * w_.normed.stride + column);
                    });
        }
        if (!remote.await_results()) return;
        each_row(team_, rows_, 8 * m_.hidden, [&](int row, int) {
            remote.add_results(row);
            if (shared) add_into(w_.x + row * w_.x_stride, w_.wide + row * w_.normed.stride, m_.hidden);
        });
    }

  private:
    void choose_all() {
        each_row(team_, rows_, 8 * m_.experts, [&](int row, int thread) { choose(row, thread); });
    }

    void choose(int row, int thread) {
        const int64_t at = static_cast<int64_t>(row) * m_.top_k;
        const uint8_t* masked = e_.group ? masked_experts(*e_.group, &b_) : nullptr;
        route(m_, b_.gate_bias, masked, w_.gate_logits + row * round_up(m_.experts, kPanel),
              w_.threads[thread].gate_space, w_.chosen + at, w_.chosen_weight + at);
    }

    // Lists the rows of each expert, in order of rows, and cuts them into jobs of at most kFeedRows.
    void group() {
        int32_t* offset = w_.expert_offset;
        const int64_t slots = static_cast<int64_t>(rows_) * m_.top_k;
        std::memset(offset, 0, sizeof(int32_t) * (static_cast<size_t>(m_.experts) + 1));
        for (int64_t i = 0; i < slots; ++i) ++offset[w_.chosen[i] + 1];
        jobs_ = 0;
        for (int expert = 0; expert < m_.experts; ++expert) {
            for (int first = 0, left = offset[expert + 1]; left > 0; first += kFeedRows, left -= kFeedRows) {
                w_.jobs[jobs_++] = {expert, offset[expert] + first, left < kFeedRows ? left : kFeedRows};
            }
            offset[expert + 1] += offset[expert];
        }
        for (int64_t i = 0; i < slots; ++i) {
            const int32_t slot = offset[w_.chosen[i]]++;
            w_.slot_row[slot] = static_cast<int32_t>(i / m_.top_k);
            w_.slot_weight[slot] = w_.chosen_weight[i];
        }
    }

    // Stage 1 of the experts with rows.
    void expert_nets() {
        const NetItems net(b_.expert_gate_up[0], jobs_, ceil_div(rows_ * static_cast<int64_t>(m_.top_k), jobs_),
                           team_.threads());
        team_.each(jobs_ * net.per_job, [&](int item, int thread) {
            const ExpertJob& job = w_.jobs[item / net.per_job];
            const cm_linear& gate_up = b_.expert_gate_up[job.expert];
            const Rows x =
                job.count == 1 ? w_.normed.rows(gate_up, w_.slot_row[job.first], 1) : gather(gate_up, job, thread);
            open_gates(w_, gate_up, opening_of_experts(m_), x, item % net.per_job * net.columns, net.columns, w_.inner,
                       job.first, thread);
        });
    }

    Rows gather(const cm_linear& gate_up, const ExpertJob& job, int thread) const {
        const RowBuffer<T>& to = w_.threads[thread].gathered;
        const size_t width = static_cast<size_t>(round_up(m_.hidden, kInnerMultiple));
        for (int i = 0; i < job.count; ++i) {
            const int64_t row = w_.slot_row[job.first + i];
            if (gate_up.form == CM_INT8) {
                std::memcpy(to.bytes + i * to.stride, w_.normed.bytes + row * w_.normed.stride, width);
                to.scale[i] = w_.normed.scale[row];
            } else {
                std::memcpy(to.row(i), w_.normed.row(row), width * sizeof(T));
            }
        }
        return to.rows(gate_up, 0, job.count);
    }

    void quantise(bool routed) {
        const int net_width = b_.down.in_features, inner_width = routed ? b_.expert_down[0].in_features : 0;
        const int net_rows = b_.down.out_features && b_.down.form == CM_INT8 ? rows_ : 0;
        const int slots = routed && b_.expert_down[0].form == CM_INT8 ? rows_ * m_.top_k : 0;
        if (net_rows + slots == 0) return;
        each_row(team_, net_rows + slots, net_rows ? net_width : inner_width, [&](int row, int) {
            if (row < net_rows) return w_.net.quantise(row, net_width);
            w_.inner.quantise(row - net_rows, inner_width);
        });
    }

    // Stage 2.
    void down(bool routed) {
        const int64_t bytes =
            (routed ? jobs_ * panel_bytes(b_.expert_down[0]) : 0) + (b_.down.out_features ? panel_bytes(b_.down) : 0);
        const int all = ceil_div(m_.hidden, kPanel);
        const int panels = panels_per_item(all, 1, bytes, rows_, team_.threads());
        team_.each(ceil_div(all, panels), [&](int item, int) {
            const int begin = item * panels, end = begin + panels < all ? begin + panels : all;
            for (int job = 0; routed && job < jobs_; ++job) {
                const cm_linear& next = job + 1 < jobs_ ? b_.expert_down[w_.jobs[job + 1].expert] : b_.down;
                expert_down(w_.jobs[job], begin, end, next.out_features ? panel_at(next, 0, begin) : nullptr);
            }
            if (b_.down.out_features)
                multiply(b_.down, 0, w_.net.rows(b_.down, 0, rows_), begin, end, AddToStream<T>{m_, w_});
        });
    }

    void expert_down(const ExpertJob& job, int begin, int end, const char* after) const {
        const cm_linear& w = b_.expert_down[job.expert];
        multiply(w, 0, w_.inner.rows(w, job.first, job.count), begin, end,
                 [&](int row, int rows, int column, const float* tile) {
                     for (int r = 0; r < rows; ++r) {
                         const int32_t slot = job.first + row + r;
                         float* x = w_.x + w_.slot_row[slot] * w_.x_stride + column;
                         const int columns = columns_in(m_.hidden, column);
                         if (!m_.bf16_results) {
                             add_scaled_into(x, w_.slot_weight[slot], tile + r * kPanel, columns);
                             continue;
                         }
                         bf16 rounded[kPanel];
                         convert_row(tile + r * kPanel, columns, rounded);
                         add_scaled_into(x, w_.slot_weight[slot], rounded, columns);
                     }
                 }, after);
    }

    cm_engine& e_;
    const cm_model& m_;
    Team& team_;
    const Workspace<T>& w_;
    const int rows_;
    const cm_block& b_;
    int jobs_ = 0;
};

}  // namespace cm::CM_ISA_NAMESPACE
