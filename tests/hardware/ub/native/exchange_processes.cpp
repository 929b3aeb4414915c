// Ranks as processes over a file of shared memory; one may be killed at a place of the protocol, and the others go on.
//
//   exchange_processes FILE STEPS VICTIM PLACE HIT ROLES OFFSET...
//
// ROLES has a letter for each rank: (a)ttention, (e)xperts, (b)oth; then the offset of its window, and of one more.
// This process is the shell: it makes windows and ranks. When one with experts dies it raises the epoch: the others redo
// the step that they were in, with the dead one's experts, and must end with the bits of a process alone. One without
// is replaced in the same epoch by a process with the other window, and nobody redoes anything. Ends with 0 and a line:
// ranks that died, and waits that ended with the loss or the new epoch.
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
    std::atomic<RankSet> again;  // those that a second process stands for
};

// The arguments.
struct Plan {
    const char* path;
    uint32_t steps;
    std::string roles;
    std::vector<size_t> offsets;  // [2][rank]

    uint32_t ranks() const { return static_cast<uint32_t>(roles.size()); }
    RankSet with(const char* letters) const {
        RankSet found = 0;
        for (uint32_t rank = 0; rank < ranks(); ++rank)
            if (std::string(letters).find(roles[rank]) != std::string::npos) found |= just(rank);
        return found;
    }
    RankSet sources() const { return with("ab"); }
    RankSet experts() const { return with("eb"); }
    Window format(char* file, uint32_t rank, bool second) const {
        return Window::format(file + offsets[rank + second * ranks()], shape_for(ranks()), rank,
                              role_in(sources(), experts(), rank), 1, all_of(ranks()));
    }
};

char* map_file(const char* path) {
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    struct stat facts;
    if (fd < 0 || fstat(fd, &facts) != 0) return nullptr;
    void* memory = mmap(nullptr, static_cast<size_t>(facts.st_size), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return memory == MAP_FAILED ? nullptr : static_cast<char*>(memory);
}

// [2][rank]; of the second ones those that are formatted.
std::vector<Window> open_windows(const Plan& plan) {
    char* file = map_file(plan.path);
    if (file == nullptr) _exit(3);
    std::vector<Window> windows;
    for (uint32_t at = 0; at < plan.offsets.size(); ++at) {
        const bool second = at >= plan.ranks();
        char* const there = file + plan.offsets[at];
        const bool good = Window::fits(there, shape_for(plan.ranks()), at % plan.ranks());
        if (!good && !second) _exit(4);
        windows.push_back(good ? Window::open(there) : windows[at % plan.ranks()]);
    }
    return windows;
}

// Returns the exit status: 0, or what went wrong.
int run_rank(uint32_t rank, const Plan& plan, Shared& shared, bool second) {
    std::vector<Window> windows = open_windows(plan);
    Watch watch;
    for (uint32_t peer = 0; peer < plan.ranks(); ++peer) {
        while (shared.process[peer].load() == 0) ::sched_yield();
        if (peer != rank && !watch.add(peer, shared.process[peer].load())) return 5;
    }
    if (second) windows[rank] = windows[rank + plan.ranks()];
    windows.erase(windows.begin() + plan.ranks(), windows.end());
    Exchange exchange(rank, windows, watch, Patience::of(static_cast<int>(plan.ranks()), 2));
    const RankSet all = plan.experts();
    const uint32_t steps = has(plan.sources(), rank) ? plan.steps : 0;
    uint32_t step = 0;
    RankSet admitted = 0;
    const auto come = [&] { return asks(exchange.role()) ? 0 : shared.again.load() & ~admitted; };
    const auto over = [&] {
        return come() || (step == steps && (exchange.members() & ~shared.finished.load()) == 0);
    };
    if (steps == 0) shared.finished |= just(rank);
    for (;;) {
        Exchange::for_each(come(), [&](uint32_t newcomer) {
            exchange.admit(newcomer, open_windows(plan)[newcomer + plan.ranks()]);
            admitted |= just(newcomer);
        });
        if (over()) return 0;
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
}

pid_t start(uint32_t rank, const Plan& plan, Shared& shared, bool second) {
    const pid_t child = fork();
    if (child == 0) {
        if (second) hits_left = 0;
        _exit(run_rank(rank, plan, shared, second));
    }
    shared.process[rank].store(child);
    return child;
}

// Until all have ended. Returns how many were killed; exits if one failed.
int tend(const std::vector<Window>& windows, char* file, const Plan& plan, Shared& shared) {
    RankSet members = all_of(plan.ranks());
    int killed = 0, status = 0;
    for (pid_t ended; (ended = wait(&status)) > 0;) {
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
        if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) {
            std::printf("a rank ended with status %d\n", status);
            std::exit(1);
        }
        ++killed;
        uint32_t dead = 0;
        while (shared.process[dead].load() != ended) ++dead;
        if (!has(plan.experts(), dead)) {
            plan.format(file, dead, true);
            shared.again |= just(dead);
            start(dead, plan, shared, true);
            for (const Window& window : windows) ring(window.bell());
            continue;
        }
        members &= ~just(dead);
        Exchange::for_each(members, [&](uint32_t rank) {
            raise_epoch(windows[rank], 1 + static_cast<uint64_t>(killed), members);
        });
    }
    return killed;
}

}  // namespace

int main(int count, char** arguments) {
    if (count < 9) return 2;
    Plan plan{arguments[1], static_cast<uint32_t>(std::atoi(arguments[2])), arguments[6], {}};
    const auto victim = static_cast<uint32_t>(std::atoi(arguments[3]));
    for (int i = 7; i < count; ++i) plan.offsets.push_back(std::strtoull(arguments[i], nullptr, 10));
    if (plan.offsets.size() != 2 * plan.ranks()) return 2;

    void* beside = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char* file = map_file(plan.path);
    if (beside == MAP_FAILED || file == nullptr) return 3;
    Shared& shared = *new (beside) Shared{};
    std::vector<Window> windows;
    for (uint32_t rank = 0; rank < plan.ranks(); ++rank) windows.push_back(plan.format(file, rank, false));
    deadly_place = arguments[4];
    for (uint32_t rank = 0; rank < plan.ranks(); ++rank) {
        hits_left = rank == victim ? std::atoi(arguments[5]) : 0;
        start(rank, plan, shared, false);
    }
    hits_left = 0;
    const int killed = tend(windows, file, plan, shared);
    std::printf("killed %d interrupted %d\n", killed, shared.interrupted.load());
}
