// The exchange between threads, and how waits end. Built plainly and with sanitizers.
//
//   exchange_selftest layout R M K B H     sizes and offsets, for the mirror in Python
//   exchange_selftest threads              rows of 2 to 4 ranks, exact; also with sources and experts apart
//   exchange_selftest endings              late, peer lost, epoch changed, mismatch; and how the idle wait
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>

#include "exchange_case.h"

namespace {

using namespace cm::ub;
using namespace cm::ub::test;
using std::chrono::milliseconds;
using std::chrono::seconds;

void require(bool good, const char* text) {
    if (good) return;
    std::printf("failed: %s\n", text);
    std::_Exit(1);
}

struct Free {
    void operator()(void* memory) const { std::free(memory); }
};

// Windows of a group in this process's memory, each exactly as long as its layout says.
struct Group {
    explicit Group(uint32_t ranks) : shape(shape_for(ranks)) {
        const WindowLayout layout(shape);
        for (uint32_t rank = 0; rank < ranks; ++rank) {
            void* bytes = nullptr;
            if (posix_memalign(&bytes, kLine, layout.bytes)) std::abort();
            memory.emplace_back(bytes);
            Window::format(bytes, shape, rank, 1, all_of(ranks));
            require(Window::fits(bytes, shape, rank), "a window fits its own shape");
            require(!Window::fits(bytes, shape, rank + 1), "a window is its owner's only");
            windows.push_back(Window::open(bytes));
        }
    }
    WindowShape shape;
    std::vector<std::unique_ptr<void, Free>> memory;
    std::vector<Window> windows;
};

Patience impatient() { return {std::chrono::microseconds(1), std::chrono::microseconds(5), milliseconds(2)}; }

void run_rank(const Group& group, uint32_t rank, RankSet sources, RankSet experts, uint32_t steps) {
    Watch watch;
    // Some sleep at once, some first yield; a sleeper that is not woken is late.
    Patience patience = rank % 2 ? impatient() : Patience::of(9, 2);
    patience.slice = seconds(3600);
    Exchange exchange(rank, group.windows, watch, patience);
    for (uint32_t step = 0; step < steps; ++step) {
        const Batch batch(rank, step, !has(sources, rank));
        std::array<Vector, kMaxRows> x;
        bool over = false;
        const Deadline deadline = Clock::now() + seconds(60);
        const Outcome outcome = together(exchange, sources, experts, batch, true, deadline, x, over);
        require(static_cast<bool>(outcome), name(outcome.ending));
        const auto want = alone(batch);
        require(std::memcmp(x.data(), want.data(), sizeof(Vector) * batch.rows) == 0, "bits as of one process");
    }
}

void run_group(uint32_t ranks, RankSet sources, RankSet experts, uint32_t steps) {
    const Group group(ranks);
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < ranks; ++rank)
        threads.emplace_back([&, rank] { run_rank(group, rank, sources, experts, steps); });
    for (std::thread& thread : threads) thread.join();
}

void threads(uint32_t steps) {
    for (uint32_t ranks = 2; ranks <= 4; ++ranks) run_group(ranks, all_of(ranks), all_of(ranks), steps);
    run_group(3, just(0) | just(1), just(2), steps);
    run_group(4, just(0), just(1) | just(2) | just(3), steps);
}

void words() {
    const Announcement said{low_bits(kEpochBits), low_bits(kStepBits), low_bits(kRoundBits), low_bits(kCountBits)};
    require(pack(said) == ~uint64_t{0} && unpack(pack(said)).step == said.step, "all bits are used");
    const Announcement last{1, low_bits(kStepBits), 4, 0}, first{1, 0, 0, 0};
    require(rounds_ahead(first, last) > 0 && rounds_ahead(last, first) < 0, "steps count on behind the last number");
}

void late() {
    const Group group(3);
    Watch watch;
    Exchange exchange(0, group.windows, watch, impatient());
    group.windows[0].word(0, 1).store(pack({2, 0, 0, 5}));  // epoch 1 is written as 2: 0 is no epoch
    const Outcome outcome = exchange.begin_step(0, Clock::now() + milliseconds(20));
    require(outcome.ending == Ending::kLate && outcome.rank == 2, "late, and which one");
    require(exchange.count_from(1) == 5, "the count of the one that was there");
}

void mismatches() {
    const Group group(2);
    Watch watch;
    for (const Announcement& said : {Announcement{2, 0, 3, 0}, Announcement{2, 0, 1, kMaxRows * kTopK + 1}}) {
        Exchange exchange(0, group.windows, watch, impatient());
        group.windows[0].word(0, 1).store(pack({2, 0, 0, 1}));
        require(static_cast<bool>(exchange.begin_step(0, Clock::now() + seconds(60))), "the right round");
        group.windows[0].word(1, 1).store(pack(said));
        Dispatch dispatch(exchange, all_of(2), all_of(2));
        dispatch.announce();
        const Outcome outcome = dispatch.await(Clock::now() + seconds(60));
        require(outcome.ending == Ending::kMismatch && outcome.rank == 1, "a later round, or too much");
    }
    Exchange exchange(0, group.windows, watch, impatient());
    group.windows[0].word(0, 1).store(pack({2, 0, 0, 1}));
    require(static_cast<bool>(exchange.begin_step(0, Clock::now() + seconds(60))), "the right round");
    *group.windows[1].list(0) = {kMaxRows, 0, 0};
    group.windows[0].word(1, 1).store(pack({2, 0, 1, 1}));
    Dispatch dispatch(exchange, all_of(2), all_of(2));
    dispatch.announce();
    require(dispatch.await(Clock::now() + seconds(60)).ending == Ending::kMismatch, "a row that there is not");
}

