// Reads a large buffer once per pass, each thread its own contiguous part, and returns the best pass's bytes per second.
// Eight sums side by side keep the loads independent; the compiler turns each into the widest vectors there are.
#include <omp.h>
#include <stdint.h>
#include <stdlib.h>

static uint64_t sum(const uint64_t* from, int64_t words) {
    uint64_t total[64] = {0};
    for (int64_t i = 0; i + 64 <= words; i += 64)
        for (int lane = 0; lane < 64; ++lane) total[lane] += from[i + lane];
    uint64_t all = 0;
    for (int lane = 0; lane < 64; ++lane) all += total[lane];
    return all;
}

double read_bandwidth(int64_t bytes, int32_t threads, int32_t passes) {
    int64_t part = bytes / threads / 4096 * 4096;
    char* buffer = aligned_alloc(4096, part * threads);
    if (!buffer) return 0;
    volatile uint64_t sink = 0;
    double best = 1e30;
    for (int pass = -1; pass < passes; ++pass) {  // the first one writes, so that every page is there
        double begun = omp_get_wtime();
#pragma omp parallel num_threads(threads)
        {
            uint64_t* mine = (uint64_t*)(buffer + part * omp_get_thread_num());
            if (pass < 0)
                for (int64_t i = 0; i < part / 8; ++i) mine[i] = (uint64_t)i * 2654435761u;
            uint64_t found = sum(mine, part / 8);
#pragma omp atomic
            sink += found;
        }
        double took = omp_get_wtime() - begun;
        if (pass >= 0 && took < best) best = took;
    }
    free(buffer);
    return (double)(part * threads) / best;
}
