// A vocabulary section: every lookup of one that was taken must stay inside it.
#include "memory/error.h"
#include "tests/fuzz/fuzz.h"
#include "tokenizer/vocabulary.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto vocabulary = duet::tokenizer::Vocabulary::open(duet::fuzz::bytes_of(data, size));
  if (!vocabulary) return 0;
  for (uint32_t id = 0; id < vocabulary->size(); ++id)
    DUET_CHECK(vocabulary->id(vocabulary->piece(id)) == id);
  (void)vocabulary->id("\xff");
  return 0;
}
