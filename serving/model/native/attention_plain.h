// A prompt's rows attend to their context expanded to keys and values per head, which pays when many rows share it.
//
// The context is expanded one window at a time, into panels as in pack.h, so that scores and weighted sums are ordinary
// products. Within a window each item processes some rows of one head over blocks of the context with a running
// softmax; its result is kept for the next window. Blocks begin at fixed positions, and a window has whole blocks, so
// results depend on neither the window's size nor the chunk's.
#pragma once
#include "softmax.h"

namespace cm::CM_ISA_NAMESPACE {

constexpr int kRows = 32;          // queries per item
constexpr int kBlock = 128;        // tokens of the context per computation of scores
constexpr int kExpandTokens = 64;  // tokens that one item expands
constexpr int64_t kWindowBytes = 8 << 20;
constexpr int kMostWindowBlocks = 8;

// Sizes derived from the model.
template <class T>
struct PlainShape {
    int heads, query, value, value_panels, latent;
    int window;  // tokens

    explicit PlainShape(const cm_model& m)
        : heads(m.heads),
          query(static_cast<int>(round_up(query_dim(m), kInnerMultiple))),
          value(m.value_dim),
          value_panels(parts(m.value_dim, kPanel)),
          latent(static_cast<int>(round_up(m.kv_lora, kInnerMultiple))) {
        const int64_t block_bytes =
            static_cast<int64_t>(kBlock) * heads * (query + value_panels * kPanel) * static_cast<int64_t>(sizeof(T));
        window = kBlock * larger(2, smaller(kMostWindowBlocks, static_cast<int>(kWindowBytes / block_bytes)));
    }
    int value_width() const { return value_panels * kPanel; }
    int64_t key_numbers() const { return static_cast<int64_t>(window) * query; }            // per head
    int64_t value_numbers() const { return static_cast<int64_t>(window) * value_width(); }  // per head
};

// Keys and values of a window as packed weights.
template <class T>
struct Expanded {
    static constexpr int kSide = 4 / static_cast<int>(sizeof(T));

    const PlainShape<T> shape;
    T* keys;    // [heads][window / 32][query / side][32][side]
    T* values;  // [heads][window / block][value panels][block / side][32][side]

    Expanded(Arena& arena, const PlainShape<T>& s) : shape(s) {
        keys = arena.take<T>(s.heads * s.key_numbers());
        values = arena.take<T>(s.heads * s.value_numbers());
    }

    // Offset of number `d` of a token's key; the same number of the next key in the panel is kSide further.
    T* key(int head, int token, int d) const {
        T* panel = keys + head * shape.key_numbers() + static_cast<int64_t>(token / kPanel) * kPanel * shape.query;
        return panel + (d / kSide * kPanel + token % kPanel) * kSide + d % kSide;
    }
    // Offset of column `c` of a token's value; the next column, of the same panel, is kSide further.
    T* value(int head, int token, int c) const {
        T* panel = keys_end(head, token / kBlock) + static_cast<int64_t>(c / kPanel) * kPanel * kBlock;
        return panel + (token % kBlock / kSide * kPanel + c % kPanel) * kSide + token % kSide;
    }
    cm_linear key_block(int head, int block, int tokens) const {
        return {tokens, shape.query, 1, form_of<T>(), key(head, block * kBlock, 0), nullptr};
    }
    cm_linear value_block(int head, int block) const {
        return {shape.value, kBlock, 1, form_of<T>(), keys_end(head, block), nullptr};
    }

