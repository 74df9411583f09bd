// A sum of all weights of a model, by which two runs compare theirs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fastbert {

struct WeightRows {
    const std::byte* memory = nullptr;
    std::size_t rows = 0, columns = 0;
    std::size_t bytes = 4;  // of an element: 2, 4 or 8
};

// Return the sum, modulo 2^64, of all elements read as signed integers of their width, each times 2 row + 1 and
// 2 parameter + 1: odd factors lose no bit. Independent of the number of threads; runs at about memory bandwidth.
std::uint64_t weights_sum(const std::vector<WeightRows>& parameters);

}  // namespace fastbert
