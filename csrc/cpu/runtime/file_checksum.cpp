#include "cpu/runtime/file_checksum.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <memory>

#include "cpu/runtime/crc32c.h"

namespace fastbert {
namespace {

constexpr std::size_t kChunk = 1 << 18;  // what is read at once stays in a core's cache until it is summed

}  // namespace

int file_crc32c(int descriptor, std::uint64_t offset, std::uint64_t size, std::uint32_t& value) {
    const auto memory = std::make_unique_for_overwrite<std::byte[]>(std::min<std::uint64_t>(size, kChunk));
    value = 0;
    while (size != 0) {
        const ssize_t count =
            pread(descriptor, memory.get(), std::min<std::uint64_t>(size, kChunk), static_cast<off_t>(offset));
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) return errno;
        if (count == 0) return -1;
        const auto bytes = static_cast<std::size_t>(count);
        value = crc32c(memory.get(), bytes, value);
        offset += bytes;
        size -= bytes;
    }
    return 0;
}

}  // namespace fastbert
