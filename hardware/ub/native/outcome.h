// How a wait ended, and the responsible rank.
#pragma once
#include <cstdint>

namespace cm::ub {

enum class Ending : int32_t {
    kReady = 0,
    kLate = 1,          // the deadline passed before `rank` answered
    kPeerLost = 2,      // `rank` is dead, though it may be another one that was waited for
    kEpochChanged = 3,  // the shell has raised the epoch
    kMismatch = 4,      // `rank` said what it cannot, or asked for more than fits: it does not run the same protocol. Or
                         // it is no member, and the newest map sends rows to it
};

struct Outcome {
    Ending ending = Ending::kReady;
    uint32_t rank = 0;
    uint32_t step = 0;
    uint32_t round = 0;

    explicit operator bool() const { return ending == Ending::kReady; }
};

inline const char* name(Ending ending) {
    switch (ending) {
        case Ending::kReady: return "ready";
        case Ending::kLate: return "late";
        case Ending::kPeerLost: return "peer lost";
        case Ending::kEpochChanged: return "epoch changed";
        case Ending::kMismatch: return "mismatch";
    }
    return "unknown";
}

}  // namespace cm::ub
