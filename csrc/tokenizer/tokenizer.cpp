#include "tokenizer/tokenizer.h"

namespace fastbert::tokenizer {

WorkspacePool::~WorkspacePool() {
    for (std::atomic<Workspace*>& slot : waiting_) delete slot.load();
}

std::unique_ptr<Workspace> WorkspacePool::take() {
    for (std::atomic<Workspace*>& slot : waiting_) {
        if (slot.load(std::memory_order_relaxed) == nullptr) continue;
        if (Workspace* const taken = slot.exchange(nullptr)) return std::unique_ptr<Workspace>(taken);
    }
    return nullptr;
}

void WorkspacePool::give_back(std::unique_ptr<Workspace> workspace) {
    for (std::atomic<Workspace*>& slot : waiting_) {
        Workspace* none = nullptr;
        if (slot.compare_exchange_strong(none, workspace.get())) {
            (void)workspace.release();
            return;
        }
    }
}

}  // namespace fastbert::tokenizer
