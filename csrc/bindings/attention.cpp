// Bindings of csrc/cpu/attention. Tensors arrive as the addresses of their first elements, validated in Python; the
// offsets are validated by CheckedAttention, since only their contents tell.
#include <pybind11/stl.h>

#include <array>
#include <optional>
#include <vector>

#include "bindings/attention_arguments.h"
#include "bindings/registration.h"
#include "bindings/tensors.h"
#include "cpu/attention/attention.h"

namespace py = pybind11;

namespace fastbert::attention_bindings {
namespace {

using Arguments = AttentionArguments;
using CheckedCall = CheckedAttention;
using Rows = AttentionRows;

bool run_forward(const Arguments& arguments, std::size_t out, std::size_t lse) {
    py::gil_scoped_release release;
    CheckedCall checked(arguments);
    if (!checked.fits()) return false;
    checked.call.out = reinterpret_cast<void*>(out);
    checked.call.lse = reinterpret_cast<float*>(lse);
    attention(checked.call);
    return true;
}

bool run_gradient(const Arguments& arguments, std::size_t lse, const Rows& grad, const std::array<Rows, 3>& gradients,
                  std::size_t dbias, const std::array<std::size_t, 3>& dpositions) {
    py::gil_scoped_release release;
    CheckedCall checked(arguments);
    if (!checked.fits()) return false;
    AttentionBackwardCall call;
    call.forward = checked.call;
    call.forward.lse = reinterpret_cast<float*>(lse);
    call.grad = rows_of(grad);
    HeadGradients* const gradient_views[3] = {&call.dq, &call.dk, &call.dv};
    for (std::size_t i = 0; i < 3; ++i)
        *gradient_views[i] = {reinterpret_cast<void*>(gradients[i][0]), gradients[i][1], gradients[i][2]};
    call.dbias = reinterpret_cast<float*>(dbias);
    call.ddistance_bias = reinterpret_cast<float*>(dpositions[0]);
    call.dposition_keys = reinterpret_cast<float*>(dpositions[1]);
    call.dposition_queries = reinterpret_cast<float*>(dpositions[2]);
    attention_backward(call);
    return true;
}

void bind_classes(py::module_& module) {
    py::class_<Arguments>(module, "AttentionArguments", "Arguments shared by attention's forward and backward, as addresses.")
        .def(py::init([](const Rows& q, const Rows& k, const Rows& v, bool bf16, std::size_t heads, std::size_t dim,
                         std::size_t tokens_q, std::size_t tokens_k, std::size_t cu_seqlens_q, std::size_t cu_seqlens_k,
                         std::size_t sequences, std::int64_t longest_q, std::int64_t longest_k, bool causal,
                         double scale, const std::array<std::size_t, 5>& bias, bool bias_bf16,
                         const std::array<std::size_t, 3>& dropout, double keep) {
                 require(dropout[2] < kAttentionDraws, "the threshold of attention's dropout is above 255");
                 return Arguments{q,         k,         v,         bf16,         heads,
                                  dim,       tokens_q,  tokens_k,  cu_seqlens_q, cu_seqlens_k,
                                  sequences, longest_q, longest_k, causal,       scale,
                                  bias,      bias_bf16, dropout,   keep,         1,
                                  kNoWindow, {},        {},        {},           {},
                                  {}};
             }),
             py::arg("q"), py::arg("k"), py::arg("v"), py::arg("bf16"), py::arg("heads"), py::arg("dim"),
             py::arg("tokens_q"), py::arg("tokens_k"), py::arg("cu_seqlens_q"), py::arg("cu_seqlens_k"),
             py::arg("sequences"), py::arg("longest_q"), py::arg("longest_k"), py::arg("causal"), py::arg("scale"),
             py::arg("bias"), py::arg("bias_bf16"), py::arg("dropout"), py::arg("keep"))
        .def("set_positions",
             [](Arguments& arguments, std::size_t group, std::optional<std::size_t> window,
                const std::array<std::size_t, 3>& rotary, const std::array<std::size_t, 2>& distance_bias,
                const Rows& position_keys, const Rows& position_queries, const std::array<std::size_t, 2>& buckets) {
                 require(group > 0, "group is 0");
                 arguments.group = group;
                 arguments.window = window.value_or(kNoWindow);
                 arguments.rotary = rotary;
                 arguments.distance_bias = distance_bias;
                 arguments.position_keys = position_keys;
                 arguments.position_queries = position_queries;
                 arguments.buckets = buckets;
             },
             py::kw_only(), py::arg("group"), py::arg("window"), py::arg("rotary"), py::arg("distance_bias"),
             py::arg("position_keys"), py::arg("position_queries"), py::arg("buckets"));
}

void bind_functions(py::module_& module) {
    module.def("attention", &run_forward, py::arg("arguments"), py::arg("out"), py::arg("lse"),
               "Compute attention of packed sequences; return False, with nothing written, if the offsets do not match the tokens.");
    module.def("attention_backward", &run_gradient, py::arg("arguments"), py::arg("lse"), py::arg("grad"),
               py::arg("gradients"), py::arg("dbias"),
               py::arg("dpositions") = std::array<std::size_t, 3>{},
               "Compute its gradients for q, k, v and optionally the bias and the tables; return False as above.");
}

const Registration registration{"attention", &bind_functions, &bind_classes};

}  // namespace
}  // namespace fastbert::attention_bindings
