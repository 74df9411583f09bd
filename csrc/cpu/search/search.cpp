#include "cpu/search/search.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "cpu/runtime/cpu_capability.h"
#include "cpu/runtime/parallel.h"
#include "cpu/search/kernels.h"

namespace fastbert {
namespace {

constexpr std::size_t kBlockBytes = 24 << 10;   // rows that stay in the L1 cache for all queries
constexpr std::size_t kChunkBytes = 256 << 10;  // rows that a thread takes at a time
constexpr std::size_t kLeastWork = 1 << 18;     // bytes times queries per thread: some ten microseconds

const DotKernel& kernel_of(RowKind kind) {
#if FASTBERT_X86
    const CpuCapability capability = cpu_capability();
    const CpuFeatures& has = capability_features();
    if (capability >= CpuCapability::avx512)
        return kind == RowKind::int8 && has.avx512_vnni ? avx512_vnni_dot_kernel() : avx512_dot_kernel(kind);
    if (capability >= CpuCapability::avx2 && has.f16c) return avx2_dot_kernel(kind);
#endif
    return portable_dot_kernel(kind);
}

std::size_t bytes_of(RowKind kind) { return kind == RowKind::int8 ? 1 : kind == RowKind::fp16 ? 2 : 4; }

struct Hit {
    float score = 0.0F;
    std::size_t row = 0;
};

bool is_better(const Hit& a, const Hit& b) { return a.score > b.score || (a.score == b.score && a.row < b.row); }

// The best hits of one query in the rows of one thread, which come in ascending order: a heap, the worst hit on top.
class BestHits {
public:
    explicit BestHits(std::size_t most) : most_(most) { hits_.reserve(most); }

    // Below or at this score, a later row is not among the best.
    float threshold() const {
        return hits_.size() < most_ ? -std::numeric_limits<float>::infinity() : hits_.front().score;
    }
    void add(const Hit& hit) {
        if (hits_.size() == most_) {
            std::pop_heap(hits_.begin(), hits_.end(), is_better);
            hits_.back() = hit;
        } else {
            hits_.push_back(hit);  // within the reserved capacity
        }
        std::push_heap(hits_.begin(), hits_.end(), is_better);
    }
    const std::vector<Hit>& hits() const { return hits_; }

private:
    std::size_t most_;
    std::vector<Hit> hits_;
};

struct alignas(64) CacheLine {
    std::byte bytes[64] = {};
};

// Queries in the kernel's format.
struct PackedQueries {
    PackedQueries(const SearchCall& call, const DotKernel& kernel)
        : stride(kernel.packed_bytes(call.width)), lines(call.query_count * stride / sizeof(CacheLine)) {
        const std::size_t bytes = call.width * (call.kind == RowKind::int8 ? 1 : sizeof(float));
        for (std::size_t query = 0; query < call.query_count; ++query)
            kernel.pack(static_cast<const std::byte*>(call.queries) + query * bytes, call.width,
                        lines[query * stride / sizeof(CacheLine)].bytes);
    }
    const std::byte* at(std::size_t query) const { return lines[query * stride / sizeof(CacheLine)].bytes; }

