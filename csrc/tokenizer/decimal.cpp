#include "tokenizer/decimal.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

namespace fastbert::tokenizer {
namespace {

constexpr int kLargestPower = 308;
// No double has an exponent beyond it, and sums of two do not overflow.
constexpr int kLargestExponent = 1'000'000;

// The powers of ten, each the nearest double.
const std::array<double, kLargestPower + 1>& powers_of_ten() {
    static const auto powers = [] {
        std::array<double, kLargestPower + 1> result;
        for (int i = 0; i <= kLargestPower; ++i) {
            const std::string text = "1e" + std::to_string(i);
            std::from_chars(text.data(), text.data() + text.size(), result[static_cast<std::size_t>(i)]);
        }
        return result;
    }();
    return powers;
}

double scaled(std::uint64_t digits, int exponent) {
    auto value = static_cast<double>(digits);
    for (; exponent < -kLargestPower && value != 0; exponent += kLargestPower) value /= 1e308;
    if (value == 0) return 0;
    if (exponent > kLargestPower) return std::numeric_limits<double>::infinity();
    const double power = powers_of_ten()[static_cast<std::size_t>(std::abs(exponent))];
    return exponent >= 0 ? value * power : value / power;
}

}  // namespace

double read_decimal(std::string_view text) {
    constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
    const bool is_negative = text.starts_with('-');
    std::uint64_t digits = 0;
    int exponent = 0;
    bool in_fraction = false, is_full = false;
    std::size_t at = is_negative ? 1 : 0;
    for (; at < text.size() && text[at] != 'e' && text[at] != 'E'; ++at) {
        if (text[at] == '.') {
            in_fraction = true;
            continue;
        }
        const auto digit = static_cast<std::uint64_t>(text[at] - '0');
        is_full = is_full || digits > (kMost - digit) / 10;
        // Digits beyond 64 bits are dropped.
        if (!is_full) digits = digits * 10 + digit;
        if (is_full != in_fraction) exponent += is_full ? 1 : -1;
    }
    if (at < text.size()) {
        std::string_view power = text.substr(at + 1);
        const bool is_small = power.starts_with('-');
        if (is_small || power.starts_with('+')) power.remove_prefix(1);
        int value = kLargestExponent;
        if (std::from_chars(power.data(), power.data() + power.size(), value).ec != std::errc{}) value = kLargestExponent;
        value = std::min(value, kLargestExponent);
        exponent += is_small ? -value : value;
    }
    const double value = scaled(digits, exponent);
    return is_negative ? -value : value;
}

double written_decimal(double value) {
    const auto read_back = [](double written) {
        std::array<char, 32> text;
        const auto end = std::to_chars(text.data(), text.data() + text.size(), written).ptr;
        return read_decimal({text.data(), static_cast<std::size_t>(end - text.data())});
    };
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    for (const double candidate : {value, std::nextafter(value, kInfinity), std::nextafter(value, -kInfinity)}) {
        if (read_back(candidate) == value) return candidate;
    }
    return value;
}

}  // namespace fastbert::tokenizer
