// A chunk of tokens is a matmul with the same micro-kernels: columns of a are packed as row panels and b as a weight
// whose depth is the tokens. Only AMX tiles need a transposed.
#include "cpu/gemm/weight_gradient.h"

#include <algorithm>
#include <cstring>

#include "cpu/runtime/barrier.h"
#include "cpu/runtime/parallel.h"
#include "cpu/gemm/kernel_table.h"
#include "cpu/gemm/pack_kernel.h"

namespace fastbert {
namespace {

constexpr std::size_t round_up(std::size_t x, std::size_t step) { return (x + step - 1) / step * step; }
constexpr std::size_t divide_up(std::size_t x, std::size_t by) { return (x + by - 1) / by; }
constexpr std::size_t part(std::size_t count, std::size_t index, std::size_t parts) { return count * index / parts; }

// Columns of b that all threads pack together; their share of a chunk is read from L3 once per row block of a thread.
constexpr std::size_t kShared = 768;
// The maximum number of columns of a packed at a time, and the bytes of b used for all of them.
constexpr std::size_t kRowBlock = 256, kColumnBytes = std::size_t{1} << 19;
// Chunks are multiples of this many tokens.
constexpr std::size_t kTokens = 64;

// Parameters derived from a call, shared by all threads.
struct Plan {
    const WeightGradientCall& call;
    const MicroKernel& kernel;
    Element element;
    std::size_t chunk, padded_chunk;    // tokens per chunk, and padded
    std::size_t shared;                 // columns of b packed together
    std::size_t row_block;              // columns of a packed together
    std::size_t a_panel, b_panel;       // bytes
    std::size_t b_bytes, thread_bytes;  // per buffer of b, and per thread

    const void* a(std::size_t token, std::size_t row) const { return at(call.a, token * call.a_stride + row); }
    const void* b(std::size_t token, std::size_t column) const { return at(call.b, token * call.b_stride + column); }
    const void* at(const void* base, std::size_t offset) const {
        return static_cast<const std::byte*>(base) + offset * size_of(call.dtype);
    }
};

Plan plan_of(const WeightGradientCall& call) {
    const Element element = call.dtype == Dtype::bf16 ? Element::bf16 : Element::fp32;
    Plan plan{call, micro_kernel(element), element, 0, 0, 0, 0, 0, 0, 0, 0};
    const std::size_t chunks = divide_up(call.tokens, plan.kernel.chunk);
    plan.chunk = std::min(call.tokens, round_up(divide_up(call.tokens, chunks), kTokens));
    plan.padded_chunk = round_up(plan.chunk, kStep / bytes_of(element));
    plan.shared = std::clamp(round_up(call.columns, kColumns), kColumns, kShared);
    plan.row_block = round_up(std::min(kRowBlock, call.rows), plan.kernel.rows);
    plan.a_panel = round_up(plan.kernel.panel_bytes(plan.padded_chunk), 64);
    plan.b_panel = plan.padded_chunk * kPanel * bytes_of(element);
    plan.b_bytes = plan.shared / kPanel * plan.b_panel;
    plan.thread_bytes = plan.row_block / plan.kernel.rows * plan.a_panel + 2 * plan.kernel.rows * kColumns * 4;
    return plan;
}

// The thread grid over the result.
struct Grid {
    std::size_t rows = 1, columns = 1;
};

// Choose the grid whose busiest thread finishes first: packing a panel costs about as much as multiplying it by a
// block.
Grid grid_of(const Plan& plan, std::size_t threads) {
    Grid best;
    double least = 0.0;
    const std::size_t panels = divide_up(plan.call.rows, plan.kernel.rows), blocks = plan.shared / kColumns;
    for (std::size_t rows = 1; rows <= threads; ++rows) {
        const std::size_t columns = std::min(threads / rows, blocks);
        const double time = static_cast<double>(divide_up(panels, rows)) *
                            static_cast<double>(divide_up(blocks, columns) + 1);
        if (rows == 1 || time < least) {
            least = time;
            best = {rows, columns};
        }
    }
    return best;
}

class Worker {
public:
    Worker(const Plan& plan, std::size_t thread, std::size_t threads, std::byte* memory, Barrier& barrier)
        : plan_(plan),
          barrier_(barrier),
          thread_(thread),
          threads_(threads),
          shared_(memory),
          thread_memory_(memory + 2 * plan.b_bytes + thread * plan.thread_bytes) {
        const Grid grid = grid_of(plan, threads);
        const std::size_t group = thread / grid.columns, panels = divide_up(plan.call.rows, plan.kernel.rows);
        column_ = thread % grid.columns;
        columns_ = grid.columns;
        if (group >= grid.rows) return;
        first_row_ = part(panels, group, grid.rows) * plan.kernel.rows;
        last_row_ = std::min(plan.call.rows, part(panels, group + 1, grid.rows) * plan.kernel.rows);
    }

