// The kernels in plain C++.
#define CM_ISA_NAMESPACE portable
#define CM_ISA_NAME "portable"
#include "isa_all.h"

const cm::Kernels* cm::portable_kernels() { return portable::table(); }
