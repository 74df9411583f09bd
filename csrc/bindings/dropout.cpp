// Bindings of csrc/cpu/dropout. Tensors arrive as NumPy arrays over the same memory (16-bit floats viewed as uint16).
#include <pybind11/numpy.h>

#include <limits>
#include <string>

#include "bindings/registration.h"
#include "bindings/tensors.h"
#include "cpu/dropout/dropout.h"

namespace py = pybind11;

namespace fastbert::dropout_bindings {
namespace {

using Int64Array = py::array_t<std::int64_t, py::array::c_style>;

template <typename Element>
void bind_dropout(py::module_& module) {
    using Out = py::array_t<Element, py::array::c_style>;
    module.def(
        "token_dropout_mask",
        [](Out out, const Int64Array& keys, const Int64Array& sequence, const Int64Array& position, std::uint32_t site,
           std::uint32_t threshold, Element keep) {
            require(out.ndim() == 2, "out must have shape (tokens, width)");
            require(keys.ndim() == 1 && sequence.ndim() == 1 && position.ndim() == 1,
                    "keys, sequence and position must be flat");
            require(sequence.shape(0) == out.shape(0) && position.shape(0) == out.shape(0),
                    "sequence and position must have one entry per token");
            for (py::ssize_t t = 0; t < sequence.shape(0); ++t)
                require(sequence.data()[t] >= 0 && sequence.data()[t] < keys.shape(0),
                        "a sequence index lies outside the keys");
            Element* target = out.mutable_data();
            py::gil_scoped_release release;
            token_dropout_mask<Element>(target, static_cast<std::size_t>(out.shape(0)),
                                        static_cast<std::size_t>(out.shape(1)), keys.data(), sequence.data(),
                                        position.data(), site, threshold, keep);
        },
        py::arg("out").noconvert(), py::arg("keys").noconvert(), py::arg("sequence").noconvert(),
        py::arg("position").noconvert(), py::arg("site"), py::arg("threshold"), py::arg("keep"));
    module.def(
        "attention_dropout_mask",
        [](Out out, const Int64Array& keys, std::uint32_t site, std::uint32_t threshold, Element keep) {
            require(out.ndim() == 4, "out must have shape (sequences, heads, queries, keys)");
            require(keys.ndim() == 1 && keys.shape(0) == out.shape(0), "keys must have one entry per sequence");
            require(threshold < kAttentionDraws, "the threshold of attention's dropout is above 255");
            Element* target = out.mutable_data();
            py::gil_scoped_release release;
            attention_dropout_mask<Element>(
                target, static_cast<std::size_t>(out.shape(0)), static_cast<std::size_t>(out.shape(1)),
                static_cast<std::size_t>(out.shape(2)), static_cast<std::size_t>(out.shape(3)), keys.data(), site,
                threshold, keep);
        },
        py::arg("out").noconvert(), py::arg("keys").noconvert(), py::arg("site"), py::arg("threshold"),
        py::arg("keep"));
}

const Registration registration{"dropout", [](py::module_& module) {
    bind_dropout<std::uint16_t>(module);
    bind_dropout<std::uint32_t>(module);
}};

}  // namespace
}  // namespace fastbert::dropout_bindings
