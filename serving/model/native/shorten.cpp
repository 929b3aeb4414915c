#include "shorten.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "short_bf16.h"

namespace cm {
namespace {

constexpr int kNoCode = 255;

// The panel's most frequent exponents, seven bits each; the smaller one on ties.
std::array<int, kExponents> frequent(const uint16_t* numbers, int64_t count) {
    std::array<int64_t, 128> found{};
    for (int64_t i = 0; i < count; ++i) ++found[numbers[i] >> 8 & 127];
    std::array<int, 128> order;
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return found[a] > found[b]; });
    std::array<int, kExponents> first;
    std::copy_n(order.begin(), kExponents, first.begin());
    return first;
}

}  // namespace

bool shorten_panel(const uint16_t* numbers, int padded_in, char* panel) {
    std::memset(panel, 0, static_cast<size_t>(short_panel_bytes(padded_in)));
    std::array<uint8_t, 256> code;
    code.fill(kNoCode);
    const auto exponents = frequent(numbers, units(padded_in) * kUnitNumbers);
    for (int i = 0; i < 2 * kExponents; ++i) {
        const int upper = exponents[i % kExponents] | i / kExponents << 7;
        code[upper] = static_cast<uint8_t>(i);
        panel[i] = static_cast<char>(upper);
    }
    auto* list = reinterpret_cast<uint32_t*>(panel + list_at(padded_in));
    uint32_t listed = 0;
    auto* unit = reinterpret_cast<uint8_t*>(panel + kShortHead);
    for (int64_t at = 0; at < units(padded_in) * kUnitNumbers; at += kUnitNumbers, unit += kUnitBytes) {
        for (int i = 0; i < kUnitNumbers; ++i) {
            const int half = i / 64, place = i % 64;
            const int64_t from = at + half * 64 + number_at(place);
            const int upper = numbers[from] >> 8;
            unit[i] = static_cast<uint8_t>(numbers[from]);
            if (code[upper] != kNoCode) {
                unit[kUnitNumbers + place] |= static_cast<uint8_t>(code[upper] << (4 * half));
            } else if (listed == most_listed(padded_in)) {
                return false;
            } else {
                list[listed++] = static_cast<uint32_t>(from) | static_cast<uint32_t>(upper) << kPlaceBits;
            }
        }
    }
    std::memcpy(panel + kListedAt, &listed, sizeof listed);
    return true;
}

}  // namespace cm
