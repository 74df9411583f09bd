#include "cpu/gemm/gemm.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>

#include "common/buffer.h"
#include "cpu/runtime/barrier.h"
#include "cpu/runtime/parallel.h"
#include "cpu/gemm/kernel_table.h"

namespace fastbert {
namespace {

constexpr std::size_t round_up(std::size_t x, std::size_t step) { return (x + step - 1) / step * step; }
constexpr std::size_t part(std::size_t count, std::size_t index, std::size_t parts) { return count * index / parts; }

// The minimum number of row panels per thread, below which rereading the weights is not worth it, and the panels per
// thread from which rows are distributed dynamically.
constexpr std::size_t kMinPanels = 4, kMinDynamicPanels = 4 * kMinPanels;

// The thread grid: `rows` groups with rows of their own, each of `columns` threads with columns of their own.
struct Grid {
    int rows = 1, columns = 1;
};

// Parameters derived from a call, shared by all threads.
struct Plan {
    const GemmCall& call;
    const MicroKernel& kernel;
    const RowOperations& row_operations;
    const PrepackedWeight& weight;
    std::size_t depth, padded_depth;  // of the slice, or of the weight
    std::size_t first_column, end_column;  // outputs that are computed
    std::size_t chunk_rows;     // rows packed at a time per group
    std::size_t block_columns;  // columns of the weight used for all of them
    std::size_t panel_bytes;
    std::size_t norm_stride;  // row stride in floats before LayerNorm; 0 without
    // Bytes per group (panels, rows awaiting LayerNorm) and per thread.
    std::size_t group_bytes, thread_bytes;

