#include "team.h"

namespace cm {

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

// A stage may begin while a worker still wakes up; each waits for every worker, so no worker misses one. `close` only
// comes after the last stage has ended, and a worker that sees it goes back to sleep.
void Team::work(int thread) {
    uint64_t seen = 0;
    for (;;) {
        {
            std::unique_lock<std::mutex> lock(mutex_);
            wake_.wait(lock, [this, seen] { return stop_ || open_.load(std::memory_order_acquire) || stage_.load() != seen; });
            if (stop_) return;
        }
        for (int spins = 0;;) {
            const uint64_t stage = stage_.load(std::memory_order_acquire);
            if (stage != seen) {
                seen = stage;
                spins = 0;
                take(thread);
                left_.fetch_sub(1, std::memory_order_release);
            } else if (!open_.load(std::memory_order_acquire)) {
                break;
            } else {
                relax(spins);
            }
        }
    }
}

}  // namespace cm
