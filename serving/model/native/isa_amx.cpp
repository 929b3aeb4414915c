// The kernels for AMX tiles with AVX-512. CM_SOFT_TILES (tests only): the tiles in software, for any processor.
#if (defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__) || defined(CM_SOFT_TILES)) && \
    defined(__AVX512VNNI__) && defined(__AVX512BF16__)
#define CM_AMX 1
#define CM_AVX512 1
#define CM_ISA_NAMESPACE amx
#define CM_ISA_NAME "amx"
#include "isa_all.h"

const cm::Kernels* cm::amx_kernels() { return amx::table(); }
#else
#include "kernels.h"

const cm::Kernels* cm::amx_kernels() { return nullptr; }
#endif
