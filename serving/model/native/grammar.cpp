#include "grammar.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>
#include <string>
#include <unordered_map>
#include <vector>

namespace cm {
namespace {

bool stops(const cm_matcher& matcher, int32_t token) {
    return std::find(matcher.stops, matcher.stops + matcher.stop_count, token) != matcher.stops + matcher.stop_count;
}

}  // namespace

bool begin_draws(const cm_grammar_functions& grammar, cm_matcher& matcher) {
    if (matcher.matcher == nullptr) return false;
    const int32_t told = matcher.told;
    matcher.told = 0;
    return told == 0 || grammar.rollback(matcher.matcher, static_cast<size_t>(told)) == 0;
}

bool allow_next(const cm_grammar_functions& grammar, const cm_matcher& matcher, int vocab, uint32_t* allowed) {
    const size_t words = static_cast<size_t>(vocab) / 32 + 1;
    if (grammar.compute_mask(matcher.matcher, allowed, words * sizeof(uint32_t)) != 0) return false;
    const bool complete = allowed[vocab / 32] >> (vocab % 32) & 1;  // the bit after the vocabulary represents all stops
    allowed[words - 1] &= (1u << (vocab % 32)) - 1;
    for (int32_t i = 0; i < matcher.stop_count; ++i) {
        const int32_t stop = matcher.stops[i];
        const uint32_t bit = 1u << (stop % 32);
        if (complete) {
            allowed[stop / 32] |= bit;
        } else {
            allowed[stop / 32] &= ~bit;
        }
    }
    return std::any_of(allowed, allowed + words, [](uint32_t word) { return word != 0; });
}

bool tell(const cm_grammar_functions& grammar, cm_matcher& matcher, int32_t token) {
    if (stops(matcher, token)) return true;
    if (grammar.consume(matcher.matcher, static_cast<uint32_t>(token)) != 0) return false;
    ++matcher.told;
    return true;
}

int forced_next(const cm_grammar_functions& grammar, const cm_matcher& matcher, int32_t* tokens, int most) {
    const int count = grammar.forced(matcher.matcher, reinterpret_cast<uint32_t*>(tokens), static_cast<size_t>(most));
    return std::clamp(count, 0, most);
}

int possible_next(const cm_grammar_functions& grammar, const cm_matcher& matcher, const int32_t* tokens, int count) {
    const auto* ids = reinterpret_cast<const uint32_t*>(tokens);
    return std::clamp(grammar.validate(matcher.matcher, ids, static_cast<size_t>(count)), 0, count);
}

}  // namespace cm

// Texts and their tokens. A grammar forces the same texts repeatedly, so only a new one is requested from the caller,
// which may take long and wait for an interpreter.
struct cm_text_tokens {
    cm_tokenize_fn ask;
    std::mutex mutex;
    std::unordered_map<std::string, std::vector<uint32_t>> known;
};

namespace {

constexpr size_t kMostTexts = 1 << 16;
constexpr size_t kLongestText = 256;  // longer ones are rare, and not kept

size_t hand_out(const std::vector<uint32_t>& ids, uint32_t* tokens, size_t most) {
    std::copy_n(ids.begin(), std::min(ids.size(), most), tokens);
    return ids.size();
}

size_t asked(const cm_text_tokens& texts, const uint8_t* text, size_t bytes, std::vector<uint32_t>& ids) {
    ids.resize(bytes + 1);  // no text has more tokens than bytes
    const size_t count = texts.ask(nullptr, text, bytes, ids.data(), ids.size());
    ids.resize(std::min(count, ids.size()));
    return count;
}

}  // namespace

cm_text_tokens* cm_text_tokens_new(cm_tokenize_fn ask) {
    auto* made = new (std::nothrow) cm_text_tokens{};
    if (made) made->ask = ask;
    return made;
}

void cm_text_tokens_free(cm_text_tokens* texts) { delete texts; }

size_t cm_tokenize(const void* texts, const uint8_t* text, size_t bytes, uint32_t* tokens, size_t most) {
    auto& own = *static_cast<cm_text_tokens*>(const_cast<void*>(texts));
    try {
        const std::string key(reinterpret_cast<const char*>(text), bytes);
        {
            const std::lock_guard<std::mutex> lock(own.mutex);
            const auto found = own.known.find(key);
            if (found != own.known.end()) return hand_out(found->second, tokens, most);
        }
        std::vector<uint32_t> ids;
        asked(own, text, bytes, ids);
        const size_t count = hand_out(ids, tokens, most);
        if (bytes <= kLongestText) {
            const std::lock_guard<std::mutex> lock(own.mutex);
            if (own.known.size() >= kMostTexts) own.known.clear();
            own.known.emplace(key, std::move(ids));
        }
        return count;
    } catch (const std::bad_alloc&) {
        return own.ask(nullptr, text, bytes, tokens, most);
    }
}
