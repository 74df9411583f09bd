// What the drivers of row kernels share: threads, scratch memory, vectors in fp32.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>

#include "cpu/runtime/parallel.h"
#include "cpu/rowwise/rowwise.h"

namespace fastbert {

// One or all threads: parallel.h says why. Each must have some microseconds to do, as long as it takes to wake one.
inline int threads_for(std::size_t rows, std::size_t width) {
    constexpr std::size_t kGrain = 32768;
    return rows < 2 * std::max<std::size_t>(1, kGrain / width) ? 1 : parallel_threads();
}

inline std::size_t index(Dtype dtype) { return static_cast<std::size_t>(dtype); }

// Floats in memory that begins at a multiple of 64 bytes.
class AlignedFloats {
public:
    explicit AlignedFloats(std::size_t count)
        : memory_(std::make_unique_for_overwrite<float[]>(count + kLine)), begin_(memory_.get()) {
        void* begin = memory_.get();
        std::size_t space = (count + kLine) * sizeof(float);
        begin_ = static_cast<float*>(std::align(kLine * sizeof(float), count * sizeof(float), begin, space));
    }
    float* data() const { return begin_; }

    static constexpr std::size_t kLine = 16;

private:
    std::unique_ptr<float[]> memory_;
    float* begin_;
};

// A vector as kernels take it: fp32, as it stands or converted.
class Fp32Vector {
public:
    Fp32Vector(Vector& vector, std::size_t width) {
        if (!vector.data || vector.dtype == Dtype::fp32) return;
        values_ = std::make_unique_for_overwrite<float[]>(width);
        const auto* from = static_cast<const BFloat16*>(vector.data);
        for (std::size_t i = 0; i < width; ++i) values_[i] = to_float(from[i]);
        vector = {values_.get(), Dtype::fp32};
    }

private:
    std::unique_ptr<float[]> values_;
};

// Floats from one thread's scratch memory to the next one's: a line more, so that they do not write to the same one.
inline std::size_t scratch_stride(std::size_t scratch) {
    return scratch ? (scratch / AlignedFloats::kLine + 2) * AlignedFloats::kLine : 0;
}

}  // namespace fastbert
