// Times of the exchange, for bench_exchange.py. Rows are INT8 with a scale, results float32; nothing is computed.
//
//   exchange_bench own ROWS HIDDEN TOP_K                two ranks by one thread in turns: nothing is ever waited for
//   exchange_bench together RANKS ROWS HIDDEN TOP_K     a process a rank
//   exchange_bench split HIDDEN                         an attention rank and an expert rank, which sleep when they wait
//
// Prints microseconds, medians: exchange, copying the same bytes; `together` also one row to each rank and back, `split`
// nothing else.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>

#include "dispatch.h"
#include "service.h"

namespace {

using namespace cm::ub;

constexpr int kPairs = 200, kEmpty = 2000;
constexpr std::chrono::microseconds kGather{100};

Deadline soon() { return Clock::now() + std::chrono::seconds(20); }

void require(const Outcome& outcome) {
    if (outcome) return;
    std::printf("%s: rank %u, step %u, round %u\n", name(outcome.ending), outcome.rank, outcome.step, outcome.round);
    std::_Exit(1);
}

template <class Body>
double microseconds(Body&& body) {
    const Clock::time_point begun = Clock::now();
    body();
    return std::chrono::duration<double, std::micro>(Clock::now() - begun).count();
}

double median(std::vector<double>& values) {
    std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2), values.end());
    return values[values.size() / 2];
}

// One rank: its rows, where they go, and room for what it takes in.
class Rank {
  public:
    Rank(uint32_t rank, const std::vector<Window>& windows, const Patience& patience)
        : exchange(rank, windows, watch_, patience),
          shape_(exchange.shape()),
          rows_(size_t{shape_.max_rows} * shape_.row_bytes, 1),
          ids_(shape_.max_entries()),
          weights_(shape_.max_entries(), 0.125f),
          taken_(size_t{shape_.ranks} * shape_.max_entries() * shape_.row_bytes),
          answer_(hidden(), 1.0f),
          sum_(hidden()) {
        std::mt19937 bits(rank + 1);
        std::vector<int32_t> all(32);
        for (int32_t id = 0; id < 32; ++id) all[static_cast<size_t>(id)] = id;
        for (uint32_t row = 0; row < shape_.max_rows; ++row) {
            std::shuffle(all.begin(), all.end(), bits);
            std::sort(all.begin(), all.begin() + shape_.top_k);
            std::copy_n(all.begin(), shape_.top_k, ids_.begin() + row * shape_.top_k);
        }
    }

    // Rows and lists, of all rows or of one for each rank.
    void first(Dispatch& dispatch, bool one_each = false) {
        for (uint32_t row = 0; row < (one_each ? 1 : shape_.max_rows); ++row) {
            std::memcpy(dispatch.stage(row), &rows_[size_t{row} * shape_.row_bytes], shape_.row_bytes);
            for (uint32_t choice = 0; choice < (one_each ? shape_.ranks : shape_.top_k); ++choice) {
                const auto id = one_each ? choice : static_cast<uint32_t>(ids_[row * shape_.top_k + choice]);
                dispatch.send(id % shape_.ranks, row, choice % shape_.top_k, id / shape_.ranks);
            }
        }
        dispatch.ask();
    }

    void second() {
        Service service(exchange);
        require(service.check());
        char* to = taken_.data();
        service.each_source([&](Service::Source source) {
            const Entry* entry = service.entries(source);
            for (uint32_t i = 0; i < service.count(source); ++i, to += shape_.row_bytes)
                std::memcpy(to, service.row(source, entry[i]), shape_.row_bytes);
        });
        service.each_source([&](Service::Source source) {
            const Entry* entry = service.entries(source);
            for (uint32_t i = 0; i < service.count(source); ++i) {
                std::memcpy(service.result(source, entry[i]), answer_.data(), shape_.result_bytes);
                if (remembers) served_.emplace_back(source, entry[i]);
            }
        });
        service.answer();
    }

    void third(const Dispatch& dispatch) {
        while (!exchange.answered()) {
            require(exchange.await(soon()));
            if (exchange.asked()) second();
        }
        for (uint32_t row = 0; row < shape_.max_rows; ++row) {
            const uint32_t at = row * shape_.top_k;
            dispatch.add(row, &ids_[at], &weights_[at], 0, hidden(), sum_.data());
        }
        exchange.end_round();
    }

