#include "cpu/adamw/adamw.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
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
    range.zero_grad = call.zero_grad;
    return range;
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
    AdamRange range = formula;
    range.weight = parameter.weight + chunk.first;
    range.gradient = parameter.gradient + chunk.first;
    range.exp_avg = parameter.exp_avg + chunk.first;
    range.exp_avg_sq = parameter.exp_avg_sq + chunk.first;
    range.count = chunk.last - chunk.first;
    range.tail = chunk.last == parameter.size() ? parameter.size() % 8 : 0;
    kernels.update(range);
    for (const AdamCopy& copy : copies)
        repack(*copy.packed, copy.transposed, copy.offset, parameter.weight, Dtype::fp32, parameter.columns,
               chunk.first / parameter.columns, chunk.last / parameter.columns);
}

}  // namespace

bool overlaps(const AdamCall& call) {
    struct Span {
        std::uintptr_t begin, end;
        bool written;
    };
    std::vector<Span> spans;
    const auto add = [&](const float* data, std::size_t size, bool written) {
        const auto begin = reinterpret_cast<std::uintptr_t>(data);
        if (size) spans.push_back({begin, begin + size * sizeof(float), written});
    };
    for (const AdamParameter& parameter : call.parameters) {
        add(parameter.weight, parameter.size(), true);
        add(parameter.exp_avg, parameter.size(), true);
        add(parameter.exp_avg_sq, parameter.size(), true);
        add(parameter.step, 1, true);
        add(parameter.gradient, parameter.size(), call.zero_grad);
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
        if (is_deferred(copy.packed))
            deferred_parts.push_back({copy.packed, copy.transposed, copy.offset, parameter.weight, Dtype::fp32,
                                      parameter.rows, parameter.columns});
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

SquaresResult sum_of_squares(std::span<const FloatSpan> tensors) {
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
        const Chunk& chunk = chunks[i];
        sums[i] = table.squares(tensors[chunk.parameter].data + chunk.first, chunk.last - chunk.first);
    });
    SquaresResult result;
    for (std::size_t i = 0; i < chunks.size(); ++i) {
        result.sum += sums[i];
        // Squares of finite floats are finite in fp64, so a non-finite sum has a non-finite element.
        for (std::size_t at = chunks[i].first; !std::isfinite(sums[i]) && at < chunks[i].last; ++at)
            if (!std::isfinite(tensors[chunks[i].parameter].data[at])) {
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
