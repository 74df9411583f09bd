// CRC-32C (Castagnoli), the checksum of TensorFlow's files and of a model folder's manifest.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastbert {

// Return the CRC-32C of `size` bytes, continuing from `value`, the CRC-32C of the bytes before them (0 at the
// beginning). Uses the processor's CRC instruction if available; every path returns the same bits.
std::uint32_t crc32c(const std::byte* data, std::size_t size, std::uint32_t value);

// Return the CRC-32C of two concatenated buffers from the CRC-32C of each and the second one's size.
std::uint32_t crc32c_combine(std::uint32_t first, std::uint32_t second, std::uint64_t second_size);

}  // namespace fastbert
