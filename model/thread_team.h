// The threads of a session: the caller is worker 0, the others are started once and wait between calls.
// Workers go through a method's steps together; a barrier stands after each step that more than one of them
// worked on.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "memory/error.h"
#include "model/operators/operator.h"

namespace duet::model {

// Waiting is a short spin, then sleep: a step of a small model takes microseconds, and an idle session must
// cost nothing.
class Barrier {
 public:
  explicit Barrier(int workers) : workers_(workers) {}
  void wait();

 private:
  const int workers_;
  std::atomic<int> arrived_{0};
  std::atomic<uint32_t> generation_{0};
};

class ThreadTeam {
 public:
  using Task = void (*)(void* context, Worker worker);

  // Starts workers - 1 threads. Errors: kOutOfMemory when the system gives no more threads.
  static Result<std::unique_ptr<ThreadTeam>> create(int workers);
  ~ThreadTeam();

  // Runs task(context, worker) on every worker; returns when all are done. Allocates nothing.
  void run(Task task, void* context);
  void barrier() {
    if (workers_ > 1) barrier_.wait();
  }
  int workers() const { return workers_; }

 private:
  explicit ThreadTeam(int workers) : workers_(workers), barrier_(workers) {}
  void serve(int index);

  const int workers_;
  Barrier barrier_;
  Task task_ = nullptr;
  void* context_ = nullptr;
  std::atomic<uint32_t> calls_{0};  // incremented to start a task, or to stop when task_ is null
  std::vector<std::thread> threads_;
};

}  // namespace duet::model
