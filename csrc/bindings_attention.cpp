// Python's view of csrc/cpu/attention. Tensors arrive as the addresses of their first elements, checked by Python; what
// only their contents tell, the offsets, is checked here.
#include <pybind11/stl.h>

#include <array>
#include <vector>

#include "bindings.h"
#include "cpu/attention.h"

namespace py = pybind11;

namespace fastbert {
namespace {

// Address, and strides of tokens and heads in elements.
using Rows = std::array<std::size_t, 3>;

HeadRows rows_of(const Rows& rows) { return {reinterpret_cast<const void*>(rows[0]), rows[1], rows[2]}; }

// The offsets as they were when they were looked at; empty where they do not cut `tokens` into parts of at most
// `longest`.
std::vector<std::int32_t> offsets_of(std::size_t address, std::size_t sequences, std::size_t tokens,
                                     std::int64_t longest) {
    const auto* given = reinterpret_cast<const std::int32_t*>(address);
    std::vector<std::int32_t> offsets(given, given + sequences + 1);
    bool right = offsets[0] == 0 && static_cast<std::size_t>(offsets[sequences]) == tokens;
    for (std::size_t i = 0; i < sequences; ++i)
        right = right && offsets[i + 1] >= offsets[i] && offsets[i + 1] - offsets[i] <= longest;
    if (!right) offsets.clear();
    return offsets;
}

}  // namespace

void bind_attention(py::module_& module) {
    module.def(
        "attention",
        [](const Rows& q, const Rows& k, const Rows& v, bool bf16, std::size_t heads, std::size_t dim,
           std::size_t tokens_q, std::size_t tokens_k, std::size_t cu_seqlens_q, std::size_t cu_seqlens_k,
           std::size_t sequences, std::int64_t longest_q, std::int64_t longest_k, bool causal, double scale,
           const std::array<std::size_t, 5>& bias, bool bias_bf16, std::size_t out, std::size_t lse) {
            py::gil_scoped_release release;
            const std::vector<std::int32_t> offsets_q = offsets_of(cu_seqlens_q, sequences, tokens_q, longest_q);
            const std::vector<std::int32_t> offsets_k = offsets_of(cu_seqlens_k, sequences, tokens_k, longest_k);
            if (offsets_q.empty() || offsets_k.empty() || dim == 0 || dim > kMaxHeadDim) return false;
            AttentionCall call;
            call.q = rows_of(q);
            call.k = rows_of(k);
            call.v = rows_of(v);
            call.dtype = bf16 ? Dtype::bf16 : Dtype::fp32;
            call.heads = heads;
            call.dim = dim;
            call.cu_seqlens_q = offsets_q.data();
            call.cu_seqlens_k = offsets_k.data();
            call.sequences = sequences;
            call.causal = causal;
            call.scale = static_cast<float>(scale);
            call.bias = reinterpret_cast<const void*>(bias[0]);
            call.bias_dtype = bias_bf16 ? Dtype::bf16 : Dtype::fp32;
            call.bias_rows = bias[1];
            call.bias_columns = bias[2];
            call.bias_head_stride = bias[3];
            call.bias_row_stride = bias[4];
            call.out = reinterpret_cast<void*>(out);
            call.lse = reinterpret_cast<float*>(lse);
            attention(call);
            return true;
        },
        py::arg("q"), py::arg("k"), py::arg("v"), py::arg("bf16"), py::arg("heads"), py::arg("dim"),
        py::arg("tokens_q"), py::arg("tokens_k"), py::arg("cu_seqlens_q"), py::arg("cu_seqlens_k"),
        py::arg("sequences"), py::arg("longest_q"), py::arg("longest_k"), py::arg("causal"), py::arg("scale"),
        py::arg("bias"), py::arg("bias_bf16"), py::arg("out"), py::arg("lse"),
        "Attention of packed sequences; False, with nothing written, where the offsets do not fit the tokens.");
}

}  // namespace fastbert
