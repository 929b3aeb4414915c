// One token's row in the paged cache: its address, and its bytes, as in kv_layout.py.
//
//     latent kind     float forms   latent ++ rotated key, both T
//                     INT8          latent as int8, the key as T, one float32 scale for the latent
//     grouped kind,   float forms   value ++ rotated key, both T
//     per KV head     INT8          value and key as int8, a float32 scale for each
#pragma once
#include "rows.h"

namespace cm::CM_ISA_NAMESPACE {

// Rows of one block and layer are consecutive.
inline char* cache_rows(const cm_cache& cache, int layer, int32_t block) {
    const int64_t run = static_cast<int64_t>(block) * cache.layers + layer;
    return static_cast<char*>(cache.base) + run * cache.block_tokens * cache.row_bytes;
}

// The row of number `token` among the block_tokens positions that start with number `run` of them.
inline char* cache_row_of(const cm_cache& cache, int layer, const int32_t* table, int run, int token) {
    if (cache.places) {
        const int32_t* place = cache.places + 2 * layer;
        table += run * (cache.width - 1) + place[0];
        layer = place[1];
    }
    return cache_rows(cache, layer, table[run]) + static_cast<int64_t>(token) * cache.row_bytes;
}

inline char* cache_row(const cm_cache& cache, int layer, const int32_t* table, int position) {
    return cache_row_of(cache, layer, table, position / cache.block_tokens, position % cache.block_tokens);
}

// Stores the data of `position`: its latent, normalised and already rounded to T, and its rotated key.
template <class T>
inline void write_cache_row(const cm_model& model, const cm_cache& cache, int layer, const int32_t* table, int position,
                            const float* latent, const float* rope_key) {
    char* row = cache_row(cache, layer, table, position);
    convert_row(rope_key, model.rope_dim, reinterpret_cast<T*>(row + cache.rope_offset));
    if (cache.form == CM_INT8) {
        float scale;
        quantise_row(latent, model.kv_lora, model.kv_lora, reinterpret_cast<int8_t*>(row), &scale);
        __builtin_memcpy(row + cache.scale_offset, &scale, sizeof scale);
    } else {
        convert_row(latent, model.kv_lora, reinterpret_cast<T*>(row));
    }
}

// Dequantised int8, rounded to T.
template <class T>
inline void read_int8(const char* row, const char* scale_at, int count, T* numbers) {
    float scale;
    __builtin_memcpy(&scale, scale_at, sizeof scale);
    const int8_t* from = reinterpret_cast<const int8_t*>(row);
    each_vec(count, [&](int i, int lanes) {
        store_up_to(numbers + i, mul(load_up_to(from + i, lanes), splat(scale)), lanes);
    });
}

// The latent as T; dequantised with INT8.
template <class T>
inline void read_latent(const cm_model& model, const cm_cache& cache, const char* row, T* latent) {
    if (cache.form == CM_INT8) return read_int8(row, row + cache.scale_offset, model.kv_lora, latent);
    copy_numbers(latent, reinterpret_cast<const T*>(row), model.kv_lora);
}

template <class T>
inline const T* rope_key_of(const cm_cache& cache, const char* row) {
    return reinterpret_cast<const T*>(row + cache.rope_offset);
}

constexpr int kKeyScale = static_cast<int>(sizeof(float));  // offset of the key's scale after the value's

// Stores a KV head's part of a row of grouped attention.
template <class T>
inline void write_head(const cm_cache& cache, int head_dim, const T* value, const T* key, char* head) {
    char* rope = head + cache.rope_offset;
    if (cache.form != CM_INT8) {
        copy_numbers(reinterpret_cast<T*>(head), value, head_dim);
        return copy_numbers(reinterpret_cast<T*>(rope), key, head_dim);
    }
    float scales[2];
    quantise_row(value, head_dim, head_dim, reinterpret_cast<int8_t*>(head), scales);
    quantise_row(key, head_dim, head_dim, reinterpret_cast<int8_t*>(rope), scales + 1);
    __builtin_memcpy(head + cache.scale_offset, scales, sizeof scales);
}

// The same part as T.
template <class T>
inline void read_head(const cm_cache& cache, int head_dim, const char* head, T* value, T* key) {
    const char *rope = head + cache.rope_offset, *scale = head + cache.scale_offset;
    if (cache.form == CM_INT8) {
        read_int8(head, scale, head_dim, value);
        return read_int8(rope, scale + kKeyScale, head_dim, key);
    }
    copy_numbers(value, reinterpret_cast<const T*>(head), head_dim);
    copy_numbers(key, reinterpret_cast<const T*>(rope), head_dim);
}

}  // namespace cm::CM_ISA_NAMESPACE
