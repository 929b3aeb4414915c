// The exchange between threads, and how waits end. Built plainly and with sanitizers.
//
//   exchange_selftest layout R M K B H     sizes and offsets, for the mirror in Python
//   exchange_selftest threads              rows of 2 to 4 ranks, exact; also with rows here and experts there
//   exchange_selftest endings              late, peer lost, epoch changed, mismatch; how the idle wait, and for whom
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
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
    std::fflush(stdout);
    std::_Exit(1);
}

struct Free {
    void operator()(void* memory) const { std::free(memory); }
};

// Windows of a group in this process's memory, each exactly as long as its layout says.
struct Group {
    explicit Group(uint32_t ranks) : Group(ranks, all_of(ranks), all_of(ranks)) {}
    Group(uint32_t ranks, RankSet sources, RankSet experts) : shape(shape_for(ranks)) {
        for (uint32_t rank = 0; rank < ranks; ++rank) windows.push_back(make(rank, role_in(sources, experts, rank)));
    }
    // Of a rank that never asks it has room for one row.
    Window make(uint32_t rank, Role role) {
        WindowShape own = shape;
        if (!asks(role)) own.max_rows = 1;
        void* bytes = nullptr;
        if (posix_memalign(&bytes, kLine, WindowLayout(own).bytes)) std::abort();
        memory.emplace_back(bytes);
        Window::format(bytes, own, rank, role, 1, all_of(shape.ranks));
        require(Window::fits(bytes, shape, rank), "a window fits its own shape");
        require(!Window::fits(bytes, shape, rank + 1), "a window is its owner's only");
        return Window::open(bytes);
    }
    WindowShape shape;
    std::vector<std::unique_ptr<void, Free>> memory;
    std::vector<Window> windows;
};

Patience impatient() { return {std::chrono::microseconds(1), std::chrono::microseconds(5), milliseconds(2)}; }

struct Work {
    RankSet sources, experts;
    uint32_t steps;
};

void run_rank(const Group& group, uint32_t rank, const Work& work, std::atomic<RankSet>& finished) {
    Watch watch;
    // Some sleep at once, some first yield; a sleeper that is not woken is late.
    Patience patience = rank % 2 ? impatient() : Patience::of(9, 2);
    patience.slice = patience.doze = seconds(3600);
    Exchange exchange(rank, group.windows, watch, patience);
    for (uint32_t step = 0; has(work.sources, rank) && step < work.steps; ++step) {
        const Batch batch(rank, step, false);
        std::array<Vector, kMaxRows> x;
        const Outcome outcome = run_step(exchange, work.experts, batch, Clock::now() + seconds(60), x);
        require(static_cast<bool>(outcome), name(outcome.ending));
        const auto want = alone(batch);
        const size_t bytes = sizeof(Vector) * static_cast<size_t>(batch.rows);
        require(std::memcmp(x.data(), want.data(), bytes) == 0, "bits as of one process");
    }
    finished |= just(rank);
    const auto over = [&] { return finished.load() == exchange.members(); };
    const Outcome outcome = serve_until(exchange, work.experts, over);
    require(static_cast<bool>(outcome), name(outcome.ending));
}

void run_group(uint32_t ranks, const Work& work) {
    const Group group(ranks, work.sources, work.experts);
    std::atomic<RankSet> finished{0};
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < ranks; ++rank)
        threads.emplace_back([&, rank] { run_rank(group, rank, work, finished); });
    for (std::thread& thread : threads) thread.join();
}

