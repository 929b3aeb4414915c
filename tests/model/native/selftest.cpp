// The library's own test, built with sanitizers: random shapes through the plain interface, on every instruction set that
// is there, with every buffer exactly as long as the interface says. Ends with 0 and the number of products.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "interface.h"

extern "C" int32_t cm_use_instructions(const char* name);

namespace {

struct Free {
    void operator()(void* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<void, Free>;

// Exactly so long: what lies behind it belongs to the sanitizer.
Memory lines(size_t bytes) {
    void* memory = nullptr;
    if (posix_memalign(&memory, 64, bytes) != 0) std::abort();
    return Memory(memory);
}

uint16_t to_bf16(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float from_bf16(uint16_t value) {
    const uint32_t bits = static_cast<uint32_t>(value) << 16;
    float wide;
    std::memcpy(&wide, &bits, sizeof wide);
    return wide;
}

bool is_bf16(int form) { return form == CM_BF16 || form == CM_BF16_SHORT; }
bool is_int8(int form) { return form == CM_INT8 || form == CM_W8A16; }

struct Case {
    int out, in, groups, rows, form, x_form, threads;
    bool bias;
};

class Product {
  public:
    Product(const Case& shape, std::mt19937& random) : shape_(shape) {
        std::uniform_real_distribution<float> any(-1.0f, 1.0f);
        for (int i = 0; i < shape.groups * shape.out * shape.in; ++i) weights_.push_back(rounded(any(random), shape.form));
        for (int i = 0; i < shape.rows * shape.groups * shape.in; ++i) x_.push_back(rounded(any(random), shape.x_form));
        for (int i = 0; i < shape.groups * shape.out; ++i) bias_.push_back(any(random));
    }

    // Largest difference from the same product in double.
    double error() {
        const Memory packed = pack();
        const cm_linear linear{shape_.out, shape_.in, shape_.groups, shape_.form, packed.get(), shape_.bias ? bias_.data() : nullptr};
        const size_t size = shape_.x_form == CM_F32 ? 4 : 2, values = static_cast<size_t>(shape_.rows) * shape_.groups;
        const Memory x = lines(values * shape_.in * size), y = lines(values * shape_.out * size);
        store(x_, shape_.x_form, x.get());
        if (cm_apply(&linear, x.get(), shape_.rows, shape_.x_form, y.get(), shape_.threads) != CM_OK) fail(cm_error_text());
        return worst(y.get());
    }

    [[noreturn]] static void fail(const char* text) {
        std::printf("failed on %s: %s\n", cm_instructions(), text);
        std::exit(1);
    }

  private:
    static float rounded(float value, int form) {
        return is_int8(form) ? std::round(value * 127) : is_bf16(form) ? from_bf16(to_bf16(value)) : value;
    }

    static void store(const std::vector<float>& values, int form, void* to) {
        for (size_t i = 0; i < values.size(); ++i) {
            if (form == CM_F32) static_cast<float*>(to)[i] = values[i];
            if (is_bf16(form)) static_cast<uint16_t*>(to)[i] = to_bf16(values[i]);
            if (is_int8(form)) static_cast<int8_t*>(to)[i] = static_cast<int8_t>(values[i]);
        }
    }

    Memory pack() const {
        const size_t size = shape_.form == CM_F32 ? 4 : is_bf16(shape_.form) ? 2 : 1;
        const Memory dense = lines(weights_.size() * size);
        store(weights_, shape_.form, dense.get());
        std::vector<float> scale(static_cast<size_t>(shape_.groups) * shape_.out, 1.0f / 127);
        if (shape_.form == CM_W8A16) scale.resize(scale.size() + static_cast<size_t>(shape_.groups) * shape_.in, 1.0f);
        Memory packed = lines(static_cast<size_t>(cm_packed_bytes(shape_.out, shape_.in, shape_.groups, shape_.form)));
        if (cm_pack(dense.get(), scale.data(), shape_.out, shape_.in, shape_.groups, shape_.form, packed.get()) != CM_OK) {
            fail(cm_error_text());
        }
        return packed;
    }

    double worst(const void* y) const {
        double most = 0;
        for (int row = 0; row < shape_.rows; ++row)
            for (int column = 0; column < shape_.groups * shape_.out; ++column) {
                const int place = row * shape_.groups * shape_.out + column;
                const double found = shape_.x_form == CM_F32 ? static_cast<const float*>(y)[place]
                                                             : from_bf16(static_cast<const uint16_t*>(y)[place]);
                const double error = std::fabs(found - expected(row, column));
                most = error <= most ? most : error;  // a NaN counts
            }
        return most;
    }

    double expected(int row, int column) const {
        const int group = column / shape_.out;
        const float* x = x_.data() + (row * shape_.groups + group) * shape_.in;
        const float* w = weights_.data() + column * shape_.in;
        double sum = 0;
        for (int k = 0; k < shape_.in; ++k) sum += static_cast<double>(x[k]) * w[k];
        return sum * (is_int8(shape_.form) ? 1.0 / 127 : 1.0) + (shape_.bias ? bias_[column] : 0.0f);
    }

    Case shape_;
    std::vector<float> weights_, x_, bias_;
};

int check_products(std::mt19937& random) {
    const auto below = [&random](int end) { return static_cast<int>(random() % static_cast<unsigned>(end)); };
    const int count = 80;
    for (int i = 0; i < count; ++i) {
        const Case shape{1 + below(100), 1 + below(200), 1 + below(3), below(4) ? 1 + below(20) : 30 + below(40),
                         below(5),       below(2),       1 + below(2), below(2) == 1};
        const double error = Product(shape, random).error();
        if (!(error < 0.05 * std::sqrt(shape.in) + 0.02)) {
            std::printf("%d x %d, %d groups, %d rows, forms %d and %d: error %g\n", shape.out, shape.in, shape.groups,
                        shape.rows, shape.form, shape.x_form, error);
            Product::fail("a product is wrong");
        }
    }
    return count;
}

}  // namespace

int main() {
    std::mt19937 random(1);
    int products = 0;
    for (const char* name : {"portable", "avx2", "avx512", "amx"}) {
        if (cm_use_instructions(name) != CM_OK) continue;
        products += check_products(random);
    }
    std::printf("%d products\n", products);
    return products > 0 ? 0 : 1;
}
