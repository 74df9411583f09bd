// Many texts at once: encoding on several threads, truncation, special tokens around sequences, padding.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "common/buffer.h"
#include "wordpiece/tokenizer.h"

namespace fastbert::wordpiece {

// Rows of different lengths: row i is values[offsets[i] .. offsets[i + 1]).
struct Ragged {
    Buffer<std::int32_t> values;
    Buffer<std::int64_t> offsets;

    Ragged() { offsets.push_back(0); }

    std::size_t rows() const { return offsets.size() - 1; }
    std::int64_t length(std::size_t row) const { return offsets[row + 1] - offsets[row]; }
    std::span<const std::int32_t> row(std::size_t i) const {
        return {values.data() + offsets[i], static_cast<std::size_t>(length(i))};
    }
};

enum class Truncation { kNone, kLongestFirst, kOnlyFirst, kOnlySecond };

// What stands around sequences: cls A sep, or cls A sep B sep with type 1 from B on.
struct Template {
    bool add_special_tokens = true;
    std::int32_t cls_id = 0, sep_id = 0;

    std::int64_t added(bool pair) const { return add_special_tokens ? (pair ? 3 : 2) : 0; }
};

// A row cannot be truncated as asked.
struct TruncationError {
    enum class Reason { kNoSecond, kTooShort };
    Reason reason;
    std::size_t row;
};

struct Assembled {
    Ragged ids;
    Buffer<std::int32_t> type_ids;  // beside ids.values
    std::optional<TruncationError> error;
};

// Ragged rows of tokens that know their places.
struct AlignedRagged {
    TokenColumns tokens;
    Buffer<std::int64_t> offsets;
};

// The ids of each text, at most `limit` of them. The result does not depend on `threads`.
Ragged encode_batch(const Tokenizer& tokenizer, std::span<const std::string_view> texts, std::size_t limit,
                    unsigned threads);
AlignedRagged encode_batch_aligned(const Tokenizer& tokenizer, std::span<const std::string_view> texts,
                                   std::size_t limit, unsigned threads);

// Model inputs from the ids of first (and second) sequences. `max_length`: of a row with its special tokens, and at
// least as many as those.
Assembled assemble(const Ragged& first, const Ragged* second, const Template& form, Truncation truncation,
                   std::int64_t max_length);

// Fills `to` (rows x width) with the rows' values, then with `filler`. What a row has beyond `width` is left out.
void pad(std::span<const std::int32_t> values, std::span<const std::int64_t> offsets, std::int64_t width,
         std::int64_t filler, std::int64_t* to);

}  // namespace fastbert::wordpiece