// One rank asks all the time; another comes, goes without a word, and comes again with another window, all in one epoch.
void come_and_go(uint32_t steps) {
    constexpr RankSet sources = just(0) | just(1), experts = just(2) | just(3);
    Group group(4, sources, experts);
    std::atomic<RankSet> finished{experts};
    std::mutex lock;
    std::vector<Window> lives{group.windows[1]};
    std::atomic<size_t> count{1};
    const auto rank_with_experts = [&](uint32_t rank) {
        Watch watch;
        Exchange exchange(rank, group.windows, watch, impatient());
        size_t known = 1;
        while (finished.load() != all_of(4)) {
            const auto news = [&] { return count.load() != known || finished.load() == all_of(4); };
            const Outcome outcome = serve_until(exchange, experts, news);
            require(static_cast<bool>(outcome), name(outcome.ending));
            for (; known < count.load(); ++known) {
                exchange.drop(1);
                std::lock_guard<std::mutex> guard(lock);
                exchange.admit(1, lives[known]);
            }
        }
    };
    std::thread two(rank_with_experts, 2), three(rank_with_experts, 3);
    std::thread steady([&] { run_rank(group, 0, {sources, experts, steps}, finished); });
    for (uint32_t life = 0; life < steps; ++life) {
        std::vector<Window> windows = group.windows;
        windows[1] = lives[life];
        Watch watch;
        Exchange exchange(1, windows, watch, impatient());
        for (uint32_t step = 0; step < 1 + life % 3; ++step) {
            const Batch batch(1, 100 * life + step, false);
            std::array<Vector, kMaxRows> x;
            require(static_cast<bool>(run_step(exchange, experts, batch, Clock::now() + seconds(60), x)), "a guest's step");
            const auto want = alone(batch);
            require(std::memcmp(x.data(), want.data(), sizeof(Vector) * static_cast<size_t>(batch.rows)) == 0, "its bits");
        }
        if (life % 2) {  // it dies after an ask, of either session
            require(static_cast<bool>(exchange.begin_step(Clock::now() + seconds(60))), "hello");
            Dispatch dispatch(exchange, life / 2 % kMicroBatches);
            dispatch.send(2, 0, 0, 0);
            dispatch.ask();
        }
        std::lock_guard<std::mutex> guard(lock);
        lives.push_back(group.make(1, Role::kAttention));
        count.store(lives.size());
        for (const uint32_t rank : {2u, 3u}) ring(group.windows[rank].bell());
    }
    finished |= just(1);
    steady.join();
    two.join();
    three.join();
}

void threads(uint32_t steps) {
    for (uint32_t ranks = 2; ranks <= 4; ++ranks) run_group(ranks, {all_of(ranks), all_of(ranks), steps});
    run_group(3, {just(0), all_of(3), steps});
    run_group(3, {just(0) | just(1), just(2), steps});
    run_group(4, {just(0), just(1) | just(2) | just(3), steps});
    come_and_go(steps);
}

void words() {
    const Announcement said{low_bits(kEpochBits), low_bits(kStepBits), low_bits(kRoundBits), low_bits(kCountBits)};
    require(pack(said) == ~uint64_t{0} && unpack(pack(said)).step == said.step, "all bits are used");
    const Announcement last{1, low_bits(kStepBits), 4, 0}, first{1, 0, 0, 0};
    require(rounds_ahead(first, last) > 0 && rounds_ahead(last, first) < 0, "steps count on behind the last number");
}

constexpr uint64_t hello = pack({2, low_bits(kStepBits), 0, 0});  // in epoch 1: it is written as 2, 0 is no epoch

std::atomic<uint64_t>& answer_of(const Group& group, uint32_t rank) {
    return group.windows[0].word(Kind::kAnswer, rank);
}

// A step of rank 0 that asks rank 1 for one row.
void ask_one(Exchange& exchange) {
    require(static_cast<bool>(exchange.begin_step(Clock::now() + seconds(60))), "all have said hello");
    Dispatch dispatch(exchange);
    dispatch.send(1, 0, 0, 0);
    dispatch.ask();
}

