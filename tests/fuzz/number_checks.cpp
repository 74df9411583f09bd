// Numbers and checksums against the standard library and against their definitions.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "checks.h"
#include "cpu/runtime/cpu_capability.h"
#include "cpu/runtime/crc32c.h"
#include "draws.h"
#include "json/numbers.h"
#include "json/structure.h"
#include "tokenizer/decimal.h"

namespace fastbert::checks {
namespace {

// Structure, with the state of each character looked up in the text before it.
json::Structure plain_structure(std::string_view text) {
    json::Structure structure;
    bool in_string = false, escaped = false;
    for (const char character : text) {
        if (escaped) {
            escaped = false;
        } else if (in_string && character == '\\') {
            escaped = true;
        } else if (character == '"') {
            in_string = !in_string;
        } else if (!in_string) {
            structure.containers += character == '[' || character == '{';
            structure.commas += character == ',';
        }
    }
    return structure;
}

// Reads a number at `at`, which must be written as a float, and what follows it.
float read_number(const std::string& text, std::size_t& at, std::string_view input) {
    char* end = nullptr;
    const float value = std::strtof(text.c_str() + at, &end);
    const std::string_view number(text.c_str() + at, static_cast<std::size_t>(end - text.c_str()) - at);
    if (number.find_first_of(".e") == std::string_view::npos) fail("numbers without a fraction", input, 0, 0);
    at = static_cast<std::size_t>(end - text.c_str()) + 1;
    return value;
}

bool same_bits(float a, float b) { return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b); }

void check_rows_of_numbers(Draws& draws, std::string_view input) {
    const std::size_t width = draws.below(9);
    std::vector<float> values;
    while (!draws.empty()) {
        const auto value = draws.integer<float>();
        if (std::isfinite(value)) values.push_back(value);
    }
    std::string text = "before";
    json::append_row(text, values.data(), values.size());
    std::size_t at = std::strlen("before[");
    for (const float value : values) {
        if (!same_bits(read_number(text, at, input), value)) fail("numbers", input, 0, 0);
    }
    if (text.back() != ']' || (!values.empty() && at != text.size())) fail("ends of rows", input, 0, 0);
    const std::size_t count = width == 0 ? 0 : values.size() / width;
    std::string expected = "[";
    for (std::size_t row = 0; row < count; ++row) {
        if (row > 0) expected += ',';
        json::append_row(expected, values.data() + row * width, width);
    }
    if (json::rows(values.data(), count, width) != expected + "]") fail("rows", input, 0, 0);
    std::vector<std::int32_t> indices;
    for (const float value : values) indices.push_back(std::bit_cast<std::int32_t>(value));
    const std::string entries = json::entries(indices.data(), values.data(), values.size());
    at = 1;
    for (std::size_t i = 0; i < values.size(); ++i) {
        at += std::strlen("{\"index\":");
        char* end = nullptr;
        if (std::strtol(entries.c_str() + at, &end, 10) != indices[i]) fail("indices", input, 0, i);
        at = static_cast<std::size_t>(end - entries.c_str()) + std::strlen(",\"value\":");
        if (!same_bits(read_number(entries, at, input), values[i])) fail("values", input, 0, i);
        ++at;
    }
}

std::uint32_t plain_crc32c(std::string_view data, std::uint32_t value) {
    value = ~value;
    for (const char byte : data) {
        value ^= static_cast<std::uint8_t>(byte);
        for (int bit = 0; bit < 8; ++bit) value = value & 1 ? (value >> 1) ^ 0x82F63B78 : value >> 1;
    }
    return ~value;
}

// A number by the grammar of JSON with a fraction or an exponent.
std::string number_of(Draws& draws) {
    const auto digits = [&](std::size_t most) {
        std::string text;
        for (std::size_t count = 1 + draws.below(most); count > 0; --count) text += static_cast<char>('0' + draws.below(10));
        return text;
    };
    std::string text = draws.coin() ? "-" : "";
    std::string whole = digits(draws.coin() ? 4 : 30);
    while (whole.size() > 1 && whole[0] == '0') whole.erase(0, 1);
    text += whole;
    const bool has_exponent = draws.coin();
    if (!has_exponent || draws.coin()) text += '.' + digits(draws.coin() ? 4 : 40);
    if (has_exponent) {
        text += draws.coin() ? "e" : "E";
        text += std::string(draws.coin() ? "" : draws.coin() ? "+" : "-") + digits(draws.coin() ? 2 : 12);
    }
    return text;
}

}  // namespace

void check_json(std::string_view input) {
    const json::Structure structure = json::structure_of(input), expected = plain_structure(input);
    if (structure.containers != expected.containers || structure.commas != expected.commas) fail("structure", input, 0, 0);
    Draws draws(input);
    check_rows_of_numbers(draws, input);
}

void check_decimal(std::string_view input) {
    tokenizer::read_decimal(input);  // whatever it is
    Draws draws(input);
    const auto bits = draws.integer<double>();
    if (std::isfinite(bits)) {
        const double written = tokenizer::written_decimal(bits);
        char text[32];
        // The shortest form that is read back: 17 digits are enough.
        int size = 0;
        for (int precision = 1; precision <= 17; ++precision) {
            size = std::snprintf(text, sizeof text, "%.*e", precision - 1, written);
            if (std::strtod(text, nullptr) == written) break;
        }
        const double read = tokenizer::read_decimal({text, static_cast<std::size_t>(size)});
        if (written != bits && read != bits) fail("written decimals", input, 0, 0);
    }
    const std::string number = number_of(draws);
    const double read = tokenizer::read_decimal(number), nearest = std::strtod(number.c_str(), nullptr);
    if (std::signbit(read) != std::signbit(nearest)) fail("signs", number, 0, 0);
    if (std::isinf(read) && std::abs(nearest) > 1e300) return;
    // Two roundings; where the result, or what it is divided from, has fewer bits than a double, more.
    const double error = std::abs(read - nearest);
    if (!(error <= std::abs(nearest) * 1e-15 || error < 1e-290)) fail("decimals", number, 0, 0);
}

void check_crc32c(std::string_view input) {
    Draws draws(input);
    const auto before = draws.integer<std::uint32_t>();
    const std::size_t cut = draws.below(65'536), repeats = draws.below(64);
    std::string data(draws.rest());
    // Long enough for the three streams, too.
    if (const std::string part = data; !part.empty()) {
        for (std::size_t i = 0; i < repeats && data.size() < 8'000; ++i) data += part;
    }
    const auto crc = [](std::string_view text, std::uint32_t value) {
        return crc32c(reinterpret_cast<const std::byte*>(text.data()), text.size(), value);
    };
    const std::uint32_t expected = plain_crc32c(data, before);
    const std::string_view first = std::string_view(data).substr(0, cut % (data.size() + 1));
    const std::string_view second = std::string_view(data).substr(first.size());
    for (const char* capability : {"portable", ""}) {
        force_capability(capability);
        if (crc(data, before) != expected) fail("checksums", data, 0, 0);
        if (crc(second, crc(first, before)) != expected) fail("continued checksums", data, 0, 0);
        if (crc32c_combine(crc(first, before), crc(second, 0), second.size()) != expected) fail("combined checksums", data, 0, 0);
    }
}

}  // namespace fastbert::checks