    std::size_t blocks() const { return (end_column - first_column + kColumns - 1) / kColumns; }
};

std::size_t default_rows(const Plan& plan, std::size_t depth) {
    const std::size_t bytes = plan.kernel.chunk_bytes;
    if (!bytes) return std::clamp<std::size_t>((1U << 20) / (depth * 4), 56, 256);
    const std::size_t row_bytes = depth * bytes_of(plan.weight.element), sums_bytes = plan.norm_stride * 4;
    return std::clamp<std::size_t>(std::min(bytes / row_bytes, bytes * 5 / 3 / (row_bytes + sums_bytes)), 64,
                                   plan.kernel.chunk_rows);
}

std::size_t default_columns(const Plan& plan, std::size_t depth) {
    const std::size_t blocks = plan.kernel.column_bytes / (depth * kPanel * bytes_of(plan.weight.element) * 2);
    return std::max<std::size_t>(1, blocks) * kColumns;
}

Plan plan_of(const GemmCall& call) {
    const PrepackedWeight& weight = *call.weight;
    const MicroKernel& kernel = micro_kernel(weight.element);
    const std::size_t end_column = call.columns ? call.first_column + call.columns : weight.columns;
    Plan plan{call, kernel, row_operations(), weight, weight.depth, weight.padded_depth, call.first_column, end_column,
              0, 0, 0, 0, 0, 0};
    if (call.inputs) {
        plan.depth = call.inputs;
        plan.padded_depth = std::min(round_up(call.inputs, kSlice), weight.padded_depth - call.first_input);
    }
    plan.norm_stride = call.norm.weight ? weight.padded_columns : 0;
    const std::size_t depth = std::max<std::size_t>(1, plan.padded_depth);
    const std::size_t rows = call.blocking.rows ? call.blocking.rows : default_rows(plan, depth);
    const std::size_t columns = call.blocking.columns ? call.blocking.columns : default_columns(plan, depth);
    plan.chunk_rows = round_up(std::min(rows, call.rows), kernel.rows);
    plan.block_columns = round_up(std::min(columns, std::max(kColumns, weight.padded_columns)), kColumns);
    plan.panel_bytes = round_up(kernel.panel_bytes(plan.padded_depth), 64);
    plan.group_bytes = plan.chunk_rows / kernel.rows * plan.panel_bytes + plan.chunk_rows * plan.norm_stride * 4;
    // Two buffers of sums, and rows converted to the weight's element type.
    plan.thread_bytes = 2 * kernel.rows * kColumns * 4 + round_up(kernel.rows * depth * 4, 64);
    return plan;
}

// Choose the grid whose busiest thread finishes first. A thread's time is its columns times its rows plus the kernel's
// `memory_rows`, the cost of reading the weights; synchronising threads that share rows costs another tenth.
Grid grid_of(const Plan& plan, int threads) {
    Grid best;
    double least = 0.0;
    const std::size_t blocks = plan.blocks();
    for (int rows = 1; rows <= threads; ++rows) {
        const int columns = static_cast<int>(std::min<std::size_t>(threads / rows, std::max<std::size_t>(1, blocks)));
        const std::size_t steps = (plan.call.rows + plan.kernel.row_step - 1) / plan.kernel.row_step;
        const auto thread_rows = static_cast<double>((steps + rows - 1) / rows * plan.kernel.row_step);
        const auto thread_blocks = static_cast<double>((blocks + columns - 1) / columns);
        double time = thread_blocks * (thread_rows + static_cast<double>(plan.kernel.memory_rows));
        if (columns > 1) time *= 1.1;
        if (rows == 1 || time < least) {
            least = time;
            best = {rows, columns};
        }
    }
    return best;
}

// Return rows first.. of x in the weight's element type: x itself, or a converted copy.
struct Source {
    const void* rows;
    std::size_t stride;
};

Source converted_rows(const Plan& plan, std::size_t first, std::size_t rows, std::byte* copy) {
    const GemmCall& call = plan.call;
    const Element element = plan.weight.element;
    const std::size_t size = element == Element::int8 ? 1 : size_of(call.x_dtype);
    const void* x = static_cast<const std::byte*>(call.x) + (first * call.x_stride + call.first_input) * size;
    if (element == Element::int8 || !convert_rows(x, call.x_dtype, call.x_stride, rows, plan.depth, element, copy))
        return {x, call.x_stride};
    return {copy, plan.depth};
}

// One thread's share of rows `first`.. of its group's chunk.
class Worker {
public:
    Worker(const Plan& plan, const Grid& grid, int thread, std::byte* groups, std::byte* thread_memory)
        : plan_(plan),
          columns_(static_cast<std::size_t>(grid.columns)),
          column_(static_cast<std::size_t>(thread % grid.columns)),
          panels_(groups + static_cast<std::size_t>(thread / grid.columns) * plan.group_bytes),
          norm_rows_(reinterpret_cast<float*>(panels_ + plan.chunk_rows / plan.kernel.rows * plan.panel_bytes)),
          thread_memory_(thread_memory) {}

    // Pack every columns_-th panel.
    void pack_rows(std::size_t first, std::size_t rows) {
        const std::size_t height = plan_.kernel.rows;
        for (std::size_t panel = column_; panel * height < rows; panel += columns_) {
            const std::size_t begin = panel * height, count = std::min(height, rows - begin);
            const Source source =
                converted_rows(plan_, first + begin, count, thread_memory_ + 2 * height * kColumns * 4);
            plan_.kernel.pack_rows(source.rows, source.stride, count, plan_.depth, plan_.padded_depth,
                                   panels_ + panel * plan_.panel_bytes);
        }
    }

