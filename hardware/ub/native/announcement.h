// One word contains everything about a round: epoch, step, round and count. It is stored last, atomically, so that a
// reader that sees it also sees the payload, and no data of another round can be taken for this one's.
#pragma once
#include <cstdint>

namespace cm::ub {

constexpr int kCountBits = 18, kRoundBits = 10, kStepBits = 22, kEpochBits = 14;
static_assert(kCountBits + kRoundBits + kStepBits + kEpochBits == 64, "fields of one 8-byte word");

constexpr uint64_t low_bits(int bits) { return (uint64_t{1} << bits) - 1; }

constexpr uint32_t kNoMore = low_bits(kCountBits);  // a count: no entries, and none in later rounds of this step

struct Announcement {
    uint32_t epoch;  // never 0: a zero word is no announcement
    uint32_t step;   // within the epoch
    uint32_t round;  // within the step; 0 is the announcement from all to all
    uint32_t count;  // entries for the reader; in round 0, a number for all
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