    // `count` numbers of a token's key, or value, from number `d`, or column `c`, on: at most one tile's.
    void store_keys(int head, int token, int d, const T* numbers, int count) const {
        int i = 0;
        if (d % kSide == 0) {
            for (T* to = key(head, token, d); i + kSide <= count; i += kSide, to += kPanel * kSide)
                copy_numbers(to, numbers + i, kSide);
        }
        for (; i < count; ++i) *key(head, token, d + i) = numbers[i];
    }
    void store_values(int head, int token, int c, const T* numbers, int count) const {
        for (int i = 0; i < count; ++i) *value(head, token, c + i) = numbers[i];
    }
    // The same of two tokens, the first with an even number; whole panels only.
    void store_value_pairs(int head, int token, int c, const T* first, const T* second) const {
        T* to = value(head, token, c);
        for (int i = 0; i < kPanel; ++i) {
            to[i * 2] = first[i];
            to[i * 2 + 1] = second[i];
        }
    }
    // The rest of a key: its rotated part (null: zeros) from `d` on, and the pad.
    void store_rope_part(int head, int token, int d, const T* rope, int rope_dim) const {
        if (rope) store_keys(head, token, d, rope, rope_dim);
        for (int i = rope ? d + rope_dim : d; i < shape.query; ++i) *key(head, token, i) = T{};
    }

  private:
    T* keys_end(int head, int block) const {
        return values + head * shape.value_numbers() + static_cast<int64_t>(block) * kBlock * shape.value_width();
    }
};

// A thread's memory for one item.
template <class T>
struct PlainThread {
    T* query;       // [kRows][query]
    float* scores;  // [kRows][kBlock]
    T* weights;     // [kRows][kBlock]
    float* most;    // [kRows], largest score of the block
    float* keep;    // [kRows], factor on the sum so far

    PlainThread(Arena& arena, const PlainShape<T>& s) {
        query = arena.take<T>(static_cast<int64_t>(kRows) * s.query);
        scores = arena.take<float>(kRows * kBlock);
        weights = arena.take<T>(kRows * kBlock);
        most = arena.take<float>(kRows);
        keep = arena.take<float>(kRows);
    }
};

template <class T>
class Plain {
  public:
    Plain(Arena& arena, const cm_model& model, const cm_block& block, const cm_cache& cache, int rows, int threads)
        : m_(model),
          block_(block),
          cache_(cache),
          shape_(model),
          expanded_(arena, shape_),
          latents_(arena, 1, shape_.window, model.kv_lora) {
        state_rows_ = static_cast<int>(round_up(rows, kRows));
        most_ = arena.take<float>(static_cast<int64_t>(shape_.heads) * state_rows_);
        sum_ = arena.take<float>(static_cast<int64_t>(shape_.heads) * state_rows_);
        out_ = arena.take<float>(static_cast<int64_t>(shape_.heads) * state_rows_ * shape_.value_width());
        const Arena before = arena;
        const PlainThread<T> first(arena, shape_);
        thread_bytes_ = static_cast<int64_t>(arena.used() - before.used());
        threads_ = before;
        arena.take<char>(thread_bytes_ * (threads - 1));
    }

    void attend(Team& team, const AttentionJob<T>& job) {
        for (int s = 0; s < job.count; ++s) {
            const Span& span = job.spans[s];
            if (!span.plain) continue;
            for (int first = 0; first < span.start + span.rows; first += shape_.window)
                attend_window(team, job, span, first);
        }
    }

  private:
    void attend_window(Team& team, const AttentionJob<T>& job, const Span& span, int first) {
        const int context = span.start + span.rows, tokens = smaller(shape_.window, context - first);
        const int whole = static_cast<int>(round_up(tokens, kBlock));
        team.each(whole / kExpandTokens,
                  [&](int item, int) { read_tokens(job, span, first, item * kExpandTokens, tokens); });
        const int count = panels(block_.expand),
                  step = larger(1, smaller(8, count * (whole / kExpandTokens) / (4 * team.threads())));
        const int items = parts(count, step);
        team.each(items * (whole / kExpandTokens), [&](int item, int) {
            expand(item / items * kExpandTokens, item % items * step, smaller(item % items * step + step, count));
        });
        const int row_blocks = parts(span.rows, kRows);
        team.each(shape_.heads * row_blocks, [&](int item, int thread) {
            attend_rows(job, span, first, tokens, item / row_blocks, item % row_blocks * kRows, thread);
        });
    }

