#include "team.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace cm {
namespace {

constexpr int kLeftBits = 28;
constexpr uint64_t kLeft = (uint64_t{1} << kLeftBits) - 1;

// A core needed by other work is yielded after some ten microseconds.
void relax(int& spins) {
    if (++spins < 4096) {
#if defined(__x86_64__)
        _mm_pause();
#endif
    } else {
        std::this_thread::yield();
    }
}

}  // namespace

Team::Team(int threads) {
    for (int thread = 1; thread < threads; ++thread) workers_.emplace_back([this, thread] { work(thread); });
}

Team::~Team() {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
}

void Team::open() {
    if (workers_.empty()) return;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        open_.store(true, std::memory_order_release);
    }
    wake_.notify_all();
}

void Team::close() { open_.store(false, std::memory_order_release); }

void Team::share_out(Run run, void* context, int items) {
    run_.store(run, std::memory_order_relaxed);
    context_.store(context, std::memory_order_relaxed);
    items_.store(items, std::memory_order_relaxed);
    done_.store(0, std::memory_order_relaxed);
    const uint64_t stage = (ticket_.load(std::memory_order_relaxed) >> kLeftBits) + 1;
    ticket_.store(stage << kLeftBits | static_cast<uint64_t>(items), std::memory_order_release);
    const int own = take(0);
    for (int spins = 0; done_.load(std::memory_order_acquire) + own != items;) relax(spins);
}

// Runs items until none is left; returns their number. A thread that succeeds in taking an item has read its stage: a
// stage cannot end, and the next not be written, while one of its items is available, and no ticket is repeated.
int Team::take(int thread) {
    int own = 0;
    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    while (const uint64_t left = ticket & kLeft) {
        const Run run = run_.load(std::memory_order_relaxed);
        void* const context = context_.load(std::memory_order_relaxed);
        const int item = items_.load(std::memory_order_relaxed) - static_cast<int>(left);
        if (!ticket_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel, std::memory_order_acquire))
            continue;
        run(context, item, thread);
        ++own;
        ticket = ticket_.load(std::memory_order_acquire);
    }
    return own;
}

void Team::work(int thread) {
    for (;;) {
        {
            std::unique_lock<std::mutex> lock(mutex_);
            wake_.wait(lock, [this] { return stop_ || open_.load(std::memory_order_acquire); });
            if (stop_) return;
        }
        for (int spins = 0; open_.load(std::memory_order_acquire);) {
            if (const int own = take(thread)) {
                done_.fetch_add(own, std::memory_order_release);
                spins = 0;
            } else {
                relax(spins);
            }
        }
    }
}

}  // namespace cm
