// One word says everything about a round: epoch, step, round and count. It is stored last, in one piece, so that
// whoever sees it sees the payload, too, and nothing of another round can be taken for this one. An expert rank answers
// with the word that it was asked by.
#pragma once
#include <cstdint>

namespace cm::ub {

constexpr int kCountBits = 18, kRoundBits = 10, kStepBits = 22, kEpochBits = 14;
static_assert(kCountBits + kRoundBits + kStepBits + kEpochBits == 64, "fields of one 8-byte word");

constexpr uint64_t low_bits(int bits) { return (uint64_t{1} << bits) - 1; }

struct Announcement {
    uint32_t epoch;  // never 0: a zero word is no announcement
    uint32_t step;   // within the epoch
    uint32_t round;  // within the step, from 1; 0 in an expert rank's hello
    uint32_t count;  // entries for the expert rank
};

constexpr uint64_t pack(const Announcement& a) {
    return (a.epoch & low_bits(kEpochBits)) << (kStepBits + kRoundBits + kCountBits) |
           (a.step & low_bits(kStepBits)) << (kRoundBits + kCountBits) |
           (a.round & low_bits(kRoundBits)) << kCountBits | (a.count & low_bits(kCountBits));
}

constexpr Announcement unpack(uint64_t word) {
    return {static_cast<uint32_t>(word >> (kStepBits + kRoundBits + kCountBits)),
            static_cast<uint32_t>(word >> (kRoundBits + kCountBits) & low_bits(kStepBits)),
            static_cast<uint32_t>(word >> kCountBits & low_bits(kRoundBits)),
            static_cast<uint32_t>(word & low_bits(kCountBits))};
}

constexpr bool same_epoch(const Announcement& a, const Announcement& b) {
    return ((a.epoch ^ b.epoch) & low_bits(kEpochBits)) == 0;
}

// Rounds from b to a, of one epoch: negative if a is the earlier one. Steps wrap to 0 after the last number.
constexpr int32_t rounds_ahead(const Announcement& a, const Announcement& b) {
    static_assert(kStepBits + kRoundBits == 32, "the difference wraps as the numbers do");
    return static_cast<int32_t>((a.step << kRoundBits | a.round) - (b.step << kRoundBits | b.round));
}

}  // namespace cm::ub
