// A rank's window: shared memory that it owns and that its peers read and write.
//
//   header       its owner, what that computes, and its sizes
//   membership   epoch and members; raised by the shell
//   bell         where the owner sleeps
//   progress     what the owner is at in its step, from which peers guess whether to wait for its next rows; and which
//                map it uses
//   words        [kind][rank][micro-batch], a cache line each; `rank` stores it, the owner reads it: what `rank` asks the
//                owner's experts, and what its experts answer the owner. One place each is enough: who has asked asks
//                again after the answer
//   lists        [destination][micro-batch][entry]; the owner says which of its rows each destination takes
//   rows         [row]; the owner's, staged once, read in place by its peers
//   results      [row][choice]; written by the ranks that computed them, read by the owner
//
// Memory does not grow with the number of ranks, but for words and lists. Windows of a group differ in max_rows only: a
// rank that never asks needs one row. hardware/ub/exchange_layout.py mirrors this file.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "announcement.h"

namespace cm::ub {

constexpr uint64_t kWindowMagic = 0x31314e4957584d43;  // "CMXWIN11"
constexpr uint32_t kWindowVersion = 6;
constexpr size_t kLine = 64;
constexpr uint32_t kMostRanks = 64;  // a set of ranks is one word
constexpr uint32_t kMostChoices = 64;
constexpr uint32_t kMicroBatches = 2;  // of a step at most; each has words and lists of its own: a session

using RankSet = uint64_t;
constexpr RankSet just(uint32_t rank) { return RankSet{1} << rank; }
constexpr bool has(RankSet set, uint32_t rank) { return (set >> rank & 1) != 0; }
constexpr RankSet all_of(uint32_t ranks) { return ranks == kMostRanks ? ~RankSet{0} : just(ranks) - 1; }

struct WindowShape {
    uint32_t ranks;
    uint32_t max_rows;
    uint32_t top_k;
    uint32_t row_bytes;  // a row in the experts' input form, with its scale
    uint32_t result_bytes;  // of a row by one expert

    uint32_t max_entries() const { return max_rows * top_k; }
    bool possible() const {
        const bool some = ranks && max_rows && top_k && row_bytes && result_bytes;
        return some && ranks <= kMostRanks && top_k <= kMostChoices &&
               static_cast<uint64_t>(max_rows) * top_k < low_bits(kCountBits);
    }
};

// What a rank does in its group.
enum class Role : uint32_t {
    kAttention = 1,  // it asks
    kExperts = 2,    // it answers
    kBoth = 3,
};
constexpr bool asks(Role role) { return (static_cast<uint32_t>(role) & 1) != 0; }
constexpr bool answers(Role role) { return (static_cast<uint32_t>(role) & 2) != 0; }

struct WindowHeader {
    uint64_t magic;  // written last
    uint32_t version;
    uint32_t owner;
    Role role;
    WindowShape shape;
};

// One cache line each: data that the shell stores rarely, and data that peers check after each word.
struct alignas(kLine) Membership {
    std::atomic<uint64_t> epoch;
    std::atomic<RankSet> members;  // of that epoch, or of the coming one
    std::atomic<RankSet> lost;     // reported by the shell, in addition to those that the owner detects
    std::atomic<uint64_t> coming;  // stored before `members`, those before `epoch`; if equal to it, they belong to it
};

struct alignas(kLine) Bell {
    std::atomic<RankSet> answers;  // that the owner waits for, asleep; the last one wakes it. 0 while it is awake
    std::atomic<RankSet> asks;     // the same of asks
    std::atomic<uint32_t> rung;
    std::atomic<uint32_t> any;  // 1 while any ask wakes it
};

enum class Phase : uint64_t {
    kAway = 0,       // without a step, or behind its last layer with experts
    kComputing = 1,  // on the way to its next asks
    kWaiting = 2,    // for answers
};

struct alignas(kLine) Progress {
    std::atomic<uint64_t> phase;  // the owner's step << 2 | Phase
    std::atomic<uint64_t> map;    // version of what its next asks follow; all those by an older one are answered

