// Scratch memory, allocated in order: the same sequence of calls without memory determines the required size.
#pragma once
#include <cstddef>
#include <cstdint>

#include "isa.h"
#include "pack.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace cm::CM_ISA_NAMESPACE {

// Allocates consecutive arrays; without memory it only counts.
class Arena {
  public:
    explicit Arena(void* memory) : next_(reinterpret_cast<uintptr_t>(memory)), begin_(next_) {}

    template <class N>
    N* take(int64_t count) {
        N* array = reinterpret_cast<N*>(next_);
        next_ += static_cast<uintptr_t>(round_up(count * static_cast<int64_t>(sizeof(N)), 64));
#if defined(__SANITIZE_ADDRESS__)
        if (begin_) {  // the padding after an array is unused
            ASAN_UNPOISON_MEMORY_REGION(array, static_cast<size_t>(count) * sizeof(N));
            ASAN_POISON_MEMORY_REGION(array + count, 64);
        }
        next_ += 64;
#endif
        return array;
    }
    size_t used() const { return next_ - begin_; }

  private:
    uintptr_t next_;
    uintptr_t begin_;
};

}  // namespace cm::CM_ISA_NAMESPACE
