// A few queries against one piece of a context: scores, their exponentials, the weighted sum. Queries in latent space
// have scores with whole rows, and sum the latents at the rows' start; grouped ones have scores with the keys, and sum
// the values before them.
//
// A piece is a fixed run of positions, so its result for a query depends on the query, the cache and the query's
// position only: not on how many queries are computed together, nor on which thread computes the other pieces. Later
// pieces are merged one by one, in order.
#pragma once
#include "softmax.h"
#if defined(CM_AMX)
#include "attention_tiles.h"
#endif

namespace cm::CM_ISA_NAMESPACE {

#if !defined(CM_PIECE)  // tests make it small, for many pieces of short contexts; a multiple of 32
#define CM_PIECE 256
#endif
constexpr int kPiece = CM_PIECE;                    // tokens: rows of this many stay in the second-level cache
constexpr int kKeys = 4;                            // keys whose scores are summed concurrently
constexpr int kAhead = 8;                           // keys that are prefetched
constexpr int kQueries = kRegisters == 32 ? 4 : kLanes == 8 ? 3 : 2;  // queries that share a load of a key,
constexpr int kMeanQueries = 4;                                       // and of a latent for the sum

constexpr int kListPad = 64;                        // rows in a list after the requested ones

// Whether the kernels of attention_tiles.h are used.
template <class T>
constexpr bool in_tiles = false;
#if defined(CM_AMX)
template <>
constexpr bool in_tiles<bf16> = true;
#endif

// Rows that kernels need consecutively, and queries per item for their best speed.
template <class T>
constexpr int kRowRun = in_tiles<T> ? 16 : 1;
template <class T>
constexpr int kGoodQueries = in_tiles<T> ? 16 : kQueries;

// How softmax's weights are stored: T, or the same numbers as float32.
template <class T>
using WeightOf = typename Product<T>::Weight;
// How queries are stored for scores: T, or converted once for all keys (`turned`).
template <class T>
using QueryOf = typename Product<T>::Query;
template <class T>
constexpr bool in_floats = sizeof(QueryOf<T>) != sizeof(T);

// Accumulated results of an item's queries: softmax(scores) * values = out / sum, with exponents less `most`.
struct Gathered {
    float* most;  // [queries]
    float* sum;   // [queries]; 0 = empty
    float* out;   // [queries][stride]
    int64_t stride;
};

// Rows of the cache (grouped: a KV head's parts of them), or copies of them, as read by products: the summed numbers
// and the key after them, each padded to whole vectors.
template <class T>
struct RowShape {
    int value;        // numbers to sum, from a row's start: a latent, or a value
    int score_begin;  // start of the numbers multiplied for scores: 0, or after the value
    int width;        // number of these, as in a query
    bool in_place;    // the cache itself has this form
    int stored;       // bytes of a row in the cache
    int64_t stride;   // bytes from row to row, of a block or of copies

