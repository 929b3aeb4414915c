// The C interface of carriers: a rank's connections to ranks of other hosts.
#include <exception>
#include <string>

#include "error.h"
#include "hardware/ub/native/carrier.h"
#include "interface.h"

struct cm_carrier {
    cm::ub::Carrier carrier;
};

int32_t cm_carrier_open(void* own, void* mirror, int64_t beat_ns, int64_t silence_ns, cm_carrier** carrier) {
    const cm::ub::Window window = cm::ub::Window::open(own);
    const auto* header = static_cast<const cm::ub::WindowHeader*>(mirror);
    if (beat_ns <= 0 || silence_ns <= beat_ns || header->owner == window.header().owner ||
        !cm::ub::Window::fits(mirror, window.shape(), header->owner))
        return cm::fail(CM_BAD_ARGUMENT, "a carrier of rank %u for rank %u", window.header().owner, header->owner);
    try {
        const cm::ub::CarrierTimes times{std::chrono::nanoseconds(beat_ns), std::chrono::nanoseconds(silence_ns)};
        *carrier = new cm_carrier{{window, cm::ub::Window::open(mirror), times}};
    } catch (const std::exception& error) {
        return cm::fail(CM_NO_MEMORY, "no memory for a carrier: %s", error.what());
    }
    return CM_OK;
}

int32_t cm_carrier_start(cm_carrier* carrier, int32_t socket) {
    try {
        carrier->carrier.start(socket);
    } catch (const std::exception& error) {
        return cm::fail(CM_NO_MEMORY, "no thread for a carrier: %s", error.what());
    }
    return CM_OK;
}

void cm_carrier_lose(cm_carrier* carrier, const char* why) { carrier->carrier.lose(why); }

size_t cm_carrier_lost(const cm_carrier* carrier, char* why, size_t bytes) {
    const std::string found = carrier->carrier.lost();
    if (bytes) why[found.copy(why, bytes - 1)] = '\0';
    return found.size();
}

uint64_t cm_carrier_sent_bytes(const cm_carrier* carrier) { return carrier->carrier.sent_bytes(); }

void cm_carrier_close(cm_carrier* carrier) { delete carrier; }
