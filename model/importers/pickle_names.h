// The names that a state dict's pickle may hold, and those of the opcodes that it may not.
#pragma once

#include <cstdint>
#include <string_view>

namespace duet::model {

inline constexpr std::string_view kOrderedDict = "collections.OrderedDict";
inline constexpr std::string_view kRebuildTensor = "torch._utils._rebuild_tensor_v2";
inline constexpr std::string_view kRebuildParameter = "torch._utils._rebuild_parameter";
inline constexpr std::string_view kTorchSize = "torch.Size";

// "module.name", which lives for ever, when a state dict may name it; else empty.
std::string_view known_global(std::string_view module, std::string_view name);

// The name of an opcode of protocols 0 to 5 that the unpickler does not have; null for any other byte.
const char* refused_opcode(uint8_t code);

}  // namespace duet::model