void late() {
    const Group group(3);
    Watch watch;
    Exchange exchange(0, group.windows, watch, impatient());
    require(group.windows[1].word(Kind::kAnswer, 0).load() == hello, "hello");
    answer_of(group, 1).store(hello);
    Outcome outcome = exchange.begin_step(Clock::now() + milliseconds(20));
    require(outcome.ending == Ending::kLate && outcome.rank == 2, "late, and which one");
    answer_of(group, 2).store(hello);
    ask_one(exchange);
    require(group.windows[1].word(Kind::kAsk, 0).load() == pack({2, 0, 1, 1}), "an ask");
    require(group.windows[2].word(Kind::kAsk, 0).load() == 0, "only of who gets rows");
    answer_of(group, 1).store(pack({2, low_bits(kStepBits), 3, 1}));
    outcome = exchange.await(Clock::now() + milliseconds(20));
    require(outcome.ending == Ending::kLate && outcome.rank == 1 && !exchange.answered(), "an old answer is none");
    answer_of(group, 1).store(pack({2, 0, 1, 1}));
    require(static_cast<bool>(exchange.await(Clock::now())) && exchange.answered(), "the right one");
}

// Parts of a round are those of the rank that answered last, this one included. A round is not counted if an answer has
// no times of its own, as from another host.
void parts_of_rounds() {
    const Group group(3);
    Watch watch;
    Exchange exchange(0, group.windows, watch, impatient());
    for (const uint32_t rank : {1u, 2u}) answer_of(group, rank).store(hello);
    require(static_cast<bool>(exchange.begin_step(Clock::now())), "hello");
    const Clock::time_point now = Clock::now();
    const int64_t at = ns_of(now);
    std::array<int64_t, 4> found;
    const ServiceTimes of_two[] = {{at + 20, at + 25}, {0, 0}, {at + 1, at + 5}}, own = {at + 40, at + 45};
    for (uint32_t round = 1; round <= 3; ++round) {
        Dispatch dispatch(exchange);
        for (uint32_t rank = 0; rank < 3; ++rank)
            if (rank || round == 3) dispatch.send(rank, rank, 0, 0);
        dispatch.ask(now);
        stamp(group.windows[0].line(Kind::kAnswer, 1), {at + 10, at + 30});
        stamp(group.windows[0].line(Kind::kAnswer, 2), of_two[round - 1]);
        for (const uint32_t rank : {1u, 2u}) answer_of(group, rank).store(pack({2, 0, round, 1}));
        exchange.answer(exchange.take(), own);
        require(static_cast<bool>(exchange.await(Clock::now())) && exchange.answered(), "answered");
        exchange.count_round(0);
        exchange.parts().read(found.data());
        const int64_t rounds = round == 3 ? 2 : 1;
        require(found[0] == rounds && found[1] == (rounds == 1 ? 10 : 50) && found[2] == (rounds == 1 ? 20 : 25), "parts");
    }
    require(found[3] >= 0, "E2A");
}

void mismatches() {
    const Group group(2);
    Watch watch;
    for (const Announcement& said : {Announcement{2, 0, 2, 1}, Announcement{2, 1, 1, 1}, Announcement{2, 0, 1, 2}}) {
        Exchange exchange(0, group.windows, watch, impatient());
        answer_of(group, 1).store(hello);
        ask_one(exchange);
        answer_of(group, 1).store(pack(said));
        const Outcome outcome = exchange.await(Clock::now() + seconds(60));
        require(outcome.ending == Ending::kMismatch && outcome.rank == 1, "of a later round or step, or of other rows");
    }
    uint32_t round = 1;
    for (const auto& [entry, count] : {std::pair<Entry, uint32_t>{{0, 0, 0}, kMaxRows * kTopK + 1},
                                       {{kMaxRows, 0, 0}, 1}, {{0, kTopK, 0}, 1}}) {
        Exchange exchange(0, group.windows, watch, impatient());
        *group.windows[1].list(0) = entry;
        group.windows[0].word(Kind::kAsk, 1).store(pack({2, 0, round++, count}));
        require(exchange.asked(), "an ask");
        Service service(exchange);
        require(service.taken() == Sessions{just(1), 0} && !exchange.asked(), "is taken once");
        const Outcome outcome = service.check();
        require(outcome.ending == Ending::kMismatch && outcome.rank == 1, "rows that there are not");
    }
}

