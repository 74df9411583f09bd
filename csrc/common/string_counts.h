// How often each string was added.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>

namespace fastbert {

class StringCounts {
public:
    void add(std::string_view string) {
        if (const auto entry = counts_.find(string); entry != counts_.end()) {
            ++entry->second;
        } else {
            counts_.emplace(string, 1);
        }
    }

    const auto& all() const { return counts_; }

private:
    // Heterogeneous lookup, which does not construct a string.
    struct Hash : std::hash<std::string_view> {
        using is_transparent = void;
    };

    std::unordered_map<std::string, std::int64_t, Hash, std::equal_to<>> counts_;
};

}  // namespace fastbert
