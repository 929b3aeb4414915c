// Stored numbers: bfloat16, and its conversion from and to float.
#pragma once
#include <cstdint>

#include "interface.h"
#include "isa.h"

namespace cm::CM_ISA_NAMESPACE {

// The upper half of a float.
struct bf16 {
    uint16_t bits;
};

inline float to_float(float value) { return value; }

inline float to_float(bf16 value) {
    const uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
    float wide;
    __builtin_memcpy(&wide, &bits, sizeof wide);
    return wide;
}

template <class T>
T from_float(float value);

template <>
inline float from_float<float>(float value) {
    return value;
}

// To nearest, ties to even; NaN is preserved (rounding up its payload could make it infinite).
template <>
inline bf16 from_float<bf16>(float value) {
    uint32_t bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return bf16{0x7fc0};
    return bf16{static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

template <class T>
inline void copy_numbers(T* to, const T* from, int64_t count) {
    __builtin_memcpy(static_cast<void*>(to), from, static_cast<size_t>(count) * sizeof(T));
}
template <class T>
inline void clear_numbers(T* to, int64_t count) {
    __builtin_memset(static_cast<void*>(to), 0, static_cast<size_t>(count) * sizeof(T));
}

template <class T>
constexpr int form_of();
template <>
constexpr int form_of<float>() {
    return CM_F32;
}
template <>
constexpr int form_of<bf16>() {
    return CM_BF16;
}

}  // namespace cm::CM_ISA_NAMESPACE
