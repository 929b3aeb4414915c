// What went wrong, in words, for cm_error_text.
#pragma once
#include <cstdint>

#include "interface.h"

namespace cm {

// Notes what went wrong, for cm_error_text, and hands the error on.
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
int32_t fail(cm_error error, const char* format, ...);

}  // namespace cm