void epoch_changed() {
    const Group group(2);
    Watch watch;
    Exchange exchange(0, group.windows, watch, impatient());
    std::thread shell([&] {
        std::this_thread::sleep_for(milliseconds(10));
        raise_epoch(group.windows[0], 2, just(0));
    });
    const Outcome outcome = exchange.begin_step(0, Clock::now() + seconds(60));
    require(outcome.ending == Ending::kEpochChanged, "a sleeper is woken by the epoch");
    shell.join();
    exchange.enter();
    require(exchange.epoch() == 2 && exchange.members() == just(0), "the new epoch's members");
    require(static_cast<bool>(exchange.begin_step(0, Clock::now())), "alone there is nothing to wait for");
    raise_epoch(group.windows[0], 3, all_of(2));
    require(exchange.begin_step(0, Clock::now()).ending == Ending::kEpochChanged, "nor is it long unseen");
}

// Whoever enters while a shell is raising the epoch waits for the rest of it: the members are the next epoch's already.
void half_raised() {
    const Group group(2);
    Watch watch;
    Exchange exchange(0, group.windows, watch, impatient());
    Membership& membership = group.windows[0].membership();
    membership.coming.store(2);
    membership.members.store(just(0));
    std::atomic<bool> entered{false};
    std::thread rank([&] {
        exchange.enter();
        entered = true;
    });
    std::this_thread::sleep_for(milliseconds(10));
    const bool early = entered.load();
    membership.epoch.store(2);
    rank.join();
    require(!early && exchange.epoch() == 2 && exchange.members() == just(0), "members and epoch belong together");
}

// A rank without work sleeps until a peer begins a step, or it is wanted; the bell alone wakes it.
void idle() {
    const Group group(3);
    Watch watch;
    Patience patience = impatient();
    patience.doze = seconds(3600);
    Exchange exchange(0, group.windows, watch, patience);
    std::atomic<bool> wanted{false};
    const auto wants = [&] { return wanted.load(); };
    require(exchange.await_step(Clock::now() + milliseconds(5), wants).ending == Ending::kLate, "nobody begins");
    std::thread peer([&] {
        std::this_thread::sleep_for(milliseconds(10));
        group.windows[0].word(0, 2).store(pack({2, 0, 0, 7}));
        ring_as(group.windows[0].bell(), 2);
    });
    require(static_cast<bool>(exchange.await_step(Clock::now() + seconds(60), wants)) && exchange.begun(),
            "a peer begins");
    peer.join();
    group.windows[0].word(0, 1).store(pack({2, 0, 0, 8}));
    require(static_cast<bool>(exchange.begin_step(9, Clock::now() + seconds(60))), "and so do all");
    require(exchange.count_from(1) == 8 && exchange.count_from(2) == 7 && !exchange.begun(), "with what they say");
    std::thread own([&] {
        std::this_thread::sleep_for(milliseconds(10));
        wanted.store(true);
        ring(group.windows[0].bell());
    });
    require(static_cast<bool>(exchange.await_step(Clock::now() + seconds(60), wants)) && !exchange.begun(), "wanted");
    own.join();
}

void lost_by_word_of_the_shell() {
    const Group group(3);
    Watch watch;
    Exchange exchange(0, group.windows, watch, impatient());
    group.windows[0].membership().lost.store(just(2));
    const Outcome outcome = exchange.begin_step(0, Clock::now() + seconds(60));
    require(outcome.ending == Ending::kPeerLost && outcome.rank == 2, "lost, though another is waited for, too");
}

void lost_by_pidfd() {
    const pid_t child = fork();
    if (child == 0) _exit(0);
    const Group group(2);
    Watch watch;
    require(watch.add(1, child), "a child can be watched");
    Exchange exchange(0, group.windows, watch, impatient());
    const Outcome outcome = exchange.begin_step(0, Clock::now() + seconds(60));
    require(outcome.ending == Ending::kPeerLost && outcome.rank == 1, "the peer is dead");
    waitpid(child, nullptr, 0);
    Watch later;
    require(later.add(1, child) && later.dead() == just(1), "one that has long been dead is dead");
}

void layout(char** numbers) {
    uint32_t given[5];
    for (int i = 0; i < 5; ++i) given[i] = static_cast<uint32_t>(std::atoi(numbers[i]));
    const WindowShape shape{given[0], given[1], given[2], given[3], given[4]};
    const WindowLayout at(shape);
    std::printf("possible %d magic %llu version %u membership %zu bell %zu words %zu lists %zu rows %zu results %zu "
                "bytes %zu row_stride %zu result_stride %zu word %llu\n",
                shape.possible(), static_cast<unsigned long long>(kWindowMagic), kWindowVersion, at.membership, at.bell,
                at.words, at.lists, at.rows, at.results, at.bytes, at.row_stride, at.result_stride,
                static_cast<unsigned long long>(pack({3, 70000, 5, 77})));
}

}  // namespace

int main(int count, char** arguments) {
    const std::string what = count > 1 ? arguments[1] : "";
    if (what == "layout" && count == 7) {
        layout(arguments + 2);
    } else if (what == "threads") {
        threads(count > 2 ? static_cast<uint32_t>(std::atoi(arguments[2])) : 100);
    } else if (what == "endings") {
        words();
        late();
        mismatches();
        epoch_changed();
        half_raised();
        idle();
        lost_by_word_of_the_shell();
        lost_by_pidfd();
    } else {
        return 2;
    }
}
