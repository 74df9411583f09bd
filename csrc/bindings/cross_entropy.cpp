// Bindings of csrc/cpu/cross_entropy. Shapes and labels are validated in Python.
#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>

#include "bindings/registration.h"
#include "bindings/tensors.h"
#include "cpu/cross_entropy/cross_entropy.h"

namespace py = pybind11;

namespace fastbert::cross_entropy_bindings {
namespace {

void call_cross_entropy(const Matrix& logits, std::size_t rows, std::size_t vocab_size, Address labels,
                        std::int64_t ignore_index, float label_smoothing, float z_loss, bool gradients, Address losses,
                        Address correct) {
    const auto& [address, dtype, stride] = logits;
    require(vocab_size >= 1, "vocab_size=0 must be at least 1");
    require(rows <= 1 || stride >= vocab_size, "rows of logits overlap");
    require(rows == 0 || (address && labels && losses && correct), "an address is 0");
    CrossEntropyCall call;
    call.logits = pointer(address);
    call.dtype = dtype_of(dtype);
    call.rows = rows;
    call.vocab_size = vocab_size;
    call.stride = stride;
    call.labels = pointer<const std::int64_t>(labels);
    call.ignore_index = ignore_index;
    call.label_smoothing = label_smoothing;
    call.z_loss = z_loss;
    call.gradients = gradients;
    call.losses = pointer<float>(losses);
    call.correct = pointer<std::uint8_t>(correct);
    py::gil_scoped_release release;
    cross_entropy(call);
}

const Registration registration{"cross_entropy", [](py::module_& module) {
    module.def("cross_entropy", &call_cross_entropy, py::arg("logits"), py::arg("rows"), py::arg("vocab_size"),
               py::arg("labels"), py::arg("ignore_index"), py::arg("label_smoothing"), py::arg("z_loss"),
               py::arg("gradients"), py::arg("losses"), py::arg("correct"),
               "Compute the losses of rows of logits, which are replaced by their gradients.");
}};

}  // namespace
}  // namespace fastbert::cross_entropy_bindings
