// What this processor can do, and the operating system lets it do.
#pragma once

namespace cm {

bool has_avx2();
bool has_avx512();  // with VNNI and BF16
bool has_amx();     // asks the operating system for the tiles' registers, once
bool is_zen5();     // or one of AMD's after it, to which 512 bits are one operation, shuffles included

}  // namespace cm
