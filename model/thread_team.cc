#include "model/thread_team.h"

#include <system_error>

namespace duet::model {
namespace {

constexpr int kSpins = 2000;  // some microseconds: longer than most steps, shorter than waking a thread

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

void wait_while_equal(const std::atomic<uint32_t>& value, uint32_t old) {
  // With more workers than processors a spinning worker holds up the one that it waits for.
  static const bool kSeveral = std::thread::hardware_concurrency() > 1;
  for (int i = 0; kSeveral && i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    pause();
  }
  while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

}  // namespace

void Barrier::wait() {
  uint32_t generation = generation_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == workers_) {
    arrived_.store(0, std::memory_order_relaxed);
    generation_.store(generation + 1, std::memory_order_release);
    generation_.notify_all();
    return;
  }
  wait_while_equal(generation_, generation);
}

Result<std::unique_ptr<ThreadTeam>> ThreadTeam::create(int workers) {
  std::unique_ptr<ThreadTeam> team(new ThreadTeam(workers));
  try {
    team->threads_.reserve(static_cast<size_t>(workers));
    for (int i = 1; i < workers; ++i) team->threads_.emplace_back(&ThreadTeam::serve, team.get(), i);
  } catch (const std::system_error& error) {
    return failure(ErrorCode::kOutOfMemory, "cannot start thread {} of {}: {}", team->threads_.size() + 2,
                   workers, error.what());
  }
  return team;
}

ThreadTeam::~ThreadTeam() {
  task_ = nullptr;
  calls_.fetch_add(1, std::memory_order_release);
  calls_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadTeam::run(Task task, void* context) {
  if (workers_ > 1) {
    task_ = task;
    context_ = context;
    calls_.fetch_add(1, std::memory_order_release);
    calls_.notify_all();
  }
  task(context, {0, workers_});
  barrier();
}

void ThreadTeam::serve(int index) {
  uint32_t calls = 0;
  while (true) {
    wait_while_equal(calls_, calls);
    ++calls;
    if (!task_) return;
    task_(context_, {index, workers_});
    barrier();
  }
}

}  // namespace duet::model
