// The threads of one engine: they share out the items of each stage of a step, spin between stages and sleep between
// steps, so that a waiting engine costs its neighbours nothing.
//
// Whoever is free takes the next item. No result depends on who computed it: items write to places of their own.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace cm {

class Team {
  public:
    explicit Team(int threads);  // the caller is one of them; starts the others
    ~Team();
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    int threads() const { return static_cast<int>(workers_.size()) + 1; }

    // Between open and close the workers spin. Called by one thread, the same that calls each.
    void open();
    void close();

    // Run body(item, thread) for items 0 ... items - 1; returns when all are done. Only between open and close.
    template <class Body>
    void each(int items, Body&& body) {
        if (items <= 1 || workers_.empty()) {
            for (int item = 0; item < items; ++item) body(item, 0);
            return;
        }
        run_ = [](void* context, int item, int thread) { (*static_cast<std::remove_reference_t<Body>*>(context))(item, thread); };
        context_ = const_cast<void*>(static_cast<const void*>(&body));
        items_ = items;
        next_.store(0, std::memory_order_relaxed);
        left_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
        stage_.fetch_add(1, std::memory_order_release);
        take(0);
        for (int spins = 0; left_.load(std::memory_order_acquire) != 0;) relax(spins);
    }

  private:
    using Run = void (*)(void*, int, int);

    void take(int thread) {
        for (int item; (item = next_.fetch_add(1, std::memory_order_relaxed)) < items_;) run_(context_, item, thread);
    }
    // A core that is wanted elsewhere is given up after some ten microseconds.
    static void relax(int& spins) {
        if (++spins < 4096) {
#if defined(__x86_64__)
            _mm_pause();
#endif
        } else {
            std::this_thread::yield();
        }
    }
    void work(int thread);

    std::vector<std::thread> workers_;
    Run run_ = nullptr;
    void* context_ = nullptr;
    int items_ = 0;
    alignas(64) std::atomic<int> next_{0};
    alignas(64) std::atomic<int> left_{0};
    alignas(64) std::atomic<uint64_t> stage_{0};
    std::atomic<bool> open_{false};
    bool stop_ = false;
    std::mutex mutex_;
    std::condition_variable wake_;
};

}  // namespace cm
