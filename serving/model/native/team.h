// The threads of one engine: they share the items of each stage of a step, spin between stages and sleep between steps,
// so that a waiting engine uses no CPU time.
//
// Any free thread takes the next item. A stage waits for its items, not for threads: a thread that is still waking up,
// or whose core runs other work, delays no other thread. No result depends on the computing thread: items write to
// separate places.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace cm {

class Team {
  public:
    explicit Team(int threads);  // the caller is one of them; starts the others
    ~Team();
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    int threads() const { return static_cast<int>(workers_.size()) + 1; }

    // Between open and close the workers spin. Both are called by the same thread.
    void open();
    void close();

    // Run body(item, thread) for items 0 ... items - 1; returns when all are done. Only between open and close.
    template <class Body>
    void each(int items, Body&& body) {
        if (items <= 1 || workers_.empty()) {
            for (int item = 0; item < items; ++item) body(item, 0);
            return;
        }
        using Kind = std::remove_reference_t<Body>;
        share_out([](void* context, int item, int thread) { (*static_cast<Kind*>(context))(item, thread); },
                  const_cast<void*>(static_cast<const void*>(&body)), items);
    }

  private:
    using Run = void (*)(void* context, int item, int thread);

    void share_out(Run run, void* context, int items);
    int take(int thread);
    void work(int thread);

    std::vector<std::thread> workers_;
    // The stage: written before `ticket_` offers its items, and not changed until all of them are done.
    std::atomic<Run> run_{nullptr};
    std::atomic<void*> context_{nullptr};
    std::atomic<int> items_{0};
    alignas(64) std::atomic<uint64_t> ticket_{
        0};                                 // number of the stage, then its items not yet taken (28 bits)
    alignas(64) std::atomic<int> done_{0};  // items done by workers
    alignas(64) std::atomic<bool> open_{false};
    bool stop_ = false;
    std::mutex mutex_;
    std::condition_variable wake_;
};

}  // namespace cm
