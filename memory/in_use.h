// Turns the concurrent use of an object that serves one caller at a time into an error instead of a race.
#pragma once

#include <atomic>

namespace duet::memory {

// A flag that moves with its owner (which nobody may use while it moves).
class InUseFlag {
 public:
  InUseFlag() = default;
  InUseFlag(InUseFlag&&) noexcept {}
  InUseFlag& operator=(InUseFlag&&) noexcept { return *this; }

 private:
  friend class InUse;
  std::atomic_flag flag_ = ATOMIC_FLAG_INIT;
};

// Holds the flag as long as it lives; false when another caller holds it.
class InUse {
 public:
  explicit InUse(InUseFlag& flag)
      : flag_(flag.flag_), entered_(!flag_.test_and_set(std::memory_order_acquire)) {}
  ~InUse() {
    if (entered_) flag_.clear(std::memory_order_release);
  }
  InUse(const InUse&) = delete;
  InUse& operator=(const InUse&) = delete;
  explicit operator bool() const { return entered_; }

 private:
  std::atomic_flag& flag_;
  const bool entered_;
};

}  // namespace duet::memory