// Ranks whose asks were taken, in any of their sessions.
RankSet take(Exchange& exchange, uint32_t most = kAnyCount) {
    const Sessions taken = exchange.take(most);
    return taken[0] | taken[1];
}

// A word without epoch, of another one, or of a round that is over is no ask; nor is one of a rank without attention.
void no_asks() {
    const Group group(3, just(1), just(0) | just(2));
    Watch watch;
    Exchange exchange(0, group.windows, watch, impatient());
    require(group.windows[1].word(Kind::kAnswer, 0).load() == hello, "hello to who asks");
    require(group.windows[2].word(Kind::kAnswer, 0).load() == 0, "and to nobody else");
    for (const Announcement& said : {Announcement{0, 0, 1, 1}, Announcement{3, 0, 1, 1}, Announcement{1, 0, 1, 1},
                                     Announcement{2, low_bits(kStepBits), 0, 1}}) {
        group.windows[0].word(Kind::kAsk, 1).store(pack(said));
        require(!exchange.asked() && take(exchange) == 0, "no ask of this epoch");
    }
    group.windows[0].word(Kind::kAsk, 2).store(pack({2, 0, 1, 1}));
    require(!exchange.asked() && take(exchange) == 0, "this one has nothing to ask");
    group.windows[0].word(Kind::kAsk, 1).store(pack({2, 5, 1, 1}));
    require(exchange.asked(), "steps without rows for this rank are passed over");
    exchange.drop(1);
    require(!exchange.asked() && exchange.members() == (just(0) | just(2)), "dropped");
}

