// Decodes the instructions of AMX-TILE, AMX-BF16, AMX-INT8 and AVX512_BF16 out of machine code; all others, and those
// with 32-bit addresses, are "none".
#pragma once

#include <asm/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdint>

namespace emulator {

enum class Operation {
    kNone,
    kLoadConfig,
    kStoreConfig,
    kRelease,
    kZero,
    kLoad,  // both with and without the hint to bypass the nearest cache
    kStore,
    kDotBf16,
    kDotSignedSigned,
    kDotSignedUnsigned,
    kDotUnsignedSigned,
    kDotUnsignedUnsigned,
    kConvertTwo,
    kConvert,
    kVectorDot,
};

struct Instruction {
    Operation operation = Operation::kNone;
    unsigned length = 0;         // bytes
    unsigned destination = 0;    // ModRM.reg
    unsigned first = 0;          // EVEX: VEX.vvvv; AMX: ModRM.rm
    unsigned second = 0;         // EVEX: ModRM.rm where that is a register; AMX: VEX.vvvv
    bool has_memory = false;
    std::uint64_t address = 0;   // of the memory operand; for tile loads and stores, of row 0
    std::uint64_t stride = 0;    // of tile loads and stores: index << scale
    unsigned vector_bytes = 0;   // EVEX: 16, 32 or 64
    bool broadcast = false;      // EVEX: one dword of memory stands for all
    bool zeroing = false;        // EVEX: masked elements become zero
    unsigned mask_register = 0;  // EVEX: 0 means no mask
};

// Bytes are read one by one as the decoding demands them: what lies behind the end of an instruction may be unmapped.
class Decoder {
public:
    explicit Decoder(const ucontext_t& context)
        : registers_(context.uc_mcontext.gregs), code_(reinterpret_cast<const std::uint8_t*>(registers_[REG_RIP])) {}

    Instruction decode() {
        std::uint8_t byte = next();
        for (;; byte = next()) {
            if (byte == 0x64 || byte == 0x65) {
                segment_ = byte;
            } else if (byte != 0x2e && byte != 0x36 && byte != 0x3e && byte != 0x26) {
                break;
            }
            if (position_ > 14) return {};
        }
        // The two-byte VEX prefix (C5) reaches only the opcode map 0F, which has none of these instructions.
        if (byte == 0xc4) return decode_vex();
        if (byte == 0x62) return decode_evex();
        return {};
    }

private:
    enum Prefix : unsigned { kNoPrefix, k66, kF3, kF2 };

    std::uint8_t next() { return code_[position_++]; }

    Instruction decode_vex() {
        const std::uint8_t high = next();
        if ((high & 0x1f) != 2) return {};  // the map 0F38
        const std::uint8_t low = next();
        if ((low & 0x84) != 0) return {};  // W0 and 128 bits
        const std::uint8_t opcode = next();
        if (opcode != 0x49 && opcode != 0x4b && opcode != 0x5c && opcode != 0x5e) return {};
        read_modrm();
        extend_reg_ = (~high >> 4) & 8;
        extend_index_ = (~high >> 3) & 8;
        extend_base_ = (~high >> 2) & 8;
        const unsigned vvvv = (~low >> 3) & 15;

        Instruction result;
        result.operation = tile_operation(opcode, static_cast<Prefix>(low & 3), vvvv);
        if (result.operation == Operation::kNone) return {};
        result.destination = reg_ | extend_reg_;
        result.first = rm_ | extend_base_;
        result.second = vvvv;
        result.has_memory = mod_ != 3;
        if (result.has_memory) read_address(&result, 1);
        result.length = position_;
        return result;
    }

    Operation tile_operation(std::uint8_t opcode, Prefix prefix, unsigned vvvv) const {
        const bool memory = mod_ != 3;
        if ((opcode == 0x49 || opcode == 0x4b) && vvvv != 0) return Operation::kNone;
        if (opcode == 0x49) {
            if (memory) {
                if (reg_ != 0 || extend_reg_ != 0) return Operation::kNone;
                if (prefix == kNoPrefix) return Operation::kLoadConfig;
                return prefix == k66 ? Operation::kStoreConfig : Operation::kNone;
            }
            if (rm_ != 0) return Operation::kNone;
            if (prefix == kF2) return Operation::kZero;
            return prefix == kNoPrefix && reg_ == 0 ? Operation::kRelease : Operation::kNone;
        }
        if (opcode == 0x4b) {
            if (!memory || rm_ != 4) return Operation::kNone;  // an SIB byte is required: its index is the stride
            if (prefix == kF2 || prefix == k66) return Operation::kLoad;
            return prefix == kF3 ? Operation::kStore : Operation::kNone;
        }
        if (memory) return Operation::kNone;
        if (opcode == 0x5c) return prefix == kF3 ? Operation::kDotBf16 : Operation::kNone;
        switch (prefix) {
            case kF2: return Operation::kDotSignedSigned;
            case kF3: return Operation::kDotSignedUnsigned;
            case k66: return Operation::kDotUnsignedSigned;
            default: return Operation::kDotUnsignedUnsigned;
        }
    }

