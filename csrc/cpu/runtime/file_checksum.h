// The CRC-32C of a part of an open file.
#pragma once

#include <cstdint>

namespace fastbert {

// Read `size` bytes of a file descriptor from `offset` on and store their CRC-32C in `value`. Returns 0, or the error
// number of a read that failed, or -1 if the file ends before that.
int file_crc32c(int descriptor, std::uint64_t offset, std::uint64_t size, std::uint32_t& value);

}  // namespace fastbert
