// Ranks as processes over a file of shared memory; one may be killed at a place of the protocol, and the others go on.
//
//   exchange_processes FILE STEPS VICTIM PLACE HIT OFFSET...     one offset of a window for each rank
//
// This process is the shell: it makes windows and ranks, and when one dies it raises the epoch. The others redo the
// step that they were in, with the dead one's experts, and must end with the bits of a process alone. Ends with 0 and a
// line: ranks that died, and waits that ended with the loss or the new epoch.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

const char* deadly_place = "";
int hits_left = 0;

void pass(const char* place);

}  // namespace

#define CM_EXCHANGE_POINT(place) pass(place)
#include "exchange_case.h"

namespace {

using namespace cm::ub;
using namespace cm::ub::test;
using std::chrono::seconds;

void pass(const char* place) {
    if (hits_left && std::string(place) == deadly_place && --hits_left == 0) raise(SIGKILL);
}

// Of all ranks and the shell; beside the windows.
struct Shared {
    std::atomic<pid_t> process[kMostRanks];
    std::atomic<int> interrupted;
    std::atomic<RankSet> finished;
};

char* map_file(const char* path) {
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    struct stat facts;
    if (fd < 0 || fstat(fd, &facts) != 0) return nullptr;
    void* memory = mmap(nullptr, static_cast<size_t>(facts.st_size), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return memory == MAP_FAILED ? nullptr : static_cast<char*>(memory);
}

std::vector<Window> open_windows(const char* path, const std::vector<size_t>& offsets) {
    char* file = map_file(path);
    if (file == nullptr) _exit(3);
    const WindowShape shape = shape_for(static_cast<uint32_t>(offsets.size()));
    std::vector<Window> windows;
    for (uint32_t rank = 0; rank < offsets.size(); ++rank) {
        if (!Window::fits(file + offsets[rank], shape, rank)) _exit(4);
        windows.push_back(Window::open(file + offsets[rank]));
    }
    return windows;
}

// Returns the exit status: 0, or what went wrong.
int run_rank(uint32_t rank, const std::vector<Window>& windows, Shared& shared, uint32_t steps) {
    Watch watch;
    for (uint32_t peer = 0; peer < windows.size(); ++peer) {
        while (shared.process[peer].load() == 0) ::sched_yield();
        if (peer != rank && !watch.add(peer, shared.process[peer].load())) return 5;
    }
    Exchange exchange(rank, windows, watch, Patience::of(static_cast<int>(windows.size()), 2));
    const RankSet all = all_of(static_cast<uint32_t>(windows.size()));
    uint32_t step = 0;
    const auto over = [&] {
        return step == steps && (exchange.members() & ~shared.finished.load()) == 0;
    };
    while (!over()) {
        const bool work = step < steps;
        const Batch batch(rank, step, false);
        std::array<Vector, kMaxRows> x;
        const Outcome outcome = work ? run_step(exchange, all, batch, Clock::now() + seconds(60), x)
                                     : serve_until(exchange, all, over);
        if (outcome && work) {
            const auto want = alone(batch);
            if (std::memcmp(x.data(), want.data(), sizeof(Vector) * static_cast<size_t>(batch.rows)) != 0) return 6;
            if (++step == steps) shared.finished |= just(rank);
        }
        if (outcome) continue;
        if (outcome.ending != Ending::kPeerLost && outcome.ending != Ending::kEpochChanged) return 7;
        ++shared.interrupted;
        if (!exchange.await_epoch(Clock::now() + seconds(60))) return 8;
        exchange.enter();
    }
    return 0;
}

// Until all have ended. Returns how many were killed; exits if one failed.
int tend(const std::vector<Window>& windows, const Shared& shared) {
    RankSet members = all_of(static_cast<uint32_t>(windows.size()));
    int killed = 0, status = 0;
    for (pid_t ended; (ended = wait(&status)) > 0;) {
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
        if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) {
            std::printf("a rank ended with status %d\n", status);
            std::exit(1);
        }
        ++killed;
        for (uint32_t rank = 0; rank < windows.size(); ++rank)
            if (shared.process[rank].load() == ended) members &= ~just(rank);
        Exchange::for_each(members, [&](uint32_t rank) {
            raise_epoch(windows[rank], 1 + static_cast<uint64_t>(killed), members);
        });
    }
    return killed;
}

}  // namespace

int main(int count, char** arguments) {
    if (count < 7) return 2;
    const char* path = arguments[1];
    const auto steps = static_cast<uint32_t>(std::atoi(arguments[2]));
    const auto victim = static_cast<uint32_t>(std::atoi(arguments[3]));
    std::vector<size_t> offsets;
    for (int i = 6; i < count; ++i) offsets.push_back(std::strtoull(arguments[i], nullptr, 10));
    const auto ranks = static_cast<uint32_t>(offsets.size());

    void* beside = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char* file = map_file(path);
    if (beside == MAP_FAILED || file == nullptr) return 3;
    Shared& shared = *new (beside) Shared{};
    std::vector<Window> windows;
    for (uint32_t rank = 0; rank < ranks; ++rank)
        windows.push_back(Window::format(file + offsets[rank], shape_for(ranks), rank, 1, all_of(ranks)));
    for (uint32_t rank = 0; rank < ranks; ++rank) {
        const pid_t child = fork();
        if (child == 0) {
            deadly_place = arguments[4];
            hits_left = rank == victim ? std::atoi(arguments[5]) : 0;
            _exit(run_rank(rank, open_windows(path, offsets), shared, steps));
        }
        shared.process[rank].store(child);
    }
    const int killed = tend(windows, shared);
    std::printf("killed %d interrupted %d\n", killed, shared.interrupted.load());
}
