// A wall clock that is CLOCK_OFF_S seconds ahead, for a process that has this in LD_PRELOAD: a time namespace moves the
// other clocks only. Whoever waits until a time of day is waited for by the right clock.
#include <dlfcn.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>

namespace {

time_t ahead() {
    static const time_t seconds = getenv("CLOCK_OFF_S") ? atol(getenv("CLOCK_OFF_S")) : 0;
    return seconds;
}

template <typename Function> Function *next(const char *name) {
    return reinterpret_cast<Function *>(dlsym(RTLD_NEXT, name));
}

// A deadline by the right clock. One that is no time of day, but a time since the start of the machine, stays.
timespec right(const timespec *deadline) {
    timespec moved = *deadline;
    if (moved.tv_sec > 1'000'000'000) moved.tv_sec -= ahead();
    return moved;
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec *out) noexcept {
    static auto *const real = next<int(clockid_t, timespec *)>("clock_gettime");
    const int result = real(clock, out);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) out->tv_sec += ahead();
    return result;
}

int gettimeofday(timeval *out, void *) noexcept {
    timespec now;
    const int result = clock_gettime(CLOCK_REALTIME, &now);
    *out = {now.tv_sec, now.tv_nsec / 1000};
    return result;
}

time_t time(time_t *out) noexcept {
    timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const timespec *deadline) {
    using Wait = int(pthread_cond_t *, pthread_mutex_t *, const timespec *);
    // glibc for x86 keeps an older one of that name, for programs of before 2003.
    static auto *const modern = reinterpret_cast<Wait *>(dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2"));
    static auto *const real = modern ? modern : next<Wait>("pthread_cond_timedwait");
    const timespec moved = right(deadline);
    return real(condition, mutex, &moved);
}

// gRPC's and Ray's own locks wait by the kernel's call.
long syscall(long number, ...) noexcept {
    static auto *const real = next<long(long, long, long, long, long, long, long)>("syscall");
    va_list list;
    va_start(list, number);
    long words[6];
    for (long &word : words) word = va_arg(list, long);
    va_end(list);
    timespec moved;
    if (number == SYS_futex && (words[1] & FUTEX_CLOCK_REALTIME) && words[3]) {
        moved = right(reinterpret_cast<const timespec *>(words[3]));
        words[3] = reinterpret_cast<long>(&moved);
    }
    return real(number, words[0], words[1], words[2], words[3], words[4], words[5]);
}
}
