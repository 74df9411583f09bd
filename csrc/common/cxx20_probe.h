// A program that needs the C++20 which the core uses: setup.py and bootstrap.py let a compiler check its syntax.
#include <bit>
#include <concepts>
#include <span>

template <std::integral T>
constexpr int width(std::span<const T> values) {
    return std::bit_width(values.size());
}

int main() { return width(std::span<const int>{}); }
