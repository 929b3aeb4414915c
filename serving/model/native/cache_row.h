// One token's row in the paged latent cache: where it lies, and its bytes, as kv_layout.py has them.
//
//     float forms   latent ++ rotated key, both T
//     INT8          latent as int8, the key as T, one float32 scale for the latent
#pragma once
#include "rows.h"

namespace cm::CM_ISA_NAMESPACE {

// Rows of one block and layer lie behind one another.
inline char* cache_rows(const cm_cache& cache, int layer, int32_t block) {
    const int64_t run = static_cast<int64_t>(block) * cache.layers + layer;
    return static_cast<char*>(cache.base) + run * cache.block_tokens * cache.row_bytes;
}

inline char* cache_row(const cm_cache& cache, int layer, const int32_t* table, int position) {
    return cache_rows(cache, layer, table[position / cache.block_tokens]) +
           static_cast<int64_t>(position % cache.block_tokens) * cache.row_bytes;
}

// Stores what `position` leaves: its latent, normalised and already rounded to T, and its rotated key.
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

// The latent as T; with INT8 what it stands for, rounded to T.
template <class T>
inline void read_latent(const cm_model& model, const cm_cache& cache, const char* row, T* latent) {
    if (cache.form != CM_INT8) {
        return copy_numbers(latent, reinterpret_cast<const T*>(row), model.kv_lora);
    }
    float scale;
    __builtin_memcpy(&scale, row + cache.scale_offset, sizeof scale);
    const int8_t* from = reinterpret_cast<const int8_t*>(row);
    each_vec(model.kv_lora,
             [&](int i, int lanes) { store_up_to(latent + i, mul(load_up_to(from + i, lanes), splat(scale)), lanes); });
}

template <class T>
inline const T* rope_key_of(const cm_cache& cache, const char* row) {
    return reinterpret_cast<const T*>(row + cache.rope_offset);
}

}  // namespace cm::CM_ISA_NAMESPACE