    // Latents of some consecutive tokens, and their rotated keys for every head. Tokens after the context are zero:
    // they are never visible, but their weight, zero, must be multiplied with a finite number.
    void read_tokens(const AttentionJob<T>& job, const Span& span, int first, int begin, int tokens) {
        for (int t = begin; t < begin + kExpandTokens; ++t) {
            T* latent = latents_.row(0, t);
            const T* rope = nullptr;
            if (t < tokens) {
                const char* row = cache_row(cache_, job.layer, span.table, first + t);
                read_latent(m_, cache_, row, latent);
                rope = rope_key_of<T>(cache_, row);
            } else {
                clear_numbers(latent, m_.kv_lora);
            }
            latents_.complete(block_.expand, 0, t);
            for (int head = 0; head < shape_.heads; ++head)
                expanded_.store_rope_part(head, t, m_.nope_dim, rope, m_.rope_dim);
        }
    }

    // Some columns of the expanded rows: each head's key, then its value.
    void expand(int begin, int first_panel, int last_panel) const {
        const cm_linear& w = block_.expand;
        const int head_width = m_.nope_dim + m_.value_dim;
        multiply(w, 0, latents_.of(w, 0, begin, kExpandTokens), first_panel, last_panel,
                 [&](int row, int rows, int column, const float* tile) {
                     T numbers[kExpandTokens * kPanel];
                     for (int i = 0; i < rows * kPanel; i += kLanes) store(numbers + i, load(tile + i));
                     for (int c = 0; c < kPanel && column + c < w.out_features;) {
                         const int head = (column + c) / head_width, inside = (column + c) % head_width;
                         const int left = smaller(kPanel - c, w.out_features - column - c);
                         const int run = smaller(left, (inside < m_.nope_dim ? m_.nope_dim : head_width) - inside);
                         if (inside < m_.nope_dim) {
                             for (int r = 0; r < rows; ++r)
                                 expanded_.store_keys(head, begin + row + r, inside, numbers + r * kPanel + c, run);
                         } else {
                             store_values(head, begin + row, rows, inside - m_.nope_dim, numbers + c, run);
                         }
                         c += run;
                     }
                 });
    }

    // A tile's part of some tokens' values; numbers [rows][32].
    void store_values(int head, int token, int rows, int column, const T* numbers, int count) const {
        const bool pairs = expanded_.kSide == 2 && count == kPanel && column % kPanel == 0;
        for (int r = 0; r < rows; ++r, numbers += kPanel) {
            if (pairs && (token + r) % 2 == 0 && r + 1 < rows) {
                expanded_.store_value_pairs(head, token + r, column, numbers, numbers + kPanel);
                ++r, numbers += kPanel;
            } else {
                expanded_.store_values(head, token + r, column, numbers, count);
            }
        }
    }

    PlainThread<T> thread_space(int thread) const {
        Arena arena = threads_;
        arena.take<char>(thread_bytes_ * thread);
        return PlainThread<T>(arena, shape_);
    }

    void attend_rows(const AttentionJob<T>& job, const Span& span, int first, int tokens, int head, int begin,
                     int thread) const {
        const int rows = smaller(kRows, span.rows - begin), position = span.start + begin;
        const int seen = smaller(tokens, position + rows - first);  // by the last row, of this window
        if (seen <= 0) return;
        const PlainThread<T> space = thread_space(thread);
        const int64_t state = static_cast<int64_t>(head) * state_rows_ + begin;
        copy_queries(job, span, head, begin, rows, space.query);
        for (int r = 0; r < rows && first == 0; ++r) {
            most_[state + r] = -__builtin_huge_valf();
            sum_[state + r] = 0.0f;
            clear_numbers(out_ + (state + r) * shape_.value_width(), shape_.value_width());
        }
        for (int block = 0; block * kBlock < seen; ++block) {
            const int keys = smaller(kBlock, seen - block * kBlock);
            attend_block(space, head, block, rows, keys, position + 1 - first - block * kBlock, state);
        }
        if (position + rows <= first + tokens) finish_rows(job, span, head, begin, rows, state);
    }