    Phase shown() const { return static_cast<Phase>(phase.load(std::memory_order_seq_cst) & 3); }
    uint64_t step() const { return phase.load(std::memory_order_seq_cst) >> 2; }
};

struct alignas(kLine) Word {
    std::atomic<uint64_t> value;
    // Of an answer, by the steady clock of the host [ns], stored before it: when its ask was taken, and when its results
    // were whole. A carrier does not send them: clocks of hosts differ.
    std::atomic<int64_t> taken, done;
};

enum class Kind : uint32_t { kAsk = 0, kAnswer = 1 };
constexpr uint32_t kKinds = 2;

// One row that one expert of the destination takes.
struct Entry {
    uint32_t row;     // of the source
    uint16_t choice;  // the row's; its result goes to [row][choice]
    uint16_t slot;    // expert slot of the destination
};

static_assert(sizeof(WindowHeader) <= kLine && sizeof(Entry) == 8 && sizeof(Word) == kLine, "layout");
static_assert(std::atomic<uint64_t>::is_always_lock_free, "a lock would be one process's");

struct WindowLayout {
    explicit WindowLayout(const WindowShape& s)
        : row_stride(up(s.row_bytes)),
          result_stride(up(s.result_bytes)),
          membership(kLine),
          bell(membership + sizeof(Membership)),
          progress(bell + sizeof(Bell)),
          words(progress + sizeof(Progress)),
          lists(words + kKinds * kMicroBatches * s.ranks * sizeof(Word)),
          rows(lists + kMicroBatches * s.ranks * up(sizeof(Entry) * s.max_entries())),
          results(rows + s.max_rows * row_stride),
          bytes(results + s.max_entries() * result_stride) {}

    static constexpr size_t up(size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

    size_t row_stride, result_stride;
    size_t membership, bell, progress, words, lists, rows, results, bytes;  // offsets, and the whole
};

class Window {
  public:
    // Format memory, 64-byte aligned and of WindowLayout(shape).bytes, as a window. Call it before any peer opens it.
    static Window format(void* memory, const WindowShape& shape, uint32_t owner, Role role, uint64_t epoch,
                         RankSet members) {
        Window window(memory, shape);
        std::memset(memory, 0, window.layout_.rows);
        WindowHeader& header = window.header();
        header.version = kWindowVersion;
        header.owner = owner;
        header.role = role;
        header.shape = shape;
        window.membership().members.store(members, std::memory_order_relaxed);
        window.membership().coming.store(epoch, std::memory_order_relaxed);
        window.membership().epoch.store(epoch, std::memory_order_relaxed);
        header.magic = kWindowMagic;
        return window;
    }

    // Whether the memory is a window of this owner, and of this shape but for max_rows; the check of `open`.
    static bool fits(const void* memory, const WindowShape& shape, uint32_t owner) {
        const WindowHeader& header = *static_cast<const WindowHeader*>(memory);
        WindowShape same = shape;
        same.max_rows = header.shape.max_rows;
        return header.magic == kWindowMagic && header.version == kWindowVersion && header.owner == owner &&
               (asks(header.role) || answers(header.role)) && header.role <= Role::kBoth && same.possible() &&
               std::memcmp(&header.shape, &same, sizeof same) == 0;
    }
    static Window open(void* memory) { return Window(memory, static_cast<const WindowHeader*>(memory)->shape); }

    WindowHeader& header() const { return *at<WindowHeader>(0); }
    const WindowShape& shape() const { return shape_; }
    Membership& membership() const { return *at<Membership>(layout_.membership); }
    Bell& bell() const { return *at<Bell>(layout_.bell); }
    Progress& progress() const { return *at<Progress>(layout_.progress); }
    // half: number of the micro-batch, of the rank that asks.
    Word& line(Kind kind, uint32_t rank, uint32_t half = 0) const {
        const uint32_t place = (static_cast<uint32_t>(kind) * shape_.ranks + rank) * kMicroBatches + half;
        return at<Word>(layout_.words)[place];
    }
    std::atomic<uint64_t>& word(Kind kind, uint32_t rank, uint32_t half = 0) const {
        return line(kind, rank, half).value;
    }
    Entry* list(uint32_t destination, uint32_t half = 0) const {
        const size_t place = kMicroBatches * destination + half;
        return at<Entry>(layout_.lists + place * WindowLayout::up(sizeof(Entry) * shape_.max_entries()));
    }
    char* row(uint32_t row) const { return at<char>(layout_.rows + row * layout_.row_stride); }
    template <class Number = float>
    Number* result(uint32_t row, uint32_t choice) const {
        return at<Number>(layout_.results + (static_cast<size_t>(row) * shape_.top_k + choice) * layout_.result_stride);
    }

  private:
    Window(void* memory, const WindowShape& shape) : base_(static_cast<char*>(memory)), shape_(shape), layout_(shape) {}

    template <class T>
    T* at(size_t offset) const {
        return reinterpret_cast<T*>(base_ + offset);
    }

    char* base_;
    WindowShape shape_;
    WindowLayout layout_;
};

}  // namespace cm::ub
