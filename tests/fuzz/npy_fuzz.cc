#include "runner/npy.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static duet::fuzz::MemoryFile file;
  file.set(duet::fuzz::text_of(data, size));
  auto array = duet::runner::NpyFile::open(file.path());
  if (array) (void)array->read();
  return 0;
}
