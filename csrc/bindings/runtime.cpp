// Bindings of csrc/cpu/runtime. Tensors over blocks of the caching allocator are exported through DLPack, whose deleter
// needs neither Python nor the GIL.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/registration.h"
#include "bindings/tensors.h"
#include "common/cpu_features.h"
#include "cpu/runtime/barrier.h"
#include "cpu/runtime/crc32c.h"
#include "cpu/runtime/file_checksum.h"
#include "cpu/runtime/fingerprint.h"
#include "cpu/runtime/cpu_capability.h"
#include "cpu/runtime/parallel.h"
#include "cpu/runtime/weights_sum.h"
#include "cpu/runtime/caching_allocator.h"

namespace py = pybind11;

namespace fastbert::runtime_bindings {
namespace {

// The struct layout that DLPack fixes for a capsule named "dltensor".
struct DlTensor {
    void* data;
    std::int32_t device_type, device_id;
    std::int32_t dimensions;
    std::uint8_t type_code, type_bits;
    std::uint16_t type_lanes;
    std::int64_t* shape;
    std::int64_t* strides;
    std::uint64_t byte_offset;
};

struct DlManagedTensor {
    DlTensor tensor;
    void* context;
    void (*deleter)(DlManagedTensor*);
};

constexpr const char* kCapsule = "dltensor";
constexpr std::int32_t kCpu = 1;

struct OwnedTensor {
    AllocatorBlock block;
    std::vector<std::int64_t> shape;
    DlManagedTensor managed{};