    // One row to each rank, and the results.
    void one_each() {
        Dispatch dispatch(exchange);
        first(dispatch, true);
        exchange.gather({kGather});
        while (!exchange.answered()) {
            if (exchange.asked()) second();
            else require(exchange.await(soon()));
        }
        exchange.end_round();
    }

    bool remembers = false;

    // The same bytes from and to the same places, with nothing to say and nothing to wait for.
    void copy_rows() {
        const Window& own = exchange.window(exchange.self());
        for (uint32_t row = 0; row < shape_.max_rows; ++row)
            std::memcpy(own.row(row), &rows_[size_t{row} * shape_.row_bytes], shape_.row_bytes);
    }
    void copy_served() {
        char* to = taken_.data();
        for (const auto& [source, entry] : served_) {
            std::memcpy(to, exchange.window(source.rank).row(entry.row), shape_.row_bytes);
            to += shape_.row_bytes;
        }
        for (const auto& [source, entry] : served_) {
            float* result = exchange.window(source.rank).result(entry.row, entry.choice);
            std::memcpy(result, answer_.data(), shape_.result_bytes);
        }
    }
    void copy_sums() {
        const Window& own = exchange.window(exchange.self());
        for (uint32_t row = 0; row < shape_.max_rows; ++row) {
            for (uint32_t choice = 0; choice < shape_.top_k; ++choice) {
                const float *result = own.result(row, choice), weight = weights_[row * shape_.top_k + choice];
                for (uint32_t i = 0; i < hidden(); ++i) sum_[i] = std::fma(weight, result[i], sum_[i]);
            }
        }
    }

  private:
    Watch watch_;

  public:
    Exchange exchange;

  private:
    uint32_t hidden() const { return shape_.result_bytes / sizeof(float); }

    WindowShape shape_;
    std::vector<char> rows_;
    std::vector<int32_t> ids_;
    std::vector<float> weights_;
    std::vector<char> taken_;
    std::vector<float> answer_, sum_;
    std::vector<std::pair<Service::Source, Entry>> served_;
};

std::vector<Window> make_windows(const WindowShape& shape, const std::vector<Role>& roles = {}) {
    const size_t bytes = (WindowLayout(shape).bytes + 4095) / 4096 * 4096;
    void* memory = mmap(nullptr, bytes * shape.ranks, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) std::_Exit(1);
    std::vector<Window> windows;
    for (uint32_t rank = 0; rank < shape.ranks; ++rank) {
        char* const at = static_cast<char*>(memory) + rank * bytes;
        const Role role = roles.empty() ? Role::kBoth : roles[rank];
        windows.push_back(Window::format(at, shape, rank, role, 1, all_of(shape.ranks)));
    }
    return windows;
}

void own_work(const WindowShape& shape) {
    const std::vector<Window> windows = make_windows(shape);
    Rank a(0, windows, Patience{}), b(1, windows, Patience{});
    require(a.exchange.begin_step(soon()));
    require(b.exchange.begin_step(soon()));
    std::vector<double> exchanged, copied;
    for (int pair = 0; pair < kPairs; ++pair) {
        a.remembers = b.remembers = pair == 0;
        Dispatch da(a.exchange), db(b.exchange);
        exchanged.push_back(microseconds([&] {
            a.first(da);
            b.first(db);
            a.second();
            b.second();
            a.third(da);
            b.third(db);
        }));
        copied.push_back(microseconds([&] {
            a.copy_rows();
            b.copy_rows();
            a.copy_served();
            b.copy_served();
            a.copy_sums();
            b.copy_sums();
        }));
    }
    std::printf("%.3f %.3f\n", median(exchanged) / 2, median(copied) / 2);
}

// All processes come here before one goes on.
void meet(std::atomic<uint32_t>& met, uint32_t ranks, uint32_t time) {
    met.fetch_add(1);
    while (met.load() < ranks * time) ::sched_yield();
}

