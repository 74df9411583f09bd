#include "cpu/adamw/adamw.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "cpu/adamw/kernel_table.h"
#include "cpu/runtime/cpu_capability.h"
#include "cpu/runtime/parallel.h"
#include "cpu/simd/target.h"

namespace fastbert {
namespace {

// Elements per chunk: its weight, gradient and moments stay in L2 until the prepacked copies are written.
constexpr std::size_t kChunk = std::size_t{1} << 15;
// Chunks of a weight with a prepacked copy end at multiples of this many rows, so that no two threads write to the same
// panel.
constexpr std::size_t kRows = 32;
// Below this many elements, run on one thread.
constexpr std::size_t kMinParallelElements = std::size_t{1} << 16;

const AdamKernels& kernels() {
#if FASTBERT_X86
    if (cpu_capability() >= CpuCapability::avx512) return adam_kernels_avx512();
    if (cpu_capability() >= CpuCapability::avx2) return adam_kernels_avx2();
#endif
    return adam_kernels_portable();
}

// Call body(i) for all i < count, on any thread and in any order.
template <class Body>
void each(std::size_t count, std::size_t elements, const Body& body) {
    std::atomic<std::size_t> next{0};
    parallel(elements < kMinParallelElements ? 1 : parallel_threads(), [&](int, int) {
        for (std::size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) body(i);
    });
}

// The coefficients of a parameter's update, computed in fp64 and rounded as torch does.
AdamRange formula(const AdamParameter& parameter, const AdamCall& call) {
    const AdamSettings& settings = parameter.settings;
    const double step = static_cast<double>(*parameter.step + 1.0F);
    AdamRange range;
    range.grad_scale = call.grad_scale;
    range.decay = settings.weight_decay != 0 ? static_cast<float>(1 - settings.lr * settings.weight_decay) : 1.0F;
    const auto share = static_cast<float>(1 - settings.beta1);
    range.from_gradient = share >= 0.5F;
    range.lerp = range.from_gradient ? share - 1.0F : share;
    range.beta2 = static_cast<float>(settings.beta2);
    range.square_share = static_cast<float>(1 - settings.beta2);
    range.root_correction = static_cast<float>(std::sqrt(1 - std::pow(settings.beta2, step)));
    range.eps = static_cast<float>(settings.eps);
    range.minus_step_size = static_cast<float>(-(settings.lr / (1 - std::pow(settings.beta1, step))));
    range.inverse_correction = static_cast<float>(1 / (1 - std::pow(settings.beta1, step)));
    range.weight_decay = static_cast<float>(settings.weight_decay);
    range.zero_grad = call.zero_grad;
    return range;
}

// The elements first..last of a parameter.
AdamRange part_of(const AdamRange& formula, const AdamParameter& parameter, std::size_t first, std::size_t last) {
    AdamRange range = formula;
    range.weight = parameter.weight + first;
    range.narrow = parameter.narrow ? parameter.narrow + first : nullptr;
    range.gradient = static_cast<char*>(parameter.gradient) + first * size_of(range.narrow ? Dtype::bf16 : Dtype::fp32);
    range.exp_avg = parameter.exp_avg + first;
    range.exp_avg_sq = parameter.exp_avg_sq + first;
    range.count = last - first;
    range.tail = last == parameter.size() ? parameter.size() % 8 : 0;
    return range;
}

// What prepacked copies are made of: the parameter itself, not its master.
std::pair<const void*, Dtype> source_of(const AdamParameter& parameter) {
    if (parameter.narrow) return {parameter.narrow, Dtype::bf16};
    return {parameter.weight, Dtype::fp32};
}

struct Chunk {
    std::size_t parameter, first, last;  // elements
};

// A weight with prepacked copies is split at whole groups of rows, others at multiples of a cache line.
std::vector<Chunk> chunks_of(const AdamCall& call, const std::vector<std::vector<AdamCopy>>& copies) {
    std::vector<Chunk> chunks;
    for (std::size_t i = 0; i < call.parameters.size(); ++i) {
        const AdamParameter& parameter = call.parameters[i];
        const std::size_t group = kRows * parameter.columns;
        const std::size_t length = copies[i].empty() ? kChunk : std::max<std::size_t>(1, kChunk / group) * group;
        for (std::size_t first = 0; first < parameter.size(); first += length)
            chunks.push_back({i, first, std::min(parameter.size(), first + length)});
    }
    return chunks;
}

void update(const AdamCall& call, const Chunk& chunk, const AdamRange& formula, const std::vector<AdamCopy>& copies,
            const AdamKernels& kernels) {
    const AdamParameter& parameter = call.parameters[chunk.parameter];
    kernels.update(part_of(formula, parameter, chunk.first, chunk.last));
    const auto [source, dtype] = source_of(parameter);
    for (const AdamCopy& copy : copies)
        repack(*copy.packed, copy.transposed, copy.offset, source, dtype, parameter.columns,
               chunk.first / parameter.columns, chunk.last / parameter.columns);
}

}  // namespace

bool overlaps(const AdamCall& call) {
    struct Span {
        std::uintptr_t begin, end;
        bool written;
    };
    std::vector<Span> spans;
    const auto add = [&](const void* data, std::size_t bytes, bool written) {
        const auto begin = reinterpret_cast<std::uintptr_t>(data);
        if (data && bytes) spans.push_back({begin, begin + bytes, written});
    };
    for (const AdamParameter& parameter : call.parameters) {
        for (const float* data : {parameter.weight, parameter.exp_avg, parameter.exp_avg_sq})
            add(data, parameter.size() * sizeof(float), true);
        add(parameter.narrow, parameter.size() * sizeof(BFloat16), true);
        add(parameter.step, sizeof(float), true);
        add(parameter.gradient, parameter.gradient_bytes(), call.zero_grad);
    }
    std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
    std::uintptr_t any = 0, written = 0;  // end of the spans so far
    for (const Span& span : spans) {
        if (span.begin < written || (span.written && span.begin < any)) return true;
        any = std::max(any, span.end);
        if (span.written) written = std::max(written, span.end);
    }
    return false;
}

void adamw(const AdamCall& call) {
    // A copy whose parts do not begin at whole groups of rows is written after the pass, by one thread.
    std::vector<const PrepackedWeight*> deferred;
    for (const AdamCopy& copy : call.copies)
        if (copy.offset % kRows) deferred.push_back(copy.packed);
    const auto is_deferred = [&](const PrepackedWeight* packed) {
        return std::find(deferred.begin(), deferred.end(), packed) != deferred.end();
    };
    std::vector<std::vector<AdamCopy>> fused_copies(call.parameters.size());
    std::vector<CopyPart> deferred_parts;
    for (const AdamCopy& copy : call.copies) {
        const AdamParameter& parameter = call.parameters[copy.parameter];
        const auto [source, dtype] = source_of(parameter);
        if (is_deferred(copy.packed))
            deferred_parts.push_back(
                {copy.packed, copy.transposed, copy.offset, source, dtype, parameter.rows, parameter.columns});
        else if (parameter.size())
            fused_copies[copy.parameter].push_back(copy);
    }
    std::vector<AdamRange> formulas;
    std::size_t elements = 0;
    for (const AdamParameter& parameter : call.parameters) {
        formulas.push_back(formula(parameter, call));
        elements += parameter.size();
    }
    const std::vector<Chunk> chunks = chunks_of(call, fused_copies);
    const AdamKernels& table = kernels();
    each(chunks.size(), elements, [&](std::size_t i) {
        const std::size_t parameter = chunks[i].parameter;
        update(call, chunks[i], formulas[parameter], fused_copies[parameter], table);
    });
    repack_all(deferred_parts);
    for (const AdamParameter& parameter : call.parameters) *parameter.step += 1.0F;
}

std::vector<AdamSums> adam_sums(const AdamCall& call, AdamRule rule) {
    std::vector<Chunk> chunks;
    std::vector<AdamRange> formulas;
    std::size_t elements = 0;
    for (std::size_t i = 0; i < call.parameters.size(); ++i) {
        const AdamParameter& parameter = call.parameters[i];
        formulas.push_back(formula(parameter, call));
        // The sums divide by eps where a gradient and its second moment are zero.
        formulas.back().eps = std::max(formulas.back().eps, std::numeric_limits<float>::min());
        if (rule == AdamRule::lamb && parameter.settings.weight_decay == 0) continue;
        for (std::size_t first = 0; first < parameter.size(); first += kChunk)
            chunks.push_back({i, first, std::min(parameter.size(), first + kChunk)});
        elements += parameter.size();
    }
    std::vector<AdamSums> sums(chunks.size());
    const auto kernel = rule == AdamRule::lamb ? kernels().lamb_sums : kernels().stable_sums;
    each(chunks.size(), elements, [&](std::size_t i) {
        const auto [parameter, first, last] = chunks[i];
        sums[i] = kernel(part_of(formulas[parameter], call.parameters[parameter], first, last));
    });
    std::vector<AdamSums> totals(call.parameters.size());
    for (std::size_t i = 0; i < chunks.size(); ++i) {
        totals[chunks[i].parameter].first += sums[i].first;
        totals[chunks[i].parameter].second += sums[i].second;
    }
    return totals;
}

SquaresResult sum_of_squares(std::span<const FloatSpan> tensors) {
    const auto element = [&](std::size_t tensor, std::size_t i) {
        const FloatSpan& span = tensors[tensor];
        return span.dtype == Dtype::bf16 ? to_float(static_cast<const BFloat16*>(span.data)[i])
                                         : static_cast<const float*>(span.data)[i];
    };
    std::vector<Chunk> chunks;
    std::size_t elements = 0;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        for (std::size_t first = 0; first < tensors[i].size; first += kChunk)
            chunks.push_back({i, first, std::min(tensors[i].size, first + kChunk)});
        elements += tensors[i].size;
    }
    std::vector<double> sums(chunks.size());
    const AdamKernels& table = kernels();
    each(chunks.size(), elements, [&](std::size_t i) {
        const auto [tensor, first, last] = chunks[i];
        const FloatSpan& span = tensors[tensor];
        sums[i] = span.dtype == Dtype::bf16
                      ? table.squares_bf16(static_cast<const BFloat16*>(span.data) + first, last - first)
                      : table.squares(static_cast<const float*>(span.data) + first, last - first);
    });
    SquaresResult result;
    for (std::size_t i = 0; i < chunks.size(); ++i) {
        result.sum += sums[i];
        // Squares of finite floats are finite in fp64, so a non-finite sum has a non-finite element.
        for (std::size_t at = chunks[i].first; !std::isfinite(sums[i]) && at < chunks[i].last; ++at)
            if (!std::isfinite(element(chunks[i].parameter, at))) {
                result.non_finite = NonFinite{chunks[i].parameter, at};
                return result;
            }
    }
    return result;
}

