// Duet as a library: translates standard input, line by line.
//
// usage: translate_embedded PROGRAM <text
#include <iostream>

#include "memory/log.h"
#include "runner/translator.h"

int main(int argc, char** argv) {
  if (argc != 2) return std::cerr << "usage: translate_embedded PROGRAM <text\n", 2;
  duet::memory::set_log_level(duet::memory::LogLevel::kError);

  duet::runner::TranslatorOptions options;
  options.session.threads = 2;
  options.split = duet::runner::Split::kSentence;
  auto translator = duet::runner::Translator::open(argv[1], options);
  if (!translator) return std::cerr << translator.error().message << "\n", 1;

  for (std::string line; std::getline(std::cin, line);) {
    auto translation = translator->translate(line);
    if (!translation) return std::cerr << translation.error().message << "\n", 1;
    std::cout << *translation << "\n";
  }
}
