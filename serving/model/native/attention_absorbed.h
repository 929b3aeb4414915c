// Rows that attend in latent space: the matrices that would expand a context are applied to the queries and to the
// result instead, so that every head reads the cached latents as they are. For a few rows per context.
//
// Four stages: queries into latent space (each head's matrix is read once for all rows); pieces of contexts; what long
// contexts' pieces gave, merged; and back, from mean latents to the heads' values.
#pragma once
#include "attention_plan.h"

namespace cm::CM_ISA_NAMESPACE {

// What one thread needs.
template <class T>
struct AbsorbedThread {
    PieceSpace<T> piece;
    Gathered part, total;

    AbsorbedThread(Arena& arena, const RowShape<T>& shape)
        : piece(arena, shape, kMostQueries),
          part(gathered(arena, shape.latent, kMostQueries)),
          total(gathered(arena, shape.latent, kMostQueries)) {}

    static Gathered gathered(Arena& arena, int latent, int64_t queries) {
        float* most = arena.take<float>(queries);
        float* sum = arena.take<float>(queries);
        return {most, sum, arena.take<float>(queries * latent), latent};
    }
};

template <class T>
class Absorbed {
  public:
    Absorbed(Arena& arena, const cm_model& model, const cm_block& block, const cm_cache& cache, int rows, int context,
             int threads)
        : m_(model),
          block_(block),
          cache_(cache),
          shape_(model, cache),
          max_rows_(smaller(rows, kWaveRows)),
          wave_(arena, max_rows_, context, model.heads, shape_.latent, threads),
          inputs_(arena, model.heads, max_rows_, model.nope_dim),
          means_(arena, model.heads, max_rows_, model.kv_lora),
          slots_(AbsorbedThread<T>::gathered(arena, shape_.latent, wave_.max_slots)) {
        queries_ = arena.take<T>(static_cast<int64_t>(max_rows_) * model.heads * shape_.width);
        const Arena before = arena;
        const AbsorbedThread<T> first(arena, shape_);
        thread_bytes_ = static_cast<int64_t>(arena.used() - before.used());
        threads_ = before;
        arena.take<char>(thread_bytes_ * (threads - 1));
    }

    void attend(Team& team, const AttentionJob<T>& job) {
        int span = 0, row = 0;
        for (;;) {
            wave_.fill(job.spans, job.count, span, row);
            if (wave_.run_count == 0) return;
            wave_.cut(m_.heads, team.threads(), kGoodQueries<T>);
            absorb(team, job);
            team.each(wave_.item_count, [&](int item, int thread) { gather(job, wave_.items[item], thread); });
            team.each(wave_.merge_count, [&](int item, int thread) { merge_slots(wave_.merges[item], thread); });
            unfold(team, job);
        }
    }

  private:
    // Panels of a head's matrix that one item takes: all of them, unless there are fewer heads than threads could use.
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
            copy_numbers(query(row, head) + shape_.latent, step_query(job, row, head) + m_.nope_dim, m_.rope_dim);
            pad_parts(m_, shape_, query(row, head));
        }
    }

    AbsorbedThread<T> thread_space(int thread) const {
        Arena arena = threads_;
        arena.take<char>(thread_bytes_ * thread);
        return AbsorbedThread<T>(arena, shape_);
    }

    void gather(const AttentionJob<T>& job, const Item& item, int thread) {
        const AbsorbedThread<T> space = thread_space(thread);
        const Run& run = wave_.runs[item.run];
        const T* own = query(run.wave_row, item.first_query);
        for (int q = 0; q < item.queries; ++q) space.total.sum[q] = 0.0f;
        prepare_queries(space.piece, shape_, own, item.queries);
        for (int p = item.first_piece; p < item.first_piece + item.pieces; ++p) {
            const int first = p * kPiece, count = smaller(kPiece, run.context() - first);
            const int named = shape_.in_place ? smaller(kPiece + kListPad, run.context() - first) : count;
            find_rows(cache_, job.layer, run.table, first, named, space.piece.rows);
            if (!shape_.in_place) copy_rows(m_, cache_, shape_, count, space.piece.copies, space.piece.rows);
            attend_piece(
                space.piece, shape_, m_.softmax_scale, count, named, own, item.queries,
                [&](int q) { return run.start + (item.first_query + q) / m_.heads + 1 - first; }, space.part);
            for (int q = 0; q < item.queries; ++q) {
                if (run.slot < 0) {
                    merge(space.total, q, space.part, q, shape_.latent);
                } else {
                    keep(space.part, q, run.slot + (item.first_query + q) * run.pieces() + p);
                }
            }
        }
        release_queries<T>();
        if (run.slot < 0) finish_queries(space, run, item);
    }

    void keep(const Gathered& part, int q, int64_t slot) const {
        slots_.most[slot] = part.most[q];
        slots_.sum[slot] = part.sum[q];
        copy_numbers(slots_.out + slot * slots_.stride, part.out + q * part.stride, shape_.latent);
    }

    void merge_slots(const Item& item, int thread) {
        const AbsorbedThread<T> space = thread_space(thread);
        const Run& run = wave_.runs[item.run];
        for (int q = 0; q < item.queries; ++q) {
            space.total.sum[q] = 0.0f;
            const int64_t slot = run.slot + (item.first_query + q) * static_cast<int64_t>(run.pieces());
            for (int p = 0; p < run.pieces(); ++p) merge(space.total, q, slots_, slot + p, shape_.latent);
        }
        finish_queries(space, run, item);
    }

    // Mean latents of an item's queries, where `unfold` looks for them.
    void finish_queries(const AbsorbedThread<T>& space, const Run& run, const Item& item) const {
        for (int q = 0; q < item.queries; ++q) {
            const int query_index = item.first_query + q, row = run.wave_row + query_index / m_.heads,
                      head = query_index % m_.heads;
            const float* out = space.total.out + q * space.total.stride;
            const Vec sum = splat(space.total.sum[q]);
            T* mean = means_.row(head, row);
            each_vec(m_.kv_lora,
                     [&](int i, int lanes) { store_up_to(mean + i, div(load_up_to(out + i, lanes), sum), lanes); });
            means_.complete(block_.value_absorb, head, row);
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
    const cm_cache& cache_;
    const RowShape<T> shape_;
    const int max_rows_;
    Wave wave_;
    HeadRows<T> inputs_, means_;
    Gathered slots_;
    T* queries_;
    Arena threads_{nullptr};
    int64_t thread_bytes_;
};

}  // namespace cm::CM_ISA_NAMESPACE
