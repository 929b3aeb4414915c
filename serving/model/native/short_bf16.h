// Panels of bfloat16 in twelve bits per number instead of sixteen, lossless (CM_BF16_SHORT).
//
// Theory of operation. With few rows, reading the weights is the bound, and the upper byte of a bfloat16, its sign and
// seven of eight bits of exponent, has little information: the weights of one panel are within some powers of two. So
// lower bytes are kept unchanged, and each upper one is replaced with a four-bit code: the sign, and one of the panel's
// eight most frequent exponents. The few numbers with another exponent are listed. Before a product a panel is restored
// to its CM_BF16 form, in the cache of the core that multiplies: the kernels, and so all results, are the same. Codes
// of one length cost one shuffle of bytes for 64 numbers, less than the saved memory traffic. A panel:
//
//     upper    [16] the upper byte that each code stands for; codes 8 ... 15 are 0 ... 7 with the sign
//     listed   uint32, how many numbers are listed; then zeros up to 64 bytes
//     units    [padded_in / 4][192]: 128 numbers, two steps of a panel: lower bytes [2][64], codes [64]
//     list     [padded_in / 4] uint32, unit by unit: place in the panel (24 bits), and above it the upper byte
//
// In each half of a unit, bytes are in the order for interleaving lower with upper ones within sixteen bytes:
// [4][2][8], quarter q of the first 32 numbers, then of the second. A half's codes are the low, or the high, four bits.
#pragma once
#include <cstdint>

namespace cm {

constexpr int kExponents = 8;  // number of exponents with codes
constexpr int kUnitNumbers = 128;
constexpr int kUnitBytes = 192;
constexpr int kShortHead = 64;
constexpr int kListedAt = 16;           // in the head
constexpr int kPlaceBits = 24;          // in an entry of the list
constexpr int kMostShortInputs = 8192;  // half a megabyte restored: more would not fit in a core's cache

static constexpr int64_t units(int64_t padded_in) { return padded_in / 4; }
static constexpr uint32_t most_listed(int64_t padded_in) { return static_cast<uint32_t>(padded_in / 4); }
static constexpr int64_t list_at(int64_t padded_in) { return kShortHead + units(padded_in) * kUnitBytes; }
static constexpr int64_t short_panel_bytes(int64_t padded_in) {
    return list_at(padded_in) + most_listed(padded_in) * static_cast<int64_t>(sizeof(uint32_t));
}

// The index, among a half's 64 numbers, of byte `place`.
static constexpr int number_at(int place) { return place % 16 / 8 * 32 + place / 16 * 8 + place % 8; }

}  // namespace cm
