// Rows that attend in latent space: the matrices that would expand a context are applied to the queries and to the
// result instead, so that every head reads the cached latents unchanged. For a few rows per context.
//
// Three stages: queries into latent space (each head's matrix is read once for all rows); gathering; and back, from
// means of latents to the heads' values.
#pragma once
#include "attention_gather.h"

namespace cm::CM_ISA_NAMESPACE {

template <class T>
class Absorbed {
  public:
    Absorbed(Arena& arena, const cm_model& model, const cm_block& block, const cm_cache& cache, int rows, int context,
             int threads)
        : m_(model),
          block_(block),
          gatherer_(arena, model, cache, Cut::latent(model), rows, context, threads),
          inputs_(arena, model.heads, wave_.max_rows, model.nope_dim),
          means_(arena, model.heads, wave_.max_rows, model.kv_lora) {
        queries_ = arena.take<T>(static_cast<int64_t>(wave_.max_rows) * model.heads * shape_.width);
    }

    void attend(Team& team, const AttentionJob<T>& job) {
        int span = 0, row = 0;
        for (;;) {
            wave_.fill(job.spans, job.count, span, row);
            if (wave_.run_count == 0) return;
            absorb(team, job);
            gatherer_.run(
                team, job,
                [&](const Run& run, const Item& item, const GatherThread<T>&) {
                    return query(run.wave_row, item.first_query);
                },
                [&](int wave_row, int head, const float* sum, Vec total) {  // where `unfold` reads it
                    store_means_of(sum, total, m_.kv_lora, means_.row(head, wave_row));
                    means_.complete(block_.value_absorb, head, wave_row);
                });
            unfold(team, job);
        }
    }

  private:
    // Panels of a head's matrix per item: all of them, unless there are fewer heads than threads could use.
    int panels_of_item(int count, int threads) const {
        return larger(1, smaller(count, count * m_.heads / (2 * threads)));
    }

    T* query(int row, int head) const {
        return queries_ + (static_cast<int64_t>(row) * m_.heads + head) * shape_.width;
    }

    void absorb(Team& team, const AttentionJob<T>& job) {
        const cm_linear& w = block_.key_absorb;
        const bool as_they_are = !has_int8_weights(w.form) && m_.nope_dim == inputs_.stride && contiguous();
        if (!as_they_are) {
            team.each(wave_.rows, [&](int row, int) {
                for (int head = 0; head < m_.heads; ++head) {
                    copy_numbers(inputs_.row(head, row), step_query(job, row, head), m_.nope_dim);
                    inputs_.complete(w, head, row);
                }
            });
        }
        const int step = panels_of_item(panels(w), team.threads()), items = parts(panels(w), step);
        team.each(m_.heads * items, [&](int item, int) {
            const int head = item / items, first = item % items * step;
            const Rows rows = as_they_are ? Rows{step_query(job, 0, head), job.query_stride, nullptr, wave_.rows}
                                          : inputs_.of(w, head, 0, wave_.rows);
            multiply(w, head, rows, first, smaller(first + step, panels(w)),
                     [&](int row, int count, int column, const float* tile) {
                         for (int r = 0; r < count; ++r)
                             store_tile(tile + r * kPanel, m_.kv_lora - column, query(row + r, head) + column);
                     });
            if (first == 0) add_rope_parts(job, head);
        });
    }

    const T* step_query(const AttentionJob<T>& job, int wave_row, int head) const {
        return job.query + wave_.step_row[wave_row] * job.query_stride + static_cast<int64_t>(head) * query_dim(m_);
    }
    bool contiguous() const { return wave_.step_row[wave_.rows - 1] - wave_.step_row[0] == wave_.rows - 1; }

    void add_rope_parts(const AttentionJob<T>& job, int head) const {
        for (int row = 0; row < wave_.rows; ++row) {
            T* own = query(row, head);
            copy_numbers(own + shape_.value, step_query(job, row, head) + m_.nope_dim, m_.rope_dim);
            pad_parts(shape_, m_.kv_lora, m_.rope_dim, own);
        }
    }

    void unfold(Team& team, const AttentionJob<T>& job) {
        const cm_linear& w = block_.value_absorb;
        const int step = panels_of_item(panels(w), team.threads()), items = parts(panels(w), step);
        team.each(m_.heads * items, [&](int item, int) {
            const int head = item / items, first = item % items * step;
            multiply(w, head, means_.of(w, head, 0, wave_.rows), first, smaller(first + step, panels(w)),
                     [&](int row, int count, int column, const float* tile) {
                         for (int r = 0; r < count; ++r) {
                             T* out = job.out + wave_.step_row[row + r] * job.out_stride +
                                      static_cast<int64_t>(head) * m_.value_dim;
                             store_tile(tile + r * kPanel, m_.value_dim - column, out + column);
                         }
                     });
        });
    }

    const cm_model& m_;
    const cm_block& block_;
    Gatherer<T> gatherer_;
    Wave& wave_ = gatherer_.wave;
    const RowShape<T>& shape_ = gatherer_.shape;
    HeadRows<T> inputs_, means_;
    T* queries_;
};

}  // namespace cm::CM_ISA_NAMESPACE
