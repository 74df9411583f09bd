// Shared by the drivers of row-wise kernels: thread counts, scratch memory, vectors in fp32.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>

#include "cpu/runtime/parallel.h"
#include "cpu/rowwise/rowwise.h"

namespace fastbert {

// Either one thread or all: see parallel.h. Each must have some microseconds of work, the time to wake it.
inline int threads_for(std::size_t rows, std::size_t width) {
    constexpr std::size_t kGrain = 32768;
    return rows < 2 * std::max<std::size_t>(1, kGrain / width) ? 1 : parallel_threads();
}

inline std::size_t index(Dtype dtype) { return static_cast<std::size_t>(dtype); }

// Floats aligned to 64 bytes.
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

// A vector converted to fp32 unless it already is.
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

// The stride between the threads' scratch memory in floats: padded by a cache line against false sharing.
inline std::size_t scratch_stride(std::size_t scratch) {
    return scratch ? (scratch / AlignedFloats::kLine + 2) * AlignedFloats::kLine : 0;
}

// The scratch memory for the keep bits of four rows of probabilities, in floats.
inline std::size_t softmax_bits_floats(const SoftmaxCall& call) {
    return call.dropout.keys ? KeepBits::kRowQueries * KeepBits::row_bytes(call.sizes[3]) / sizeof(float) : 0;
}

}  // namespace fastbert
