// Grammars in a step: matchers, of a library that is known by addresses only, say which tokens may be drawn. Compiled
// once, for any processor.
//
// A matcher stands behind the output so far. The draws of a sequence tell it their tokens as they are made, one after
// the other: so nothing has to be taken back, unless a whole step is computed again.
#pragma once
#include <cstdint>

#include "interface.h"

namespace cm {

// Takes back what an attempt at this very step had told the matcher. False if it cannot.
bool begin_draws(const cm_grammar_functions& grammar, cm_matcher& matcher);

// The tokens that may come next, one bit each: [vocab bits and one more, in whole words]. False if there are none.
bool allow_next(const cm_grammar_functions& grammar, const cm_matcher& matcher, int vocab, uint32_t* allowed);

// The output goes on with a token. One that stops is not the grammar's: it changes nothing. False if it is forbidden.
bool tell(const cm_grammar_functions& grammar, cm_matcher& matcher, int32_t token);

// Tokens that must come next, as far as there is only one way on, at most `most`. Returns how many.
int forced_next(const cm_grammar_functions& grammar, const cm_matcher& matcher, int32_t* tokens, int most);

// How many of these tokens, the first ones, the output may go on with.
int possible_next(const cm_grammar_functions& grammar, const cm_matcher& matcher, const int32_t* tokens, int count);

}  // namespace cm
