// Model inputs from the tokens of texts: truncation, overflow, pairs, special tokens, padding.
//
// A row is planned as a range of its first and a range of its second sequence. Its columns (ids, types, masks,
// alignment) are written on request, from the plan and the tokens, so that unused columns cost nothing.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "common/buffer.h"
#include "tokenizer/batch.h"

namespace fastbert::tokenizer {

enum class TruncationStrategy { kNone, kLongestFirst, kOnlyFirst, kOnlySecond };

// A row as its special tokens and sequences in order, with the type of each.
struct TemplateItem {
    enum class Kind { kSpecial, kFirst, kSecond };
    Kind kind;
    std::int32_t id, type;
};

// The rows of single sequences and of pairs: "[CLS] A [SEP]" and "[CLS] A [SEP] B [SEP]", for example.
struct Template {
    std::vector<TemplateItem> single, pair;

    const std::vector<TemplateItem>& items(bool pairs) const { return pairs ? pair : single; }
    // The number of special tokens of a row.
    std::int64_t added(bool pairs) const {
        const auto special = [](const TemplateItem& item) { return item.kind == TemplateItem::Kind::kSpecial; };
        return std::count_if(items(pairs).begin(), items(pairs).end(), special);
    }
};

struct TruncationOptions {
    TruncationStrategy strategy = TruncationStrategy::kNone;
    std::int64_t max_length = 0;  // of a row with its special tokens, and at least as many as those
    std::int64_t stride = 0;      // tokens that a window shares with the one before it
    bool left = false;            // remove tokens from the front
    bool overflow = false;        // the removed tokens become rows of their own
};

// The reason why rows cannot be built as requested.
struct RowError {
    enum class Reason { kNoSecond, kTooShort, kStride, kTooMany };
    Reason reason;
    std::size_t sample;
    std::int64_t num_tokens;  // kStride: what is left of the sequence
};

enum class Column { kIds, kTypes, kSpecialMask, kOnes, kBegins, kEnds, kWords, kSequences };

class Rows {
public:
    static constexpr std::size_t kMostRows = 10'000'000;
    static constexpr std::int64_t kMostTokens = std::int64_t{1} << 31;

    // Without `second`, rows are single sequences.
    Rows(Sequences first, std::optional<Sequences> second, Template row_template) noexcept
        : first_(std::move(first)), second_(std::move(second)), template_(std::move(row_template)) {}

    // Plan the rows: one per sample, followed by those of its overflow.
    std::optional<RowError> plan(const TruncationOptions& truncation);

    std::size_t count() const { return rows_.size(); }
    bool pairs() const { return second_.has_value(); }
    // Row i consists of the tokens offsets()[i] to offsets()[i + 1] of a column.
    const Buffer<std::int64_t>& offsets() const { return offsets_; }
    std::int64_t sample(std::size_t row) const { return rows_[row].sample; }
    // The indices of a row's first tokens among all tokens of its first and its second sequence.
    std::array<std::int64_t, 2> starts(std::size_t row) const;
    // The length of the longest main row, which determines padding to the longest.
    std::int64_t longest_main() const;

    // Write a column of all rows, concatenated.
    void write(Column column, std::int32_t* to) const;
    // Write a column of all rows at a common width of at least the longest, padded on the right or left. `to` is
    // zero-initialised.
    void write_padded(Column column, std::int64_t width, bool left, std::int64_t filler, std::int64_t* to,
                      unsigned threads) const;

private:
    struct Range {
        std::int64_t begin, end;  // tokens of all texts
        std::int64_t size() const { return end - begin; }
    };
    struct Row {
        std::int64_t sample;
        Range first, second;
    };

    std::int64_t length(const Row& row) const {
        return row.first.size() + row.second.size() + added_;
    }
    template <class T>
    T* write_row(Column column, const Row& row, T* to) const;

    Sequences first_;
    std::optional<Sequences> second_;
    Template template_;
    std::int64_t added_ = 0;  // special tokens of a row
    Buffer<Row> rows_;
    Buffer<std::int64_t> offsets_;
};

}  // namespace fastbert::tokenizer