    OwnedTensor(std::size_t bytes, std::vector<std::int64_t> sizes) : block(bytes), shape(std::move(sizes)) {}
};

void destroy(DlManagedTensor* managed) {
    std::unique_ptr<OwnedTensor>(static_cast<OwnedTensor*>(managed->context)).reset();
}

// Destructor of a capsule that was never consumed: a consumer renames it.
void release_unconsumed(PyObject* capsule) {
    if (PyCapsule_IsValid(capsule, kCapsule))
        destroy(static_cast<DlManagedTensor*>(PyCapsule_GetPointer(capsule, kCapsule)));
}

// Return a contiguous tensor of `bytes` bytes; the caller guarantees that they match the shape.
py::object allocate_tensor(std::vector<std::int64_t> shape, std::size_t bytes, std::uint8_t code, std::uint8_t bits) {
    std::unique_ptr<OwnedTensor> owned;
    try {
        owned = std::make_unique<OwnedTensor>(bytes, std::move(shape));  // a microsecond: not worth releasing the GIL
    } catch (const std::bad_alloc&) {
        PyErr_SetString(PyExc_MemoryError,
                        ("cannot allocate " + std::to_string(bytes) + " bytes for a tensor").c_str());
        throw py::error_already_set();
    }
    auto dimensions = static_cast<std::int32_t>(owned->shape.size());
    owned->managed = {{owned->block.data(), kCpu, 0, dimensions, code, bits, 1, owned->shape.data(), nullptr, 0},
                      owned.get(),
                      &destroy};
    PyObject* capsule = PyCapsule_New(&owned->managed, kCapsule, &release_unconsumed);
    if (!capsule) throw py::error_already_set();
    static_cast<void>(owned.release());  // owned by the capsule
    return py::reinterpret_steal<py::object>(capsule);
}

py::dict by_name(const CpuFeatures& features) {
    py::dict named;
    for (const auto& [name, member] : kCpuFeatureNames) named[name] = features.*member;
    return named;
}

std::vector<double> barrier_seconds(std::size_t count) {
    using Clock = std::chrono::steady_clock;
    std::vector<double> seconds(count);
    Barrier barrier;
    parallel(parallel_threads(), [&](int thread, int running) {
        for (double& each : seconds) {
            const auto begin = Clock::now();
            barrier.wait(running);
            if (thread == 0) each = std::chrono::duration<double>(Clock::now() - begin).count();
        }
    });
    return seconds;
}

void bind_allocator(py::module_& module) {
    module.def("allocate_tensor", &allocate_tensor, py::arg("shape"), py::arg("bytes"), py::arg("code"),
               py::arg("bits"), py::pos_only(), "Return a DLPack capsule over memory of the caching allocator.");
    module.def("allocator_statistics", [] {
        const AllocatorStatistics statistics = allocator_statistics();
        py::dict fields;
        fields["in_use"] = statistics.in_use;
        fields["free"] = statistics.free;
        fields["peak"] = statistics.peak;
        fields["blocks"] = statistics.blocks;
        return fields;
    });
    module.def("reset_allocator_peak", &reset_allocator_peak);
    module.def("release_free_pages", &release_free_pages, py::call_guard<py::gil_scoped_release>());
}

void bind_cpu_capability(py::module_& module) {
    module.def(
        "cpu_features", [] { return by_name(cpu_features()); },
        "Return the instruction sets that this process can use, named as Linux names them.");
    module.def(
        "cpu_capability_features", [] { return by_name(capability_features()); },
        "Return those that kernels use at the current CPU capability.");
    module.def(
        "cpu_capability", [] { return capability_name(cpu_capability()); }, "Return the current CPU capability.");
    module.def("cpu_capabilities", &available_capabilities,
               "Return the CPU capabilities that this process supports, lowest first.");
    module.def("force_cpu_capability", &force_capability, py::arg("name"),
               "Override the CPU capability; an empty name restores the highest.");
    module.def("override_cpu_features", &override_features, py::arg("names"),
               "For tests: replace the processor's features; an empty list restores the detected ones.");
    module.def("parallel_threads", &parallel_threads, "Return the number of threads of a kernel called here.");
    module.def("barrier_seconds", &barrier_seconds, py::arg("count"), py::call_guard<py::gil_scoped_release>(),
               "Return the seconds of each of `count` barriers of the threads of a kernel called here.");
}

void bind_checksums(py::module_& module) {
    module.def(
        "fingerprint",
        [](const std::vector<std::pair<Address, std::size_t>>& spans) {
            std::uint64_t hash = 0;
            for (const auto& [address, bytes] : spans) {
                if (bytes && !address) throw py::value_error("a weight's memory was given back");
                hash = fingerprint(reinterpret_cast<const std::byte*>(address), bytes, hash);
            }
            return hash;
        },
        py::arg("spans"), "Return a number that changes when memory, as (address, bytes) spans, is overwritten completely.");
    module.def(
        "full_fingerprint",
        [](const std::vector<std::pair<Address, std::size_t>>& spans) {
            std::vector<MemorySpan> memory;
            for (const auto& [address, bytes] : spans) {
                if (bytes && !address) throw py::value_error("a weight's memory was given back");
                memory.push_back({reinterpret_cast<const std::byte*>(address), bytes});
            }
            py::gil_scoped_release release;
            return full_fingerprint(memory);
        },
        py::arg("spans"), "Return a number that changes when any byte of memory, as (address, bytes) spans, does.");
    module.def(
        "weights_sum",
        [](const std::vector<std::tuple<Address, std::size_t, std::size_t, std::size_t>>& parameters) {
            std::vector<WeightRows> weights;
            for (const auto& [address, rows, columns, bytes] : parameters) {
                require(bytes == 2 || bytes == 4 || bytes == 8, "an element must have 2, 4 or 8 bytes");
                if (rows && columns && !address) throw py::value_error("a weight's memory was given back");
                weights.push_back({reinterpret_cast<const std::byte*>(address), columns ? rows : 0, columns, bytes});
            }
            py::gil_scoped_release release;
            return weights_sum(weights);
        },
        py::arg("parameters"),
        "Return a sum of weights, given as (address, rows, columns, bytes per element), that tells their places.");
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
        "Return the CRC-32C of contiguous bytes, continuing from `value`, that of the bytes before them.");
    module.def(
        "file_crc32c",
        [](int descriptor, std::uint64_t offset, std::uint64_t size) {
            std::uint32_t value = 0;
            int error = 0;
            {
                py::gil_scoped_release release;
                error = file_crc32c(descriptor, offset, size, value);
            }
            if (error < 0) throw py::value_error("the file ends before that");
            if (error > 0) {
                errno = error;
                PyErr_SetFromErrno(PyExc_OSError);
                throw py::error_already_set();
            }
            return value;
        },
        py::arg("descriptor"), py::arg("offset"), py::arg("size"), py::pos_only(),
        "Return the CRC-32C of `size` bytes of an open file from `offset` on.");
    module.def("crc32c_combine", &crc32c_combine, py::arg("first"), py::arg("second"), py::arg("second_size"),
               py::pos_only(), "Return the CRC-32C of two concatenated buffers.");
}

const Registration registration{"runtime", [](py::module_& module) {
    bind_allocator(module);
    bind_cpu_capability(module);
    bind_checksums(module);
}};

}  // namespace
}  // namespace fastbert::runtime_bindings
