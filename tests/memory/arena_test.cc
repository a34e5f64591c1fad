#include "memory/arena.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace duet::memory {
namespace {

TEST(Arena, IsZeroedAndPageAligned) {
  auto arena = Arena::create(1'000'001);
  ASSERT_TRUE(arena) << arena.error().message;
  EXPECT_EQ(arena->bytes(), 1'000'001u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(arena->data()) % static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE)), 0u);
  EXPECT_TRUE(std::all_of(arena->data(), arena->data() + arena->bytes(),
                          [](std::byte b) { return b == std::byte{0}; }));
  std::fill_n(arena->data(), arena->bytes(), std::byte{1});  // the last byte is ours too
}

TEST(Arena, TouchesNoPageWhenItIsMade) {
  auto arena = Arena::create(64 << 20);
  ASSERT_TRUE(arena) << arena.error().message;
  auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> resident(arena->bytes() / page);
  ASSERT_EQ(::mincore(arena->data(), arena->bytes(), resident.data()), 0);
  EXPECT_EQ(std::ranges::count_if(resident, [](unsigned char c) { return c & 1; }), 0);
  arena->data()[5 * page] = std::byte{1};
  ASSERT_EQ(::mincore(arena->data(), arena->bytes(), resident.data()), 0);
  EXPECT_TRUE(resident[5] & 1);
}

TEST(Arena, StaysInPlaceWhenMoved) {
  auto first = Arena::create(100);
  ASSERT_TRUE(first);
  std::byte* data = first->data();
  data[99] = std::byte{7};
  Arena second = std::move(*first);
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(first->data(), nullptr);
  EXPECT_EQ(first->bytes(), 0u);
  auto third = Arena::create(200);
  ASSERT_TRUE(third);
  *third = std::move(second);
  EXPECT_EQ(third->data(), data);
  EXPECT_EQ(third->bytes(), 100u);
  EXPECT_EQ(third->data()[99], std::byte{7});
}

TEST(Arena, OfZeroBytesIsFine) {
  auto arena = Arena::create(0);
  ASSERT_TRUE(arena);
  EXPECT_EQ(arena->bytes(), 0u);
}

TEST(Arena, LargerThanTheMachineIsRefusedWithBothSizesNamed) {
  MachineMemory memory = machine_memory();
  ASSERT_GT(memory.physical_bytes, 0u);
  for (uint64_t bytes : {memory.limit_bytes() + 1, memory.physical_bytes * 4, UINT64_MAX}) {
    auto arena = Arena::create(bytes);
    ASSERT_FALSE(arena) << bytes;
    EXPECT_EQ(arena.error().code, ErrorCode::kOutOfMemory);
    EXPECT_NE(arena.error().message.find(std::to_string(bytes)), std::string::npos) << arena.error().message;
    EXPECT_NE(arena.error().message.find("choose smaller limits"), std::string::npos)
        << "refused by the kernel";
    EXPECT_NE(arena.error().message.find(std::to_string(memory.physical_bytes)), std::string::npos)
        << arena.error().message;
  }
}

TEST(MachineMemory, LimitIsTheTighterOfMachineAndContainer) {
  MachineMemory memory;
  memory.physical_bytes = 100;
  EXPECT_EQ(memory.limit_bytes(), 100u);
  memory.control_group_bytes = 40;
  EXPECT_EQ(memory.limit_bytes(), 40u);
  memory.control_group_bytes = 4000;
  EXPECT_EQ(memory.limit_bytes(), 100u);
}

TEST(MachineMemory, AvailableIsNotMoreThanThereIs) {
  MachineMemory memory = machine_memory();
  ASSERT_TRUE(memory.available_bytes);
  EXPECT_GT(*memory.available_bytes, 0u);
  EXPECT_LE(*memory.available_bytes, memory.physical_bytes);
}

}  // namespace
}  // namespace duet::memory
