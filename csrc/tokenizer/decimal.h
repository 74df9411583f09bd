// Decimal numbers as the reference reads them. Its parser rounds twice, once for the digits and once for the power of ten,
// so that a number may differ from the nearest double in its last bit: a quarter of the scores of real vocabularies do,
// and where sums of scores are equal or not depends on it.
#pragma once
#include <string_view>

namespace fastbert::tokenizer {

// Read a number of JSON with a fraction or an exponent. Infinity if it is too large.
double read_decimal(std::string_view text);

// Return a double whose shortest decimal form is read as `value`, or `value` itself if there is none beside it.
double written_decimal(double value);

}  // namespace fastbert::tokenizer
