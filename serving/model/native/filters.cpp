#include "filters.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>

namespace cm {
namespace {

// Weights by size without sorting them all: eight classes per octave below 1, the last with all smaller ones. Only the
// class that contains a limit is sorted.
constexpr int kClasses = 512;

struct Class {
    int64_t count;
    double sum;
};

int class_of(double weight) {
    uint64_t bits;
    std::memcpy(&bits, &weight, sizeof bits);
    const int64_t below_one = (1023ll * 8) - static_cast<int64_t>(bits >> 49);
    return static_cast<int>(std::clamp<int64_t>(below_one, 0, kClasses - 1));
}

std::array<Class, kClasses> classes(const double* weights, int n) {
    std::array<Class, kClasses> found{};
    for (int i = 0; i < n; ++i) {
        if (weights[i] == 0) continue;
        Class& mine = found[static_cast<size_t>(class_of(weights[i]))];
        ++mine.count;
        mine.sum += weights[i];
    }
    return found;
}

// Weights of one class, largest first.
int sorted_class(const double* weights, int n, int wanted, double* out) {
    int count = 0;
    for (int i = 0; i < n; ++i) {
        if (weights[i] != 0 && class_of(weights[i]) == wanted) out[count++] = weights[i];
    }
    std::sort(out, out + count, std::greater<>());
    return count;
}

// The k-th largest weight; 0 if fewer are left.
double kth_largest(const double* weights, int n, int64_t k, double* spare) {
    const auto found = classes(weights, n);
    int64_t before = 0;
    for (int at = 0; at < kClasses; ++at) {
        const int64_t through = before + found[static_cast<size_t>(at)].count;
        if (through >= k) {
            sorted_class(weights, n, at, spare);
            return spare[k - before - 1];
        }
        before = through;
    }
    return 0;
}

// The weight at which the sum of the largest ones reaches `share` of all; 0 if rounding prevents that.
double nucleus_floor(const double* weights, int n, double share, double* spare) {
    const auto found = classes(weights, n);
    double total = 0, before = 0;
    for (const Class& each : found) total += each.sum;
    for (int at = 0; at < kClasses; ++at) {
        const Class& mine = found[static_cast<size_t>(at)];
        if (mine.count && before + mine.sum >= share * total) {
            const int count = sorted_class(weights, n, at, spare);
            int last = 0;
            for (double sum = before + spare[0]; last + 1 < count && sum < share * total;) sum += spare[++last];
            return spare[last];
        }
        before += mine.sum;
    }
    return 0;
}

void drop_below(double* weights, int n, double floor) {
    for (int i = 0; i < n; ++i) weights[i] = weights[i] < floor ? 0.0 : weights[i];
}

uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

}  // namespace

void filter(double* weights, int n, int top_k, double top_p, double min_p, double* spare) {
    if (min_p > 0) drop_below(weights, n, min_p);
    if (top_k > 0 && top_k < n) drop_below(weights, n, kth_largest(weights, n, top_k, spare));
    if (top_p < 1) drop_below(weights, n, nucleus_floor(weights, n, top_p, spare));
}

// splitmix64's finaliser; the seed is mixed first, so that adjacent seeds share no numbers.
double uniform(uint64_t seed, int64_t position) {
    constexpr uint64_t kGolden = 0x9E3779B97F4A7C15ull;
    return static_cast<double>(mix(mix(seed + kGolden) + kGolden * (static_cast<uint64_t>(position) + 1)) >> 11) *
           0x1p-53;
}

}  // namespace cm
