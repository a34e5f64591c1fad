#include "model/importers/pickle_names.h"

namespace duet::model {
namespace {

constexpr std::string_view kGlobals[] = {
    kOrderedDict,         kRebuildTensor,      kRebuildParameter,           kTorchSize,
    "torch.FloatStorage", "torch.HalfStorage", "torch.BFloat16Storage",     "torch.DoubleStorage",
    "torch.LongStorage",  "torch.IntStorage",  "torch.ShortStorage",        "torch.CharStorage",
    "torch.ByteStorage",  "torch.BoolStorage", "torch.ComplexFloatStorage",
};

struct RefusedOpcode {
  uint8_t code;
  const char* name;
};

constexpr RefusedOpcode kRefusedOpcodes[] = {
    {'0', "POP"},
    {'1', "POP_MARK"},
    {'2', "DUP"},
    {'F', "FLOAT"},
    {'G', "BINFLOAT"},
    {'I', "INT"},
    {'L', "LONG"},
    {'P', "PERSID"},
    {'S', "STRING"},
    {'V', "UNICODE"},
    {'d', "DICT"},
    {'g', "GET"},
    {'i', "INST"},
    {'l', "LIST"},
    {'o', "OBJ"},
    {'p', "PUT"},
    {'B', "BINBYTES"},
    {'C', "SHORT_BINBYTES"},
    {0x81, "NEWOBJ"},
    {0x82, "EXT1"},
    {0x83, "EXT2"},
    {0x84, "EXT4"},
    {0x8b, "LONG4"},
    {0x8e, "BINBYTES8"},
    {0x8f, "EMPTY_SET"},
    {0x90, "ADDITEMS"},
    {0x91, "FROZENSET"},
    {0x92, "NEWOBJ_EX"},
    {0x96, "BYTEARRAY8"},
    {0x97, "NEXT_BUFFER"},
    {0x98, "READONLY_BUFFER"},
};

}  // namespace

std::string_view known_global(std::string_view module, std::string_view name) {
  for (std::string_view known : kGlobals)
    if (known.size() == module.size() + 1 + name.size() && known.starts_with(module) &&
        known[module.size()] == '.' && known.ends_with(name))
      return known;
  return {};
}

const char* refused_opcode(uint8_t code) {
  for (const RefusedOpcode& refused : kRefusedOpcodes)
    if (refused.code == code) return refused.name;
  return nullptr;
}

}  // namespace duet::model