    // The sums of a are computed even if b has no columns.
    void run() {
        const WeightGradientCall& call = plan_.call;
        if (plan_.kernel.enter) plan_.kernel.enter();
        if (call.sums && column_ == 0) std::fill(call.sums + first_row_, call.sums + last_row_, 0.0F);
        // b is double-buffered: threads may still read the previous chunk while the next is packed.
        std::size_t step = 0;
        for (std::size_t column = 0; column < std::max<std::size_t>(1, call.columns); column += plan_.shared) {
            for (std::size_t token = 0; token < call.tokens; token += plan_.chunk, ++step) {
                b_ = shared_ + step % 2 * plan_.b_bytes;
                pack_b(token, column);
                barrier_.wait(static_cast<int>(threads_));
                multiply(token, column);
            }
        }
        if (plan_.kernel.leave) plan_.kernel.leave();
    }

private:
    std::size_t tokens_from(std::size_t token) const { return std::min(plan_.chunk, plan_.call.tokens - token); }
    std::size_t columns_from(std::size_t column) const { return std::min(plan_.shared, plan_.call.columns - column); }
    std::size_t padded(std::size_t tokens) const { return round_up(tokens, kStep / bytes_of(plan_.element)); }

    // Pack this thread's tokens of a chunk of b.
    void pack_b(std::size_t token, std::size_t column) const {
        const std::size_t tokens = tokens_from(token), width = columns_from(column), groups = divide_up(tokens, 32);
        const std::size_t first = part(groups, thread_, threads_) * 32;
        const std::size_t last = std::min(tokens, part(groups, thread_ + 1, threads_) * 32);
        if (first >= last) return;
        // Zero the padding of the depth.
        const std::size_t whole = tokens / group_of(plan_.element), words = padded(tokens) / group_of(plan_.element);
        if (last == tokens) {
            for (std::size_t panel = 0; panel * kPanel < width; ++panel)
                std::memset(b_ + panel * plan_.b_panel + whole * kPanel * 4, 0, (words - whole) * kPanel * 4);
        }
        const void* from = plan_.b(token + first, column);
        const PackSource rows{from, plan_.call.dtype, plan_.call.b_stride, last - first, width};
        pack_kernel().depth(rows, {b_, plan_.b_panel, plan_.element}, first);
    }

    void multiply(std::size_t token, std::size_t column) const {
        const std::size_t blocks = divide_up(columns_from(column), kColumns);
        const std::size_t from = part(blocks, column_, columns_) * kColumns;
        const std::size_t to = part(blocks, column_ + 1, columns_) * kColumns;
        if (from >= to && column_ != 0) return;
        // Split the rows into even blocks.
        const std::size_t height = plan_.kernel.rows, rows = last_row_ - first_row_;
        const std::size_t count = divide_up(rows, plan_.row_block), panels = divide_up(rows, height);
        for (std::size_t i = 0; i < count; ++i) {
            const std::size_t first = first_row_ + part(panels, i, count) * height;
            const std::size_t last = std::min(last_row_, first_row_ + part(panels, i + 1, count) * height);
            pack_a(token, first, last, column == 0 && column_ == 0 ? plan_.call.sums : nullptr);
            multiply(token, column, first, last, from, to);
        }
    }

