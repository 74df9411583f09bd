#include "tokenizer/rows.h"

#include <algorithm>
#include <array>
#include <thread>
#include <vector>

namespace fastbert::tokenizer {
namespace {

constexpr std::int64_t kNone = -1;  // the word and the sequence of a special token of the template

struct Lengths {
    std::int64_t first, second;
};

// The reference's rule: the shorter sequence keeps up to half of `room`, the longer one gets the rest; if both exceed
// half, they share it, and the odd token goes to the longer one, or to the second in a tie.
Lengths longest_first(Lengths lengths, std::int64_t room) {
    const bool first_is_longer = lengths.first > lengths.second;
    std::int64_t shorter = std::min(lengths.first, lengths.second);
    std::int64_t longer = shorter > room ? shorter : std::max(shorter, room - shorter);
    if (shorter + longer > room) {
        shorter = room / 2;
        longer = shorter + room % 2;
    }
    return first_is_longer ? Lengths{longer, shorter} : Lengths{shorter, longer};
}

// Return lengths after truncation to `room` tokens in total.
Lengths truncate(Lengths lengths, bool pair, TruncationStrategy strategy, std::int64_t room, std::size_t row,
                 std::optional<RowError>& error) {
    const std::int64_t surplus = lengths.first + lengths.second - room;
    if (strategy == TruncationStrategy::kNone || surplus <= 0) return lengths;
    if (room == 0) return {0, 0};
    if (strategy == TruncationStrategy::kLongestFirst) return pair ? longest_first(lengths, room) : Lengths{room, 0};
    if (strategy == TruncationStrategy::kOnlySecond && !pair) {
        error = {RowError::Reason::kNoSecond, row, 0};
        return lengths;
    }
    std::int64_t& target = strategy == TruncationStrategy::kOnlyFirst ? lengths.first : lengths.second;
    if (target <= surplus) {
        error = {RowError::Reason::kTooShort, row, 0};
    } else {
        target -= surplus;
    }
    return lengths;
}

// Windows of `size` tokens over a sequence: the first is the main row, the others are its overflow. Each begins
// `size - stride` tokens after the previous one, until one reaches the end; truncating from the left mirrors
// everything. If nothing fits, the whole sequence is the overflow.
class Windows {
public:
    Windows(std::int64_t begin, std::int64_t length, std::int64_t size, const TruncationOptions& truncation)
        : begin_(begin), length_(length), size_(size), step_(size - truncation.stride), left_(truncation.left) {
        if (length <= size || !truncation.overflow) {
            count_ = 1;
        } else {
            count_ = size == 0 ? 2 : 1 + (length - size + step_ - 1) / step_;
        }
    }

    std::int64_t count() const { return count_; }

