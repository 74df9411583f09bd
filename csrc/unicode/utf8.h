// Decoding and encoding of UTF-8 that is already known to be valid (Python's strings are validated on access).
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace fastbert::unicode {

inline constexpr std::size_t kMaxUtf8Bytes = 4;

inline const std::uint8_t* bytes_of(std::string_view text) { return reinterpret_cast<const std::uint8_t*>(text.data()); }
inline const char* chars(const std::uint8_t* bytes) { return reinterpret_cast<const char*>(bytes); }

// The code points of a text.
inline std::size_t count_characters(std::string_view text) {
    return static_cast<std::size_t>(
        std::count_if(text.begin(), text.end(), [](char byte) { return (byte & 0xC0) != 0x80; }));
}

// Whether bytes are UTF-8: no overlong form, no surrogate, nothing beyond U+10FFFF, nothing cut off.
inline bool is_valid_utf8(std::string_view text) {
    const std::uint8_t* at = bytes_of(text);
    const std::uint8_t* const end = at + text.size();
    while (at < end) {
        const std::uint8_t lead = *at++;
        if (lead < 0x80) continue;
        const int more = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
        if (lead < 0xC2 || lead > 0xF4 || end - at < more) return false;
        // The first byte that follows is limited where others would be overlong, surrogates or too large.
        const std::uint8_t least = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
        const std::uint8_t most = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
        if (*at < least || *at > most) return false;
        for (int i = 1; i < more; ++i) {
            if ((at[i] & 0xC0) != 0x80) return false;
        }
        at += more;
    }
    return true;
}

// Read the code point at `at` and advance `at` past it.
inline char32_t decode(const std::uint8_t*& at) {
    const std::uint8_t lead = *at++;
    if (lead < 0x80) return lead;
    const auto next = [&at] { return static_cast<char32_t>(*at++ & 0x3F); };
    if (lead < 0xE0) {
        const char32_t a = next();
        return static_cast<char32_t>(lead & 0x1F) << 6 | a;
    }
    const char32_t a = next(), b = next();
    if (lead < 0xF0) return static_cast<char32_t>(lead & 0x0F) << 12 | a << 6 | b;
    const char32_t c = next();
    return static_cast<char32_t>(lead & 0x07) << 18 | a << 12 | b << 6 | c;
}

// Write `point` at `to` and return the number of bytes.
inline std::size_t encode(char32_t point, std::uint8_t* to) {
    const auto tail = [point](unsigned shift) { return static_cast<std::uint8_t>(0x80 | ((point >> shift) & 0x3F)); };
    if (point < 0x80) {
        to[0] = static_cast<std::uint8_t>(point);
        return 1;
    }
    if (point < 0x800) {
        to[0] = static_cast<std::uint8_t>(0xC0 | point >> 6);
        to[1] = tail(0);
        return 2;
    }
    if (point < 0x10000) {
        to[0] = static_cast<std::uint8_t>(0xE0 | point >> 12);
        to[1] = tail(6);
        to[2] = tail(0);
        return 3;
    }
    to[0] = static_cast<std::uint8_t>(0xF0 | point >> 18);
    to[1] = tail(12);
    to[2] = tail(6);
    to[3] = tail(0);
    return 4;
}

}  // namespace fastbert::unicode
