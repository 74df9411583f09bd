#include "json/numbers.h"

#include <algorithm>
#include <charconv>

namespace fastbert::json {
namespace {

constexpr std::size_t kLongest = 32;  // characters of a number and what follows it

// Write a number from `out` on, and return its end.
char* write(char* out, float value) {
    char* end = std::to_chars(out, out + kLongest, value).ptr;
    if (std::none_of(out, end, [](char c) { return c == '.' || c == 'e'; })) {
        *end++ = '.';
        *end++ = '0';
    }
    return end;
}

}  // namespace

void append_row(std::string& text, const float* values, std::size_t count) {
    const std::size_t begin = text.size();
    text.resize(begin + 2 + count * kLongest);
    char* const start = text.data() + begin;
    char* out = start;
    *out++ = '[';
    for (std::size_t i = 0; i < count; ++i) {
        if (i != 0) *out++ = ',';
        out = write(out, values[i]);
    }
    *out++ = ']';
    text.resize(begin + static_cast<std::size_t>(out - start));
}

std::string rows(const float* values, std::size_t count, std::size_t width) {
    std::string text = "[";
    text.reserve(2 + count * (3 + width * 13));
    for (std::size_t row = 0; row < count; ++row) {
        if (row != 0) text += ',';
        append_row(text, values + row * width, width);
    }
    text += ']';
    return text;
}

std::string entries(const std::int32_t* indices, const float* values, std::size_t count) {
    std::string text = "[";
    char number[kLongest];
    for (std::size_t i = 0; i < count; ++i) {
        text += i == 0 ? "{\"index\":" : ",{\"index\":";
        text.append(number, std::to_chars(number, number + kLongest, indices[i]).ptr);
        text += ",\"value\":";
        text.append(number, write(number, values[i]));
        text += '}';
    }
    text += ']';
    return text;
}

}  // namespace fastbert::json