// A rank of `together`.
void take_part(uint32_t self, const std::vector<Window>& windows, std::atomic<uint32_t>& met) {
    const auto ranks = static_cast<uint32_t>(windows.size());
    const auto cores = static_cast<int>(std::thread::hardware_concurrency());
    Rank rank(self, windows, Patience::of(static_cast<int>(ranks), cores));
    std::vector<double> exchanged, copied, one_each;
    uint32_t times = 0;
    require(rank.exchange.begin_step(soon()));
    for (int pair = 0; pair < kPairs; ++pair) {
        rank.remembers = pair == 0;
        meet(met, ranks, ++times);
        Dispatch dispatch(rank.exchange);
        exchanged.push_back(microseconds([&] {
            rank.first(dispatch);
            rank.exchange.gather({kGather});
            rank.second();
            rank.third(dispatch);
        }));
        meet(met, ranks, ++times);
        copied.push_back(microseconds([&] {
            rank.copy_rows();
            rank.copy_served();
            rank.copy_sums();
        }));
    }
    for (int round = 0; round < kEmpty; ++round) {
        if (round % 500 == 0) require(rank.exchange.begin_step(soon()));
        one_each.push_back(microseconds([&] { rank.one_each(); }));
    }
    rank.exchange.end_rounds();
    met.fetch_add(1);
    const auto over = [&] { return met.load() >= ranks * (times + 1); };
    while (!over()) {
        rank.exchange.await_ask(Clock::now() + std::chrono::milliseconds(1), over);
        if (rank.exchange.asked()) rank.second();
    }
    if (self == 0) std::printf("%.3f %.3f %.3f\n", median(exchanged), median(copied), median(one_each));
    std::fflush(stdout);
}

// One row of rank 0 to rank 1 and back. The time between two rows is longer than any of them waits awake.
void take_turns(uint32_t self, const std::vector<Window>& windows, std::atomic<uint32_t>& over) {
    Rank rank(self, windows, Patience::of(2, 1));
    const auto ended = [&] { return over.load() != 0; };
    while (self == 1 && !ended()) {
        rank.exchange.await_ask(Clock::now() + std::chrono::milliseconds(100), ended);
        if (rank.exchange.asked()) rank.second();
    }
    if (self == 1) return;
    std::vector<double> there_and_back;
    for (int round = 0; round < kEmpty; ++round) {
        if (round % 500 == 0) require(rank.exchange.begin_step(soon()));
        std::this_thread::sleep_for(std::chrono::microseconds(50));
        there_and_back.push_back(microseconds([&] {
            Dispatch dispatch(rank.exchange);
            dispatch.send(1, 0, 0, 0);
            dispatch.ask();
            while (!rank.exchange.answered()) require(rank.exchange.await(soon()));
        }));
        rank.exchange.end_round();
    }
    over.store(1);
    std::printf("%.3f\n", median(there_and_back));
    std::fflush(stdout);
}

}  // namespace

int main(int count, char** arguments) {
    const std::string what = count > 1 ? arguments[1] : "";
    auto number = [&](int at) { return static_cast<uint32_t>(std::atoi(arguments[at])); };
    if (what == "own" && count == 5) {
        own_work({2, number(2), number(4), number(3) + 4, 4 * number(3)});
    } else if ((what == "together" && count == 6) || (what == "split" && count == 3)) {
        const bool split = what == "split";
        const std::vector<Window> windows =
            split ? make_windows({2, 1, 1, number(2) + 4, 4 * number(2)}, {Role::kAttention, Role::kExperts})
                  : make_windows({number(2), number(3), number(5), number(4) + 4, 4 * number(4)});
        void* beside = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (beside == MAP_FAILED) return 1;
        auto& met = *new (beside) std::atomic<uint32_t>{0};
        for (uint32_t rank = 0; rank < windows.size(); ++rank) {
            if (fork() != 0) continue;
            if (split)
                take_turns(rank, windows, met);
            else
                take_part(rank, windows, met);
            _exit(0);
        }
        int status = 0, worst = 0;
        while (wait(&status) > 0) worst = std::max(worst, status);
        return worst != 0;
    } else {
        return 2;
    }
}
