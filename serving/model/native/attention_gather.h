// Gathering by queries from their contexts: the part that both kinds of attention share. Two stages: pieces of
// contexts; then merging the results of long contexts' pieces.
#pragma once
#include "attention_plan.h"

namespace cm::CM_ISA_NAMESPACE {

// Memory of one thread.
template <class T>
struct GatherThread {
    PieceSpace<T> piece;
    Gathered part, total;
    T* query;  // [kMostQueries][width], for queries stored elsewhere in another shape

    GatherThread(Arena& arena, const RowShape<T>& shape)
        : piece(arena, shape, kMostQueries),
          part(gathered(arena, shape.value, kMostQueries)),
          total(gathered(arena, shape.value, kMostQueries)),
          query(arena.take<T>(shape.apart() ? static_cast<int64_t>(kMostQueries) * shape.width : 0)) {}

    static Gathered gathered(Arena& arena, int value, int64_t queries) {
        float* most = arena.take<float>(queries);
        float* sum = arena.take<float>(queries);
        return {most, sum, arena.take<float>(queries * value), value};
    }
};

template <class T>
class Gatherer {
  public:
    const RowShape<T> shape;
    Wave wave;

    Gatherer(Arena& arena, const cm_model& model, const cm_cache& cache, const Cut& cut, int rows, int context,
             int threads)
        : shape(model, cache),
          wave(arena, cut, rows, context, shape.value, threads),
          m_(model),
          cache_(cache),
          slots_(GatherThread<T>::gathered(arena, shape.value, wave.max_slots)) {
        const Arena before = arena;
        const GatherThread<T> first(arena, shape);
        thread_bytes_ = static_cast<int64_t>(arena.used() - before.used());
        threads_ = before;
        arena.take<char>(thread_bytes_ * (threads - 1));
    }

    // All rows of the wave. own(run, item, space): address of an item's queries. finish(row, head, sum, total):
    // receives the result of one query, to be divided by `total`; rows are counted in the wave.
    template <class Own, class Finish>
    void run(Team& team, const AttentionJob<T>& job, Own&& own, Finish&& finish) {
        wave.cut(team.threads(), kGoodQueries<T>);
        team.each(wave.item_count,
                  [&](int item, int thread) { gather(job, wave.items[item], thread_space(thread), own, finish); });
        team.each(wave.merge_count,
                  [&](int item, int thread) { merge_slots(job, wave.merges[item], thread_space(thread), finish); });
    }

  private:
    GatherThread<T> thread_space(int thread) const {
        Arena arena = threads_;
        arena.take<char>(thread_bytes_ * thread);
        return GatherThread<T>(arena, shape);
    }

    template <class Own, class Finish>
    void gather(const AttentionJob<T>& job, const Item& item, const GatherThread<T>& space, Own& own, Finish& finish) {
        const Run& run = wave.runs[item.run];
        const int window = job.block->window;
        const T* queries = own(run, item, space);
        for (int q = 0; q < item.queries; ++q) space.total.sum[q] = 0.0f;
        prepare_queries(space.piece, shape, queries, item.queries);
        for (int p = item.first_piece; p < item.first_piece + item.pieces; ++p) {
            const int first = (run.skipped() + p) * kPiece, count = smaller(kPiece, run.context() - first);
            const int named = shape.in_place ? smaller(kPiece + kListPad, run.context() - first) : count;
            find_rows(cache_, job.layer, run.table, first, named, run.from, run.kv_head, space.piece.rows);
            if (!shape.in_place) copy_rows(m_, cache_, shape, count, space.piece.copies, space.piece.rows);
            attend_piece(
                space.piece, shape, m_.softmax_scale, count, named, larger(0, run.from - first), queries, item.queries,
                [&](int q) {
                    const int end = run.start + (item.first_query + q) / wave.as.heads + 1 - first;
                    return Seen{window ? end - window : 0, end};
                },
                space.part);
            for (int q = 0; q < item.queries; ++q) {
                if (run.slot < 0) {
                    merge(space.total, q, space.part, q, shape.value);
                } else {
                    keep(space.part, q, run.slot + (item.first_query + q) * run.pieces() + p);
                }
            }
        }
        release_queries<T>();
        if (run.slot < 0) finish_queries(job, space, run, item, finish);
    }

    void keep(const Gathered& part, int q, int64_t slot) const {
        slots_.most[slot] = part.most[q];
        slots_.sum[slot] = part.sum[q];
        copy_numbers(slots_.out + slot * slots_.stride, part.out + q * part.stride, shape.value);
    }

    template <class Finish>
    void merge_slots(const AttentionJob<T>& job, const Item& item, const GatherThread<T>& space, Finish& finish) {
        const Run& run = wave.runs[item.run];
        for (int q = 0; q < item.queries; ++q) {
            space.total.sum[q] = 0.0f;
            const int64_t slot = run.slot + (item.first_query + q) * static_cast<int64_t>(run.pieces());
            for (int p = 0; p < run.pieces(); ++p) merge(space.total, q, slots_, slot + p, shape.value);
        }
        finish_queries(job, space, run, item, finish);
    }

    template <class Finish>
    void finish_queries(const AttentionJob<T>& job, const GatherThread<T>& space, const Run& run, const Item& item,
                        Finish& finish) const {
        const int heads = wave.as.heads;
        const float* sinks = job.block->sinks;
        for (int q = 0; q < item.queries; ++q) {
            const int query_index = item.first_query + q, head = run.kv_head * heads + query_index % heads;
            Vec total = splat(space.total.sum[q]);
            if (sinks) total = add(total, exp(splat(sinks[head] - space.total.most[q])));
            finish(run.wave_row + query_index / heads, head, space.total.out + q * space.total.stride, total);
        }
    }

    const cm_model& m_;
    const cm_cache& cache_;
    Gathered slots_;
    Arena threads_{nullptr};
    int64_t thread_bytes_;
};

// `count` gathered numbers as means.
template <class T>
CM_INLINE void store_means_of(const float* sum, Vec total, int count, T* to) {
    each_vec(count, [&](int i, int lanes) { store_up_to(to + i, div(load_up_to(sum + i, lanes), total), lanes); });
}

}  // namespace cm::CM_ISA_NAMESPACE
