// Arrays of numbers as JSON, without an object of an interpreter per number. Numbers are written in the shortest form that
// is read back as the same fp32, with a fraction or an exponent, so that every reader takes them for floats.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace fastbert::json {

// Append `values` as an array: [0.5,-1e-07]. They must be finite: JSON has no other numbers.
void append_row(std::string& text, const float* values, std::size_t count);

// Return rows of `width` numbers as an array of arrays: [[...],[...]].
std::string rows(const float* values, std::size_t count, std::size_t width);

// Return the entries of a sparse vector as an array of objects: [{"index":3,"value":0.5}].
std::string entries(const std::int32_t* indices, const float* values, std::size_t count);

}  // namespace fastbert::json