    RowShape(const cm_model& m, const cm_cache& cache) {
        constexpr int kWidth = Product<T>::kWidth;
        const bool grouped = m.kv_heads > 0;
        const int summed = grouped ? m.head_dim : m.kv_lora, key = grouped ? m.head_dim : m.rope_dim;
        value = static_cast<int>(round_up(summed, kWidth));
        score_begin = grouped ? value : 0;
        width = value - score_begin + static_cast<int>(round_up(key, kWidth));
        in_place = cache.form != CM_INT8 && value == summed && numbers() == summed + key &&
                   cache.rope_offset == summed * static_cast<int>(sizeof(T)) && cache.block_tokens % kRowRun<T> == 0;
        stored = grouped ? cache.head_bytes : cache.row_bytes;
        stride = in_place ? cache.row_bytes : numbers() * static_cast<int64_t>(sizeof(T));
    }
    int numbers() const { return score_begin + width; }  // of a copy
    bool apart() const { return score_begin > 0; }       // scores and sums read different numbers
};

// Zeroes the padding after `value` numbers and after a key of `key`.
template <class T>
CM_INLINE void pad_parts(const RowShape<T>& shape, int value, int key, T* row) {
    clear_numbers(row + value, shape.value - value);
    clear_numbers(row + shape.value + key, shape.numbers() - shape.value - key);
}

// Addresses of the rows of positions first ... first + count - 1, or of their parts of one KV head. The list is
// extended by kListPad repetitions of the last one. Blocks before that of position `from` may be freed: rows of its
// block replace theirs.
template <class T>
void find_rows(const cm_cache& cache, int layer, const int32_t* table, int first, int count, int from, int kv_head,
               const T** rows) {
    const int64_t inside = static_cast<int64_t>(kv_head) * cache.head_bytes;
    const int there = from / cache.block_tokens;
    for (int i = 0; i < count;) {
        const int token = (first + i) % cache.block_tokens, run = larger(there, (first + i) / cache.block_tokens);
        const int end = smaller(count, i + cache.block_tokens - token);
        const char* row = cache_row_of(cache, layer, table, run, token) + inside;
        for (; i < end; ++i, row += cache.row_bytes) rows[i] = reinterpret_cast<const T*>(row);
    }
    for (int i = count; i < count + kListPad; ++i) rows[i] = rows[count - 1];
}

// Makes copies in the form that products read, in place of rows of the cache.
template <class T>
void copy_rows(const cm_model& m, const cm_cache& cache, const RowShape<T>& shape, int count, T* copies,
               const T** rows) {
    for (int i = 0; i < count; ++i) {
        const char* ahead = reinterpret_cast<const char*>(rows[i + kAhead]);
        for (int at = 0; at < shape.stored; at += 64) __builtin_prefetch(ahead + at);
        const char* row = reinterpret_cast<const char*>(rows[i]);
        T* copy = copies + static_cast<int64_t>(i) * shape.numbers();
        if (shape.apart()) {
            read_head(cache, m.head_dim, row, copy, copy + shape.score_begin);
            pad_parts(shape, m.head_dim, m.head_dim, copy);
        } else {
            read_latent(m, cache, row, copy);
            copy_numbers(copy + shape.value, rope_key_of<T>(cache, row), m.rope_dim);
            pad_parts(shape, m.kv_lora, m.rope_dim, copy);
        }
        rows[i] = copy;
    }
    for (int i = count; i < count + kListPad; ++i) rows[i] = rows[count - 1];
}

// Q queries times kKeys keys. Fetch: also prefetches later rows, since rows of the cache are in small runs that the
// processor does not prefetch itself. Apart: keys begin `begin` numbers after their rows' start, where values are.
template <class T, int Q, bool Fetch, bool Apart>
CM_INLINE void score_tile(const T* const* rows, int begin, const QueryOf<T>* query, int width, float* scores) {
    using P = Product<T>;
    Vec sums[Q][kKeys];
    for (int q = 0; q < Q; ++q)
        for (int k = 0; k < kKeys; ++k) sums[q][k] = zero();
    for (int c = 0; c < width; c += P::kWidth) {
        typename P::Wide own[Q];
        for (int q = 0; q < Q; ++q) own[q] = P::load_query(query + static_cast<int64_t>(q) * width + c);
        for (int k = 0; k < kKeys; ++k) {
            const auto key = P::load(rows[k] + (Apart ? begin : 0) + c);
            if (Fetch) __builtin_prefetch(rows[k + kAhead] + c);
            if (Fetch && Apart) __builtin_prefetch(rows[k + kAhead] + begin + c);
            for (int q = 0; q < Q; ++q) sums[q][k] = P::dot(sums[q][k], own[q], key);
        }
    }
    for (int q = 0; q < Q; ++q) reduce_add_4(sums[q], scores + static_cast<int64_t>(q) * kPiece);
}

// scores [queries][kPiece] = queries times keys; the columns up to the next multiple of kKeys are undefined.
template <class T, bool Apart>
CM_NOINLINE void score_keys(const T* const* rows, int count, int begin, const QueryOf<T>* query, int queries,
                            int width, float* scores) {
    for (int k = 0; k < count; k += kKeys) {
        const T* const* tile = rows + k;
        float* to = scores + k;
        const auto own = [&](int q) { return query + static_cast<int64_t>(q) * width; };
        int q = 0;
        if (queries >= kQueries) {
            score_tile<T, kQueries, true, Apart>(tile, begin, query, width, to);
            for (q = kQueries; q + kQueries <= queries; q += kQueries)
                score_tile<T, kQueries, false, Apart>(tile, begin, own(q), width, to + q * kPiece);
        }
        if constexpr (Apart && kQueries > 3) {
            if (q + 3 == queries) {
                score_tile<T, 3, true, Apart>(tile, begin, own(q), width, to + q * kPiece);
                continue;
            }
        }
        for (; q + 2 <= queries; q += 2) score_tile<T, 2, true, Apart>(tile, begin, own(q), width, to + q * kPiece);
        if (q < queries) score_tile<T, 1, true, Apart>(tile, begin, own(q), width, to + q * kPiece);
    }
}

// Q queries' weights times C vectors' width of columns.
template <class T, int Q, int C>
CM_INLINE void mean_tile(const T* const* rows, int count, int column, const WeightOf<T>* weights, float* out,
                         int64_t stride) {
    using P = Product<T>;
    Vec sums[Q][C][P::kDepth];
    for (int q = 0; q < Q; ++q)
        for (int c = 0; c < C; ++c)
            for (int d = 0; d < P::kDepth; ++d) sums[q][c][d] = zero();
    for (int i = 0; i < count; i += P::kDepth) {
        typename P::Wide wide[C][P::kDepth];
        for (int c = 0; c < C; ++c) P::across(rows + i, column + c * P::kWidth, wide[c]);
        for (int q = 0; q < Q; ++q) {
            const auto weight = P::weights(weights + q * kPiece + i);
            for (int c = 0; c < C; ++c)
                for (int d = 0; d < P::kDepth; ++d) sums[q][c][d] = P::dot(sums[q][c][d], wide[c][d], weight);
        }
    }
    for (int q = 0; q < Q; ++q)
        for (int c = 0; c < C; ++c) P::unmix(out + q * stride + column + c * P::kWidth, sums[q][c]);
}

template <class T, int C, bool Apart>
CM_INLINE void mean_columns(const T* const* rows, int count, int column, const WeightOf<T>* weights, int queries,
                            float* out, int64_t stride) {
    int q = 0;
    for (; q + kMeanQueries <= queries; q += kMeanQueries) {
        mean_tile<T, kMeanQueries, C>(rows, count, column, weights + q * kPiece, out + q * stride, stride);
    }
    if constexpr (Apart && kQueries > 3) {
        if (q + 3 == queries)
            return mean_tile<T, 3, C>(rows, count, column, weights + q * kPiece, out + q * stride, stride);
    }
    for (; q + 2 <= queries; q += 2)
        mean_tile<T, 2, C>(rows, count, column, weights + q * kPiece, out + q * stride, stride);
    if (q < queries) mean_tile<T, 1, C>(rows, count, column, weights + q * kPiece, out + q * stride, stride);
}

// out [queries][stride] = weights [queries][kPiece] times the first `columns` of rows. An odd last row is paired with a
// weight of zero. Apart: as in score_keys; groups of three are so frequent that they have separate kernels there.
template <class T, bool Apart>
CM_NOINLINE void weighted_sum(const T* const* rows, int count, const WeightOf<T>* weights, int queries, int columns,
                              float* out, int64_t stride) {
    constexpr int kColumns = kRegisters / 2 / (kMeanQueries * Product<T>::kDepth),
                  kWide = kColumns * Product<T>::kWidth;
    int column = 0;
    for (; column + kWide <= columns; column += kWide) {
        mean_columns<T, kColumns, Apart>(rows, count, column, weights, queries, out, stride);
    }
    for (; column < columns; column += Product<T>::kWidth) {
        mean_columns<T, 1, Apart>(rows, count, column, weights, queries, out, stride);
    }
}

// One thread's memory for a piece.
template <class T>
struct PieceSpace {
    const T** rows;        // [kPiece + 2 kListPad]: later rows may be prefetched
    T* copies;             // [kPiece][numbers], unless the cache is read in place
    float* scores;         // [queries][kPiece]
    WeightOf<T>* weights;  // [queries][kPiece]
    QueryOf<T>* turned;    // queries in the form of attention_tiles.h, or in floats

