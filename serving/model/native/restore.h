// Converts panels of short_bf16.h to panels of CM_BF16.
#pragma once
#include <cstring>

#include "isa.h"
#include "pack.h"
#include "short_bf16.h"

namespace cm::CM_ISA_NAMESPACE {

constexpr int kRestoreAhead = 4096;

#if defined(CM_AVX512) || defined(CM_AMX) || defined(CM_AVX2)
static CM_INLINE void fetch_line(const char* at) { _mm_prefetch(at, _MM_HINT_T0); }
#else
static CM_INLINE void fetch_line(const char*) {}
#endif

// A unit's 128 numbers; `upper` is from the panel's head.
#if defined(CM_AVX512) || defined(CM_AMX)

using Upper = __m512i;
static CM_INLINE Upper load_upper(const char* head) {
    return _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(head)));
}
static CM_INLINE void restore_unit(const char* unit, Upper upper, char* to) {
    const __m512i codes = _mm512_load_si512(unit + 128), low = _mm512_set1_epi8(15);
    const __m512i of_half[] = {_mm512_and_si512(codes, low), _mm512_and_si512(_mm512_srli_epi16(codes, 4), low)};
    for (int half = 0; half < 2; ++half) {
        const __m512i lower = _mm512_load_si512(unit + half * 64), above = _mm512_shuffle_epi8(upper, of_half[half]);
        _mm512_store_si512(to + half * 128, _mm512_unpacklo_epi8(lower, above));
        _mm512_store_si512(to + half * 128 + 64, _mm512_unpackhi_epi8(lower, above));
    }
}

#elif defined(CM_AVX2)

using Upper = __m256i;
static CM_INLINE Upper load_upper(const char* head) {
    return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(head)));
}
static CM_INLINE void restore_unit(const char* unit, Upper upper, char* to) {
    const auto at = [](const char* from) { return _mm256_load_si256(reinterpret_cast<const __m256i*>(from)); };
    const __m256i low = _mm256_set1_epi8(15);
    for (int piece = 0; piece < 64; piece += 32) {
        const __m256i codes = at(unit + 128 + piece);
        const __m256i of_half[] = {_mm256_and_si256(codes, low), _mm256_and_si256(_mm256_srli_epi16(codes, 4), low)};
        for (int half = 0; half < 2; ++half) {
            const __m256i lower = at(unit + half * 64 + piece), above = _mm256_shuffle_epi8(upper, of_half[half]);
            auto* into = reinterpret_cast<__m256i*>(to + half * 128 + piece);
            _mm256_store_si256(into, _mm256_unpacklo_epi8(lower, above));
            _mm256_store_si256(into + 2, _mm256_unpackhi_epi8(lower, above));
        }
    }
}

#else

using Upper = const unsigned char*;
static CM_INLINE Upper load_upper(const char* head) { return reinterpret_cast<Upper>(head); }
static CM_INLINE void restore_unit(const char* unit, Upper upper, char* to) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(unit);
    auto* numbers = reinterpret_cast<uint16_t*>(to);
    for (int half = 0; half < 2; ++half)
        for (int place = 0; place < 64; ++place) {
            const int code = bytes[128 + place] >> (4 * half) & 15;
            numbers[half * 64 + number_at(place)] = static_cast<uint16_t>(upper[code] << 8 | bytes[half * 64 + place]);
        }
}

#endif

// A panel of `padded_in` inputs, restored part by part from its start.
class Restoring {
  public:
    CM_INLINE Restoring() = default;
    // Then: memory needed after the panel.
    CM_INLINE Restoring(const char* panel, int padded_in, const char* then)
        : unit_(panel + kShortHead),
          ahead_(unit_ + kRestoreAhead),
          then_(then),
          list_(reinterpret_cast<const uint32_t*>(panel + list_at(padded_in))),
          upper_(panel) {
        uint32_t listed;
        std::memcpy(&listed, panel + kListedAt, sizeof listed);
        list_end_ = list_ + (listed < most_listed(padded_in) ? listed : most_listed(padded_in));
        turn_ = reinterpret_cast<const char*>(list_end_);
    }

    // The next `count` units -> [count * 2 steps][32][2] at a multiple of 64.
    CM_INLINE void next(int count, char* to) {
        const Upper upper = load_upper(upper_);
        for (int i = 0; i < count; ++i, unit_ += kUnitBytes, ahead_ += kUnitBytes) {
            if (ahead_ >= turn_) ahead_ = then_, turn_ = ahead_ + kRestoreAhead + kUnitBytes;
            fetch_line(ahead_), fetch_line(ahead_ + 64), fetch_line(ahead_ + 128);
            restore_unit(unit_, upper, to + i * kUnitNumbers * 2);
        }
        auto* numbers = reinterpret_cast<uint16_t*>(to);
        const uint32_t size = static_cast<uint32_t>(count) * kUnitNumbers;
        for (; list_ < list_end_; ++list_) {
            const uint32_t at = (*list_ & ((1u << kPlaceBits) - 1)) - place_;
            if (at >= size) break;  // of a later part; in damaged weights, of an earlier one
            numbers[at] = static_cast<uint16_t>((*list_ >> kPlaceBits) << 8 | (numbers[at] & 0xff));
        }
        place_ += size;
    }

  private:
    const char *unit_, *ahead_, *turn_, *then_;
    const uint32_t *list_, *list_end_;
    const char* upper_;
    uint32_t place_ = 0;
};

}  // namespace cm::CM_ISA_NAMESPACE
