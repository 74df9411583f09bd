// Arrays that leave the core: numpy takes over their memory.
#pragma once
#include <pybind11/numpy.h>

#include <cstdlib>
#include <utility>

#include "common/buffer.h"

namespace fastbert {

// Return a numpy array that owns the buffer's memory.
template <class T>
pybind11::array_t<T> to_array(Buffer<T>&& values) {
    if (values.empty()) return pybind11::array_t<T>(0);
    const auto size = static_cast<pybind11::ssize_t>(values.size());
    T* const data = values.release();
    pybind11::capsule owner(data, [](void* pointer) { std::free(pointer); });
    return pybind11::array_t<T>({size}, {static_cast<pybind11::ssize_t>(sizeof(T))}, data, owner);
}

}  // namespace fastbert
