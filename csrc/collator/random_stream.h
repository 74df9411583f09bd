// A stream of random numbers identified by its use: (seed, epoch, sample, purpose).
//
// Streams hold no shared state, so a sample's pairs, masks and dropout key are the same whichever worker draws them,
// in whichever order, before or after a restart. Each name is its own Philox counter: two names never share a number.
#pragma once
#include <array>
#include <cstdint>

#include "common/philox.h"

namespace fastbert {

// What a number is used for. The values are part of the meaning of a seed: append, never renumber.
enum class Purpose : uint32_t {
    plan = 0,
    shuffle = 1,
    masked_positions = 2,
    masked_tokens = 3,
    dropout = 4,
    split = 5,
    revisit = 6,  // the order of an epoch that repeats the samples of an earlier one
    mixture = 7   // the places of a source's samples in an epoch of several sources, and its seed
};

// The limits of what the counter can name.
inline constexpr uint64_t MAX_SAMPLES = uint64_t{1} << 48;
inline constexpr uint64_t MAX_EPOCHS = uint64_t{1} << 32;

// The random numbers that a data set draws; validation text must not repeat the masks and keys of training.
struct RandomDomain {
    uint64_t seed = 0;
    uint32_t epoch = 0;
    bool validation = false;
};

class RandomStream {
   public:
    RandomStream(const RandomDomain& domain, uint64_t sample, Purpose purpose)
        : key_{static_cast<uint32_t>(domain.seed), static_cast<uint32_t>(domain.seed >> 32)},
          counter_{0, domain.epoch, static_cast<uint32_t>(sample),
                   static_cast<uint32_t>(sample >> 32) | static_cast<uint32_t>(purpose) << 16 |
                       static_cast<uint32_t>(domain.validation) << 31} {}

    uint32_t word() {
        if (used_ == 4) {
            block_ = philox4x32(counter_, key_);
            ++counter_[0];
            used_ = 0;
        }
        return block_[used_++];
    }

    uint64_t word64() {
        const uint64_t low = word();
        return low | uint64_t{word()} << 32;
    }

    bool coin() { return word() & 1; }

    // True with the given probability, to within 2^-32; 0 is never and 1 is always.
    bool chance(double probability) { return word() < static_cast<uint64_t>(probability * 0x1p32); }

    // Uniform in [0, bound), bound > 0, without bias: Lemire's multiplication, which rejects the few words that would
    // make some results more likely ("Fast Random Integer Generation in an Interval", 2019).
    uint32_t below(uint32_t bound) {
        uint64_t product = uint64_t{word()} * bound;
        if (static_cast<uint32_t>(product) < bound) {
            const uint32_t threshold = -bound % bound;
            while (static_cast<uint32_t>(product) < threshold) product = uint64_t{word()} * bound;
        }
        return product >> 32;
    }

    uint64_t below64(uint64_t bound) {
        if (bound <= UINT32_MAX) return below(static_cast<uint32_t>(bound));
        const uint64_t threshold = -bound % bound;
        uint64_t draw = word64();
        while (draw < threshold) draw = word64();
        return draw % bound;
    }

   private:
    std::array<uint32_t, 2> key_;
    std::array<uint32_t, 4> counter_;
    std::array<uint32_t, 4> block_{};
    int used_ = 4;
};

}  // namespace fastbert