    void pack_a(std::size_t token, std::size_t first, std::size_t last, float* sums) const {
        const std::size_t tokens = tokens_from(token), height = plan_.kernel.rows;
        const std::size_t step = plan_.kernel.pack_tokens;
        for (std::size_t begin = 0; begin < tokens; begin += step) {
            const std::size_t count = std::min(step, tokens - begin);
            std::byte* panel = thread_memory_;
            for (std::size_t row = first; row < last; row += height, panel += plan_.a_panel) {
                plan_.kernel.pack_columns(plan_.a(token + begin, row), plan_.call.a_stride, count,
                                          std::min(height, last - row), begin, panel, sums ? sums + row : nullptr);
            }
        }
    }

    void multiply(std::size_t token, std::size_t column, std::size_t first, std::size_t last, std::size_t from,
                  std::size_t to) const {
        const MicroKernel& kernel = plan_.kernel;
        const std::size_t tokens = tokens_from(token), width = columns_from(column);
        Epilogue epilogue;
        epilogue.out = plan_.call.out + first * plan_.call.out_stride + column;
        epilogue.out_stride = epilogue.residual_stride = plan_.call.out_stride;
        epilogue.dtype = epilogue.residual_dtype = Dtype::fp32;
        if (token || plan_.call.accumulate) epilogue.residual = epilogue.out;
        auto* memory = reinterpret_cast<float*>(thread_memory_ + plan_.row_block / kernel.rows * plan_.a_panel);
        float* sums[2] = {memory, memory + kernel.rows * kColumns};
        const std::size_t step = std::max<std::size_t>(1, kColumnBytes / (2 * plan_.b_panel)) * kColumns;
        Block previous;
        std::size_t done = 0;
        for (std::size_t begin = from; begin < to; begin += step) {
            for (std::size_t row = 0; row < last - first; row += kernel.rows) {
                const std::byte* panel = thread_memory_ + row / kernel.rows * plan_.a_panel;
                for (std::size_t at = begin; at < std::min(to, begin + step); at += kColumns, ++done) {
                    const Block block{row, std::min(kernel.rows, last - first - row), at,
                                      std::min(kColumns, width - at), sums[done % 2]};
                    kernel.multiply(panel, b_ + at / kPanel * plan_.b_panel, plan_.b_panel, padded(tokens), block,
                                    done ? &previous : nullptr, epilogue);
                    previous = block;
                }
            }
        }
        if (done) kernel.finish(previous, epilogue);
    }

    const Plan& plan_;
    Barrier& barrier_;  // of all threads
    std::size_t thread_, threads_;
    std::byte *shared_, *thread_memory_, *b_ = nullptr;
    std::size_t first_row_ = 0, last_row_ = 0, column_ = 0, columns_ = 1;
};

}  // namespace

void weight_gradient(const WeightGradientCall& call) {
    if (call.tokens == 0) {
        if (call.sums) std::fill(call.sums, call.sums + call.rows, 0.0F);
        for (std::size_t row = 0; !call.accumulate && row < call.rows; ++row)
            std::fill_n(call.out + row * call.out_stride, call.columns, 0.0F);
    }
    if (call.tokens == 0 || call.rows == 0) return;
    const Plan plan = plan_of(call);
    const double work = static_cast<double>(call.tokens) * static_cast<double>(call.rows) *
                        static_cast<double>(std::max<std::size_t>(1, call.columns));
    const int threads = work < kMinParallelWork ? 1 : parallel_threads();
    std::byte* memory = gemm_scratch(2 * plan.b_bytes + static_cast<std::size_t>(threads) * plan.thread_bytes);
    Barrier barrier;
    parallel(threads, [&](int thread, int running) {
        Worker(plan, static_cast<std::size_t>(thread), static_cast<std::size_t>(running), memory, barrier).run();
    });
}

}  // namespace fastbert
