// Python's view of csrc/cpu/crc32c.
#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>

#include "bindings/module.h"
#include "bindings/tensors.h"
#include "cpu/runtime/crc32c.h"

namespace py = pybind11;

namespace fastbert {

void bind_crc32c(py::module_& module) {
    module.def(
        "crc32c",
        [](const py::buffer& data, std::uint32_t value) {
            const py::buffer_info info = data.request();
            py::ssize_t expected = info.itemsize;
            for (py::ssize_t axis = info.ndim; axis-- > 0; expected *= info.shape[static_cast<std::size_t>(axis)])
                require(info.shape[static_cast<std::size_t>(axis)] <= 1 ||
                            info.strides[static_cast<std::size_t>(axis)] == expected,
                        "data must be contiguous");
            const auto* bytes = static_cast<const std::byte*>(info.ptr);
            const auto size = static_cast<std::size_t>(info.size * info.itemsize);
            py::gil_scoped_release release;
            return crc32c(bytes, size, value);
        },
        py::arg("data"), py::arg("value") = 0, py::pos_only(),
        "The CRC-32C of contiguous bytes, continuing from `value`, that of the bytes before them.");
    module.def("crc32c_combine", &crc32c_combine, py::arg("first"), py::arg("second"), py::arg("second_size"),
               py::pos_only(), "The CRC-32C of two stretches end to end.");
}

}  // namespace fastbert