    void copy_queries(const AttentionJob<T>& job, const Span& span, int head, int begin, int rows, T* to) const {
        const int dim = query_dim(m_);
        for (int r = 0; r < rows; ++r, to += shape_.query) {
            copy_numbers(to,
                         job.query + (span.first_row + begin + r) * job.query_stride + static_cast<int64_t>(head) * dim,
                         dim);
            clear_numbers(to + dim, shape_.query - dim);
        }
    }

    // One block of the context. Row r may see `first_seen + r` of its tokens, none if that is less than one.
    void attend_block(const PlainThread<T>& space, int head, int block, int rows, int keys, int first_seen,
                      int64_t state) const {
        const cm_linear key = expanded_.key_block(head, block, keys), value = expanded_.value_block(head, block);
        multiply(key, 0, {space.query, shape_.query, nullptr, rows}, 0, panels(key),
                 [&](int row, int count, int column, const float* tile) {
                     for (int r = 0; r < count; ++r) {
                         copy_numbers(space.scores + (row + r) * kBlock + column, tile + r * kPanel, kPanel);
                     }
                 });
        for (int r = 0; r < rows; ++r) {
            space.most[r] = largest_of(space.scores + r * kBlock, larger(0, smaller(keys, first_seen + r)));
        }
        for (int r = 0; r < rows; r += kLanes) {
            const Vec before = load(most_ + state + r),
                      most = max(before, mul(load(space.most + r), splat(m_.softmax_scale)));
            store(space.keep + r, exp(sub(before, most)));
            store(most_ + state + r, most);
        }
        for (int r = 0; r < rows; ++r) {
            const int seen = larger(0, smaller(keys, first_seen + r));
            const float sum = weigh<T>(space.scores + r * kBlock, seen, kBlock, m_.softmax_scale, most_[state + r],
                                    space.weights + r * kBlock);
            sum_[state + r] = sum_[state + r] * space.keep[r] + sum;
        }
        multiply(value, 0, {space.weights, kBlock, nullptr, rows}, 0, panels(value),
                 [&](int row, int count, int column, const float* tile) {
                     for (int r = 0; r < count; ++r) {
                         float* out = out_ + (state + row + r) * shape_.value_width() + column;
                         const Vec keep = splat(space.keep[row + r]);
                         for (int i = 0; i < kPanel; i += kLanes)
                             store(out + i, fma(load(out + i), keep, load(tile + r * kPanel + i)));
                     }
                 });
    }

    void finish_rows(const AttentionJob<T>& job, const Span& span, int head, int begin, int rows, int64_t state) const {
        for (int r = 0; r < rows; ++r) {
            const float* from = out_ + (state + r) * shape_.value_width();
            T* to = job.out + (span.first_row + begin + r) * job.out_stride + static_cast<int64_t>(head) * m_.value_dim;
            const Vec sum = splat(sum_[state + r]);
            each_vec(m_.value_dim,
                     [&](int i, int lanes) { store_up_to(to + i, div(load_up_to(from + i, lanes), sum), lanes); });
        }
    }

    const cm_model& m_;
    const cm_block& block_;
    const cm_cache& cache_;
    const PlainShape<T> shape_;
    const Expanded<T> expanded_;
    const HeadRows<T> latents_;
    int state_rows_;
    float *most_, *sum_, *out_;  // [heads][rows], out: [heads][rows][value width]
    Arena threads_{nullptr};
    int64_t thread_bytes_;
};

}  // namespace cm::CM_ISA_NAMESPACE
