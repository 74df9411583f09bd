#include "wordpiece/batch.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>

namespace fastbert::wordpiece {
namespace {

// Work is handed out in runs of texts of about this many bytes: large against the cost of a thread's next grab, small
// enough that threads finish together.
constexpr std::size_t kBytesPerRun = 256 * 1024;

// Boundaries of runs of consecutive texts.
std::vector<std::size_t> cut_into_runs(std::span<const std::string_view> texts) {
    std::vector<std::size_t> cuts{0};
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < texts.size(); ++i) {
        bytes += texts[i].size();
        if (bytes >= kBytesPerRun || i + 1 == texts.size()) {
            cuts.push_back(i + 1);
            bytes = 0;
        }
    }
    return cuts;
}

Ragged encode_run(const Tokenizer& tokenizer, std::span<const std::string_view> texts, std::size_t limit) {
    Ragged result;
    result.offsets.reserve(texts.size() + 1);
    for (const std::string_view text : texts) {
        tokenizer.encode(text, limit, result.values);
        result.offsets.push_back(static_cast<std::int64_t>(result.values.size()));
    }
    return result;
}

Ragged concatenate(std::vector<Ragged>& parts) {
    if (parts.size() == 1) return std::move(parts[0]);
    std::size_t ids = 0, rows = 0;
    for (const Ragged& part : parts) {
        ids += part.values.size();
        rows += part.rows();
    }
    Ragged all;
    all.values.reserve(ids);
    all.offsets.reserve(rows + 1);
    for (Ragged& part : parts) {
        const auto base = static_cast<std::int64_t>(all.values.size());
        all.values.insert(all.values.end(), part.values.begin(), part.values.end());
        for (std::size_t i = 1; i < part.offsets.size(); ++i) all.offsets.push_back(base + part.offsets[i]);
        part = Ragged();
    }
    return all;
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
    const std::vector<std::size_t> cuts = cut_into_runs(texts);
    const std::size_t runs = cuts.size() - 1;
    std::vector<Ragged> parts(runs);
    std::atomic<std::size_t> next = 0;
    std::exception_ptr failure;
    std::mutex failure_lock;
    const auto work = [&] {
        try {
            for (std::size_t run = next++; run < runs; run = next++) {
                parts[run] = encode_run(tokenizer, texts.subspan(cuts[run], cuts[run + 1] - cuts[run]), limit);
            }
        } catch (...) {
            const std::lock_guard guard(failure_lock);
            failure = std::current_exception();
        }
    };
    {
        std::vector<std::jthread> helpers;
        for (std::size_t i = 1; i < std::min<std::size_t>(threads, runs); ++i) helpers.emplace_back(work);
        work();
    }
    if (failure) std::rethrow_exception(failure);
    return concatenate(parts);
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
    const auto append_sequence = [&](std::span<const std::int32_t> sequence, std::int64_t length) {
        ids.insert(ids.end(), sequence.begin(), sequence.begin() + length);
        if (form.add_special_tokens) ids.push_back(form.sep_id);
    };
    for (std::size_t row = 0; row < first.rows(); ++row) {
        const Lengths have{first.length(row), pair ? second->length(row) : 0};
        const Lengths kept = truncate(have, pair, truncation, room, row, result.error);
        if (result.error) return result;
        if (form.add_special_tokens) ids.push_back(form.cls_id);
        append_sequence(first.row(row), kept.first);
        types.resize(ids.size(), 0);
        if (pair) append_sequence(second->row(row), kept.second);
        types.resize(ids.size(), 1);
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