    PieceSpace(Arena& arena, const RowShape<T>& shape, int queries) {
        rows = arena.take<const T*>(kPiece + 2 * kListPad);
        copies = arena.take<T>(shape.in_place ? 0 : static_cast<int64_t>(kPiece) * shape.numbers());
        scores = arena.take<float>(static_cast<int64_t>(queries) * kPiece);
        weights = arena.take<WeightOf<T>>(static_cast<int64_t>(queries) * kPiece);
        turned = arena.take<QueryOf<T>>(in_tiles<T> || in_floats<T> ? round_up(queries, kRowRun<T>) * shape.width : 0);
    }
};

// Call it before the pieces of some queries, and release_queries() after them.
template <class T>
void prepare_queries(const PieceSpace<T>& space, const RowShape<T>& shape, const T* query, int queries) {
#if defined(CM_AMX)
    if constexpr (in_tiles<T>) {
        set_up_full_tiles();
        turn_queries(query, queries, shape.width, space.turned);
    }
#endif
    if constexpr (in_floats<T>)
        for (int i = 0; i < queries * shape.width; i += Product<T>::kWidth)
            Product<T>::store_query(Product<T>::load(query + i), space.turned + i);
}

template <class T>
void release_queries() {
#if defined(CM_AMX)
    if constexpr (in_tiles<T>) tile_release();
#endif
}

// scores = queries times keys, in vectors or in tiles.
template <class T>
void score_piece(const PieceSpace<T>& space, const RowShape<T>& shape, int count, int named, const T* query,
                 int queries) {
#if defined(CM_AMX)
    if constexpr (in_tiles<T>)
        return score_in_tiles({space.rows, shape.stride, shape.score_begin}, count, named, space.turned, queries,
                              shape.width, space.scores, kPiece);
#endif
    const QueryOf<T>* own;
    if constexpr (in_floats<T>) {
        own = space.turned;
    } else {
        own = query;
    }
    if (shape.apart()) {
        score_keys<T, true>(space.rows, count, shape.score_begin, own, queries, shape.width, space.scores);
    } else {
        score_keys<T, false>(space.rows, count, 0, own, queries, shape.width, space.scores);
    }
}

// result.out = weights times the summed numbers, likewise.
template <class T>
void sum_piece(const PieceSpace<T>& space, const RowShape<T>& shape, int count, int queries, const Gathered& result) {
#if defined(CM_AMX)
    if constexpr (in_tiles<T>)
        return weighted_sum_in_tiles(space.rows, count, space.weights, kPiece, queries, shape.value, result.out,
                                     result.stride);
#endif
    if (shape.apart()) {
        weighted_sum<T, true>(space.rows, count, space.weights, queries, shape.value, result.out, result.stride);
    } else {
        weighted_sum<T, false>(space.rows, count, space.weights, queries, shape.value, result.out, result.stride);
    }
}

// Rows of a piece that a query may see: begin ... end - 1, some or all of which may be outside of the piece.
struct Seen {
    int begin, end;
};

// Results of `queries` over `count` of `named` rows. seen(q): those that query q may see; none may see the first
// `unseen`, which may have any content: in the weighted sum, where their weights are zero, another row replaces them.
template <class T, class SeenBy>
void attend_piece(const PieceSpace<T>& space, const RowShape<T>& shape, float scale, int count, int named, int unseen,
                  const T* query, int queries, SeenBy&& seen, const Gathered& result) {
    const int whole = static_cast<int>(round_up(count, in_tiles<T> ? 32 : Product<T>::kDepth));
    score_piece(space, shape, count, named, query, queries);
    for (int q = 0; q < queries; ++q) {
        const Seen asked = seen(q);
        const int end = larger(0, smaller(count, asked.end)), begin = larger(0, smaller(end, asked.begin));
        const float* scores = space.scores + q * kPiece + begin;
        WeightOf<T>* weights = space.weights + q * kPiece;
        clear_numbers(weights, begin);
        result.most[q] = largest_of(scores, end - begin) * scale;
        result.sum[q] = weigh<T>(scores, end - begin, whole - begin, scale, result.most[q], weights + begin);
    }
    for (int i = 0; i < unseen; ++i) space.rows[i] = space.rows[unseen];
    sum_piece(space, shape, whole, queries, result);
}

// Adds the result of query `from_q` of `from` to query `q` of `to`.
inline void merge(const Gathered& to, int q, const Gathered& from, int64_t from_q, int width) {
    if (from.sum[from_q] == 0.0f) return;  // no visible rows
    const float* other = from.out + from_q * from.stride;
    float* own = to.out + q * to.stride;
    if (to.sum[q] == 0.0f) {
        to.most[q] = from.most[from_q];
        to.sum[q] = from.sum[from_q];
        return copy_numbers(own, other, width);
    }
    const float most = to.most[q] > from.most[from_q] ? to.most[q] : from.most[from_q];
    const Vec keep = exp(splat(to.most[q] - most)), take = exp(splat(from.most[from_q] - most));
    each_vec(width, [&](int i, int lanes) {
        store_up_to(own + i, fma(load_up_to(own + i, lanes), keep, mul(load_up_to(other + i, lanes), take)), lanes);
    });
    float sums[kLanes];
    store(sums, fma(splat(to.sum[q]), keep, mul(splat(from.sum[from_q]), take)));
    to.sum[q] = sums[0];
    to.most[q] = most;
}

}  // namespace cm::CM_ISA_NAMESPACE
