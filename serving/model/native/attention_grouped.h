// Grouped attention: the cache has keys and values in the form of their use, so rows attend individually, in a prompt
// or not, each KV head's group of query heads together.
#pragma once
#include "attention_gather.h"

namespace cm::CM_ISA_NAMESPACE {

template <class T>
class Grouped {
  public:
    Grouped(Arena& arena, const cm_model& model, const cm_cache& cache, int rows, int context, int threads)
        : m_(model), gatherer_(arena, model, cache, Cut::grouped(model), rows, context, threads) {}

    void attend(Team& team, const AttentionJob<T>& job) {
        int span = 0, row = 0;
        for (;;) {
            gatherer_.wave.fill(job.spans, job.count, span, row, job.block->window);
            if (gatherer_.wave.run_count == 0) return;
            gatherer_.run(
                team, job,
                [&](const Run& run, const Item& item, const GatherThread<T>& space) {
                    copy_queries(job, run, item, space.query);
                    return space.query;
                },
                [&](int wave_row, int head, const float* sum, Vec total) {
                    T* out = job.out + gatherer_.wave.step_row[wave_row] * job.out_stride;
                    store_means_of(sum, total, m_.head_dim, out + static_cast<int64_t>(head) * m_.head_dim);
                });
        }
    }

  private:
    // An item's queries, consecutive and padded.
    void copy_queries(const AttentionJob<T>& job, const Run& run, const Item& item, T* to) const {
        const int heads = gatherer_.wave.as.heads, width = gatherer_.shape.width;
        for (int q = item.first_query; q < item.first_query + item.queries; ++q, to += width) {
            const T* row = job.query + gatherer_.wave.step_row[run.wave_row + q / heads] * job.query_stride;
            copy_numbers(to, row + static_cast<int64_t>(run.kv_head * heads + q % heads) * m_.head_dim, m_.head_dim);
            clear_numbers(to + m_.head_dim, width - m_.head_dim);
        }
    }

    const cm_model& m_;
    Gatherer<T> gatherer_;
};

}  // namespace cm::CM_ISA_NAMESPACE