void epoch_changed() {
    const Group group(2);
    Watch watch;
    Exchange exchange(0, group.windows, watch, impatient());
    std::thread shell([&] {
        std::this_thread::sleep_for(milliseconds(10));
        raise_epoch(group.windows[0], 2, just(0));
    });
    const Outcome outcome = exchange.begin_step(Clock::now() + seconds(60));
    require(outcome.ending == Ending::kEpochChanged, "a sleeper is woken by the epoch");
    shell.join();
    group.windows[0].word(Kind::kAsk, 1).store(pack({2, 0, 1, 1}));
    require(exchange.asked(), "an ask");
    exchange.enter();
    require(exchange.epoch() == 2 && exchange.members() == just(0) && !exchange.asked(), "of an old epoch is none");
    require(static_cast<bool>(exchange.begin_step(Clock::now())), "alone there is nothing to wait for");
    raise_epoch(group.windows[0], 3, all_of(2));
    require(exchange.begin_step(Clock::now()).ending == Ending::kEpochChanged, "nor is it long unseen");
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

// A rank without work sleeps until a peer asks, or it is wanted; the bell alone wakes it.
void idle() {
    const Group group(3);
    Watch watch;
    Patience patience = impatient();
    patience.doze = seconds(3600);
    Exchange exchange(0, group.windows, watch, patience);
    std::atomic<bool> wanted{false};
    const auto wants = [&] { return wanted.load(); };
    require(exchange.await_ask(Clock::now() + milliseconds(5), wants).ending == Ending::kLate, "nobody asks");
    std::thread peer([&] {
        std::this_thread::sleep_for(milliseconds(10));
        group.windows[0].word(Kind::kAsk, 2).store(pack({2, 0, 1, 7}));
        ring_as(group.windows[0].bell(), Kind::kAsk, 2);
    });
    require(static_cast<bool>(exchange.await_ask(Clock::now() + seconds(60), wants)) && exchange.asked(), "one asks");
    peer.join();
    for (uint32_t rank = 0; rank < 3; ++rank) group.windows[rank].progress().map.store(7 - rank);
    exchange.use_map(9);
    require(exchange.oldest_map() == 5, "the oldest map that is used");
    const Sessions taken = exchange.take();
    require(taken[0] == just(2) && exchange.count_from(2, 0) == 7 && !exchange.asked(), "for what it says");
    exchange.answer(taken);
    require(group.windows[2].word(Kind::kAnswer, 0).load() == pack({2, 0, 1, 7}), "and is answered by its own word");
    std::thread own([&] {
        std::this_thread::sleep_for(milliseconds(10));
        wanted.store(true);
        ring(group.windows[0].bell());
    });
    require(static_cast<bool>(exchange.await_ask(Clock::now() + seconds(60), wants)) && !exchange.asked(), "wanted");
    own.join();
}

// Rows are waited for a little, if their rank is at its rounds and will ask.
void gathers() {
    const Group group(2);
    Watch watch;
    Exchange exchange(0, group.windows, watch, impatient());
    const auto computing = static_cast<uint64_t>(Phase::kComputing);
    answer_of(group, 1).store(hello);
    ask_one(exchange);
    exchange.gather({seconds(60)});  // the peer is not at its rounds
    exchange.end_rounds();
    require(!exchange.has_slower_peers(), "nor was it");
    group.windows[1].progress().phase.store(computing);
    require(!exchange.has_slower_peers(), "and if it begins now it is none that is slower");
    exchange.end_rounds();
    require(exchange.has_slower_peers(), "this one is");
    std::thread peer([&] {
        std::this_thread::sleep_for(milliseconds(10));
        group.windows[0].word(Kind::kAsk, 1).store(pack({2, 0, 1, 7}));
        ring_as(group.windows[0].bell(), Kind::kAsk, 1);
    });
    exchange.gather({seconds(60)});
    require(exchange.asked(), "its rows were waited for");
    peer.join();
    exchange.take();
    group.windows[1].progress().phase.store(static_cast<uint64_t>(Phase::kWaiting));
    exchange.gather({seconds(60)});  // it has asked others, and waits itself
    answer_of(group, 1).store(pack({2, 0, 1, 1}));
    require(static_cast<bool>(exchange.await(Clock::now())), "answered");
    group.windows[1].progress().phase.store(computing);
    exchange.gather({seconds(60)});  // nothing of it is needed
}

// A rank without attention waits for those that will ask for the same round.
void gathers_for_others() {
    const Group group(4, just(1) | just(2) | just(3), just(0));
    const auto ask = [&](uint32_t rank, const Announcement& said) {
        group.windows[0].word(Kind::kAsk, rank).store(pack(said));
        ring_as(group.windows[0].bell(), Kind::kAsk, rank);
    };
    const auto show = [&](uint32_t rank, uint32_t step, Phase phase) {
        group.windows[rank].progress().phase.store(uint64_t{step} << 2 | static_cast<uint64_t>(phase));
    };
    Watch watch;
    Exchange exchange(0, group.windows, watch, impatient());
    const Gathering how{seconds(60), seconds(60), 7};
    const auto joined_by = [&](uint32_t rank, const Announcement& said) {
        std::thread peer([&] {
            std::this_thread::sleep_for(milliseconds(10));
            ask(rank, said);
        });
        exchange.gather(how);
        const RankSet taken = take(exchange, how.few);
        peer.join();
        exchange.answer({taken, 0});
        return taken;
    };
    ask(1, {2, 0, 1, 7});
    exchange.gather(how);  // nobody computes
    show(2, 0, Phase::kComputing);
    show(3, 0, Phase::kWaiting);
    require(joined_by(2, {2, 0, 1, 5}) == (just(1) | just(2)), "both are served at once");
    ask(1, {2, 0, 3, 7});
    exchange.gather(how);  // the other one is a round behind
}

// Between two steps a rank is expected for its usual pause, and as long again; then for the first round only.
void knows_pauses() {
    const Group group(2, just(1), just(0));
    const Window& own = group.windows[0];
    Progress& there = group.windows[1].progress();
    const Clock::time_point begun = Clock::now();
    Asks asks;
    asks.begin(hello);
    const auto step = [&](uint32_t number, milliseconds asked, milliseconds answered) {
        own.word(Kind::kAsk, 1).store(pack({2, number, 1, 5}));
        require(asks.take(own, 1, 0, 5, begun + asked), "an ask");
        asks.on_answer(1, begun + answered);
    };
    step(0, milliseconds(0), milliseconds(10));
    require(!asks.joins_soon(there, 1, 1 << 1, begun + milliseconds(10)), "its pause is not known");
    step(1, milliseconds(15), milliseconds(20));
    require(asks.joins_soon(there, 1, 1 << 1, begun + milliseconds(29)), "a pause of 5 ms");
    require(!asks.joins_soon(there, 1, 1 << 2, begun + milliseconds(29)), "not for a second round");
    require(!asks.joins_soon(there, 1, 1 << 1, begun + milliseconds(30)), "later it has no work");
    step(2, milliseconds(60000), milliseconds(60010));
    require(!asks.joins_soon(there, 1, 1 << 1, begun + milliseconds(60050)), "a rest is no pause");
    there.phase.store(uint64_t{2} << 2 | static_cast<uint64_t>(Phase::kComputing));
    require(asks.joins_soon(there, 1, 1 << 2, begun) && !asks.joins_soon(there, 1, 1 << 1, begun), "in its step");
}

// Small sessions are taken before large ones, which they do not wait for; a service may be left unfinished.
void small_ones_first() {
    const Group group(3, just(1) | just(2), just(0));
    const auto ask = [&](uint32_t rank, const Announcement& said) {
        group.windows[0].word(Kind::kAsk, rank).store(pack(said));
    };
    Watch watch;
    Exchange exchange(0, group.windows, watch, impatient());
    ask(2, {2, 0, 1, 9});
    require(!exchange.asked(7) && exchange.asked() && take(exchange, 7) == 0, "a large one");
    ask(1, {2, 0, 1, 7});
    require(take(exchange, 7) == just(1) && take(exchange) == just(2), "after the small one");
    exchange.answer({just(1) | just(2), 0});
    group.windows[2].progress().phase.store(static_cast<uint64_t>(Phase::kComputing));
    ask(1, {2, 0, 2, 7});
    exchange.gather({seconds(60), seconds(60), 7});  // the other one will have many rows, as it had before
    require(take(exchange) == just(1), "the small one alone");
    exchange.keep_serving(true);
    require(exchange.asked() && !exchange.asked(kAnyCount), "work without an ask");
    require(static_cast<bool>(exchange.await_ask(Clock::now() + seconds(60), [] { return false; })), "no sleep");
    raise_epoch(group.windows[0], 2, all_of(3));
    exchange.enter();
    require(!exchange.asked(), "an epoch ends it");
}

void lost_by_word_of_the_shell() {
    const Group group(3);
    Watch watch;
    Exchange exchange(0, group.windows, watch, impatient());
    group.windows[0].membership().lost.store(just(2));
    const Outcome outcome = exchange.begin_step(Clock::now() + seconds(60));
    require(outcome.ending == Ending::kPeerLost && outcome.rank == 2, "lost, though another is waited for, too");
}

void lost_by_pidfd() {
    const pid_t child = fork();
    if (child == 0) _exit(0);
    const Group group(2);
    Watch watch;
    require(watch.add(1, child), "a child can be watched");
    Exchange exchange(0, group.windows, watch, impatient());
    const Outcome outcome = exchange.begin_step(Clock::now() + seconds(60));
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
    std::printf("possible %d magic %llu version %u membership %zu bell %zu progress %zu words %zu lists %zu rows %zu results %zu "
                "bytes %zu row_stride %zu result_stride %zu word %llu\n",
                shape.possible(), static_cast<unsigned long long>(kWindowMagic), kWindowVersion, at.membership, at.bell,
                at.progress, at.words, at.lists, at.rows, at.results, at.bytes, at.row_stride, at.result_stride,
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
        parts_of_rounds();
        mismatches();
        no_asks();
        epoch_changed();
        half_raised();
        idle();
        gathers();
        gathers_for_others();
        knows_pauses();
        small_ones_first();
        lost_by_word_of_the_shell();
        lost_by_pidfd();
    } else {
        return 2;
    }
}
