#include "normalizer/charsmap.h"

#include <cstring>
#include <stdexcept>

#include "unicode/utf8.h"

namespace fastbert::normalizer {
namespace {

// Longer than any key.
constexpr std::size_t kLongestKey = 256;

}  // namespace

Charsmap::Charsmap(std::string_view data) {
    std::uint32_t size = 0;
    if (data.size() < sizeof size) throw std::invalid_argument("it has fewer than 4 bytes");
    std::memcpy(&size, data.data(), sizeof size);
    data.remove_prefix(sizeof size);
    if (size > data.size() || size % sizeof(std::uint32_t) != 0 || size == 0) {
        throw std::invalid_argument("its trie has " + std::to_string(size) + " bytes, but only " +
                                    std::to_string(data.size()) + " follow");
    }
    units_.resize(size / sizeof(std::uint32_t));
    std::memcpy(units_.data(), data.data(), size);
    replacements_ = data.substr(size);
    if (!unicode::is_valid_utf8(replacements_)) throw std::invalid_argument("its replacements are not UTF-8");
    if (!replacements_.empty() && replacements_.back() != '\0') {
        throw std::invalid_argument("its last replacement has no end");
    }
    std::string key;
    std::size_t steps = 0;
    visit(offset(units_[0]), key, steps, [this](std::string_view, std::size_t value) {
        if (value >= replacements_.size()) throw std::invalid_argument("a replacement lies behind its end");
    });
}

std::optional<std::string_view> Charsmap::find(std::string_view text) const {
    std::size_t node = offset(units_[0]);
    for (const char byte : text) {
        if (byte == 0) break;
        node ^= static_cast<std::uint8_t>(byte);
        if (node >= units_.size() || label(units_[node]) != static_cast<std::uint8_t>(byte)) break;
        const std::uint32_t unit = units_[node];
        node ^= offset(unit);
        if (has_leaf(unit)) {
            // Checked by the constructor, which has seen every key.
            const std::size_t value = units_[node] & ~(1U << 31);
            return std::string_view(replacements_.c_str() + value);
        }
    }
    return std::nullopt;
}

void Charsmap::for_each_key(const std::function<void(std::string_view)>& key) const {
    std::string path;
    std::size_t steps = 0;
    visit(offset(units_[0]), path, steps, [&](std::string_view bytes, std::size_t) { key(bytes); });
}

void Charsmap::visit(std::size_t node, std::string& key, std::size_t& steps, const Found& found) const {
    // Keys with the same end may share its nodes, but not without limit.
    constexpr std::size_t kMostShared = 64;
    if (key.size() > kLongestKey || ++steps > kMostShared * units_.size()) {
        throw std::invalid_argument("its trie has circles");
    }
    for (unsigned byte = 1; byte < 256; ++byte) {
        const std::size_t child = node ^ byte;
        if (child >= units_.size() || label(units_[child]) != byte) continue;
        const std::uint32_t unit = units_[child];
        const std::size_t below = child ^ offset(unit);
        key.push_back(static_cast<char>(byte));
        if (has_leaf(unit)) {
            if (below >= units_.size()) throw std::invalid_argument("its trie is cut off");
            found(key, units_[below] & ~(1U << 31));
        }
        visit(below, key, steps, found);
        key.pop_back();
    }
}

}  // namespace fastbert::normalizer
