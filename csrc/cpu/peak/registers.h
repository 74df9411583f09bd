// Rounds of one instruction on registers. Included inside a target region.
//
// U: kSums independent sums, kOperations per instruction, Vector, load, store and step (sum + x * y).
template <class U>
void run_registers(std::byte* data, std::size_t rounds) {
    typename U::Vector sum[U::kSums];
    const typename U::Vector x[2] = {U::load(data), U::load(data + 64)};
    const typename U::Vector y = U::load(data + 128);
#pragma GCC unroll 16
    for (std::size_t i = 0; i < U::kSums; ++i) sum[i] = U::load(data + 64 * i);
    for (std::size_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 16
        for (std::size_t i = 0; i < U::kSums; ++i) sum[i] = U::step(sum[i], x[i % 2], y);
    }
    // Stored after the inputs, so that all runs read the same data.
#pragma GCC unroll 16
    for (std::size_t i = 0; i < U::kSums; ++i) U::store(data + 64 * (32 + i), sum[i]);
}

template <class U>
PeakKernel peak_of() {
    return {run_registers<U>, static_cast<double>(U::kSums) * U::kOperations, nullptr, nullptr};
}
