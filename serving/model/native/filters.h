// The filters of sampling, by value: equal weights are kept or removed together. Compiled once, for any processor.
#pragma once
#include <cstdint>

namespace cm {

// Sets the weights that min_p, then top_k, then top_p reject to zero.
//
// weights: [n], the largest is 1, none is negative. top_k 0 and top_p 1 reject nothing. spare: [n], overwritten.
void filter(double* weights, int n, int top_k, double top_p, double min_p, double* spare);

// The random number of one token, in [0, 1): `uniform` of sampler.py.
double uniform(uint64_t seed, int64_t position);

}  // namespace cm
