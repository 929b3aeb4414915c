// Divides the work of a stage into items for the team: small enough that no thread waits long for the last one, large
// enough that taking an item costs nothing in comparison.
#pragma once
#include <cstdint>

#include "gemm.h"
#include "isa.h"
#include "pack.h"
#include "team.h"

namespace cm::CM_ISA_NAMESPACE {

constexpr int kItemsPerThread = 4;
constexpr int kRowBlock = 256;               // rows of x that stay in a core's cache while it multiplies
constexpr int64_t kItemBytes = 256 * 1024;   // weights of an item, if few rows make memory the bound
constexpr int64_t kAloneNumbers = 4 * 1024;  // row work that is done before another thread would wake up

constexpr int ceil_div(int64_t a, int64_t b) { return static_cast<int>((a + b - 1) / b); }

// Panels per item, of `panels` in each of `copies` independent parts.
inline int panels_per_item(int panels, int copies, int64_t bytes_per_panel, int rows, int threads) {
    int64_t block = rows > 32 ? 8 : kItemBytes / (bytes_per_panel ? bytes_per_panel : 1);
    if (block < 2) block = 2;  // kernels process panels in pairs
    const int64_t fair = static_cast<int64_t>(panels) * copies / (kItemsPerThread * threads);
    if (block > fair) block = fair;
    return static_cast<int>(block < 1 ? 1 : block);
}

// The items of one product: blocks of rows times blocks of panels first ... last - 1.
class ProductItems {
  public:
    ProductItems(const cm_linear& w, const Rows& x, int first, int last, int threads)
        : w_(w), x_(x), first_(first), last_(last), row_blocks_(ceil_div(x.count, kRowBlock)) {
        panels_ = panels_per_item(last - first, row_blocks_, panel_bytes(w), x.count, threads);
        panel_blocks_ = ceil_div(last - first, panels_);
    }
    int count() const { return row_blocks_ * panel_blocks_; }

    // store(first_row, rows, first_column, tile), rows counted from x's first.
    template <class Store>
    void run(int item, Store& store) const {
        const int begin = item / panel_blocks_ * kRowBlock, panel = first_ + item % panel_blocks_ * panels_;
        const int count = x_.count - begin < kRowBlock ? x_.count - begin : kRowBlock;
        const int end = panel + panels_ < last_ ? panel + panels_ : last_;
        multiply(w_, 0, from_row(w_, x_, begin, count), panel, end,
                 [&](int row, int rows, int column, const float* tile) { store(begin + row, rows, column, tile); });
    }

    static Rows from_row(const cm_linear& w, const Rows& x, int64_t first, int count) {
        const char* data = static_cast<const char*>(x.data) + first * digits(w.form) * x.stride * bytes_of(w.form);
        return {data, x.stride, x.scale ? x.scale + first : nullptr, count};
    }

  private:
    const cm_linear& w_;
    const Rows x_;
    int first_, last_, row_blocks_, panels_, panel_blocks_;
};

// One product as a separate stage.
template <class Store>
void product(Team& team, const cm_linear& w, const Rows& x, int first_panel, int last_panel, Store&& store) {
    if (x.count == 0 || first_panel >= last_panel) return;
    const ProductItems items(w, x, first_panel, last_panel, team.threads());
    team.each(items.count(), [&](int item, int) { items.run(item, store); });
}

template <class Store>
void product(Team& team, const cm_linear& w, const Rows& x, Store&& store) {
    product(team, w, x, 0, panels(w), store);
}

// body(row, thread) for each row; `numbers` is the amount of work per row.
template <class Body>
void each_row(Team& team, int rows, int64_t numbers, Body&& body) {
    if (rows * numbers <= kAloneNumbers) {
        for (int row = 0; row < rows; ++row) body(row, 0);
        return;
    }
    const int items = rows < 8 * team.threads() ? rows : 8 * team.threads();
    team.each(items, [&](int item, int thread) {
        const int end = static_cast<int>(static_cast<int64_t>(rows) * (item + 1) / items);
        for (int row = static_cast<int>(static_cast<int64_t>(rows) * item / items); row < end; ++row) body(row, thread);
    });
}

}  // namespace cm::CM_ISA_NAMESPACE
