// Makes the panels of short_bf16.h.
#pragma once
#include <cstdint>

namespace cm {

// A panel of CM_BF16, [padded_in / 2][32][2], in its short form; false: more numbers than can be listed have exponents
// other than the most frequent ones.
bool shorten_panel(const uint16_t* numbers, int padded_in, char* panel);

}  // namespace cm
