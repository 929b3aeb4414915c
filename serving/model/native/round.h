// The kernels' view of one exchange of a group around a layer's experts: the rows to compute, and when.
//
// Only declarations: this file is compiled for several instruction sets, and the linker must not merge their code.
// round.cpp has the bodies, compiled for every processor.
#pragma once
#include <cstdint>

#include "interface.h"

namespace cm {

class Group;
struct ServiceState;

constexpr int kFeedRows = 128;  // rows of a network per item

// Rows of one expert, or for one slot: at most kFeedRows, consecutive in some list.
struct ExpertJob {
    int32_t expert, first, count;
};

// A row of some rank for one of the slots here, as kept by `Round::stage`, and the destination of its result.
struct Received {
    const char* row;
    char* result;  // [hidden], float32 or BF16
};

// Rows that are computed at once, by networks of one width, and all INT8 or none. At most as many as a step of this rank
// alone may have: memory does not grow with the number of ranks.
struct Piece {
    const ExpertJob* jobs;  // by slot
    int job_count;
    const Received* rows;
    int row_count;
};

// Whether a wait has failed in this step: its results are void, and it should end soon.
bool has_failed(const Group& group);
// Micro-batches into which steps are cut if they can be.
int micro_batches(const Group& group);
// Those of the coming layers.
void cut_into(Group& group, int count);

// [experts] of a layer: 1 = no rank holds it; null if there is none in the step's map.
const uint8_t* masked_experts(const Group& group, const cm_block* block);

// Those that wait return false if that failed.
class Round {
  public:
    // half: number of the micro-batch; first: number in the step of its first row.
    explicit Round(Group& group, int half = 0, int first = 0);

    // ---- own rows, in the order in which methods are called
    // Where a row is to be kept for its experts: its numbers in the form that they multiply, padded as products read
    // them; behind INT8 ones their scale.
    char* stage(int row) const;
    // Say who takes which row. chosen: [rows, top_k], each row's in order of ids. block: which layer's experts.
    // row_bytes: what an expert reads of a row, for the counters.
    void ask(const cm_block* block, const int32_t* chosen, int rows, int64_t row_bytes);
    bool answered() const;  // all results are there
    bool await();           // until they are, or somebody asks
    void end();             // with all results there: own rows of a next layer come soon, or not
    // Where the results of a row are, [hidden] float32 or BF16, once all are there. With shared experts at the ranks with
    // experts theirs is choice top_k, float32.
    const char* result(int row, int choice) const;
    bool sends_shared() const;

    // ---- the experts here: rows of all who have asked, this rank among them
    void gather();  // see Group
    // Take those who ask for few rows; or all others, for some of their rows, the next ones if those of others are left.
    bool take(bool large);
    bool next_piece(Piece& piece);
    void answer();  // those whose rows are all computed

    // ---- incoming rows for the slots
    bool is_shared(int slot) const;  // it holds the shared experts of a layer
    const cm_linear& gate_up(int slot) const;
    const cm_linear& down(int slot) const;

  private:
    Group& group_;
    ServiceState* state_ = nullptr;  // since `take`
    const uint32_t half_;
    const int first_;
};

}  // namespace cm
