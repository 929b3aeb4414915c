// Panels of bfloat16 in twelve bits a number instead of sixteen, without loss (CM_BF16_SHORT).
//
// Theory of operation. Few rows are bound by reading the weights, and the upper byte of a bfloat16, its sign and seven of
// eight bits of exponent, says little: the weights of one panel lie within some powers of two. So lower bytes are kept as
// they are, and of each upper one a four-bit code: the sign, and which of the panel's eight most frequent exponents. The
// few numbers with another are listed. Before a product a panel is restored to what CM_BF16 has, in the cache of the core
// that multiplies: the kernels, and so all results, stay the same. Codes of one length cost a shuffle of bytes for 64
// numbers, less than the memory that they spare. A panel:
//
//     upper    [16] the upper byte that each code stands for; codes 8 ... 15 are 0 ... 7 with the sign
//     listed   uint32, how many numbers are listed; then zeros up to 64 bytes
//     units    [padded_in / 4][192]: 128 numbers, two steps of a panel: lower bytes [2][64], codes [64]
//     list     [padded_in / 4] uint32, unit by unit: place in the panel (24 bits), and above it the upper byte
//
// In each half of a unit, bytes lie as interleaving lower with upper ones within sixteen bytes wants them: [4][2][8],
// quarter q of the first 32 numbers, then of the second. A half's codes are the low, or the high, four bits.
#pragma once
#include <cstdint>

namespace cm {

constexpr int kExponents = 8;  // that have codes
constexpr int kUnitNumbers = 128;
constexpr int kUnitBytes = 192;
constexpr int kShortHead = 64;
constexpr int kListedAt = 16;           // in the head
constexpr int kPlaceBits = 24;          // of an entry of the list
constexpr int kMostShortInputs = 8192;  // half a megabyte restored: more would not stay in a core's cache

static constexpr int64_t units(int64_t padded_in) { return padded_in / 4; }
static constexpr uint32_t most_listed(int64_t padded_in) { return static_cast<uint32_t>(padded_in / 4); }
static constexpr int64_t list_at(int64_t padded_in) { return kShortHead + units(padded_in) * kUnitBytes; }
static constexpr int64_t short_panel_bytes(int64_t padded_in) {
    return list_at(padded_in) + most_listed(padded_in) * static_cast<int64_t>(sizeof(uint32_t));
}

// Which of a half's 64 numbers byte `place` belongs to.
static constexpr int number_at(int place) { return place % 16 / 8 * 32 + place / 16 * 8 + place % 8; }

}  // namespace cm
