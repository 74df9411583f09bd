// Attention's arguments as Python passes them, and the checked call that kernels receive.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cpu/attention/attention.h"

namespace fastbert {

// Address, token stride and head stride, in elements.
using AttentionRows = std::array<std::size_t, 3>;

inline HeadRows rows_of(const AttentionRows& rows) {
    return {reinterpret_cast<const void*>(rows[0]), rows[1], rows[2]};
}

// Copy the offsets and validate the copy. Empty unless they split `tokens` into sequences of at most `longest`.
inline std::vector<std::int32_t> offsets_of(std::size_t address, std::size_t sequences, std::size_t tokens,
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
struct AttentionArguments {
    AttentionRows q, k, v;
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
    AttentionRows position_keys{}, position_queries{};
};

// A call and the offsets it points to, empty if they do not match the tokens.
struct CheckedAttention {
    explicit CheckedAttention(const AttentionArguments& arguments)
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
    CheckedAttention(const CheckedAttention&) = delete;
    CheckedAttention& operator=(const CheckedAttention&) = delete;

    bool fits() const { return !offsets_q.empty() && !offsets_k.empty() && call.dim > 0 && call.dim <= kMaxHeadDim; }

    std::vector<std::int32_t> offsets_q, offsets_k;
    AttentionCall call;
};

}  // namespace fastbert
