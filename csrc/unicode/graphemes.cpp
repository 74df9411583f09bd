#include "unicode/properties.h"
#include "unicode/utf8.h"

namespace fastbert::unicode {
namespace {

using enum GraphemeClass;

bool joins(GraphemeClass grapheme) { return grapheme >= kSpacingMark; }

// The part of a cluster before a possible boundary. The rules are those of Unicode Standard Annex 29.
class Cluster {
public:
    explicit Cluster(GraphemeClass first) { add(first); }

    bool continues_with(GraphemeClass next) const {
        if (last_ == kControl || next == kControl) return false;
        if (joins(next) || last_ == kPrepended) return true;
        switch (next) {
            case kLeading:
            case kOpenSyllable:
            case kClosedSyllable: return last_ == kLeading;
            case kVowel: return last_ == kLeading || last_ == kVowel || last_ == kOpenSyllable;
            case kTrailing:
                return last_ == kVowel || last_ == kOpenSyllable || last_ == kTrailing || last_ == kClosedSyllable;
            case kPictographic: return last_ == kJoiner && joiner_follows_pictograph_;
            case kConsonant: return linked_;
            default: return false;
        }
    }

    void add(GraphemeClass next) {
        // A pictograph, extenders and a joiner before another pictograph.
        joiner_follows_pictograph_ = next == kJoiner && pictograph_;
        pictograph_ = next == kPictographic || (pictograph_ && joins(next) && next != kSpacingMark && next != kJoiner);
        // A consonant, then extenders with at least one linker among them, before another consonant.
        conjunct_ = next == kConsonant || (conjunct_ && next >= kConjunctExtender);
        linked_ = conjunct_ && (next == kLinker || (linked_ && next >= kConjunctExtender));
        last_ = next;
    }

private:
    GraphemeClass last_ = kOther;
    bool pictograph_ = false, joiner_follows_pictograph_ = false;
    bool conjunct_ = false, linked_ = false;
};

}  // namespace

std::size_t grapheme_size(const std::uint8_t* at, const std::uint8_t* end) {
    const auto* const start = at;
    // Between ASCII characters there is a boundary, except within a line break.
    if (*at < 0x80 && (at + 1 == end || at[1] < 0x80)) {
        return *at == '\r' && at + 1 < end && at[1] == '\n' ? 2 : 1;
    }
    Cluster cluster(grapheme_class_of(decode(at)));
    while (at < end) {
        const auto* next = at;
        const GraphemeClass grapheme = grapheme_class_of(decode(next));
        if (!cluster.continues_with(grapheme)) break;
        cluster.add(grapheme);
        at = next;
    }
    return static_cast<std::size_t>(at - start);
}

}  // namespace fastbert::unicode
