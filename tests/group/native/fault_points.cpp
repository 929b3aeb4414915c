// Faults at a place of the exchange: CM_DIE_AT=place:hits kills this process, CM_SLOW_AT=place:us makes it slow there.
#include "fault_points.h"

#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

namespace {

struct Point {
    explicit Point(const char* variable) {
        const char* given = std::getenv(variable);
        const char* colon = given ? std::strchr(given, ':') : nullptr;
        if (!colon) return;
        place.assign(given, static_cast<size_t>(colon - given));
        number = std::atoi(colon + 1);
    }
    std::string place;
    int number = 0;
};

}  // namespace

extern "C" void cm_pass(const char* place) {
    static Point death("CM_DIE_AT"), delay("CM_SLOW_AT");
    if (death.number && death.place == place && --death.number == 0) raise(SIGKILL);
    if (delay.number && delay.place == place) usleep(static_cast<useconds_t>(delay.number));
}
