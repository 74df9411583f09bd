#include "cpu/runtime/parallel.h"

#include <dlfcn.h>
#include <pthread.h>

// The OpenMP runtime is looked up among the loaded libraries, not linked: torch ships its own under names that differ
// between builds, and a second one would compete for the cores. Its entry points (libgomp's, also provided by LLVM's
// and Intel's) need no compiler flag.
namespace fastbert {
namespace {

struct Runtime {
    using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);
    Parallel parallel = nullptr;
    void (*barrier)() = nullptr;
    int (*thread)() = nullptr;
    int (*running)() = nullptr;
    int (*most)() = nullptr;
    int (*inside)() = nullptr;
};

// After fork, the child has one thread, the copy of the one that forked, but libgomp still waits for the threads which
// that one led. Such a thread therefore runs serially in the child; threads started in the child may lead threads of
// their own.
thread_local bool led = false;
thread_local bool alone = false;

template <typename Function>
void find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
}

bool take(Runtime& runtime, void* library) {
    Runtime symbols;
    find(library, "GOMP_parallel", symbols.parallel);
    find(library, "GOMP_barrier", symbols.barrier);
    find(library, "omp_get_thread_num", symbols.thread);
    find(library, "omp_get_num_threads", symbols.running);
    find(library, "omp_get_max_threads", symbols.most);
    find(library, "omp_in_parallel", symbols.inside);
    if (!symbols.parallel || !symbols.barrier || !symbols.thread || !symbols.running || !symbols.most ||
        !symbols.inside)
        return false;
    runtime = symbols;
    return true;
}

Runtime look_up() {
    pthread_atfork(nullptr, nullptr, [] { alone = led; });
    Runtime runtime;
    if (take(runtime, RTLD_DEFAULT)) return runtime;
    for (const char* name : {"libgomp.so.1", "libiomp5.so", "libomp.so", "libomp.so.5", "libomp.dylib"}) {
        // Never closed: threads may be running in it until the process exits.
        if (void* library = dlopen(name, RTLD_LAZY | RTLD_NOLOAD); library && take(runtime, library)) return runtime;
    }
    if (void* library = dlopen("libgomp.so.1", RTLD_LAZY)) take(runtime, library);
    return runtime;
}

// Looked up lazily: when the first kernel runs, torch is loaded.
const Runtime& runtime() {
    static const Runtime symbols = look_up();
    return symbols;
}

}  // namespace

int parallel_threads() {
    const Runtime& openmp = runtime();
    return !openmp.parallel || alone || openmp.inside() ? 1 : std::max(1, openmp.most());
}

void parallel_run(int threads, void (*body)(void*, int, int), void* context) {
    if (threads <= 1 || alone || !runtime().parallel) return body(context, 0, 1);
    led = true;
    struct Call {
        void (*body)(void*, int, int);
        void* context;
    } call{body, context};
    runtime().parallel(
        [](void* data) {
            const Call& call = *static_cast<Call*>(data);
            call.body(call.context, runtime().thread(), runtime().running());
        },
        &call, static_cast<unsigned>(threads), 0);
}

void parallel_barrier(int threads) {
    if (threads > 1) runtime().barrier();
}

}  // namespace fastbert
