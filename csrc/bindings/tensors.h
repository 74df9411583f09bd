// Tensors are passed from Python into csrc/cpu as addresses (0 for none) with the names of their dtypes: NumPy has no
// bf16, and a call must be cheap. Python has validated shapes and strides.
#pragma once
#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>

#include "cpu/simd/bfloat16.h"

namespace fastbert {

using Address = std::uintptr_t;
using Matrix = std::tuple<Address, std::string, std::size_t>;  // first element, dtype, elements between rows

inline void require(bool holds, const std::string& message) {
    if (!holds) throw pybind11::value_error(message);
}

inline Dtype dtype_of(std::string_view name) {
    if (name == "bf16") return Dtype::bf16;
    require(name == "fp32", "dtype '" + std::string(name) + "' must be 'fp32' or 'bf16'");
    return Dtype::fp32;
}

template <class T = void>
T* pointer(Address address) {
    return reinterpret_cast<T*>(address);
}

}  // namespace fastbert
