// The kernels for AVX-512 with VNNI and BF16: Zen 4 and later, Sapphire Rapids and later.
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__) && \
    defined(__AVX512VNNI__) && defined(__AVX512BF16__)
#define CM_AVX512 1
#define CM_ISA_NAMESPACE avx512
#define CM_ISA_NAME "avx512"
#include "isa_all.h"

const cm::Kernels* cm::avx512_kernels() { return avx512::table(); }
#else
#include "kernels.h"

const cm::Kernels* cm::avx512_kernels() { return nullptr; }
#endif
