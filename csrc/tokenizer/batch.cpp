#include "tokenizer/batch.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <exception>
#include <mutex>
#include <thread>

namespace fastbert::tokenizer {
namespace {

// Work is distributed in runs of texts of about this many bytes: large compared to the cost of fetching work, small
// enough for threads to finish together. A smaller batch runs on one thread.
constexpr std::size_t kBytesPerRun = 256 * 1024;

// Consecutive texts encoded by one thread at a time.
struct Run {
    std::size_t first_row, end_row;
    std::size_t worker = 0;        // who encoded it,
    std::size_t begin = 0, end = 0;  // and which of that worker's ids they are
};

std::vector<Run> cut_into_runs(std::span<const std::string_view> texts) {
    std::vector<Run> runs;
    std::size_t bytes = 0, first = 0;
    for (std::size_t i = 0; i < texts.size(); ++i) {
        bytes += texts[i].size();
        if (bytes >= kBytesPerRun || i + 1 == texts.size()) {
            runs.push_back({first, i + 1});
            first = i + 1;
            bytes = 0;
        }
    }
    return runs;
}

// A thread's workspace, acquired for its lifetime.
class Lease {
public:
    explicit Lease(const Tokenizer& tokenizer) : tokenizer_(tokenizer), workspace_(tokenizer.take_workspace()) {}
    ~Lease() { tokenizer_.give_back(std::move(workspace_)); }
    Workspace& operator*() { return *workspace_; }

private:
    const Tokenizer& tokenizer_;
    std::unique_ptr<Workspace> workspace_;
};

// Common to both kinds of output: columns of equal length, the first one ids.
std::array<Buffer<std::int32_t>*, 1> columns_of(Buffer<std::int32_t>& ids) { return {&ids}; }
std::array<Buffer<std::int32_t>*, 4> columns_of(TokenColumns& tokens) {
    return {&tokens.ids, &tokens.begins, &tokens.ends, &tokens.words};
}

// Append the tokens of the run's texts and write the end of each row, relative to the first of these tokens.
template <class Output, class Encode>
void encode_run(const Encode& encode, std::span<const std::string_view> texts, std::size_t limit, Run& run,
                Workspace& workspace, Output& output, std::int64_t* ends) {
    const auto columns = columns_of(output);
    run.begin = columns[0]->size();
    const std::span<const std::string_view> rows = texts.subspan(run.first_row, run.end_row - run.first_row);
    std::size_t expected = 0;
    for (const std::string_view text : rows) expected += std::min(text.size() / 3, limit) + 3;
    // Enough for most texts; untouched memory is free.
    for (auto* column : columns) column->reserve(run.begin + expected);
    encode(rows, workspace, output, ends + run.first_row);
    for (std::size_t row = run.first_row; row < run.end_row; ++row) ends[row] -= static_cast<std::int64_t>(run.begin);
    run.end = columns[0]->size();
}

// Encode on several threads: each appends to its output by encode(texts, workspace, output, ends); when all are done,
// the outputs are copied to the common one.
template <class Output, class Encode>
void encode_parallel(const Tokenizer& tokenizer, const Encode& encode, std::span<const std::string_view> texts,
                     std::size_t limit, unsigned threads, Output& output, Buffer<std::int64_t>& offsets) {
    std::vector<Run> runs = cut_into_runs(texts);
    const std::size_t workers = std::clamp<std::size_t>(threads, 1, std::max<std::size_t>(runs.size(), 1));
    offsets.resize(texts.size() + 1);
    offsets[0] = 0;
    std::int64_t* const ends = offsets.data() + 1;
    if (workers == 1) {
        Lease workspace(tokenizer);
        Run all{0, texts.size()};
        return encode_run(encode, texts, limit, all, *workspace, output, ends);
    }
    // Aligned to cache lines, since each thread updates its output's size per token.
    struct alignas(128) WorkerOutput {
        Output output;
    };
    std::vector<WorkerOutput> worker_outputs(workers);
    std::vector<std::size_t> token_offsets(runs.size());
    std::atomic<std::size_t> next_run = 0, next_copy = 0;
    std::exception_ptr failure;
    std::mutex failure_lock;
    const auto fail = [&]() noexcept {
        const std::lock_guard guard(failure_lock);
        failure = std::current_exception();
    };
    // Runs once between encoding and copying: compute the offset of each run's tokens.
    const auto arrange = [&]() noexcept {
        if (failure) return;
        try {
            std::size_t total = 0;
            for (std::size_t i = 0; i < runs.size(); ++i) {
                token_offsets[i] = total;
                for (std::size_t row = runs[i].first_row; row < runs[i].end_row; ++row) {
                    ends[row] += static_cast<std::int64_t>(total);
                }
                total += runs[i].end - runs[i].begin;
            }
            for (auto* column : columns_of(output)) column->resize(total);
        } catch (...) {
            fail();
        }
    };
    std::barrier all_encoded(static_cast<std::ptrdiff_t>(workers), arrange);
    const auto work = [&](std::size_t worker) {
        try {
            Lease workspace(tokenizer);
            for (std::size_t i = next_run++; i < runs.size(); i = next_run++) {
                runs[i].worker = worker;
                encode_run(encode, texts, limit, runs[i], *workspace, worker_outputs[worker].output, ends);
            }
        } catch (...) {
            fail();
        }
        all_encoded.arrive_and_wait();
        if (failure) return;
        const auto to = columns_of(output);
        for (std::size_t i = next_copy++; i < runs.size(); i = next_copy++) {
            const auto from = columns_of(worker_outputs[runs[i].worker].output);
            for (std::size_t column = 0; column < to.size(); ++column) {
                std::copy(from[column]->data() + runs[i].begin, from[column]->data() + runs[i].end,
                          to[column]->data() + token_offsets[i]);
            }
        }
    };
    {
        std::vector<std::jthread> helpers;
        for (std::size_t worker = 1; worker < workers; ++worker) helpers.emplace_back(work, worker);
        work(0);
    }
    if (failure) std::rethrow_exception(failure);
}

}  // namespace

Sequences encode_batch(const Tokenizer& tokenizer, std::span<const std::string_view> texts, std::size_t limit,
                       const Wrapping& wrapping, unsigned threads) {
    Sequences result;
    const auto encode = [&](std::span<const std::string_view> rows, Workspace& workspace, Buffer<std::int32_t>& ids,
                            std::int64_t* ends) { tokenizer.encode(rows, limit, wrapping, workspace, ids, ends); };
    encode_parallel(tokenizer, encode, texts, limit, threads, result.tokens.ids, result.offsets);
    return result;
}

Sequences encode_batch_aligned(const Tokenizer& tokenizer, std::span<const std::string_view> texts, std::size_t limit,
                               unsigned threads) {
    Sequences result;
    const auto encode = [&](std::span<const std::string_view> rows, Workspace& workspace, TokenColumns& tokens,
                            std::int64_t* ends) { tokenizer.encode_aligned(rows, limit, workspace, tokens, ends); };
    encode_parallel(tokenizer, encode, texts, limit, threads, result.tokens, result.offsets);
    return result;
}

void join_words(Sequences& words, std::span<const std::int64_t> bounds) {
    Buffer<std::int64_t> offsets;
    for (const std::int64_t bound : bounds) offsets.push_back(words.offsets[static_cast<std::size_t>(bound)]);
    if (!words.tokens.words.empty()) {
        std::int32_t* const index = words.tokens.words.data();
        for (std::size_t text = 0; text + 1 < bounds.size(); ++text) {
            for (std::int64_t word = bounds[text]; word < bounds[text + 1]; ++word) {
                const auto i = static_cast<std::size_t>(word);
                std::fill(index + words.offsets[i], index + words.offsets[i + 1],
                          static_cast<std::int32_t>(word - bounds[text]));
            }
        }
    }
    words.offsets = std::move(offsets);
}

}  // namespace fastbert::tokenizer
