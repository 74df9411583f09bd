#include "wordpiece/batch.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <exception>
#include <mutex>
#include <thread>

namespace fastbert::wordpiece {
namespace {

// Work is handed out in runs of texts of about this many bytes: large against the cost of a thread's next grab, small
// enough that threads finish together. A batch of less is not worth a second thread.
constexpr std::size_t kBytesPerRun = 256 * 1024;

// Neighbouring texts that one thread encodes at a time.
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

// A thread's working memory for as long as it lives.
class Lease {
public:
    explicit Lease(const Tokenizer& tokenizer) : tokenizer_(tokenizer), workspace_(tokenizer.take_workspace()) {}
    ~Lease() { tokenizer_.give_back(std::move(workspace_)); }
    Workspace& operator*() { return *workspace_; }

private:
    const Tokenizer& tokenizer_;
    std::unique_ptr<Workspace> workspace_;
};

// What the two kinds of output have in common: columns of the same length, the first of them ids.
std::array<Buffer<std::int32_t>*, 1> columns_of(Buffer<std::int32_t>& ids) { return {&ids}; }
std::array<Buffer<std::int32_t>*, 4> columns_of(TokenColumns& tokens) {
    return {&tokens.ids, &tokens.begins, &tokens.ends, &tokens.words};
}

void encode_texts(const Tokenizer& tokenizer, std::span<const std::string_view> texts, std::size_t limit,
                  Workspace& workspace, Buffer<std::int32_t>& ids, std::int64_t* ends) {
    tokenizer.encode(texts, limit, workspace, ids, ends);
}
void encode_texts(const Tokenizer& tokenizer, std::span<const std::string_view> texts, std::size_t limit,
                  Workspace& workspace, TokenColumns& tokens, std::int64_t* ends) {
    tokenizer.encode_aligned(texts, limit, workspace, tokens, ends);
}

// Appends the tokens of the run's texts and writes where each row ends, counted from the first of these tokens.
template <class Output>
void encode_run(const Tokenizer& tokenizer, std::span<const std::string_view> texts, std::size_t limit, Run& run,
                Workspace& workspace, Output& output, std::int64_t* ends) {
    const auto columns = columns_of(output);
    run.begin = columns[0]->size();
    const std::span<const std::string_view> rows = texts.subspan(run.first_row, run.end_row - run.first_row);
    std::size_t expected = 0;
    for (const std::string_view text : rows) expected += std::min(text.size() / 3, limit) + 1;
    // Enough for most texts; memory that is not touched costs nothing.
    for (auto* column : columns) column->reserve(run.begin + expected);
    encode_texts(tokenizer, rows, limit, workspace, output, ends + run.first_row);
    for (std::size_t row = run.first_row; row < run.end_row; ++row) ends[row] -= static_cast<std::int64_t>(run.begin);
    run.end = columns[0]->size();
}

// Encodes on several threads: each appends to an output of its own, and when all are done, to the common one.
template <class Output>
void encode_parallel(const Tokenizer& tokenizer, std::span<const std::string_view> texts, std::size_t limit,
                     unsigned threads, Output& output, Buffer<std::int64_t>& offsets) {
    std::vector<Run> runs = cut_into_runs(texts);
    const std::size_t workers = std::clamp<std::size_t>(threads, 1, std::max<std::size_t>(runs.size(), 1));
    offsets.resize(texts.size() + 1);
    offsets[0] = 0;
    std::int64_t* const ends = offsets.data() + 1;
    if (workers == 1) {
        Lease workspace(tokenizer);
        Run all{0, texts.size()};
        return encode_run(tokenizer, texts, limit, all, *workspace, output, ends);
    }
    std::vector<Output> parts(workers);
    std::vector<std::size_t> places(runs.size());
    std::atomic<std::size_t> next_run = 0, next_copy = 0;
    std::exception_ptr failure;
    std::mutex failure_lock;
    const auto fail = [&]() noexcept {
        const std::lock_guard guard(failure_lock);
        failure = std::current_exception();
    };
    // Between encoding and copying, when all threads have come: where each run's tokens belong.
    const auto arrange = [&]() noexcept {
        if (failure) return;
        try {
            std::size_t total = 0;
            for (std::size_t i = 0; i < runs.size(); ++i) {
                places[i] = total;
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
                encode_run(tokenizer, texts, limit, runs[i], *workspace, parts[worker], ends);
            }
        } catch (...) {
            fail();
        }
        all_encoded.arrive_and_wait();
        if (failure) return;
        const auto to = columns_of(output);
        for (std::size_t i = next_copy++; i < runs.size(); i = next_copy++) {
            const auto from = columns_of(parts[runs[i].worker]);
            for (std::size_t column = 0; column < to.size(); ++column) {
                std::copy(from[column]->data() + runs[i].begin, from[column]->data() + runs[i].end,
                          to[column]->data() + places[i]);
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

struct Lengths {
    std::int64_t first, second;
};

// The reference's rule: the shorter sequence keeps what it has up to half of the room, the longer one gets the rest; if
// both are longer than half, they share it, and the odd token goes to the longer one, in a tie to the second.
Lengths longest_first(Lengths have, std::int64_t room) {
    const bool first_is_longer = have.first > have.second;
    std::int64_t shorter = std::min(have.first, have.second);
    std::int64_t longer = shorter > room ? shorter : std::max(shorter, room - shorter);
    if (shorter + longer > room) {
        shorter = room / 2;
        longer = shorter + room % 2;
    }
    return first_is_longer ? Lengths{longer, shorter} : Lengths{shorter, longer};
}

// Lengths after truncation to `room` tokens in all.
Lengths truncate(Lengths have, bool pair, Truncation how, std::int64_t room, std::size_t row,
                 std::optional<TruncationError>& error) {
    const std::int64_t surplus = have.first + have.second - room;
    if (how == Truncation::kNone || surplus <= 0) return have;
    if (room == 0) return {0, 0};
    if (how == Truncation::kLongestFirst) return pair ? longest_first(have, room) : Lengths{room, 0};
    if (how == Truncation::kOnlySecond && !pair) {
        error = {TruncationError::Reason::kNoSecond, row};
        return have;
    }
    std::int64_t& target = how == Truncation::kOnlyFirst ? have.first : have.second;
    if (target <= surplus) {
        error = {TruncationError::Reason::kTooShort, row};
    } else {
        target -= surplus;
    }
    return have;
}

}  // namespace

Ragged encode_batch(const Tokenizer& tokenizer, std::span<const std::string_view> texts, std::size_t limit,
                    unsigned threads) {
    Ragged result;
    encode_parallel(tokenizer, texts, limit, threads, result.values, result.offsets);
    return result;
}

AlignedRagged encode_batch_aligned(const Tokenizer& tokenizer, std::span<const std::string_view> texts,
                                   std::size_t limit, unsigned threads) {
    AlignedRagged result;
    encode_parallel(tokenizer, texts, limit, threads, result.tokens, result.offsets);
    return result;
}

Assembled assemble(const Ragged& first, const Ragged* second, const Template& form, Truncation truncation,
                   std::int64_t max_length) {
    const bool pair = second != nullptr;
    const std::int64_t room = max_length - form.added(pair);
    Assembled result;
    auto& ids = result.ids.values;
    auto& types = result.type_ids;
    const std::size_t most = first.values.size() + (pair ? second->values.size() : 0) +
                             first.rows() * static_cast<std::size_t>(form.added(pair));
    ids.reserve(most);
    types.reserve(most);
    result.ids.offsets.reserve(first.rows() + 1);
    const auto extend = [](Buffer<std::int32_t>& buffer, std::size_t size, std::int32_t value) {
        const std::size_t before = buffer.size();
        buffer.resize(size);
        std::fill(buffer.begin() + before, buffer.end(), value);
    };
    const auto append_sequence = [&](std::span<const std::int32_t> sequence, std::int64_t length) {
        ids.append(sequence.first(static_cast<std::size_t>(length)));
        if (form.add_special_tokens) ids.push_back(form.sep_id);
    };
    for (std::size_t row = 0; row < first.rows(); ++row) {
        const Lengths have{first.length(row), pair ? second->length(row) : 0};
        const Lengths kept = truncate(have, pair, truncation, room, row, result.error);
        if (result.error) return result;
        if (form.add_special_tokens) ids.push_back(form.cls_id);
        append_sequence(first.row(row), kept.first);
        extend(types, ids.size(), 0);
        if (pair) append_sequence(second->row(row), kept.second);
        extend(types, ids.size(), 1);
        result.ids.offsets.push_back(static_cast<std::int64_t>(ids.size()));
    }
    return result;
}

void pad(std::span<const std::int32_t> values, std::span<const std::int64_t> offsets, std::int64_t width,
         std::int64_t filler, std::int64_t* to) {
    for (std::size_t row = 0; row + 1 < offsets.size(); ++row, to += width) {
        const auto from = values.begin() + offsets[row];
        const std::int64_t length = std::min(offsets[row + 1] - offsets[row], width);
        std::copy(from, from + length, to);
        std::fill(to + length, to + width, filler);
    }
}

}  // namespace fastbert::wordpiece
