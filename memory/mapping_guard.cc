#include "memory/mapping_guard.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <mutex>

namespace duet::memory {

struct MappingGuard::Node {
  std::atomic<bool> taken{true};
  std::atomic<uintptr_t> begin{0}, end{0};  // end is 0 while nothing is watched
  std::atomic<bool> faulted{false};
  Node* next = nullptr;  // constant once in the list
};

struct GuardList {
  using Node = MappingGuard::Node;
  static inline std::atomic<Node*> first{nullptr};
  static inline uintptr_t page_bytes = 0;  // set before the handler is installed

  static Node* take() {
    for (Node* node = first.load(std::memory_order_acquire); node; node = node->next)
      if (bool free = false; node->taken.compare_exchange_strong(free, true)) return node;
    Node* node = new Node;
    node->next = first.load(std::memory_order_relaxed);
    while (!first.compare_exchange_weak(node->next, node, std::memory_order_release)) {
    }
    return node;
  }

  // In the signal handler. Zeros for the page of `address` and all behind it; false when it is nobody's.
  static bool replace_lost_pages(uintptr_t address) {
    for (Node* node = first.load(std::memory_order_acquire); node; node = node->next) {
      uintptr_t end = node->end.load(), begin = node->begin.load();
      if (end == 0 || end != node->end.load() || address < begin || address >= end) continue;
      node->faulted.store(true);
      uintptr_t page = address / page_bytes * page_bytes;
      void* zeros = ::mmap(reinterpret_cast<void*>(page), end - page, PROT_READ,
                           MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      return zeros != MAP_FAILED;
    }
    return false;
  }
};

namespace {

struct sigaction previous_handler;

void handle_bus_error(int number, siginfo_t* info, void* context) {
  int kept_errno = errno;
  bool ours = info->si_code > 0 &&  // raised by the processor, not by kill()
              GuardList::replace_lost_pages(reinterpret_cast<uintptr_t>(info->si_addr));
  errno = kept_errno;
  if (ours) return;
  if (previous_handler.sa_flags & SA_SIGINFO) return previous_handler.sa_sigaction(number, info, context);
  if (previous_handler.sa_handler != SIG_DFL && previous_handler.sa_handler != SIG_IGN)
    return previous_handler.sa_handler(number);
  // The end that the process would have had: the instruction faults again, or the signal comes again.
  ::signal(number, SIG_DFL);
  if (info->si_code <= 0) ::raise(number);
}

}  // namespace

void survive_shrinking_files() {
  static std::once_flag once;
  std::call_once(once, [] {
    GuardList::page_bytes = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
    struct sigaction action {};
    action.sa_sigaction = handle_bus_error;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    ::sigemptyset(&action.sa_mask);
    ::sigaction(SIGBUS, &action, &previous_handler);
  });
}

MappingGuard::MappingGuard() : node_(GuardList::take()) {}

MappingGuard::~MappingGuard() {
  release();
  node_->faulted.store(false);
  node_->taken.store(false);
}

void MappingGuard::watch(const void* data, size_t bytes) noexcept {
  node_->begin.store(reinterpret_cast<uintptr_t>(data));
  node_->end.store(reinterpret_cast<uintptr_t>(data) + bytes);
}

void MappingGuard::release() noexcept { node_->end.store(0); }

bool MappingGuard::faulted() const noexcept { return node_->faulted.load(std::memory_order_relaxed); }

}  // namespace duet::memory
