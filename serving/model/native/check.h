// Everything that comes from outside is checked here, once, so that the kernels need not: a wrong number must become an
// error, never a read or write outside of somebody's memory.
#pragma once
#include <cstdint>

#include "interface.h"

namespace cm {

// Sizes, forms and the products' shapes of a model, and that the cache is one for it. 0 or CM_BAD_ARGUMENT.
int32_t check_model(const cm_model& model, const cm_cache& cache);

// One step's batch and the room for its answer. The number of entries in `tables` and `ids` is the caller's word.
int32_t check_batch(const cm_engine& engine, const cm_batch& batch, const cm_answer& answer);

}  // namespace cm
