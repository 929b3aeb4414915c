// Error messages for cm_error_text.
#pragma once
#include <cstdint>

#include "interface.h"

namespace cm {

// Records the message for cm_error_text, and returns the error.
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
int32_t fail(cm_error error, const char* format, ...);

}  // namespace cm
