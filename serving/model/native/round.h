// The kernels' view of one exchange of a group around a layer's experts: the rows to compute, and when.
//
// Only declarations: this file is compiled for several instruction sets, and the linker must not merge their code.
// round.cpp has the bodies, compiled for every processor.
#pragma once
#include <cstdint>

#include "interface.h"

namespace cm {

class Group;

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

// Rows that are computed at once. At most as many as a step of this rank alone may have: memory does not grow with the
// number of ranks.
struct Piece {
    const ExpertJob* jobs;  // by slot
    int job_count;
    const Received* rows;
    int row_count;
};

// Whether a wait has failed in this step: its results are void, and it should end soon.
bool has_failed(const Group& group);

// Methods in the order in which they are called. Those that wait return false if that failed.
class Round {
  public:
    explicit Round(Group& group);

    // ---- own rows
    // Address at which a row is kept for its experts: its numbers in their input form, padded as products read them,
    // followed by the scale for INT8 ones.
    char* stage(int row) const;
    // Address of the results of a row, [hidden] float32 or BF16, after await_results.
    const char* result(int row, int choice) const;

    // ---- the exchange
    // Announce the destinations of rows. chosen: [rows, top_k], each row's in order of ids. block: the experts' layer.
    // row_bytes: the part of a row that an expert reads, for the counters.
    void announce_rows(const cm_block* block, const int32_t* chosen, int rows, int64_t row_bytes);
    void announce_no_more();  // neither now nor later in this step
    bool await_rows();
    bool over() const;  // no rank has any more: the step ends here, no result is to be announced
    bool next_piece(Piece& piece);
    void announce_results();
    bool await_results();

    // ---- incoming rows for the slots
    const cm_linear& gate_up(int slot) const;
    const cm_linear& down(int slot) const;

  private:
    Group& group_;
};

}  // namespace cm
