// Bindings of csrc/cpu/gemm.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/activations.h"
#include "bindings/registration.h"
#include "bindings/tensors.h"
#include "cpu/gemm/gemm.h"
#include "cpu/gemm/weight_gradient.h"
#include "cpu/gemm/quantize.h"

namespace py = pybind11;

namespace fastbert::gemm_bindings {
namespace {

Element element_of(const std::string& name) {
    if (name == "int8") return Element::int8;
    return dtype_of(name) == Dtype::fp32 ? Element::fp32 : Element::bf16;
}

const char* name_of(Element element) {
    return element == Element::bf16 ? "bf16" : element == Element::int8 ? "int8" : "fp32";
}

// Require rows of `width` elements whose offsets fit into 64 bits.
void require_rows(const char* name, Address address, std::size_t rows, std::size_t width, std::size_t stride) {
    require(rows == 0 || width == 0 || address, std::string(name) + " is a null pointer");
    require(rows <= 1 || stride >= width, std::string(name) + " has rows that overlap");
    constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max() / 1024;
    require(width <= kMost && rows <= kMost / std::max({stride, width, std::size_t{1}}),
            std::string(name) + " is larger than the memory");
}

PrepackedWeight make_prepacked(const Matrix& weight, std::size_t columns, std::size_t depth, const std::string& element,
                               bool transposed, bool gated) {
    const auto& [address, dtype, stride] = weight;
    require_rows("weight", address, transposed ? depth : columns, transposed ? columns : depth, stride);
    const Dtype from = dtype_of(dtype);
    const Element to = element_of(element);
    require(!transposed || to != Element::int8, "transposed weights are bf16 or fp32");
    require(!gated || (!transposed && columns % 2 == 0), "gated weights have even columns and are not transposed");
    py::gil_scoped_release release;
    return prepack(pointer<const void>(address), from, stride, columns, depth, to, transposed, gated);
}

PrepackedWeight allocate(std::size_t columns, std::size_t depth, const std::string& element, bool gated) {
    constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max() / 1024;
    require(columns <= kMost / std::max<std::size_t>(depth, 1), "the weight is larger than the memory");
    py::gil_scoped_release release;
    return allocate_prepacked(columns, depth, element_of(element), gated);
}

void call_repack(PrepackedWeight& packed, bool transposed, std::size_t offset, const Matrix& weight, std::size_t first,
                 std::size_t last) {
    const auto& [address, dtype, stride] = weight;
    require_rows("weight", address, last, transposed ? packed.columns : packed.depth, stride);
    require(!transposed || !packed.gated_width, "a gated weight is not transposed");
    repack(packed, transposed, offset, pointer<const void>(address), dtype_of(dtype), stride, first, last);
}

void call_gemm(const Matrix& x, std::size_t rows, const PrepackedWeight& weight, const Matrix& out, Address bias,
               const std::optional<std::string>& activation, const std::optional<Matrix>& residual,
               const std::optional<std::tuple<Address, Address, float>>& norm, Address row_scales,
               std::pair<std::size_t, std::size_t> blocking, const std::optional<Matrix>& pre_activation,
               const std::optional<Matrix>& activation_out) {
    GemmCall call;
    call.rows = rows;
    call.weight = &weight;
    call.x = pointer<const void>(std::get<0>(x));
    call.x_stride = std::get<2>(x);
    const bool integers = weight.element == Element::int8;
    require(integers == (std::get<1>(x) == "int8"), "x must be int8 if and only if the weight is");
    require(integers == (row_scales != 0), "row_scales are required for int8 weights, and only for them");
    if (!integers) call.x_dtype = dtype_of(std::get<1>(x));
    require_rows("x", std::get<0>(x), rows, weight.depth, call.x_stride);
    const auto [kind, gate] = activation_of(activation);
    const bool is_gated = kind == Epilogue::Activation::gated, gates = kind == Epilogue::Activation::gated_gradient;
    require(is_gated == (weight.gated_width > 0), "a gated activation is of a gated weight, and no other");
    require(!(is_gated || gates) || (!residual && !norm), "a gated activation has no residual and no norm");
    // Columns of `out`, and of the matmul's own result.
    const std::size_t width = is_gated ? weight.gated_width : weight.columns;
    const std::size_t columns = gates ? 2 * width : width, inputs = is_gated || gates ? 2 * width : width;
    require_rows("out", std::get<0>(out), rows, columns, std::get<2>(out));
    call.epilogue.gate = gate;
    call.epilogue.gated_width = is_gated || gates ? width : 0;
    call.epilogue.out = pointer<void>(std::get<0>(out));
    call.epilogue.dtype = dtype_of(std::get<1>(out));
    call.epilogue.out_stride = std::get<2>(out);
    call.epilogue.bias = pointer<const float>(bias);
    call.epilogue.activation = kind;
    call.epilogue.row_scales = pointer<const float>(row_scales);
    if (residual) {
        require_rows("residual", std::get<0>(*residual), rows, weight.columns, std::get<2>(*residual));
        call.epilogue.residual = pointer<const void>(std::get<0>(*residual));
        call.epilogue.residual_dtype = dtype_of(std::get<1>(*residual));
        call.epilogue.residual_stride = std::get<2>(*residual);
    }
    if (norm) {
        require(std::get<0>(*norm), "norm has no weight");
        call.norm.weight = pointer<const float>(std::get<0>(*norm));
        call.norm.bias = pointer<const float>(std::get<1>(*norm));
        call.norm.eps = std::get<2>(*norm);
    }
    call.blocking = {blocking.first, blocking.second};
    Epilogue& epilogue = call.epilogue;
    using enum Epilogue::Activation;
    const bool gradient = gates || epilogue.activation == gelu_gradient || epilogue.activation == gelu_tanh_gradient;
    require(gradient == activation_out.has_value(),
            "activation_out is required for gradients of activations, and only for them");
    require(pre_activation ? epilogue.activation != none && !norm : !gradient,
            "pre_activation requires GELU or a gated activation, without norm");
    for (const auto& [name, matrix, to, stride, row] :
         {std::tuple{"pre_activation", &pre_activation, &epilogue.pre_activation, &epilogue.pre_activation_stride, inputs},
          std::tuple{"activation_out", &activation_out, &epilogue.activation_out, &epilogue.activation_out_stride,
                     width}}) {
        if (!*matrix) continue;
        require_rows(name, std::get<0>(**matrix), rows, row, std::get<2>(**matrix));
        require(dtype_of(std::get<1>(**matrix)) == epilogue.dtype, std::string(name) + " must have the dtype of out");
        *to = pointer<void>(std::get<0>(**matrix));
        *stride = std::get<2>(**matrix);
    }
    py::gil_scoped_release release;
    gemm(call);
}

void call_weight_gradient(const Matrix& a, const Matrix& b, std::size_t tokens, std::size_t rows, std::size_t columns,
                          const Matrix& out, Address sums, bool accumulate) {
    require_rows("a", std::get<0>(a), tokens, rows, std::get<2>(a));
    require_rows("b", std::get<0>(b), tokens, columns, std::get<2>(b));
    require_rows("out", std::get<0>(out), rows, columns, std::get<2>(out));
    require(std::get<1>(a) == std::get<1>(b), "a and b must have one dtype");
    require(std::get<1>(out) == "fp32", "out must be fp32");
    WeightGradientCall call;
    call.a = pointer<const void>(std::get<0>(a));
    call.b = pointer<const void>(std::get<0>(b));
    call.dtype = dtype_of(std::get<1>(a));
    call.a_stride = std::get<2>(a);
    call.b_stride = std::get<2>(b);
    call.tokens = tokens;
    call.rows = rows;
    call.columns = columns;
    call.out = pointer<float>(std::get<0>(out));
    call.out_stride = std::get<2>(out);
    call.accumulate = accumulate;
    call.sums = pointer<float>(sums);
    py::gil_scoped_release release;
    weight_gradient(call);
}

void quantize_rows(const Matrix& x, std::size_t rows, std::size_t depth, Address integers, Address scales) {
    const auto& [address, dtype, stride] = x;
    require(rows == 0 || scales, "scales is a null pointer");
    require(rows == 0 || depth == 0 || (address && integers), "x or integers is a null pointer");
    require(rows <= 1 || stride >= depth, "x has rows that overlap");
    require(stride == 0 || rows <= std::numeric_limits<std::size_t>::max() / 16 / stride,
            "x is larger than the memory");
    const QuantizedRows call{pointer<const void>(address),  dtype_of(dtype),       stride, rows, depth,
                             pointer<std::int8_t>(integers), pointer<float>(scales)};
    py::gil_scoped_release release;
    quantize(call);
}

void bind_classes(py::module_& module) {
    py::class_<PrepackedWeight>(module, "PrepackedWeight", "A weight (columns, depth), prepacked for CPU matmuls.")
        .def(py::init(&make_prepacked), py::arg("weight"), py::arg("columns"), py::arg("depth"), py::arg("element"),
             py::arg("transposed") = false, py::arg("gated") = false)
        .def_static("empty", &allocate, py::arg("columns"), py::arg("depth"), py::arg("element"),
                    py::arg("gated") = false,
                    "Allocate a weight of bf16 or fp32 without contents; repack_all writes them.")
        .def("__bytes__",
             [](const PrepackedWeight& weight) {
                 return py::bytes(reinterpret_cast<const char*>(weight.bytes.data()),
                                  weight.padded_columns * weight.padded_depth * bytes_of(weight.element));
             })
        .def_property_readonly("columns", [](const PrepackedWeight& weight) { return weight.columns; })
        .def_property_readonly("gated_width", [](const PrepackedWeight& weight) { return weight.gated_width; },
                               "Outputs of a gated weight, 0 of another.")
        .def_property_readonly("depth", [](const PrepackedWeight& weight) { return weight.depth; })
        .def_property_readonly("element", [](const PrepackedWeight& weight) { return name_of(weight.element); })
        .def_property_readonly("scales", [](const PrepackedWeight& weight) {
            std::vector<float> scales;
            if (weight.scales) scales.assign(weight.scales.get(), weight.scales.get() + weight.columns);
            return scales;
        });
}

void bind_functions(py::module_& module) {
    module.def("repack", &call_repack, py::arg("packed"), py::arg("transposed"), py::arg("offset"), py::arg("weight"),
               py::arg("first"), py::arg("last"), "Rewrite rows first..last of a weight in its prepacked copy.");
    module.def("matmul", &call_gemm, py::arg("x"), py::arg("rows"), py::arg("weight"), py::arg("out"), py::kw_only(),
               py::arg("bias") = 0, py::arg("activation") = py::none(), py::arg("residual") = py::none(),
               py::arg("norm") = py::none(), py::arg("row_scales") = 0, py::arg("blocking") = std::pair{0, 0},
               py::arg("pre_activation") = py::none(), py::arg("activation_out") = py::none(),
               "Compute epilogue(x weight^T).");
    module.def("weight_gradient", &call_weight_gradient, py::arg("a"), py::arg("b"), py::arg("tokens"),
               py::arg("rows"), py::arg("columns"), py::arg("out"), py::arg("sums"), py::arg("accumulate"),
               "Compute a^T b and the sums of a's columns.");
    module.def("quantize_rows", &quantize_rows, py::arg("x"), py::arg("rows"), py::arg("depth"), py::arg("integers"),
               py::arg("scales"), "Quantize rows to int8, with one scale per row.");
}

const Registration registration{"gemm", &bind_functions, &bind_classes};

}  // namespace
}  // namespace fastbert::gemm_bindings
