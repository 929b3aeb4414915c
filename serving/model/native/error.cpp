#include "error.h"

#include <cstdarg>
#include <cstdio>

namespace {

thread_local char error_text[512] = "";

}  // namespace

namespace cm {

int32_t fail(cm_error error, const char* format, ...) {
    va_list values;
    va_start(values, format);
    std::vsnprintf(error_text, sizeof error_text, format, values);
    va_end(values);
    return error;
}

}  // namespace cm

const char* cm_error_text(void) { return error_text; }