    std::size_t stride;
    std::vector<CacheLine> lines;
};

// Rows in blocks; the last ones are copied, so that kernels may read ahead of every block.
class Blocks {
public:
    explicit Blocks(const SearchCall& call)
        : rows_(static_cast<const std::byte*>(call.rows)), row_bytes_(call.width * bytes_of(call.kind)),
          count_(call.count), block_rows_(std::clamp<std::size_t>(kBlockBytes / row_bytes_, 4, kMostRows)) {
        const std::size_t total = count_ * row_bytes_, block_bytes = block_rows_ * row_bytes_;
        first_copied_ = total < kReadAhead ? 0 : (total - kReadAhead) / block_bytes;
        const std::size_t begin = first_copied_ * block_bytes;
        copy_.resize(total - begin + kReadAhead);
        std::memcpy(copy_.data(), rows_ + begin, total - begin);
    }
    std::size_t size() const { return (count_ + block_rows_ - 1) / block_rows_; }
    std::size_t per_chunk() const { return std::max<std::size_t>(1, kChunkBytes / (block_rows_ * row_bytes_)); }
    std::size_t first_row(std::size_t block) const { return block * block_rows_; }
    std::size_t rows(std::size_t block) const { return std::min(block_rows_, count_ - first_row(block)); }
    const std::byte* data(std::size_t block) const {
        if (block < first_copied_) return rows_ + first_row(block) * row_bytes_;
        return copy_.data() + (block - first_copied_) * block_rows_ * row_bytes_;
    }

private:
    const std::byte* rows_;
    std::size_t row_bytes_, count_, block_rows_, first_copied_ = 0;
    std::vector<std::byte> copy_;
};

// Keep the best of a block's dot products, which become scores; return the first row whose score is not finite, or
// `count`.
std::size_t select(const SearchCall& call, std::size_t query, float* dots, std::size_t first_row, std::size_t rows,
                   BestHits& best) {
    constexpr float kLargest = std::numeric_limits<float>::max();
    if (call.kind == RowKind::int8) {
        const float* scales = call.scales + first_row;
        const float query_scale = call.query_scales[query];
        for (std::size_t row = 0; row < rows; ++row) dots[row] = dots[row] * scales[row] * query_scale;
    }
    // Counted without a branch, so that it is vectorised: most blocks hold no hit. A NaN counts.
    float threshold = best.threshold();
    int hits = 0;
    for (std::size_t row = 0; row < rows; ++row)
        hits += static_cast<int>(!(dots[row] <= threshold)) | static_cast<int>(dots[row] < -kLargest);
    for (std::size_t row = 0; hits && row < rows; ++row) {
        if (!(std::fabs(dots[row]) <= kLargest)) return first_row + row;
        if (dots[row] > threshold) {
            best.add({dots[row], first_row + row});
            threshold = best.threshold();
        }
    }
    return call.count;
}

void lower_to(std::atomic<std::size_t>& least, std::size_t value) {
    std::size_t seen = least.load(std::memory_order_relaxed);
    while (value < seen && !least.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
    }
}

void write_best(const SearchCall& call, std::size_t query, std::vector<Hit>& hits) {
    const auto end = hits.begin() + static_cast<std::ptrdiff_t>(call.best);
    std::partial_sort(hits.begin(), end, hits.end(), is_better);
    for (std::size_t rank = 0; rank < call.best; ++rank) {
        call.scores[query * call.best + rank] = hits[rank].score;
        call.indices[query * call.best + rank] = static_cast<std::int64_t>(hits[rank].row);
    }
}

}  // namespace

std::optional<std::size_t> search_rows(const SearchCall& call) {
    if (!call.query_count || !call.best) return std::nullopt;
    const DotKernel& kernel = kernel_of(call.kind);
    const PackedQueries queries(call, kernel);
    const Blocks blocks(call);
    const std::size_t chunk = blocks.per_chunk(), chunks = (blocks.size() + chunk - 1) / chunk;
    const std::size_t work = call.count * call.width * bytes_of(call.kind) * call.query_count;
    const int most_threads = work < 2 * kLeastWork || chunks == 1 ? 1 : parallel_threads();
    std::vector<BestHits> best;  // [thread][query]
    best.reserve(static_cast<std::size_t>(most_threads) * call.query_count);
    for (std::size_t i = 0; i < best.capacity(); ++i) best.emplace_back(call.best);

    std::atomic<std::size_t> next_chunk{0}, first_bad{call.count};
    parallel(most_threads, [&](int thread, int) {
        BestHits* const of_thread = best.data() + static_cast<std::size_t>(thread) * call.query_count;
        alignas(64) float dots[kMostQueries * kMostRows];
        for (;;) {
            const std::size_t first = next_chunk.fetch_add(1, std::memory_order_relaxed) * chunk;
            if (first >= blocks.size()) break;
            for (std::size_t block = first; block < std::min(first + chunk, blocks.size()); ++block) {
                const std::size_t rows = blocks.rows(block), first_row = blocks.first_row(block);
                for (std::size_t query = 0; query < call.query_count; query += kMostQueries) {
                    const std::size_t count = std::min(kMostQueries, call.query_count - query);
                    kernel.dots(blocks.data(block), rows, call.width, queries.at(query), queries.stride, count, dots);
                    for (std::size_t i = 0; i < count; ++i)
                        lower_to(first_bad, select(call, query + i, dots + i * kMostRows, first_row, rows,
                                                   of_thread[query + i]));
                }
            }
        }
    });
    if (first_bad.load() < call.count) return first_bad.load();

    std::vector<Hit> hits;
    for (std::size_t query = 0; query < call.query_count; ++query) {
        hits.clear();
        for (std::size_t i = query; i < best.size(); i += call.query_count)
            hits.insert(hits.end(), best[i].hits().begin(), best[i].hits().end());
        write_best(call, query, hits);
    }
    return std::nullopt;
}

}  // namespace fastbert
