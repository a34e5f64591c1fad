// The text that `duet bench` translates when none is given: everyday English, short and long sentences mixed.
#pragma once

#include <span>

namespace duet::runner {

std::span<const char* const> bench_text();

}  // namespace duet::runner
