// How the individually attending rows of a step are cut into items for the threads. The cut determines which thread
// computes a part, never a result.
//
//     run     a few rows of one sequence, and the heads that read the same part of its context: all, or a KV head's
//             group. A run's queries are its rows times these heads
//     wave    runs that are computed together: bounds the scratch memory
//     item    some queries of a run against some pieces of its context
//
// An item with all pieces of its queries merges them immediately. A long context is divided among several items; each
// stores its result per piece in slots, which a separate stage merges in the same order.
#pragma once
#include "attention_piece.h"

namespace cm::CM_ISA_NAMESPACE {

constexpr int kWaveRows = 256;
constexpr int kMostQueries = 32;      // per item: more of them share each load of a row
constexpr int kItemsPerAttender = 4;  // per thread, so that none waits long for the last
constexpr int64_t kSlotBytes = 32ll << 20;

// How rows are grouped into runs.
struct Cut {
    int heads;     // of a run
    int kv_heads;  // runs of the same rows, one for each
    int rows;      // the most of a run
    bool plain;    // whether plain spans are included

    static Cut latent(const cm_model& m) { return {m.heads, 1, 4, false}; }
    static Cut grouped(const cm_model& m) {
        const int heads = m.heads / m.kv_heads;
        return {heads, m.kv_heads, larger(1, kMostQueries / heads), true};
    }
};

struct Run {
    const int32_t* table;
    int start, rows;
    int wave_row;  // of its first row
    int kv_head;
    int slot;      // of its first query and piece; -1 = none, its items merge directly
    int from;      // first position that any of its rows sees

    int context() const { return start + rows; }
    int skipped() const { return from / kPiece; }                        // pieces before the first visible one
    int pieces() const { return parts(context(), kPiece) - skipped(); }  // counted from that one
};

struct Item {
    int run;
    int first_query, queries;
    int first_piece, pieces;
};

struct Wave {
    const Cut as;
    const int max_rows;
    Run* runs;
    int* step_row;  // [kWaveRows], number of a row in the step
    Item* items;
    Item* merges;  // queries of runs with slots
    int run_count = 0, rows = 0, item_count = 0, merge_count = 0;
    int max_slots;

    // Memory for waves of steps of `step_rows` rows over contexts of at most `max_context`.
    Wave(Arena& arena, const Cut& cut, int step_rows, int max_context, int value, int threads)
        : as(cut), max_rows(smaller(step_rows, kWaveRows)) {
        const int64_t queries = static_cast<int64_t>(max_rows) * as.heads * as.kv_heads;
        const int64_t slots = queries * parts(max_context, kPiece),
                      fit = kSlotBytes / (value * static_cast<int64_t>(sizeof(float)));
        max_slots = static_cast<int>(slots < fit ? slots : fit);
        runs = arena.take<Run>(static_cast<int64_t>(max_rows) * as.kv_heads);
        step_row = arena.take<int>(max_rows);
        items = arena.take<Item>(2 * queries + 2 * kItemsPerAttender * threads);
        merges = arena.take<Item>(queries);
    }

    // Adds runs from `span` on, starting at its row `row`; both are advanced to the first that did not fit. Window: of
    // the layer, see cm_block.
    void fill(const Span* spans, int count, int& span, int& row, int window = 0) {
        run_count = rows = 0;
        for (; span < count; ++span, row = 0) {
            if (spans[span].plain && !as.plain) continue;
            for (; row < spans[span].rows; row += as.rows) {
                const int taken = smaller(as.rows, spans[span].rows - row);
                if (rows + taken > kWaveRows) return;
                const int start = spans[span].start + row;
                const int from = window ? larger(0, start + 1 - window) : 0;
                for (int kv_head = 0; kv_head < as.kv_heads; ++kv_head)
                    runs[run_count++] = {spans[span].table, start, taken, rows, kv_head, -1, from};
                for (int r = 0; r < taken; ++r) step_row[rows++] = spans[span].first_row + row + r;
            }
        }
    }

    // Items have at least `good` queries unless threads would be idle.
    void cut(int threads, int good) {
        item_count = merge_count = 0;
        const int wanted = kItemsPerAttender * threads;
        int group = kMostQueries;
        while (group > good && count_items(group) < wanted) group /= 2;
        while (group > 1 && count_items(group) < threads) group /= 2;
        const int64_t share = larger(1, static_cast<int>(count_items(group) / wanted));
        int slots = 0;
        for (int r = 0; r < run_count; ++r) {
            const int pieces = runs[r].pieces(), queries = runs[r].rows * as.heads;
            const bool split = pieces > share && slots + static_cast<int64_t>(queries) * pieces <= max_slots;
            if (split) {
                runs[r].slot = slots;
                slots += queries * pieces;
            }
            for (int q = 0; q < queries; q += group) {
                const int taken = smaller(group, queries - q), step = split ? static_cast<int>(share) : pieces;
                for (int p = 0; p < pieces; p += step)
                    items[item_count++] = {r, q, taken, p, smaller(step, pieces - p)};
                if (split) merges[merge_count++] = {r, q, taken, 0, pieces};
            }
        }
    }

  private:
    int64_t count_items(int group) const {
        int64_t count = 0;
        for (int r = 0; r < run_count; ++r)
            count += static_cast<int64_t>(parts(runs[r].rows * as.heads, group)) * runs[r].pieces();
        return count;
    }
};

}  // namespace cm::CM_ISA_NAMESPACE
