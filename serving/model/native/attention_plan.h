// How the absorbed rows of a step are cut into items for the threads. The cut changes who computes what, never a
// result.
//
//     run     at most four rows of one sequence; a run's queries are its rows times the heads
//     wave    runs that are computed together: bounds the scratch memory
//     item    some queries of a run against some pieces of its context
//
// An item that has all pieces of its queries merges them as they come. A long context is shared between several items;
// each leaves what it gathered per piece in slots, which are merged in a stage of their own, in the same order.
#pragma once
#include "attention_piece.h"

namespace cm::CM_ISA_NAMESPACE {

constexpr int kRunRows = 4;
constexpr int kWaveRows = 256;
constexpr int kMostQueries = 32;      // of an item: more of them share each load of a row
constexpr int kItemsPerAttender = 4;  // per thread, so that none waits long for the last
constexpr int64_t kSlotBytes = 32ll << 20;

struct Run {
    const int32_t* table;
    int start, rows;
    int wave_row;  // of its first row
    int slot;      // of its first query and piece; -1 = none, its items merge for themselves

    int context() const { return start + rows; }
    int pieces() const { return parts(context(), kPiece); }
};

struct Item {
    int run;
    int first_query, queries;
    int first_piece, pieces;
};

struct Wave {
    Run* runs;
    int* step_row;  // [kWaveRows], where a row stands in the step
    Item* items;
    Item* merges;  // queries of runs with slots
    int run_count = 0, rows = 0, item_count = 0, merge_count = 0;
    int max_slots;

    // Room for waves of `max_rows` rows over contexts of at most `max_context`.
    Wave(Arena& arena, int max_rows, int max_context, int heads, int latent, int threads) {
        const int64_t queries = static_cast<int64_t>(max_rows) * heads;
        const int64_t slots = queries * parts(max_context, kPiece),
                      fit = kSlotBytes / (latent * static_cast<int64_t>(sizeof(float)));
        max_slots = static_cast<int>(slots < fit ? slots : fit);
        runs = arena.take<Run>(max_rows);
        step_row = arena.take<int>(max_rows);
        items = arena.take<Item>(2 * queries + 2 * kItemsPerAttender * threads);
        merges = arena.take<Item>(queries);
    }

    // Takes runs from `span` on, beginning at its row `row`; both move to the first that found no room.
    void fill(const Span* spans, int count, int& span, int& row) {
        run_count = rows = 0;
        for (; span < count; ++span, row = 0) {
            if (spans[span].plain) continue;
            for (; row < spans[span].rows; row += kRunRows) {
                const int taken = smaller(kRunRows, spans[span].rows - row);
                if (rows + taken > kWaveRows) return;
                runs[run_count++] = {spans[span].table, spans[span].start + row, taken, rows, -1};
                for (int r = 0; r < taken; ++r) step_row[rows++] = spans[span].first_row + row + r;
            }
        }
    }

    // Items have `good` queries or more unless threads would have nothing to do.
    void cut(int heads, int threads, int good) {
        item_count = merge_count = 0;
        const int wanted = kItemsPerAttender * threads;
        int group = kMostQueries;
        while (group > good && count_items(heads, group) < wanted) group /= 2;
        while (group > 1 && count_items(heads, group) < threads) group /= 2;
        const int64_t share = larger(1, static_cast<int>(count_items(heads, group) / wanted));
        int slots = 0;
        for (int r = 0; r < run_count; ++r) {
            const int pieces = runs[r].pieces(), queries = runs[r].rows * heads;
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
    int64_t count_items(int heads, int group) const {
        int64_t count = 0;
        for (int r = 0; r < run_count; ++r)
            count += static_cast<int64_t>(parts(runs[r].rows * heads, group)) * runs[r].pieces();
        return count;
    }
};

}  // namespace cm::CM_ISA_NAMESPACE
