// Detects dead peers by their pidfds, independently of what a dead peer left in shared memory and of reused process
// numbers.
#pragma once
#include <poll.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>

#include "window.h"

namespace cm::ub {

class Watch {
  public:
    Watch() {
        for (uint32_t rank = 0; rank < kMostRanks; ++rank) fds_[rank] = {-1, POLLIN, 0};  // -1: poll skips it
    }
    ~Watch() {
        for (const pollfd& one : fds_)
            if (one.fd >= 0) ::close(one.fd);
    }
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

    // Watch a peer's process; 0 = none of this host. A process that no longer exists counts as dead. False if the kernel
    // cannot watch it.
    bool add(uint32_t rank, pid_t process) {
        if (process == 0) {
            if (fds_[rank].fd >= 0) ::close(fds_[rank].fd);
            fds_[rank].fd = -1;
            gone_ &= ~just(rank);
            return true;
        }
        constexpr long kPidfdOpen = 434;  // the same on every architecture; older headers lack it
        const long fd = ::syscall(kPidfdOpen, process, 0);
        if (fd < 0 && errno == ESRCH) gone_ |= just(rank);
        if (fd < 0) return errno == ESRCH;
        if (fds_[rank].fd >= 0) ::close(fds_[rank].fd);
        fds_[rank].fd = static_cast<int>(fd);
        gone_ &= ~just(rank);
        return true;
    }

    // Ranks that are dead now; a system call.
    RankSet dead() {
        RankSet found = gone_;
        if (::poll(fds_.data(), fds_.size(), 0) > 0) {
            for (uint32_t rank = 0; rank < kMostRanks; ++rank)
                if (fds_[rank].fd >= 0 && fds_[rank].revents) found |= just(rank);
        }
        return found;
    }

  private:
    std::array<pollfd, kMostRanks> fds_;
    RankSet gone_ = 0;
};

}  // namespace cm::ub
