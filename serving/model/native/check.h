// All input from outside is checked here, once, so that the kernels need not check it: an invalid number must cause an
// error, never an access outside of the caller's memory.
#pragma once
#include <cstdint>

#include "interface.h"

namespace cm {

// Sizes, forms and the products' shapes of a model, and that the cache is one for it. 0 or CM_BAD_ARGUMENT.
int32_t check_model(const cm_model& model, const cm_cache& cache);

// One step's batch and the capacity for its results. The number of entries in `tables` and `ids` is not checked.
int32_t check_batch(const cm_engine& engine, const cm_batch& batch, const cm_answer& answer);

}  // namespace cm
