// Rows of length 1. The sum of squares is taken in fp64, by halving the width: its order depends on the width alone, so
// that a row has the same bits in every batch.
#pragma once
#include <cstddef>

namespace fastbert {

// Divide each row of `values` (rows, width) by its Euclidean norm, or by `least` if that is larger, into `result`.
void unit_rows(const float* values, std::size_t rows, std::size_t width, double least, float* result);

}  // namespace fastbert
