// Bindings of csrc/cpu/attention. Tensors arrive as the addresses of their first elements, validated in Python; the
// offsets are validated here, since only their contents tell.
#include <pybind11/stl.h>

#include <array>
#include <optional>
#include <vector>

#include "bindings/registration.h"
#include "bindings/tensors.h"
#include "cpu/attention/attention.h"

namespace py = pybind11;

namespace fastbert {
namespace {

// Address, token stride and head stride, in elements.
using Rows = std::array<std::size_t, 3>;

HeadRows rows_of(const Rows& rows) { return {reinterpret_cast<const void*>(rows[0]), rows[1], rows[2]}; }

// Copy the offsets and validate the copy. Empty unless they split `tokens` into sequences of at most `longest`.
std::vector<std::int32_t> offsets_of(std::size_t address, std::size_t sequences, std::size_t tokens,
                                     std::int64_t longest) {
    const auto* data = reinterpret_cast<const std::int32_t*>(address);
    std::vector<std::int32_t> offsets(data, data + sequences + 1);
    bool valid = offsets[0] == 0 && static_cast<std::size_t>(offsets[sequences]) == tokens;
    for (std::size_t i = 0; i < sequences; ++i)
        valid = valid && offsets[i + 1] >= offsets[i] && offsets[i + 1] - offsets[i] <= longest;
    if (!valid) offsets.clear();
    return offsets;
}

// Arguments shared by forward and backward. `dropout`: address of the keys (0 for none), site and threshold; `keep` is
// the scale of kept elements.
struct Arguments {
    Rows q, k, v;
    bool bf16;
    std::size_t heads, dim, tokens_q, tokens_k;
    std::size_t cu_seqlens_q, cu_seqlens_k, sequences;
    std::int64_t longest_q, longest_k;
    bool causal;
    double scale;
    std::array<std::size_t, 5> bias;
    bool bias_bf16;
    std::array<std::size_t, 3> dropout;
    double keep;
    // Set by `set_positions`; addresses are 0 for none.
    std::size_t group = 1, window = kNoWindow;
    std::array<std::size_t, 3> rotary{};  // address, width, address of the positions
    std::array<std::size_t, 2> distance_bias{}, buckets{};  // address and length
    Rows position_keys{}, position_queries{};
};

// A call and the offsets it points to, empty if they do not match the tokens.
struct CheckedCall {
    explicit CheckedCall(const Arguments& arguments)
        : offsets_q(offsets_of(arguments.cu_seqlens_q, arguments.sequences, arguments.tokens_q, arguments.longest_q)),
          offsets_k(offsets_of(arguments.cu_seqlens_k, arguments.sequences, arguments.tokens_k, arguments.longest_k)) {
        call.q = rows_of(arguments.q);
        call.k = rows_of(arguments.k);
        call.v = rows_of(arguments.v);
        call.dtype = arguments.bf16 ? Dtype::bf16 : Dtype::fp32;
        call.heads = arguments.heads;
        call.dim = arguments.dim;
        call.cu_seqlens_q = offsets_q.data();
        call.cu_seqlens_k = offsets_k.data();
        call.sequences = arguments.sequences;
        call.causal = arguments.causal;
        call.scale = static_cast<float>(arguments.scale);
        call.bias = reinterpret_cast<const void*>(arguments.bias[0]);
        call.bias_dtype = arguments.bias_bf16 ? Dtype::bf16 : Dtype::fp32;
        call.bias_rows = arguments.bias[1];
        call.bias_columns = arguments.bias[2];
        call.bias_head_stride = arguments.bias[3];
        call.bias_row_stride = arguments.bias[4];
        call.dropout.keys = reinterpret_cast<const std::int64_t*>(arguments.dropout[0]);
        call.dropout.site = static_cast<std::uint32_t>(arguments.dropout[1]);
        call.dropout.threshold = static_cast<std::uint32_t>(arguments.dropout[2]);
        call.dropout.keep = static_cast<float>(arguments.keep);
        call.group = arguments.group;
        call.window = arguments.window;
        call.rotary = {reinterpret_cast<const float*>(arguments.rotary[0]), arguments.rotary[1],
                       reinterpret_cast<const std::int64_t*>(arguments.rotary[2])};
        call.distance_bias = {reinterpret_cast<const float*>(arguments.distance_bias[0]), arguments.distance_bias[1]};
        call.relative = {rows_of(arguments.position_keys), rows_of(arguments.position_queries),
                         reinterpret_cast<const std::int32_t*>(arguments.buckets[0]), arguments.buckets[1]};
    }
    CheckedCall(const CheckedCall&) = delete;
    CheckedCall& operator=(const CheckedCall&) = delete;

    bool fits() const { return !offsets_q.empty() && !offsets_k.empty() && call.dim > 0 && call.dim <= kMaxHeadDim; }

    std::vector<std::int32_t> offsets_q, offsets_k;
    AttentionCall call;
};

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
}  // namespace fastbert