    std::pair<std::int64_t, std::int64_t> operator[](std::int64_t i) const {
        const bool whole = size_ == 0 && i == 1;
        const std::int64_t from = whole ? 0 : std::min(i * step_, length_);
        const std::int64_t to = whole ? length_ : std::min(from + size_, length_);
        return left_ ? std::pair{begin_ + length_ - to, begin_ + length_ - from} : std::pair{begin_ + from, begin_ + to};
    }

private:
    std::int64_t begin_, length_, size_, step_, count_;
    bool left_;
};

}  // namespace

std::optional<RowError> Rows::plan(const TruncationOptions& truncation) {
    const bool pair = pairs();
    added_ = template_.added(pair);
    const std::int64_t room = truncation.max_length - added_;
    std::int64_t total = 0;
    std::optional<RowError> error;
    offsets_.push_back(0);
    for (std::size_t sample = 0; sample < first_.count(); ++sample) {
        const Lengths lengths{first_.length(sample), pair ? second_->length(sample) : 0};
        const Lengths shortened = truncate(lengths, pair, truncation.strategy, room, sample, error);
        if (error) return error;
        for (const auto& [before, after] :
             {std::pair{lengths.first, shortened.first}, std::pair{lengths.second, shortened.second}}) {
            if (after < before && after > 0 && after <= truncation.stride) {
                return RowError{RowError::Reason::kStride, sample, after};
            }
        }
        const Windows first(first_.offsets[sample], lengths.first, shortened.first, truncation);
        const Windows second(pair ? second_->offsets[sample] : 0, lengths.second, shortened.second, truncation);
        const auto add = [&](std::int64_t i, std::int64_t j) {
            const auto [a_begin, a_end] = first[i];
            const auto [b_begin, b_end] = second[j];
            rows_.push_back({static_cast<std::int64_t>(sample), {a_begin, a_end}, {b_begin, b_end}});
            total += length(rows_.back());
            offsets_.push_back(total);
        };
        const double count = static_cast<double>(first.count()) * static_cast<double>(second.count());
        if (count + static_cast<double>(rows_.size()) > static_cast<double>(kMostRows)) {
            return RowError{RowError::Reason::kTooMany, sample, 0};
        }
        // The reference's order: the main row; each further window of the first sequence with all of the second; the
        // first window with the further ones of the second.
        add(0, 0);
        for (std::int64_t i = 1; i < first.count(); ++i) {
            for (std::int64_t j = 0; j < second.count(); ++j) add(i, j);
        }
        for (std::int64_t j = 1; j < second.count(); ++j) add(0, j);
        if (total > kMostTokens) return RowError{RowError::Reason::kTooMany, sample, 0};
    }
    return std::nullopt;
}

std::array<std::int64_t, 2> Rows::starts(std::size_t row) const {
    const auto sample = static_cast<std::size_t>(rows_[row].sample);
    return {rows_[row].first.begin - first_.offsets[sample],
            second_ ? rows_[row].second.begin - second_->offsets[sample] : 0};
}

std::int64_t Rows::longest_main() const {
    std::int64_t longest = 0, sample = -1;
    for (const Row& row : rows_) {
        if (row.sample != std::exchange(sample, row.sample)) longest = std::max(longest, length(row));
    }
    return longest;
}

template <class T>
T* Rows::write_row(Column column, const Row& row, T* to) const {
    const auto special = [&](const TemplateItem& item) {
        switch (column) {
            case Column::kIds: *to++ = item.id; break;
            case Column::kTypes: *to++ = item.type; break;
            case Column::kSpecialMask: case Column::kOnes: *to++ = 1; break;
            case Column::kBegins: case Column::kEnds: *to++ = 0; break;
            case Column::kWords: case Column::kSequences: *to++ = static_cast<T>(kNone); break;
        }
    };
    const auto sequence = [&](const TemplateItem& item, const Sequences& of, const Range& range, T index) {
        const auto copy = [&](const Buffer<std::int32_t>& from) {
            to = std::copy(from.data() + range.begin, from.data() + range.end, to);
        };
        const auto fill = [&](T value) { to = std::fill_n(to, range.size(), value); };
        switch (column) {
            case Column::kIds: copy(of.tokens.ids); break;
            case Column::kBegins: copy(of.tokens.begins); break;
            case Column::kEnds: copy(of.tokens.ends); break;
            case Column::kWords: copy(of.tokens.words); break;
            case Column::kTypes: fill(item.type); break;
            case Column::kSequences: fill(index); break;
            case Column::kSpecialMask: fill(0); break;
            case Column::kOnes: fill(1); break;
        }
    };
    for (const TemplateItem& item : template_.items(pairs())) {
        switch (item.kind) {
            case TemplateItem::Kind::kSpecial: special(item); break;
            case TemplateItem::Kind::kFirst: sequence(item, first_, row.first, 0); break;
            case TemplateItem::Kind::kSecond: sequence(item, *second_, row.second, 1); break;
        }
    }
    return to;
}

void Rows::write(Column column, std::int32_t* to) const {
    for (const Row& row : rows_) to = write_row(column, row, to);
}

void Rows::write_padded(Column column, std::int64_t width, bool left, std::int64_t filler, std::int64_t* to,
                        unsigned threads) const {
    // Unwritten memory stays untouched.
    const auto& items = template_.items(pairs());
    const auto has_type = [](const TemplateItem& item) { return item.type != 0; };
    if (column == Column::kTypes && filler == 0 && std::none_of(items.begin(), items.end(), has_type)) return;
    const auto fill = [filler](std::int64_t* at, std::int64_t count) {
        return filler == 0 ? at + count : std::fill_n(at, count, filler);
    };
    const auto write_some = [&](std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i) {
            std::int64_t* const row = to + static_cast<std::int64_t>(i) * width;
            const std::int64_t missing = width - length(rows_[i]);
            if (left) {
                write_row(column, rows_[i], fill(row, missing));
            } else {
                fill(write_row(column, rows_[i], row), missing);
            }
        }
    };
    // Starting a thread takes as long as writing about this many values.
    constexpr std::size_t kValuesPerThread = 1 << 18;
    const std::size_t values = rows_.size() * static_cast<std::size_t>(width);
    const std::size_t workers = std::clamp<std::size_t>(values / kValuesPerThread, 1, threads);
    std::vector<std::jthread> helpers;
    for (std::size_t i = 1; i < workers; ++i) {
        helpers.emplace_back(write_some, rows_.size() * i / workers, rows_.size() * (i + 1) / workers);
    }
    write_some(0, rows_.size() / workers);
}

}  // namespace fastbert::tokenizer
