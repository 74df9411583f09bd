// How much memory the objects of a parsed JSON text will need: found before it is parsed.
#pragma once
#include <cstddef>
#include <string_view>

namespace fastbert::json {

struct Structure {
    std::size_t containers = 0;  // arrays and objects
    std::size_t commas = 0;      // between their values
};

// Count what is outside of strings; the text need not be valid.
Structure structure_of(std::string_view text);

}  // namespace fastbert::json