    void multiply(std::size_t first, std::size_t rows) {
        const MicroKernel& kernel = plan_.kernel;
        const PrepackedWeight& weight = plan_.weight;
        const Epilogue epilogue = epilogue_at(first);
        const std::size_t blocks = plan_.blocks();
        const std::size_t slice = plan_.call.first_input * kPanel * bytes_of(weight.element);
        const std::size_t from = plan_.first_column + part(blocks, column_, columns_) * kColumns;
        const std::size_t to = plan_.first_column + part(blocks, column_ + 1, columns_) * kColumns;
        float* sums[2] = {reinterpret_cast<float*>(thread_memory_),
                          reinterpret_cast<float*>(thread_memory_) + kernel.rows * kColumns};
        const bool prefetches = kernel.prefetch_rows && rows >= kernel.prefetch_rows;
        Block previous;
        std::size_t done = 0;
        for (std::size_t begin = from; begin < to; begin += plan_.block_columns) {
            const std::size_t end = std::min(to, begin + plan_.block_columns);
            // After the last columns the next chunk's rows read the first ones.
            const std::size_t next = end < to ? end : from, panels = (rows + kernel.rows - 1) / kernel.rows;
            for (std::size_t row = 0; row < rows; row += kernel.rows) {
                const std::byte* panel = panels_ + row / kernel.rows * plan_.panel_bytes;
                for (std::size_t column = begin; column < end; column += kColumns, ++done) {
                    Block block{row, std::min(kernel.rows, rows - row), column,
                                std::min(kColumns, plan_.end_column - column), sums[done % 2]};
                    if (prefetches && next != begin && next + (column - begin) < to) {
                        // Each row panel prefetches an even share of the depth.
                        const std::size_t steps = plan_.padded_depth * bytes_of(weight.element) / kStep;
                        const std::size_t first = part(steps * kPanel, row / kernel.rows, panels) * kStep;
                        block.next_weights = weight.panel((next + column - begin) / kPanel) + slice + first;
                        block.next_bytes = part(steps * kPanel, row / kernel.rows + 1, panels) * kStep - first;
                    }
                    kernel.multiply(panel, weight.panel(column / kPanel) + slice, weight.panel_bytes(),
                                    plan_.padded_depth, block, done ? &previous : nullptr, epilogue);
                    previous = block;
                }
            }
        }
        if (done) kernel.finish(previous, epilogue);
    }

    void norm(std::size_t first, std::size_t rows) {
        const GemmCall& call = plan_.call;
        const std::size_t begin = part(rows, column_, columns_), end = part(rows, column_ + 1, columns_);
        for (std::size_t row = begin; row < end; ++row) {
            auto* out = static_cast<std::byte*>(call.epilogue.out) +
                        (first + row) * call.epilogue.out_stride * size_of(call.epilogue.dtype);
            plan_.row_operations.norm(norm_rows_ + row * plan_.norm_stride, plan_.weight.columns, call.norm, out,
                                      call.epilogue.dtype);
        }
    }

private:
    // The epilogue for rows counted from `first`.
    Epilogue epilogue_at(std::size_t first) const {
        Epilogue epilogue = plan_.call.epilogue;
        if (epilogue.residual) {
            epilogue.residual = static_cast<const std::byte*>(epilogue.residual) +
                              first * epilogue.residual_stride * size_of(epilogue.residual_dtype);
        }
        if (epilogue.pre_activation) {
            epilogue.pre_activation = static_cast<std::byte*>(epilogue.pre_activation) +
                                      first * epilogue.pre_activation_stride * size_of(epilogue.dtype);
        }
        if (epilogue.activation_out) {
            epilogue.activation_out = static_cast<std::byte*>(epilogue.activation_out) +
                                  first * epilogue.activation_out_stride * size_of(epilogue.dtype);
        }
        if (epilogue.row_scales) {
            epilogue.row_scales += first;
            epilogue.column_scales = plan_.weight.scales.get();
            epilogue.column_sums = plan_.kernel.unsigned_rows ? plan_.weight.sums.get() : nullptr;
        }
        if (plan_.norm_stride) {
            epilogue.out = norm_rows_;
            epilogue.out_stride = plan_.norm_stride;
            epilogue.dtype = Dtype::fp32;
        } else {
            epilogue.out =
                static_cast<std::byte*>(epilogue.out) + first * epilogue.out_stride * size_of(epilogue.dtype);
        }
        return epilogue;
    }

