// Grammars in a step: matchers, from a library known by addresses only, return the tokens that may be sampled. Compiled
// once, for any processor.
//
// A matcher's state is that after the output so far. Sampling passes each token of a sequence to it immediately, in
// order: so nothing has to be undone, unless a whole step is repeated.
#pragma once
#include <cstdint>

#include "interface.h"

namespace cm {

// Undoes the tokens that a previous attempt at this step passed to the matcher. False if it cannot.
bool begin_draws(const cm_grammar_functions& grammar, cm_matcher& matcher);

// The tokens that may follow, one bit each: [vocab bits and one more, in whole words]. False if there are none.
bool allow_next(const cm_grammar_functions& grammar, const cm_matcher& matcher, int vocab, uint32_t* allowed);

// Appends a token to the output. A stop token is not part of the grammar and changes nothing. False if it is forbidden.
bool tell(const cm_grammar_functions& grammar, cm_matcher& matcher, int32_t token);

// Forced tokens, while there is only one continuation, at most `most`. Returns their number.
int forced_next(const cm_grammar_functions& grammar, const cm_matcher& matcher, int32_t* tokens, int most);

// Number of these tokens, from the first on, that the grammar accepts.
int possible_next(const cm_grammar_functions& grammar, const cm_matcher& matcher, const int32_t* tokens, int count);

}  // namespace cm
