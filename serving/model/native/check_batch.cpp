#include <cmath>
#include <cstdint>

#include "check.h"
#include "engine.h"
#include "error.h"

namespace cm {
namespace {

// Whether neither a token at this position nor any later one sees a position in a block of the table.
bool is_past(const cm_engine& e, int block, int position) {
    const int place = block % e.cache.width, end = (block / e.cache.width + 1) * e.cache.block_tokens;
    return !e.sees_all[place] && end <= position + 1 - e.widest[place];
}

// The blocks to which a sequence's rows, and its draft tokens' rows in the draft layer's cache, will be written.
int32_t check_table(const cm_engine& e, const cm_batch& batch, int index, const cm_sequence& s) {
    const int64_t end = static_cast<int64_t>(s.start) + s.rows + (s.next_drafts > 1 ? s.next_drafts - 1 : 0);
    if (s.start < 0 || end > e.max_context) {
        return fail(CM_BAD_ARGUMENT, "sequence %d: tokens up to %lld of at most %d", index, static_cast<long long>(end),
                    e.max_context);
    }
    const int width = e.cache.places ? e.cache.width : 1;
    if (s.table < 0 || s.table_size < 0 || static_cast<int64_t>(s.table_size / width) * e.cache.block_tokens < end) {
        return fail(CM_BAD_ARGUMENT, "sequence %d: a table of %d blocks does not cover %lld tokens", index,
                    s.table_size, static_cast<long long>(end));
    }
    const int64_t needed = (end + e.cache.block_tokens - 1) / e.cache.block_tokens * width;
    for (int64_t block = 0; block < needed; ++block) {
        if (e.cache.places && is_past(e, static_cast<int>(block), s.start)) continue;
        const int32_t id = batch.tables[s.table + block];
        if (id < 0 || id >= e.cache.blocks) {
            return fail(CM_BAD_ARGUMENT, "sequence %d: block %d of a cache of %d", index, id, e.cache.blocks);
        }
    }
    return CM_OK;
}

int32_t check_draw(const cm_model& m, int index, const cm_sequence& s) {
    if (s.draw != CM_DRAW_NONE && s.draw != CM_DRAW_TOKEN && s.draw != CM_DRAW_LOGITS) {
        return fail(CM_BAD_ARGUMENT, "sequence %d: draw %d is unknown", index, s.draw);
    }
    if (s.drafts < 0 || s.drafts >= s.rows || (s.drafts && s.draw != CM_DRAW_TOKEN)) {
        return fail(CM_BAD_ARGUMENT, "sequence %d: %d drafts among %d rows", index, s.drafts, s.rows);
    }
    if (s.draw == CM_DRAW_TOKEN) {
        const bool known =
            s.temperature >= 0 && std::isfinite(s.temperature) && s.top_p >= 0 && s.min_p >= 0 && s.min_p <= 1;
        if (!known || s.top_k < 0 || s.position < 0) {
            return fail(CM_BAD_ARGUMENT, "sequence %d: temperature %g, top_k %d, top_p %g, min_p %g", index,
                        s.temperature, s.top_k, s.top_p, s.min_p);
        }
    }
    if (s.matcher < -1 || s.next_forced < 0 || (s.matcher >= 0 && s.draw != CM_DRAW_TOKEN)) {
        return fail(CM_BAD_ARGUMENT, "sequence %d: matcher %d, %d forced guesses", index, s.matcher, s.next_forced);
    }
    if (s.next_token < -1 || s.next_token >= m.vocab) {
        return fail(CM_BAD_ARGUMENT, "sequence %d: token %d of a vocabulary of %d", index, s.next_token, m.vocab);
    }
    return CM_OK;
}

int32_t check_drafting(const cm_engine& e, int index, const cm_sequence& s, const cm_answer& answer) {
    if (s.next_drafts < 0)
        return s.next_drafts == -1 ? CM_OK : fail(CM_BAD_ARGUMENT, "sequence %d: %d drafts", index, s.next_drafts);
    if (e.model.draft == nullptr || e.cache.layers <= e.model.layers) {
        return fail(CM_BAD_ARGUMENT, "sequence %d: the model or its KV cache has no draft layer", index);
    }
    if (s.next_drafts > 0 && s.draw != CM_DRAW_TOKEN && s.next_token < 0) {
        return fail(CM_BAD_ARGUMENT, "sequence %d: guesses need the token behind the last row", index);
    }
    if (s.next_drafts > answer.max_tokens) {
        return fail(CM_BAD_ARGUMENT, "sequence %d: %d drafts into %d columns", index, s.next_drafts, answer.max_tokens);
    }
    return CM_OK;
}

int32_t check_matcher(const cm_engine& e, const cm_batch& batch, int index, const cm_answer& answer) {
    const cm_sequence& s = batch.sequence[index];
    if (s.matcher < 0) return CM_OK;
    if (s.matcher >= batch.matchers || e.grammar.compute_mask == nullptr) {
        return fail(CM_BAD_ARGUMENT, "sequence %d: matcher %d of %d", index, s.matcher, batch.matchers);
    }
    if (s.next_forced > answer.max_tokens) {
        return fail(CM_BAD_ARGUMENT, "sequence %d: %d guesses into %d columns", index, s.next_forced, answer.max_tokens);
    }
    const cm_matcher& m = batch.matcher[s.matcher];
    for (int32_t i = 0; i < m.stop_count; ++i) {
        if (m.stops[i] < 0 || m.stops[i] >= e.model.vocab) {
            return fail(CM_BAD_ARGUMENT, "sequence %d: stop token %d", index, m.stops[i]);
        }
    }
    return CM_OK;
}

int32_t check_sequence(const cm_engine& e, const cm_batch& batch, int index, const cm_answer& answer) {
    const cm_sequence& s = batch.sequence[index];
    int32_t error = check_table(e, batch, index, s);
    if (!error) error = check_draw(e.model, index, s);
    if (!error) error = check_drafting(e, index, s, answer);
    if (!error) error = check_matcher(e, batch, index, answer);
    if (error) return error;
    if (s.drafts >= answer.max_tokens) return fail(CM_BAD_ARGUMENT, "sequence %d: more tokens than columns", index);
    if (s.draw == CM_DRAW_LOGITS && !answer.logits)
        return fail(CM_BAD_ARGUMENT, "sequence %d: no room for logits", index);
    if (s.keep_hidden && !answer.hidden) return fail(CM_BAD_ARGUMENT, "sequence %d: no room for hidden states", index);
    return CM_OK;
}

}  // namespace

int32_t check_batch(const cm_engine& e, const cm_batch& batch, const cm_answer& answer) {
    if (batch.sequences == 0 && batch.rows == 0) return CM_OK;
    const bool lists = batch.sequence && batch.ids && batch.tables && answer.token_counts && answer.tokens &&
                       answer.draft_counts && answer.drafts;
    if (batch.sequences < 0 || !lists) return fail(CM_BAD_ARGUMENT, "a part of the batch or of its answer is missing");
    if (batch.rows < 1 || batch.rows > e.max_rows) {
        return fail(CM_BAD_ARGUMENT, "%d rows in a step of at most %d", batch.rows, e.max_rows);
    }
    int64_t row = 0;
    for (int index = 0; index < batch.sequences; ++index) {
        const cm_sequence& s = batch.sequence[index];
        if (s.first_row != row || s.rows < 1 || s.rows > batch.rows - row) {
            return fail(CM_BAD_ARGUMENT, "sequence %d: %d rows from %d of %d", index, s.rows, s.first_row, batch.rows);
        }
        row += s.rows;
        if (const int32_t error = check_sequence(e, batch, index, answer)) return error;
    }
    if (row != batch.rows)
        return fail(CM_BAD_ARGUMENT, "%d rows, of which %lld belong to sequences", batch.rows,
                    static_cast<long long>(row));
    for (int at = 0; at < batch.rows; ++at) {
        if (batch.ids[at] < 0 || batch.ids[at] >= e.model.vocab) {
            return fail(CM_BAD_ARGUMENT, "row %d: token %d of a vocabulary of %d", at, batch.ids[at], e.model.vocab);
        }
    }
    return CM_OK;
}

}  // namespace cm
