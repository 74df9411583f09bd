// AVX512_BF16: the vector registers in a signal's frame, and the three instructions, after Intel's manual.
#pragma once

#include <cpuid.h>
#include <ucontext.h>

#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "amx.h"
#include "decode.h"
#include "fail.h"

namespace emulator {

// The registers as XSAVE left them in the frame (standard format), where sigreturn takes them from.
class VectorState {
public:
    explicit VectorState(const ucontext_t& context)
        : area_(reinterpret_cast<std::uint8_t*>(context.uc_mcontext.fpregs)) {
        constexpr std::uint32_t kMagic = 0x46505853U;  // FP_XSTATE_MAGIC1
        constexpr std::uint64_t kNeeded = 0xe6;        // SSE, AVX, opmask, ZMM_Hi256, Hi16_ZMM
        std::uint32_t magic;
        std::uint64_t features;
        std::memcpy(&magic, area_ + 464, 4);
        std::memcpy(&features, area_ + 472, 8);
        if (magic != kMagic || (features & kNeeded) != kNeeded) fail("the signal's frame has no AVX-512 registers");
    }

    std::uint64_t mask(unsigned number) const {
        std::uint64_t value = 0;
        if (in_use(kMasks)) std::memcpy(&value, component(kMasks) + 8 * number, 8);
        return value;
    }

    // All 64 bytes of the register.
    void read(unsigned number, void* to) const {
        auto* bytes = static_cast<std::uint8_t*>(to);
        std::memset(bytes, 0, 64);
        if (number >= 16) {
            if (in_use(kUpper16)) std::memcpy(bytes, component(kUpper16) + 64 * (number - 16), 64);
            return;
        }
        if (in_use(kXmm)) std::memcpy(bytes, component(kXmm) + 16 * number, 16);
        if (in_use(kYmmHigh)) std::memcpy(bytes + 16, component(kYmmHigh) + 16 * number, 16);
        if (in_use(kZmmHigh)) std::memcpy(bytes + 32, component(kZmmHigh) + 32 * number, 32);
    }

    void write(unsigned number, const void* from) {
        const auto* bytes = static_cast<const std::uint8_t*>(from);
        if (number >= 16) {
            std::memcpy(writable(kUpper16) + 64 * (number - 16), bytes, 64);
            return;
        }
        std::memcpy(writable(kXmm) + 16 * number, bytes, 16);
        std::memcpy(writable(kYmmHigh) + 16 * number, bytes + 16, 16);
        std::memcpy(writable(kZmmHigh) + 32 * number, bytes + 32, 32);
    }

private:
    // Numbers of XSAVE's state components.
    enum Component : unsigned { kXmm = 1, kYmmHigh = 2, kMasks = 5, kZmmHigh = 6, kUpper16 = 7 };

    struct Place {
        unsigned offset = 0, size = 0;
    };

    static Place location(Component which) {
        static const struct Places {
            Place of[8];
            Places() {
                of[kXmm] = {160, 256};
                for (const Component each : {kYmmHigh, kMasks, kZmmHigh, kUpper16}) {
                    unsigned size, offset, ecx, edx;
                    __cpuid_count(0xd, each, size, offset, ecx, edx);
                    of[each] = {offset, size};
                }
            }
        } layout;
        return layout.of[which];
    }

    std::uint64_t components_in_use() const {
        std::uint64_t bits;
        std::memcpy(&bits, area_ + 512, 8);  // XSTATE_BV, the first field of the header
        return bits;
    }

    bool in_use(Component which) const { return (components_in_use() >> which & 1) != 0; }
    std::uint8_t* component(Component which) const { return area_ + location(which).offset; }

    // A component that was in its initial state is all zero, whatever the frame holds.
    std::uint8_t* writable(Component which) {
        if (!in_use(which)) {
            std::memset(component(which), 0, location(which).size);
            const std::uint64_t bits = components_in_use() | std::uint64_t{1} << which;
            std::memcpy(area_ + 512, &bits, 8);
        }
        return component(which);
    }

    std::uint8_t* area_;
};

// Round to nearest even; denormals become zero, NaNs quiet.
inline std::uint16_t to_bf16(std::uint32_t bits) {
    if ((bits & 0x7f800000U) == 0) return static_cast<std::uint16_t>(bits >> 16 & 0x8000U);
    if (is_nan(bits)) return static_cast<std::uint16_t>(bits >> 16 | 0x40U);
    return static_cast<std::uint16_t>((bits + 0x7fffU + (bits >> 16 & 1)) >> 16);
}

// The dwords of the last operand. Where the instruction suppresses faults, masked dwords of memory are not read.
inline void read_second(const Instruction& instruction, const VectorState& state, std::uint64_t elements,
                        std::uint32_t* to) {
    const unsigned count = instruction.vector_bytes / 4;
    if (!instruction.has_memory) return state.read(instruction.second, to);
    const auto* memory = reinterpret_cast<const std::uint8_t*>(instruction.address);
    if (instruction.broadcast) {
        std::uint32_t value = 0;
        if (elements != 0) std::memcpy(&value, memory, 4);
        for (unsigned i = 0; i < count; ++i) to[i] = value;
        return;
    }
    for (unsigned i = 0; i < count; ++i) {
        if ((elements >> i & 1) != 0) std::memcpy(to + i, memory + 4 * i, 4);
    }
}

__attribute__((noinline)) inline void execute_vector(const Instruction& instruction, VectorState state) {
    const unsigned dwords = instruction.vector_bytes / 4;
    const bool two = instruction.operation == Operation::kConvertTwo;
    const bool words = instruction.operation != Operation::kVectorDot;
    const unsigned elements = two ? 2 * dwords : dwords;  // of the destination
    const std::uint64_t all = (std::uint64_t{1} << elements) - 1;
    const std::uint64_t mask = instruction.mask_register == 0 ? all : state.mask(instruction.mask_register) & all;

    std::uint32_t first[kLanes] = {}, second[kLanes] = {}, old[kLanes], result[kLanes] = {};
    read_second(instruction, state, two ? all : mask, second);  // VCVTNE2PS2BF16 reads all of its memory operand
    state.read(instruction.first, first);
    state.read(instruction.destination, old);

    for (unsigned i = 0; i < elements; ++i) {
        if ((mask >> i & 1) == 0) {
            if (instruction.zeroing) continue;
            const unsigned bytes = words ? 2 : 4;
            std::memcpy(reinterpret_cast<char*>(result) + bytes * i, reinterpret_cast<char*>(old) + bytes * i, bytes);
        } else if (words) {
            const std::uint16_t value = to_bf16(i < dwords ? second[i] : first[i - dwords]);
            std::memcpy(reinterpret_cast<char*>(result) + 2 * i, &value, 2);
        } else {
            // The upper halves first, then the lower ones, each a fused multiply and add.
            const std::uint32_t sum = fma_bits(first[i] & 0xffff0000U, second[i] & 0xffff0000U, old[i]);
            result[i] = fma_bits(first[i] << 16, second[i] << 16, sum);
        }
    }
    state.write(instruction.destination, result);  // what lies above the vector's length becomes zero
}

}  // namespace emulator
