// A few queries in latent space against one piece of a context: scores, their exponentials, the weighted sum of
// latents.
//
// A piece is a fixed run of positions, so what a query gets from it depends on the query, the cache and its own
// position only: not on how many queries are computed together, nor on who computes the other pieces. Later pieces are
// merged in one by one, in their order.
#pragma once
#include "softmax.h"
#if defined(CM_AMX)
#include "attention_tiles.h"
#endif

namespace cm::CM_ISA_NAMESPACE {

constexpr int kPiece = 256;                         // tokens: the latents of one stay in the second-level cache
constexpr int kKeys = 4;                            // keys whose scores are summed up side by side
constexpr int kAhead = 8;                           // keys that are fetched early
constexpr int kQueries = kRegisters == 32 ? 4 : 2;  // queries that share a load of a key,
constexpr int kMeanQueries = 4;                     // and of a latent to be summed up

constexpr int kListPad = 64;                        // rows that a list names past those that are asked for

// Whether the kernels of attention_tiles.h do the work.
template <class T>
constexpr bool in_tiles = false;
#if defined(CM_AMX)
template <>
constexpr bool in_tiles<bf16> = true;
#endif

// Rows that kernels want behind one another, and queries of an item that it takes for them to be at their best.
template <class T>
constexpr int kRowRun = in_tiles<T> ? 16 : 1;
template <class T>
constexpr int kGoodQueries = in_tiles<T> ? 16 : kQueries;

// What the queries of an item have gathered so far: softmax(scores) * latents = out / sum, with exponents less `most`.
struct Gathered {
    float* most;  // [queries]
    float* sum;   // [queries]; 0 = nothing yet
    float* out;   // [queries][stride]
    int64_t stride;
};

// Rows of the cache, or copies of them, as products read them: latent and key padded to whole vectors.
template <class T>
struct RowShape {
    int latent, width;
    bool in_place;   // the cache itself looks like this
    int64_t stride;  // bytes from row to row, of a block or of copies

