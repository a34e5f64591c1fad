// A text picture of an arena: time (steps) across, address down, a letter per buffer. What `duet plan`
// prints.
#pragma once

#include <span>
#include <string>

#include "memory/planner.h"

namespace duet::memory {

// At most max_rows rows of max_columns cells, then a legend with the exact steps, offsets and sizes. A cell
// stands for several steps and a range of addresses and shows the buffer that fills most of it; a buffer too
// small to win a cell is given one of a larger buffer's, so that every letter is seen as long as there are
// cells. '.' is free. Letters go to the largest buffers first; what is left beyond 62 buffers shares '+'.
// REQUIRES: plan.offsets.size() == requests.size(), no overlaps.
std::string draw_plan(std::span<const BufferRequest> requests, const ArenaPlan& plan, int max_columns = 72,
                      int max_rows = 16);

}  // namespace duet::memory
