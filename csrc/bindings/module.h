// What each part of the C++ core adds to the Python module; only files of csrc/bindings include Python.
#pragma once
#include <pybind11/pybind11.h>

namespace fastbert {
void bind_wordpiece(pybind11::module_& module);
void bind_collator(pybind11::module_& module);
void bind_cpu(pybind11::module_& module);
void bind_attention(pybind11::module_& module);
void bind_features(pybind11::module_& module);
void bind_quantize(pybind11::module_& module);
void bind_peak(pybind11::module_& module);
void bind_product(pybind11::module_& module);
void bind_rows(pybind11::module_& module);
void bind_layer(pybind11::module_& module);
void bind_cross_entropy(pybind11::module_& module);
void bind_pool(pybind11::module_& module);
void bind_adamw(pybind11::module_& module);
void bind_crc32c(pybind11::module_& module);
}  // namespace fastbert
