#include "cpu/runtime/weights_sum.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "cpu/runtime/parallel.h"

namespace fastbert {
namespace {

// Elements summed per task.
constexpr std::size_t kChunk = std::size_t{64} << 10;
// Below this number of chunks, waking a thread takes longer than its work.
constexpr std::size_t kGrain = 4;
constexpr std::size_t kLanes = 16;

template <typename Element>
std::uint64_t row_sum(const Element* row, std::size_t columns) {
    std::array<std::uint64_t, kLanes> lanes{};
    std::size_t column = 0;
    for (; column + kLanes <= columns; column += kLanes)
        for (std::size_t lane = 0; lane < kLanes; ++lane)
            lanes[lane] += static_cast<std::uint64_t>(static_cast<std::int64_t>(row[column + lane]));
    for (; column < columns; ++column) lanes[0] += static_cast<std::uint64_t>(static_cast<std::int64_t>(row[column]));
    return std::accumulate(lanes.begin(), lanes.end(), std::uint64_t{0});
}

template <typename Element>
std::uint64_t rows_sum(const WeightRows& weight, std::size_t first, std::size_t last) {
    const auto* elements = reinterpret_cast<const Element*>(weight.memory);
    std::uint64_t sum = 0;
    for (std::size_t row = first; row < last; ++row)
        sum += row_sum(elements + row * weight.columns, weight.columns) * (2 * std::uint64_t{row} + 1);
    return sum;
}

struct Chunk {
    std::size_t parameter, first, last;  // rows
};

std::uint64_t chunk_sum(const WeightRows& weight, const Chunk& chunk) {
    if (weight.bytes == 2) return rows_sum<std::int16_t>(weight, chunk.first, chunk.last);
    if (weight.bytes == 4) return rows_sum<std::int32_t>(weight, chunk.first, chunk.last);
    return rows_sum<std::int64_t>(weight, chunk.first, chunk.last);
}

}  // namespace

std::uint64_t weights_sum(const std::vector<WeightRows>& parameters) {
    std::vector<Chunk> chunks;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
        const std::size_t rows = parameters[i].rows;
        const std::size_t length = std::max<std::size_t>(1, kChunk / std::max<std::size_t>(1, parameters[i].columns));
        for (std::size_t first = 0; first < rows; first += length)
            chunks.push_back({i, first, std::min(rows, first + length)});
    }
    std::vector<std::uint64_t> sums(chunks.size());
    parallel_ranges(chunks.size(), kGrain, [&](std::size_t first, std::size_t last) {
        for (std::size_t i = first; i < last; ++i)
            sums[i] = chunk_sum(parameters[chunks[i].parameter], chunks[i]) * (2 * std::uint64_t{chunks[i].parameter} + 1);
    });
    return std::accumulate(sums.begin(), sums.end(), std::uint64_t{0});
}

}  // namespace fastbert
