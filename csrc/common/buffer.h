// A growing array for results of unknown size: no element is initialised, large ones sit on huge pages where the system
// has them, and the memory can be handed on.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <type_traits>
#include <utility>
#ifdef __linux__
#include <sys/mman.h>
#endif

namespace fastbert {

inline constexpr std::size_t kHugePage = std::size_t{1} << 21;

// Request huge pages for a large block. Without them, first touching a page costs about as much as filling it.
inline void advise_huge_pages([[maybe_unused]] void* data, [[maybe_unused]] std::size_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    const std::size_t begin = (reinterpret_cast<std::size_t>(data) + kHugePage - 1) & ~(kHugePage - 1);
    const std::size_t end = (reinterpret_cast<std::size_t>(data) + bytes) & ~(kHugePage - 1);
    if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

// Zero-initialised values. Large arrays are fresh pages of the system, so values that are never written cost nothing.
template <class T>
class Zeros {
public:
    explicit Zeros(std::size_t size) : bytes_(size * sizeof(T)) {
#ifdef __linux__
        if (bytes_ >= kLarge) {
            mapped_ = bytes_ + kHugePage;
            memory_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (memory_ == MAP_FAILED) throw std::bad_alloc();
            const auto address = reinterpret_cast<std::size_t>(memory_);
            data_ = reinterpret_cast<T*>((address + kHugePage - 1) & ~(kHugePage - 1));
            advise_huge_pages(data_, bytes_);
            return;
        }
#endif
        memory_ = std::calloc(std::max<std::size_t>(size, 1), sizeof(T));
        if (memory_ == nullptr) throw std::bad_alloc();
        data_ = static_cast<T*>(memory_);
    }
    Zeros(const Zeros&) = delete;
    Zeros& operator=(const Zeros&) = delete;
    ~Zeros() {
#ifdef __linux__
        if (mapped_ != 0) {
            munmap(memory_, mapped_);
            return;
        }
#endif
        std::free(memory_);
    }
    T* data() { return data_; }

private:
    static constexpr std::size_t kLarge = std::size_t{1} << 22;

    std::size_t bytes_, mapped_ = 0;
    void* memory_ = nullptr;
    T* data_ = nullptr;
};

template <class T>
class Buffer {
    static_assert(std::is_trivially_copyable_v<T>);

public:
    Buffer() = default;
    explicit Buffer(std::size_t size) { resize(size); }
    Buffer(Buffer&& other) noexcept { swap(other); }
    Buffer& operator=(Buffer&& other) noexcept {
        swap(other);
        return *this;
    }

    T* data() { return data_.get(); }
    const T* data() const { return data_.get(); }
    std::size_t size() const { return size_; }
    bool empty() const { return size_ == 0; }
    T* begin() { return data(); }
    T* end() { return data() + size_; }
    const T* begin() const { return data(); }
    const T* end() const { return data() + size_; }
    T& operator[](std::size_t i) { return data()[i]; }
    const T& operator[](std::size_t i) const { return data()[i]; }
    T& back() { return data()[size_ - 1]; }
    std::span<const T> span() const { return {data(), size_}; }

    void reserve(std::size_t capacity) {
        if (capacity > capacity_) reallocate(std::max(capacity, capacity_ * 2));
    }
    // New elements are not initialised.
    void resize(std::size_t size) {
        reserve(size);
        size_ = size;
    }
    void clear() { size_ = 0; }
    void push_back(T value) {
        if (size_ == capacity_) reserve(size_ + 1);
        data()[size_++] = value;
    }
    void append(std::span<const T> values) {
        reserve(size_ + values.size());
        if (!values.empty()) std::memcpy(data() + size_, values.data(), values.size_bytes());
        size_ += values.size();
    }

    // Release ownership of the memory, which the caller frees with std::free.
    T* release() {
        size_ = capacity_ = 0;
        return data_.release();
    }

private:
    struct Free {
        void operator()(T* data) const { std::free(data); }
    };

    void swap(Buffer& other) {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        std::swap(capacity_, other.capacity_);
    }
    void reallocate(std::size_t capacity) {
        capacity = std::max<std::size_t>(capacity, 16);
        if (capacity > static_cast<std::size_t>(-1) / 2 / sizeof(T)) throw std::bad_alloc();
        // For a large block this moves pages, not bytes.
        auto* const moved = static_cast<T*>(std::realloc(static_cast<void*>(data_.get()), capacity * sizeof(T)));
        if (moved == nullptr) throw std::bad_alloc();
        (void)data_.release();
        data_.reset(moved);
        capacity_ = capacity;
        constexpr std::size_t kLarge = std::size_t{1} << 22;
        if (capacity * sizeof(T) >= kLarge) advise_huge_pages(moved, capacity * sizeof(T));
    }

    std::unique_ptr<T, Free> data_;
    std::size_t size_ = 0, capacity_ = 0;
};

}  // namespace fastbert
