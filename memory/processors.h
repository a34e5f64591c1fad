// How much of the machine's processors this process may use.
#pragma once

#include <optional>
#include <string>

namespace duet::memory {

// The tightest quota of processor time of the control groups (containers) around a process, in
// processors: 1.5 is 150 ms in every 100 ms. nullopt: none. `root` is where control groups are mounted,
// version 2 or 1; `groups` the process's file of groups.
std::optional<double> processor_quota(const std::string& root = "/sys/fs/cgroup",
                                      const std::string& groups = "/proc/self/cgroup");

// Processors that the process may run on, and not more than its quota rounded up; at least 1. More threads
// than these would be stopped in the middle of their work while others wait for them.
int available_processors();

}  // namespace duet::memory
