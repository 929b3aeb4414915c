// The kernels for AVX2, FMA and F16C.
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define CM_AVX2 1
#define CM_ISA_NAMESPACE avx2
#define CM_ISA_NAME "avx2"
#include "isa_all.h"

const cm::Kernels* cm::avx2_kernels() { return avx2::table(); }
#else
#include "kernels.h"

const cm::Kernels* cm::avx2_kernels() { return nullptr; }
#endif
