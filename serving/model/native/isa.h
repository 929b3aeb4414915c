// What every file that is compiled once per instruction set begins with.
//
// isa_<name>.cpp defines CM_ISA_NAMESPACE and which instructions may be used (CM_AVX512, CM_AVX2, CM_AMX; none of them:
// portable C++), then includes the templates, each of which puts its content into `namespace cm::CM_ISA_NAMESPACE`.
// Nothing compiled here may leave that namespace: an inline function outside of it would exist once in the library, in
// whichever instruction set the linker met first, and a processor without it would die of it.
#pragma once

#if !defined(CM_ISA_NAMESPACE)
#error "this file is included by isa_<name>.cpp only"
#endif

#include <cstddef>
#include <cstdint>

#if defined(CM_AVX512) || defined(CM_AVX2) || defined(CM_AMX)
#include <immintrin.h>
#endif

#if defined(__GNUC__)
#define CM_INLINE inline __attribute__((always_inline))
#define CM_NOINLINE __attribute__((noinline))
#else
#define CM_INLINE inline
#define CM_NOINLINE
#endif
