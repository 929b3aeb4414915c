#include "processor.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace cm {
namespace {

struct Answer {
    uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Answer ask(uint32_t leaf, uint32_t part) {
    Answer answer;
    __get_cpuid_count(leaf, part, &answer.eax, &answer.ebx, &answer.ecx, &answer.edx);
    return answer;
}

constexpr uint32_t bit(int number) { return 1u << number; }

bool all(uint32_t word, uint32_t bits) { return (word & bits) == bits; }

// Registers that the operating system saves: without that, an instruction counts as absent.
uint32_t saved_registers() {
    if (!all(ask(1, 0).ecx, bit(27))) return 0;
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

constexpr uint32_t kVectorRegisters = bit(1) | bit(2);
constexpr uint32_t kMaskRegisters = bit(5) | bit(6) | bit(7);
constexpr uint32_t kTileRegisters = bit(17) | bit(18);

// Linux gives tile registers only to processes that request them (arch_prctl ARCH_REQ_XCOMP_PERM, XTILEDATA).
bool tiles_granted() {
    constexpr int kRequest = 0x1023, kTileData = 18;
    return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}

}  // namespace

bool has_avx2() {
    return all(saved_registers(), kVectorRegisters) && all(ask(7, 0).ebx, bit(5)) && all(ask(1, 0).ecx, bit(12) | bit(29));
}

bool has_avx512() {
    const Answer seven = ask(7, 0);
    const bool vectors = all(seven.ebx, bit(16) | bit(17) | bit(30) | bit(31)) && all(seven.ecx, bit(11));
    return has_avx2() && all(saved_registers(), kMaskRegisters) && vectors && all(ask(7, 1).eax, bit(5));
}

#if defined(CM_SOFT_TILES)
bool has_amx() { return has_avx512(); }
#else
bool has_amx() {
    if (!has_avx512() || !all(ask(7, 0).edx, bit(22) | bit(24) | bit(25))) return false;
    return all(saved_registers(), kTileRegisters) && tiles_granted();
}
#endif

bool is_zen5() {
    constexpr uint32_t kAuth = 0x68747541, kEnti = 0x69746e65, kCamd = 0x444d4163;
    const Answer vendor = ask(0, 0);
    if (vendor.ebx != kAuth || vendor.edx != kEnti || vendor.ecx != kCamd) return false;
    const uint32_t version = ask(1, 0).eax, family = version >> 8 & 15, more = version >> 20 & 255;
    return family == 15 && family + more >= 26;
}

}  // namespace cm

#else

namespace cm {
bool is_zen5() { return false; }
bool has_avx2() { return false; }
bool has_avx512() { return false; }
bool has_amx() { return false; }
}  // namespace cm

#endif
