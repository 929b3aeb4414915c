#include "pack.h"

#include <cstring>
#include <vector>

#include "shorten.h"

namespace cm {
namespace {

// One panel: rows first_row ... first_row + rows - 1 of the dense weight, rows <= 32.
template <class Number, int Side>
void pack_panel(const Number* weight, int rows, int in_features, int steps, Number* panel) {
    std::memset(panel, 0, static_cast<size_t>(steps) * kStepBytes);
    for (int row = 0; row < rows; ++row) {
        const Number* from = weight + static_cast<int64_t>(row) * in_features;
        Number* to = panel + row * Side;
        const int whole = in_features / Side;
        for (int step = 0; step < whole; ++step) {
            std::memcpy(to + static_cast<int64_t>(step) * kPanel * Side, from + step * Side, sizeof(Number) * Side);
        }
        for (int k = whole * Side; k < in_features; ++k) to[static_cast<int64_t>(whole) * kPanel * Side + k % Side] = from[k];
    }
}

// make(dense rows, their number, destination) for each panel, until one returns false.
template <class Number, class Make>
bool each_panel(const Number* weight, const cm_linear& shape, char* packed, Make make) {
    for (int group = 0; group < shape.groups; ++group) {
        for (int panel = 0; panel < panels(shape); ++panel, packed += panel_bytes(shape)) {
            const int first = panel * kPanel;
            const int rows = shape.out_features - first < kPanel ? shape.out_features - first : kPanel;
            const int64_t row = static_cast<int64_t>(group) * shape.out_features + first;
            if (!make(weight + row * shape.in_features, rows, packed)) return false;
        }
    }
    return true;
}

template <class Number, int Side>
bool pack_panels(const Number* weight, const cm_linear& shape, char* packed) {
    return each_panel(weight, shape, packed, [&](const Number* dense, int rows, char* panel) {
        pack_panel<Number, Side>(dense, rows, shape.in_features, steps(shape), reinterpret_cast<Number*>(panel));
        return true;
    });
}

bool pack_short_panels(const uint16_t* weight, const cm_linear& shape, char* packed) {
    std::vector<uint16_t> plain(static_cast<size_t>(padded_in(shape)) * kPanel);
    return each_panel(weight, shape, packed, [&](const uint16_t* dense, int rows, char* panel) {
        pack_panel<uint16_t, 2>(dense, rows, shape.in_features, steps(shape), plain.data());
        return shorten_panel(plain.data(), padded_in(shape), panel);
    });
}

void pack_scales(const int8_t* weight, const float* scale, const cm_linear& shape, float* scales, int32_t* sums) {
    std::memset(scales, 0, sizeof(float) * static_cast<size_t>(columns(shape)));
    std::memset(sums, 0, sizeof(int32_t) * static_cast<size_t>(columns(shape)));
    const int64_t padded_out = static_cast<int64_t>(panels(shape)) * kPanel;
    for (int64_t row = 0; row < static_cast<int64_t>(shape.groups) * shape.out_features; ++row) {
        const int64_t column = row / shape.out_features * padded_out + row % shape.out_features;
        int32_t sum = 0;
        for (int64_t k = 0; k < shape.in_features; ++k) sum += weight[row * shape.in_features + k];
        scales[column] = scale[row];
        sums[column] = 128 * sum;
    }
}

void pack_input_scales(const float* scale, const cm_linear& shape, float* inputs) {
    const int64_t padded = padded_in(shape);
    std::memset(inputs, 0, sizeof(float) * static_cast<size_t>(shape.groups * padded));
    for (int64_t group = 0; group < shape.groups; ++group) {
        const size_t bytes = sizeof(float) * static_cast<size_t>(shape.in_features);
        std::memcpy(inputs + group * padded, scale + group * shape.in_features, bytes);
    }
}

}  // namespace

bool pack(const void* weight, const float* scale, const cm_linear& shape, void* packed) {
    cm_linear there = shape;
    there.packed = packed;
    char* to = static_cast<char*>(packed);
    switch (shape.form) {
        case CM_F32: return pack_panels<uint32_t, 1>(static_cast<const uint32_t*>(weight), shape, to);
        case CM_BF16: return pack_panels<uint16_t, 2>(static_cast<const uint16_t*>(weight), shape, to);
        case CM_BF16_SHORT: return pack_short_panels(static_cast<const uint16_t*>(weight), shape, to);
        default: pack_panels<int8_t, 4>(static_cast<const int8_t*>(weight), shape, to);
    }
    pack_scales(static_cast<const int8_t*>(weight), scale, shape, const_cast<float*>(scales_at(there, 0, 0)),
                const_cast<int32_t*>(sums_at(there, 0, 0)));
    if (shape.form == CM_W8A16) {
        const float* input_scale = scale + static_cast<int64_t>(shape.groups) * shape.out_features;
        pack_input_scales(input_scale, shape, const_cast<float*>(input_scales_at(there, 0)));
    }
    return true;
}

}  // namespace cm
