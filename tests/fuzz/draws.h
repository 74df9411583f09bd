// The bytes of an input, read as the choices that a check asks for: zeros behind their end.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace fastbert::checks {

class Draws {
public:
    explicit Draws(std::string_view input) : rest_(input) {}

    bool empty() const { return rest_.empty(); }
    std::uint8_t byte() {
        if (rest_.empty()) return 0;
        const auto value = static_cast<std::uint8_t>(rest_[0]);
        rest_.remove_prefix(1);
        return value;
    }
    bool coin() { return (byte() & 1) != 0; }

    // An integer of `sizeof(Integer)` bytes.
    template <class Integer>
    Integer integer() {
        Integer value{};
        const std::string_view bytes = take(sizeof value);
        std::memcpy(&value, bytes.data(), bytes.size());
        return value;
    }

    // A number below `bound`, of at most 65,536.
    std::size_t below(std::size_t bound) {
        const std::size_t value = bound > 256 ? integer<std::uint16_t>() : byte();
        return bound == 0 ? 0 : value % bound;
    }

    std::string_view take(std::size_t size) {
        const std::string_view part = rest_.substr(0, size);
        rest_.remove_prefix(part.size());
        return part;
    }
    std::string_view rest() { return take(rest_.size()); }

private:
    std::string_view rest_;
};

}  // namespace fastbert::checks
