// Portable dot products.
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cpu/search/kernels.h"

namespace fastbert {
namespace {

#include "cpu/search/float_dots.h"
#include "cpu/search/int8_dots.h"

struct Half {
    std::uint16_t bits;
};

float to_float(float x) { return x; }

float to_float(Half x) {
    const std::uint32_t sign = (x.bits & 0x8000U) << 16, magnitude = x.bits & 0x7FFFU;
    std::uint32_t bits;
    if (magnitude >= 0x7C00U) bits = 0x7F800000U | magnitude << 13;
    else if (magnitude >= 0x0400U) bits = (magnitude << 13) + (112U << 23);
    else bits = std::bit_cast<std::uint32_t>(static_cast<float>(magnitude) * 0x1p-24F);
    return std::bit_cast<float>(sign | bits);
}

struct PortableFloats {
    struct Lanes {
        float x[16];
    };
    static Lanes zero() { return {}; }
    template <class T>
    static Lanes load(const T* p) {
        Lanes lanes;
        for (std::size_t i = 0; i < 16; ++i) lanes.x[i] = to_float(p[i]);
        return lanes;
    }
    static void add_product(Lanes& sum, const Lanes& a, const Lanes& b) {
        for (std::size_t i = 0; i < 16; ++i) sum.x[i] += a.x[i] * b.x[i];
    }
    static float total(Lanes sum) {
        for (std::size_t half = 8; half; half /= 2)
            for (std::size_t i = 0; i < half; ++i) sum.x[i] += sum.x[i + half];
        return sum.x[0];
    }
};

struct PortableIntegers {
    static constexpr std::size_t kStep = 1;
    static constexpr std::int32_t kRowOffset = 0;
    using QueryElement = std::int8_t;
    using Integers = std::int32_t;

    static Integers zero() { return 0; }
    static Integers load_row(const std::int8_t* p) { return *p; }
    static Integers load_query(const std::byte* p) { return static_cast<std::int8_t>(*p); }
    static Integers add_products(Integers sum, Integers x, Integers query) { return sum + x * query; }
    static std::int32_t total(Integers sum) { return sum; }
};

}  // namespace

const DotKernel& portable_dot_kernel(RowKind kind) {
    static constexpr DotKernel int8 = integer_kernel<PortableIntegers>();
    static constexpr DotKernel fp16 = float_kernel<PortableFloats, Half>();
    static constexpr DotKernel fp32 = float_kernel<PortableFloats, float>();
    return kind == RowKind::int8 ? int8 : kind == RowKind::fp16 ? fp16 : fp32;
}

}  // namespace fastbert
