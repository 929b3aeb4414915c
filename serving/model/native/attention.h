// Attention of one layer: from rotated queries and the cache to the heads' values. See attention_grouped.h for the
// grouped kind, attention_absorbed.h and attention_plain.h for the two forms of the latent one.
#pragma once
#include "attention_absorbed.h"
#include "attention_grouped.h"
#include "attention_plain.h"

namespace cm::CM_ISA_NAMESPACE {

template <class T>
size_t attention_bytes(const cm_model& model, const cm_cache& cache, int max_rows, int max_context, int threads) {
    const cm_block& block = *model.blocks;  // sizes depend on the model only
    Arena grouped(nullptr), absorbed(nullptr), plain(nullptr);
    if (block.kind == CM_GROUPED) {
        const Grouped<T> only(grouped, model, cache, max_rows, max_context, threads);
        return grouped.used();
    }
    const Absorbed<T> first(absorbed, model, block, cache, max_rows, max_context, threads);
    const Plain<T> second(plain, model, block, cache, max_rows, threads);
    return absorbed.used() > plain.used() ? absorbed.used() : plain.used();
}

// Scratch memory, aligned to 64 bytes, for steps of at most this many rows over contexts of at most this many tokens.
inline size_t attention_scratch_bytes(const cm_model& model, const cm_cache& cache, int max_rows, int max_context,
                                      int threads) {
    if (model.heads == 0) return 0;  // experts only
    return model.form == CM_BF16 ? attention_bytes<bf16>(model, cache, max_rows, max_context, threads)
                                 : attention_bytes<float>(model, cache, max_rows, max_context, threads);
}

template <class T>
void attend_grouped(Team& team, const AttentionJob<T>& job, void* scratch) {
    int rows = 0, context = 1;
    for (int s = 0; s < job.count; ++s) {
        rows += job.spans[s].rows;
        context = larger(context, job.spans[s].start + job.spans[s].rows);
    }
    Arena arena(scratch);
    Grouped<T>(arena, *job.model, *job.cache, rows, context, team.threads()).attend(team, job);
}

// The two forms of the latent kind run one after the other and share the memory.
template <class T>
void attend(Team& team, const AttentionJob<T>& job, void* scratch) {
    if (job.block->kind == CM_GROUPED) return attend_grouped(team, job, scratch);
    int absorbed = 0, plain = 0, context = 1;
    for (int s = 0; s < job.count; ++s) {
        const Span& span = job.spans[s];
        if (span.plain) {
            plain = larger(plain, span.rows);
        } else {
            absorbed += span.rows;
            context = larger(context, span.start + span.rows);
        }
    }
    if (absorbed) {
        Arena arena(scratch);
        Absorbed<T>(arena, *job.model, *job.block, *job.cache, absorbed, context, team.threads()).attend(team, job);
    }
    if (plain) {
        Arena arena(scratch);
        Plain<T>(arena, *job.model, *job.block, *job.cache, plain, team.threads()).attend(team, job);
    }
}

}  // namespace cm::CM_ISA_NAMESPACE
