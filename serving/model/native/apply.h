// One product outside a step (cm_apply): converts rows to the weights' form, distributes the panels, stores the result.
#pragma once
#include "gemm.h"
#include "kernels.h"
#include "numbers.h"
#include "rows.h"
#include "team.h"

namespace cm::CM_ISA_NAMESPACE {

// Row `row` of x for each group, at its place in scratch: [group][row][digit][padded_in], with zero padding.
template <class T>
void prepare_row(const Application& a, int row, float* scales) {
    const cm_linear& w = a.linear;
    const int padded = padded_in(w);
    for (int group = 0; group < w.groups; ++group) {
        const int64_t place = static_cast<int64_t>(group) * a.rows + row;
        const T* x = static_cast<const T*>(a.x) + (static_cast<int64_t>(row) * w.groups + group) * w.in_features;
        char* to = a.scratch + place * digits(w.form) * padded * bytes_of(w.form);
        float* scale = scales + place;
        if (w.form == CM_W8A16) {
            quantise_row_16(x, input_scales_at(w, group), w.in_features, padded, reinterpret_cast<int8_t*>(to), scale);
            continue;
        }
        if (w.form == CM_INT8) {
            quantise_row(x, w.in_features, padded, reinterpret_cast<int8_t*>(to), scale);
            continue;
        }
        __builtin_memset(to, 0, static_cast<size_t>(padded) * bytes_of(w.form));
        if (w.form == CM_F32) {
            convert_row(x, w.in_features, reinterpret_cast<float*>(to));
        } else {
            convert_row(x, w.in_features, reinterpret_cast<bf16*>(to));
        }
    }
}

template <class T>
void apply_form(Team& team, const Application& a) {
    const cm_linear& w = a.linear;
    const int padded = padded_in(w), total = w.groups * panels(w);
    const int64_t prepared_group = static_cast<int64_t>(a.rows) * digits(w.form) * padded * bytes_of(w.form);
    float* scales = reinterpret_cast<float*>(a.scratch + round_up(prepared_group * w.groups, 64));
    const bool as_it_is = form_of<T>() == plain_form(w.form) && padded == w.in_features;
    if (!as_it_is) team.each(a.rows, [&](int row, int) { prepare_row<T>(a, row, scales); });
    const char* data = as_it_is ? static_cast<const char*>(a.x) : a.scratch;
    const int64_t row_stride = as_it_is ? static_cast<int64_t>(w.groups) * padded : padded;
    const int64_t group_bytes = as_it_is ? static_cast<int64_t>(padded) * bytes_of(w.form) : prepared_group;
    const int64_t y_stride = static_cast<int64_t>(w.groups) * w.out_features;
    const int items = total < team.threads() * 4 ? total : team.threads() * 4;
    team.each(items, [&](int item, int) {
        const int end = static_cast<int>(static_cast<int64_t>(total) * (item + 1) / items);
        for (int panel = static_cast<int>(static_cast<int64_t>(total) * item / items); panel < end;) {
            const int group = panel / panels(w), first = panel % panels(w);
            const int last = end - panel < panels(w) - first ? first + end - panel : panels(w);
            const float* row_scales = scales + static_cast<int64_t>(group) * a.rows;
            const Rows rows{data + group * group_bytes, row_stride, row_scales, a.rows};
            T* y = static_cast<T*>(a.y) + static_cast<int64_t>(group) * w.out_features;
            multiply(w, group, rows, first, last, [&](int row, int count, int column, const float* tile) {
                const int real = w.out_features - column < kPanel ? w.out_features - column : kPanel;
                for (int r = 0; r < count; ++r) convert_row(tile + r * kPanel, real, y + (row + r) * y_stride + column);
            });
            panel += last - first;
        }
    });
}

static void apply(Team& team, const Application& application) {
    if (application.form == CM_F32) {
        apply_form<float>(team, application);
    } else {
        apply_form<bf16>(team, application);
    }
}

}  // namespace cm::CM_ISA_NAMESPACE
