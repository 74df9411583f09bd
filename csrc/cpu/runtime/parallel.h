// Threads: the OpenMP runtime that torch uses, so that both share one set of threads and `torch.set_num_threads` holds
// for both.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <type_traits>

namespace fastbert {

// The threads that a parallel call made here would run on: torch.get_num_threads() of the calling thread, or 1 inside
// another parallel call, and in a child of fork on the thread that forked, if that had run a parallel call before.
int parallel_threads();

// Run body(context, thread, threads) on `threads` threads at once, the caller being thread 0. Fewer run where the
// runtime grants fewer: `threads` is what runs. The body must not throw.
void parallel_run(int threads, void (*body)(void* context, int thread, int threads), void* context);

// Wait for all threads of the current `parallel_run`, of which there are `threads`.
void parallel_barrier(int threads);

// body(thread, threads) on `threads` threads; each must reach the same barriers.
template <typename Body>
void parallel(int threads, Body&& body) {
    using Type = std::remove_reference_t<Body>;
    parallel_run(
        threads, [](void* context, int thread, int count) { (*static_cast<Type*>(context))(thread, count); },
        const_cast<void*>(static_cast<const void*>(std::addressof(body))));
}

// body(first, last) over parts of 0..count, one a thread; on one thread where two would not have `grain` each. Never on
// some of the threads: libgomp ends those that a region leaves out, and starts them anew for the next. The cut depends on
// the number of threads, so what is computed must not depend on the cut.
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