    RowShape(const cm_model& m, const cm_cache& cache) {
        constexpr int kWidth = Product<T>::kWidth;
        latent = static_cast<int>(round_up(m.kv_lora, kWidth));
        width = latent + static_cast<int>(round_up(m.rope_dim, kWidth));
        in_place = cache.form != CM_INT8 && latent == m.kv_lora && width == m.kv_lora + m.rope_dim &&
                   cache.rope_offset == m.kv_lora * static_cast<int>(sizeof(T)) &&
                   cache.block_tokens % kRowRun<T> == 0;
        stride = in_place ? cache.row_bytes : width * static_cast<int64_t>(sizeof(T));
    }
};

// Zeroes what follows the latent and the key.
template <class T>
CM_INLINE void pad_parts(const cm_model& m, const RowShape<T>& shape, T* row) {
    clear_numbers(row + m.kv_lora, shape.latent - m.kv_lora);
    clear_numbers(row + shape.latent + m.rope_dim, shape.width - shape.latent - m.rope_dim);
}

// Points at the rows of positions first ... first + count - 1. The list is filled up, by kListPad, with the last one.
template <class T>
void find_rows(const cm_cache& cache, int layer, const int32_t* table, int first, int count, const T** rows) {
    for (int i = 0; i < count;) {
        const int end = smaller(count, i + cache.block_tokens - (first + i) % cache.block_tokens);
        const char* row = cache_row(cache, layer, table, first + i);
        for (; i < end; ++i, row += cache.row_bytes) rows[i] = reinterpret_cast<const T*>(row);
    }
    for (int i = count; i < count + kListPad; ++i) rows[i] = rows[count - 1];
}

// Puts copies in the shape that products read in place of rows of the cache.
template <class T>
void copy_rows(const cm_model& m, const cm_cache& cache, const RowShape<T>& shape, int count, T* copies,
               const T** rows) {
    for (int i = 0; i < count; ++i) {
        const char* ahead = reinterpret_cast<const char*>(rows[i + kAhead]);
        for (int at = 0; at < cache.row_bytes; at += 64) __builtin_prefetch(ahead + at);
        const char* row = reinterpret_cast<const char*>(rows[i]);
        T* copy = copies + static_cast<int64_t>(i) * shape.width;
        read_latent(m, cache, row, copy);
        copy_numbers(copy + shape.latent, rope_key_of<T>(cache, row), m.rope_dim);
        pad_parts(m, shape, copy);
        rows[i] = copy;
    }
    for (int i = count; i < count + kListPad; ++i) rows[i] = rows[count - 1];
}

// Q queries times kKeys keys. Fetch: asks for later keys meanwhile, since rows of the cache lie in small runs that the
// processor does not follow by itself.
template <class T, int Q, bool Fetch>
CM_INLINE void score_tile(const T* const* keys, const T* query, int width, float* scores) {
    using P = Product<T>;
    Vec sums[Q][kKeys];
    for (int q = 0; q < Q; ++q)
        for (int k = 0; k < kKeys; ++k) sums[q][k] = zero();
    for (int c = 0; c < width; c += P::kWidth) {
        typename P::Wide own[Q];
        for (int q = 0; q < Q; ++q) own[q] = P::load(query + static_cast<int64_t>(q) * width + c);
        for (int k = 0; k < kKeys; ++k) {
            const auto key = P::load(keys[k] + c);
            if (Fetch) __builtin_prefetch(keys[k + kAhead] + c);
            for (int q = 0; q < Q; ++q) sums[q][k] = P::dot(sums[q][k], own[q], key);
        }
    }
    for (int q = 0; q < Q; ++q) reduce_add_4(sums[q], scores + static_cast<int64_t>(q) * kPiece);
}

// scores [queries][kPiece] = queries times keys; the columns up to the next multiple of kKeys are rubbish.
template <class T>
CM_NOINLINE void score_keys(const T* const* keys, int count, const T* query, int queries, int width, float* scores) {
    for (int k = 0; k < count; k += kKeys) {
        const T* const* tile = keys + k;
        float* to = scores + k;
        const auto own = [&](int q) { return query + static_cast<int64_t>(q) * width; };
        int q = 0;
        if (queries >= kQueries) {
            score_tile<T, kQueries, true>(tile, query, width, to);
            for (q = kQueries; q + kQueries <= queries; q += kQueries)
                score_tile<T, kQueries, false>(tile, own(q), width, to + q * kPiece);
        }
        for (; q + 2 <= queries; q += 2) score_tile<T, 2, true>(tile, own(q), width, to + q * kPiece);
        if (q < queries) score_tile<T, 1, true>(tile, own(q), width, to + q * kPiece);
    }
}

// Q queries' weights times C vectors' width of latent columns.
template <class T, int Q, int C>
CM_INLINE void mean_tile(const T* const* rows, int count, int column, const T* weights, float* out, int64_t stride) {
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

template <class T, int C>
CM_INLINE void mean_columns(const T* const* rows, int count, int column, const T* weights, int queries, float* out,
                            int64_t stride) {
    int q = 0;
    for (; q + kMeanQueries <= queries; q += kMeanQueries) {
        mean_tile<T, kMeanQueries, C>(rows, count, column, weights + q * kPiece, out + q * stride, stride);
    }
    for (; q + 2 <= queries; q += 2)
        mean_tile<T, 2, C>(rows, count, column, weights + q * kPiece, out + q * stride, stride);
    if (q < queries) mean_tile<T, 1, C>(rows, count, column, weights + q * kPiece, out + q * stride, stride);
}

// out [queries][stride] = weights [queries][kPiece] times latents. An odd last row has a weight of zero beside it.
template <class T>
CM_NOINLINE void weighted_sum(const T* const* rows, int count, const T* weights, int queries, int latent, float* out,
                              int64_t stride) {
    constexpr int kColumns = kRegisters / 2 / (kMeanQueries * Product<T>::kDepth),
                  kWide = kColumns * Product<T>::kWidth;
    int column = 0;
    for (; column + kWide <= latent; column += kWide) {
        mean_columns<T, kColumns>(rows, count, column, weights, queries, out, stride);
    }
    for (; column < latent; column += Product<T>::kWidth) {
        mean_columns<T, 1>(rows, count, column, weights, queries, out, stride);
    }
}

// One thread's room for a piece.
template <class T>
struct PieceSpace {
    const T** rows;  // [kPiece + 2 kListPad]: what comes next may be asked for, too
    T* copies;       // [kPiece][width], unless the cache is read in place
    float* scores;   // [queries][kPiece]
    T* weights;      // [queries][kPiece]
    T* turned;       // queries as attention_tiles.h wants them

    PieceSpace(Arena& arena, const RowShape<T>& shape, int queries) {
        rows = arena.take<const T*>(kPiece + 2 * kListPad);
        copies = arena.take<T>(shape.in_place ? 0 : static_cast<int64_t>(kPiece) * shape.width);
        scores = arena.take<float>(static_cast<int64_t>(queries) * kPiece);
        weights = arena.take<T>(static_cast<int64_t>(queries) * kPiece);
        turned = arena.take<T>(in_tiles<T> ? round_up(queries, kRowRun<T>) * shape.width : 0);
    }
};

// To be called before the pieces of some queries, and release_queries() after them.
template <class T>
void prepare_queries(const PieceSpace<T>& space, const RowShape<T>& shape, const T* query, int queries) {
#if defined(CM_AMX)
    if constexpr (in_tiles<T>) {
        set_up_full_tiles();
        turn_queries(query, queries, shape.width, space.turned);
    }
#endif
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
        return score_in_tiles({space.rows, shape.stride}, count, named, space.turned, queries, shape.width,
                              space.scores, kPiece);
#endif
    score_keys(space.rows, count, query, queries, shape.width, space.scores);
}

// result.out = weights times latents, likewise.
template <class T>
void sum_piece(const PieceSpace<T>& space, const RowShape<T>& shape, int count, int queries, const Gathered& result) {
#if defined(CM_AMX)
    if constexpr (in_tiles<T>)
        return weighted_sum_in_tiles(space.rows, count, space.weights, kPiece, queries, shape.latent, result.out,
                                     result.stride);
#endif
    weighted_sum(space.rows, count, space.weights, queries, shape.latent, result.out, result.stride);
}

// What `queries` get from `count` of `named` rows. seen(q): how many of them query q may see, from the first; none is allowed.
template <class T, class Seen>
void attend_piece(const PieceSpace<T>& space, const RowShape<T>& shape, float scale, int count, int named,
                  const T* query, int queries, Seen&& seen, const Gathered& result) {
    const int whole = static_cast<int>(round_up(count, in_tiles<T> ? 32 : Product<T>::kDepth));
    score_piece(space, shape, count, named, query, queries);
    for (int q = 0; q < queries; ++q) {
        const int visible = larger(0, smaller(count, seen(q)));
        const float* scores = space.scores + q * kPiece;
        result.most[q] = largest_of(scores, visible) * scale;
        result.sum[q] = weigh(scores, visible, whole, scale, result.most[q], space.weights + q * kPiece);
    }
    sum_piece(space, shape, whole, queries, result);
}

// Adds what query `from_q` of `from` got to query `q` of `to`.
inline void merge(const Gathered& to, int q, const Gathered& from, int64_t from_q, int latent) {
    if (from.sum[from_q] == 0.0f) return;  // saw nothing there
    const float* other = from.out + from_q * from.stride;
    float* own = to.out + q * to.stride;
    if (to.sum[q] == 0.0f) {
        to.most[q] = from.most[from_q];
        to.sum[q] = from.sum[from_q];
        return copy_numbers(own, other, latent);
    }
    const float most = to.most[q] > from.most[from_q] ? to.most[q] : from.most[from_q];
    const Vec keep = exp(splat(to.most[q] - most)), take = exp(splat(from.most[from_q] - most));
    each_vec(latent, [&](int i, int lanes) {
        store_up_to(own + i, fma(load_up_to(own + i, lanes), keep, mul(load_up_to(other + i, lanes), take)), lanes);
    });
    float sums[kLanes];
    store(sums, fma(splat(to.sum[q]), keep, mul(splat(from.sum[from_q]), take)));
    to.sum[q] = sums[0];
    to.most[q] = most;
}

}  // namespace cm::CM_ISA_NAMESPACE
