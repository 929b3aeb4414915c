// Features of this processor that the operating system enables.
#pragma once

namespace cm {

bool has_avx2();
bool has_avx512();  // with VNNI and BF16
bool has_amx();     // requests the tile registers from the operating system, once
bool is_zen5();     // or a later one of AMD's, with 512-bit operations in one piece, including shuffles

}  // namespace cm