void repack_all(std::span<const CopyPart> parts) {
    // A task of one thread: a group of rows if the copy's parts begin at group boundaries, else all parts of the copy.
    struct Task {
        std::size_t first_part, last_part, first_row, last_row;
    };
    std::vector<Task> tasks;
    std::size_t elements = 0;
    for (std::size_t begin = 0, end; begin < parts.size(); begin = end) {
        bool aligned = true;
        for (end = begin; end < parts.size() && parts[end].packed == parts[begin].packed; ++end) {
            aligned = aligned && parts[end].offset % kRows == 0;
            elements += parts[end].rows * parts[end].stride;
        }
        if (!aligned) tasks.push_back({begin, end, 0, static_cast<std::size_t>(-1)});
        for (std::size_t part = begin; aligned && part < end; ++part)
            for (std::size_t row = 0; row < parts[part].rows; row += kRows)
                tasks.push_back({part, part + 1, row, row + kRows});
    }
    each(tasks.size(), elements, [&](std::size_t i) {
        for (std::size_t at = tasks[i].first_part; at < tasks[i].last_part; ++at) {
            const CopyPart& part = parts[at];
            repack(*part.packed, part.transposed, part.offset, part.weight, part.dtype, part.stride,
                   tasks[i].first_row, std::min(part.rows, tasks[i].last_row));
        }
    });
}

}  // namespace fastbert
