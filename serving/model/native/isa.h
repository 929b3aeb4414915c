// Common header of every file that is compiled once per instruction set.
//
// isa_<name>.cpp defines CM_ISA_NAMESPACE and the allowed instructions (CM_AVX512, CM_AVX2, CM_AMX; none: portable
// C++), then includes the templates, each of which puts its content into `namespace cm::CM_ISA_NAMESPACE`. All code
// compiled here must be in that namespace: an inline function outside of it would exist once in the library, in the
// instruction set that the linker found first, and would crash a processor without it.
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
