// Threads of the OpenMP runtime that torch uses, so that both share one thread pool and `torch.set_num_threads` applies
// to both.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <type_traits>

namespace fastbert {

// The number of threads of a parallel region started here: torch.get_num_threads() of the calling thread, in a session
// those that it has, or 1 inside another parallel region, and in a fork's child on the thread that forked if it had run a
// parallel region before.
int parallel_threads();

// Run body(context, thread, threads) on `threads` threads, the caller being thread 0. The runtime may grant fewer: the
// argument `threads` is the actual number. The body must not throw.
void parallel_run(int threads, void (*body)(void* context, int thread, int threads), void* context);

// Run body(context) on the calling thread; its parallel regions share one region of the runtime. Exceptions of `body`
// propagate.
void parallel_session_run(int threads, void (*body)(void* context), void* context);

// Run body(thread, threads) on `threads` threads.
template <typename Body>
void parallel(int threads, Body&& body) {
    using Type = std::remove_reference_t<Body>;
    parallel_run(
        threads, [](void* context, int thread, int count) { (*static_cast<Type*>(context))(thread, count); },
        const_cast<void*>(static_cast<const void*>(std::addressof(body))));
}

// Run body() with `threads` threads for the parallel regions that it starts, one after the other. Between regions the
// other threads wait at a barrier of ours, which leaves the cores to other processes sooner than the runtime's.
template <typename Body>
void parallel_session(int threads, Body&& body) {
    using Type = std::remove_reference_t<Body>;
    parallel_session_run(
        threads, [](void* context) { (*static_cast<Type*>(context))(); },
        const_cast<void*>(static_cast<const void*>(std::addressof(body))));
}

// Run body(first, last) over parts of 0..count, one per thread, or on one thread if two would not have `grain` each.
// Never on a subset of threads: libgomp ends idle threads and restarts them for the next region. The split depends on
// the number of threads, so results must not depend on the split.
template <typename Body>
void parallel_ranges(std::size_t count, std::size_t grain, Body&& body) {
    const int threads = count / 2 < std::max<std::size_t>(1, grain) ? 1 : parallel_threads();
    if (threads <= 1) {
        if (count) body(std::size_t{0}, count);
        return;
    }
    parallel(threads, [&](int thread, int running) {
        const std::size_t first = count * static_cast<std::size_t>(thread) / static_cast<std::size_t>(running);
        const std::size_t last = count * (static_cast<std::size_t>(thread) + 1) / static_cast<std::size_t>(running);
        if (first < last) body(first, last);
    });
}

}  // namespace fastbert
