// A file of --load-state: sealed again, so that mutations reach what stands behind the checksum; a session
// that took it must go on.
#include <xxhash.h>

#include <cstring>

#include "runner/state_file.h"
#include "tests/fuzz/fuzz.h"
#include "tests/model/support.h"

namespace {

using namespace duet;

std::shared_ptr<const model::Program> cache_program() {
  model::MultiEntryPointExporter exporter;
  model::build_cache(exporter);
  model::TemporaryDirectory directory;
  return model::save_and_open(exporter, directory);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static auto session = *model::Session::create(cache_program(), {});
  static fuzz::MemoryFile file;
  std::string bytes(fuzz::text_of(data, size));
  if (size >= 8) {
    uint64_t checksum = XXH3_64bits(bytes.data(), size - 8);
    std::memcpy(bytes.data() + size - 8, &checksum, sizeof checksum);
  }
  file.set(bytes);
  (void)runner::load_state(*session, file.path());
  DUET_CHECK(session->execute(session->find_method("get_cache"), {}).has_value());
  return 0;
}