    const Plan& plan_;
    std::size_t columns_, column_;
    std::byte* panels_;
    float* norm_rows_;
    std::byte* thread_memory_;
};

// Rows per dynamic step: half of an even share of the rest, so that threads finish together even if one runs on a
// slower or busy core.
std::size_t dynamic_rows(const Plan& plan, std::size_t left, std::size_t groups) {
    const std::size_t least = std::min(plan.chunk_rows, kMinPanels * plan.kernel.rows);
    return std::min(left, std::clamp(round_up(left / (2 * groups), plan.kernel.rows), least, plan.chunk_rows));
}

// Groups of a single thread need not synchronise. `next_row` is the first row not yet assigned.
void run_dynamic(const Plan& plan, Worker& worker, std::size_t groups, std::atomic<std::size_t>& next_row) {
    std::size_t first = next_row.load(std::memory_order_relaxed);
    while (first < plan.call.rows) {
        const std::size_t rows = dynamic_rows(plan, plan.call.rows - first, groups);
        if (!next_row.compare_exchange_weak(first, first + rows, std::memory_order_relaxed)) continue;
        worker.pack_rows(first, rows);
        worker.multiply(first, rows);
        if (plan.norm_stride) worker.norm(first, rows);
        first = next_row.load(std::memory_order_relaxed);
    }
}

// `barrier` is that of the group's threads.
void run_static(const Plan& plan, Worker& worker, const Grid& grid, int group, Barrier& barrier) {
    const std::size_t groups = static_cast<std::size_t>(grid.rows), step = plan.kernel.row_step;
    const std::size_t steps = (plan.call.rows + step - 1) / step;
    const auto bound = [&](int index) {
        return std::min(plan.call.rows, part(steps, static_cast<std::size_t>(index), groups) * step);
    };
    const std::size_t begin = bound(group), end = bound(group + 1);
    const auto meet = [&] {
        if (grid.columns > 1) barrier.wait(grid.columns);
    };
    for (std::size_t first = begin; first < end; first += plan.chunk_rows) {
        const std::size_t rows = std::min(plan.chunk_rows, end - first);
        worker.pack_rows(first, rows);
        meet();
        worker.multiply(first, rows);
        meet();
        if (plan.norm_stride) worker.norm(first, rows);
    }
}

// `barriers`: one per thread; `memory`: the groups' and the threads'.
void run(const Plan& plan, Barrier* barriers, std::byte* memory, int thread, int threads,
         std::atomic<std::size_t>& next_row) {
    const Grid grid = grid_of(plan, threads);
    const int group = thread / grid.columns;
    if (group >= grid.rows) return;
    const std::size_t groups = static_cast<std::size_t>(grid.rows);
    std::byte* thread_memory =
        memory + groups * plan.group_bytes + static_cast<std::size_t>(thread) * plan.thread_bytes;
    Worker worker(plan, grid, thread, memory, thread_memory);
    if (plan.kernel.enter) plan.kernel.enter();
    if (grid.columns == 1 && groups > 1 && plan.call.rows >= kMinDynamicPanels * groups * plan.kernel.rows) {
        run_dynamic(plan, worker, groups, next_row);
    } else {
        run_static(plan, worker, grid, group, barriers[group]);
    }
    if (plan.kernel.leave) plan.kernel.leave();
}

}  // namespace

const MicroKernel& micro_kernel(Element element) {
    const CpuCapability capability = cpu_capability();
    if (element == Element::int8) return int8_micro_kernel(capability);
#if FASTBERT_X86
    if (element == Element::bf16 && capability == CpuCapability::amx) return amx_bf16_micro_kernel();
    if (element == Element::bf16 && capability_features().avx512_bf16) return avx512_bf16_micro_kernel();
    if (capability >= CpuCapability::avx512) return avx512_micro_kernel(element);
    if (capability == CpuCapability::avx2) return avx2_micro_kernel(element);
#endif
    return portable_micro_kernel(element);
}

const RowOperations& row_operations() {
#if FASTBERT_X86
    if (cpu_capability() >= CpuCapability::avx512) return avx512_row_operations();
    if (cpu_capability() == CpuCapability::avx2) return avx2_row_operations();
#endif
    return portable_row_operations();
}

bool convert_rows(const void* x, Dtype dtype, std::size_t stride, std::size_t rows, std::size_t depth, Element element,
                  void* copy) {
    const RowOperations& operations = row_operations();
    if (dtype == Dtype::bf16 && element == Element::fp32) {
        for (std::size_t row = 0; row < rows; ++row)
            operations.widen(static_cast<const BFloat16*>(x) + row * stride, depth,
                             static_cast<float*>(copy) + row * depth);
        return true;
    }
    if (dtype == Dtype::fp32 && element == Element::bf16) {
        for (std::size_t row = 0; row < rows; ++row)
            operations.round(static_cast<const float*>(x) + row * stride, depth,
                             static_cast<BFloat16*>(copy) + row * depth);
        return true;
    }
    return false;
}

std::byte* gemm_scratch(std::size_t size) {
    struct Free {
        void operator()(std::byte* p) const { std::free(p); }
    };
    thread_local std::unique_ptr<std::byte, Free> memory;
    thread_local std::size_t capacity = 0;
    if (size > capacity) {
        memory.reset();
        capacity = 0;
        const bool large = size >= kHugePage / 2;
        const std::size_t step = large ? kHugePage : 64, rounded = round_up(size, step);
        memory.reset(static_cast<std::byte*>(std::aligned_alloc(step, rounded)));
        if (!memory) throw std::bad_alloc();
        if (large) advise_huge_pages(memory.get(), rounded);
        capacity = rounded;
    }
    return memory.get();
}

namespace {

void full_depth_gemm(const GemmCall& call) {
    const Plan plan = plan_of(call);
    const std::size_t columns = plan.end_column - plan.first_column;
    const double work = static_cast<double>(call.rows) * static_cast<double>(columns) *
                        static_cast<double>(std::max<std::size_t>(1, plan.depth));
    // Either one thread or all: libgomp ends the threads that a smaller region leaves idle, and restarting them takes
    // longer than the matmul.
    const std::size_t bytes = columns * plan.depth * bytes_of(call.weight->element);
    const bool serial = work < kMinParallelWork && !(call.weight_in_memory && bytes >= kMinParallelBytes);
    const int threads = serial ? 1 : parallel_threads();
    const auto count = static_cast<std::size_t>(threads);
    std::byte* scratch = gemm_scratch(count * (sizeof(Barrier) + plan.group_bytes + plan.thread_bytes));
    auto* barriers = reinterpret_cast<Barrier*>(scratch);
    std::uninitialized_value_construct_n(barriers, count);
    std::byte* memory = scratch + count * sizeof(Barrier);
    std::atomic<std::size_t> next_row = 0;
    parallel(threads, [&](int thread, int running) { run(plan, barriers, memory, thread, running, next_row); });
}

// Each slice adds to the sum of those before it; the last one applies the epilogue.
void split_k_gemm(const GemmCall& call) {
    const std::size_t columns = call.weight->columns, depth = call.weight->depth;
    const auto total = std::make_unique_for_overwrite<float[]>(call.rows * columns);
    for (std::size_t first = 0; first < depth; first += kSlice) {
        GemmCall slice = call;
        slice.first_input = first;
        slice.inputs = std::min(kSlice, depth - first);
        Epilogue& epilogue = slice.epilogue;
        if (first + kSlice < depth) {
            epilogue.bias = nullptr;
            epilogue.out = total.get();
            epilogue.out_stride = columns;
            epilogue.dtype = Dtype::fp32;
        }
        if (first) {
            epilogue.residual = total.get();
            epilogue.residual_stride = columns;
            epilogue.residual_dtype = Dtype::fp32;
        }
        full_depth_gemm(slice);
    }
}

}  // namespace

void gemm(const GemmCall& call) {
    if (call.rows == 0 || call.weight->columns == 0) return;
    const bool plain = call.epilogue.activation == Epilogue::Activation::none && !call.norm.weight;
    if (call.weight->depth > kMostDepth && plain && call.weight->element != Element::int8)
        split_k_gemm(call);
    else
        full_depth_gemm(call);
}

}  // namespace fastbert
