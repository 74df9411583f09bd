// Python's view of csrc/cpu/pool: tensors over its blocks, by DLPack, whose deleter needs neither Python nor its lock.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "bindings/module.h"
#include "cpu/runtime/pool.h"

namespace py = pybind11;

namespace fastbert {
namespace {

// The layout that DLPack fixes for a capsule of the name "dltensor".
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

struct Pooled {
    PoolBlock block;
    std::vector<std::int64_t> shape;
    DlManagedTensor managed{};

    Pooled(std::size_t bytes, std::vector<std::int64_t> sizes) : block(bytes), shape(std::move(sizes)) {}
};

void destroy(DlManagedTensor* managed) { std::unique_ptr<Pooled>(static_cast<Pooled*>(managed->context)).reset(); }

// Of a capsule that nobody took: whoever takes one renames it.
void drop(PyObject* capsule) {
    if (PyCapsule_IsValid(capsule, kCapsule))
        destroy(static_cast<DlManagedTensor*>(PyCapsule_GetPointer(capsule, kCapsule)));
}

// `bytes` bytes as a contiguous tensor; the caller has made sure that they are the shape's.
py::object pool_tensor(std::vector<std::int64_t> shape, std::size_t bytes, std::uint8_t code, std::uint8_t bits) {
    std::unique_ptr<Pooled> pooled;
    try {
        pooled = std::make_unique<Pooled>(bytes, std::move(shape));  // a microsecond: not worth releasing the GIL
    } catch (const std::bad_alloc&) {
        PyErr_SetString(PyExc_MemoryError, ("cannot allocate " + std::to_string(bytes) + " bytes for a tensor").c_str());
        throw py::error_already_set();
    }
    auto dimensions = static_cast<std::int32_t>(pooled->shape.size());
    pooled->managed = {{pooled->block.data(), kCpu, 0, dimensions, code, bits, 1, pooled->shape.data(), nullptr, 0},
                       pooled.get(),
                       &destroy};
    PyObject* capsule = PyCapsule_New(&pooled->managed, kCapsule, &drop);
    if (!capsule) throw py::error_already_set();
    static_cast<void>(pooled.release());  // the capsule's from here on
    return py::reinterpret_steal<py::object>(capsule);
}

}  // namespace

void bind_pool(py::module_& module) {
    module.def("pool_tensor", &pool_tensor, py::arg("shape"), py::arg("bytes"), py::arg("code"), py::arg("bits"),
               py::pos_only(), "A DLPack capsule over memory of the pool.");
    module.def("pool_statistics", [] {
        const PoolStatistics now = pool_statistics();
        py::dict found;
        found["in_use"] = now.in_use;
        found["free"] = now.free;
        found["peak"] = now.peak;
        found["blocks"] = now.blocks;
        return found;
    });
    module.def("pool_reset_peak", &pool_reset_peak);
    module.def("pool_release", &pool_release, py::call_guard<py::gil_scoped_release>());
}

}  // namespace fastbert