    Instruction decode_evex() {
        const std::uint8_t high = next();
        if ((high & 0x0f) != 2) return {};  // the map 0F38
        const std::uint8_t middle = next();
        if ((middle & 0x84) != 4) return {};  // W0
        const std::uint8_t low = next();
        const std::uint8_t opcode = next();
        const unsigned prefix = middle & 3;
        const unsigned vvvv = ((~middle >> 3) & 15) | ((~low << 1) & 16);

        Instruction result;
        if (opcode == 0x72 && prefix == kF2) result.operation = Operation::kConvertTwo;
        if (opcode == 0x72 && prefix == kF3 && vvvv == 0) result.operation = Operation::kConvert;
        if (opcode == 0x52 && prefix == kF3) result.operation = Operation::kVectorDot;
        const unsigned length = (low >> 5) & 3;
        if (result.operation == Operation::kNone || length == 3) return {};

        read_modrm();
        extend_reg_ = ((~high >> 4) & 8) | (~high & 16);
        extend_index_ = (~high >> 3) & 8;
        extend_base_ = (~high >> 2) & 8;
        result.vector_bytes = 16U << length;
        result.broadcast = (low & 0x10) != 0;
        result.zeroing = (low & 0x80) != 0;
        result.mask_register = low & 7;
        result.destination = reg_ | extend_reg_;
        result.first = vvvv;
        result.second = rm_ | extend_base_ | (extend_index_ << 1);  // of registers X is the highest bit
        result.has_memory = mod_ != 3;
        if (result.broadcast && !result.has_memory) return {};
        if (result.zeroing && result.mask_register == 0) return {};
        if (result.has_memory) read_address(&result, result.broadcast ? 4 : result.vector_bytes);
        result.length = position_;
        return result;
    }

    void read_modrm() {
        const std::uint8_t modrm = next();
        mod_ = modrm >> 6;
        reg_ = (modrm >> 3) & 7;
        rm_ = modrm & 7;
    }

    // EVEX counts a displacement of one byte in units of the memory operand.
    void read_address(Instruction* result, unsigned unit) {
        std::uint64_t address = 0;
        bool relative = false;
        if (rm_ == 4) {
            const std::uint8_t sib = next();
            const unsigned index = ((sib >> 3) & 7) | extend_index_;
            const unsigned base = sib & 7;
            if (index != 4) result->stride = general(index) << (sib >> 6);
            if (base == 5 && mod_ == 0) {
                address = displacement(4);
            } else {
                address = general(base | extend_base_);
            }
        } else if (rm_ == 5 && mod_ == 0) {
            address = displacement(4);
            relative = true;
        } else {
            address = general(rm_ | extend_base_);
        }
        if (mod_ == 1) address += displacement(1) * unit;
        if (mod_ == 2) address += displacement(4);
        if (relative) address += reinterpret_cast<std::uint64_t>(code_) + position_;
        const bool tile = result->operation == Operation::kLoad || result->operation == Operation::kStore;
        if (!tile) address += result->stride;
        result->address = address + segment_base();
    }

    std::uint64_t displacement(unsigned bytes) {
        std::uint32_t value = 0;
        for (unsigned i = 0; i < bytes; ++i) value |= static_cast<std::uint32_t>(next()) << (8 * i);
        const std::int64_t extended = bytes == 1 ? static_cast<std::int8_t>(value) : static_cast<std::int32_t>(value);
        return static_cast<std::uint64_t>(extended);
    }

    std::uint64_t general(unsigned number) const {
        static constexpr int kOrder[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                           REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
        return static_cast<std::uint64_t>(registers_[kOrder[number]]);
    }

    std::uint64_t segment_base() const {
        std::uint64_t base = 0;
        if (segment_ != 0) syscall(SYS_arch_prctl, segment_ == 0x64 ? ARCH_GET_FS : ARCH_GET_GS, &base);
        return base;
    }

    const greg_t* registers_;
    const std::uint8_t* code_;
    unsigned position_ = 0;
    unsigned mod_ = 0, reg_ = 0, rm_ = 0;
    unsigned extend_reg_ = 0, extend_index_ = 0, extend_base_ = 0;
    std::uint8_t segment_ = 0;
};

}  // namespace emulator
