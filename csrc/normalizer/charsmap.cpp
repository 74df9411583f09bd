#include "normalizer/charsmap.h"

#include <cstring>
#include <stdexcept>

#include "unicode/utf8.h"

namespace fastbert::normalizer {
namespace {

// Longer than any key.
constexpr std::size_t kLongestKey = 256;

}  // namespace

// Walks through the trie. The children of a node are those units whose place and label lead back to it, so that they are
// found without trying every byte.
class Charsmap::KeyFinder {
public:
    explicit KeyFinder(Charsmap& map) : map_(map), next_(map.units_.size(), kNone), first_(map.units_.size(), kNone) {
        for (auto unit = static_cast<std::uint32_t>(next_.size()); unit-- > 0;) {
            const std::uint32_t byte = label(map.units_[unit]);
            const std::size_t parent = unit ^ byte;
            if (byte == 0 || byte > 0xFF || parent >= first_.size()) continue;
            next_[unit] = first_[parent];
            first_[parent] = unit;
        }
    }

    void visit(std::size_t node) {
        // Keys with the same end may share nodes, but not without limit.
        constexpr std::size_t kMostShared = 64;
        if (key_.size() > kLongestKey || ++steps_ > kMostShared * map_.units_.size()) {
            throw std::invalid_argument("its trie has circles");
        }
        if (node >= first_.size()) return;
        for (std::uint32_t child = first_[node]; child != kNone; child = next_[child]) {
            const std::uint32_t unit = map_.units_[child];
            const std::size_t below = child ^ offset(unit);
            key_.push_back(static_cast<char>(label(unit)));
            if (has_leaf(unit)) {
                if (below >= map_.units_.size()) throw std::invalid_argument("its trie is cut off");
                if ((map_.units_[below] & ~(1U << 31)) >= map_.replacements_.size()) {
                    throw std::invalid_argument("a replacement lies behind its end");
                }
                map_.keys_.push_back(key_);
            }
            visit(below);
            key_.pop_back();
        }
    }

private:
    static constexpr std::uint32_t kNone = ~0U;

    Charsmap& map_;
    std::vector<std::uint32_t> next_, first_;
    std::string key_;
    std::size_t steps_ = 0;
};

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
    KeyFinder(*this).visit(offset(units_[0]));
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

}  // namespace fastbert::normalizer
