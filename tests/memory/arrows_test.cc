// The arrows between the folders, as DESIGN draws them: runner -> {model, tokenizer} -> memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace {

const std::map<std::string, std::set<std::string>> kMayInclude = {
    {"memory", {"memory"}},
    {"tokenizer", {"tokenizer", "memory"}},
    {"model", {"model", "memory"}},
    {"runner", {"runner", "model", "tokenizer", "memory"}},
};

struct Include {
  std::string file;  // relative to the source folder
  int line;
  std::string target;  // what stands between the quotes or brackets
};

// What a line includes, in quotes or angle brackets; empty when it is no include.
std::string included(const std::string& line) {
  size_t at = line.find_first_not_of(" \t");
  if (at == std::string::npos || line[at] != '#') return "";
  at = line.find_first_not_of(" \t", at + 1);
  if (at == std::string::npos || line.compare(at, 7, "include") != 0) return "";
  size_t open = line.find_first_of("\"<", at + 7);
  size_t close = open == std::string::npos ? open : line.find_first_of("\">", open + 1);
  return close == std::string::npos ? "" : line.substr(open + 1, close - open - 1);
}

std::vector<Include> includes(const std::filesystem::path& root, const std::string& folder) {
  std::vector<Include> result;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root / folder)) {
    auto extension = entry.path().extension();
    if (!entry.is_regular_file() || (extension != ".h" && extension != ".cc" && extension != ".inc"))
      continue;
    std::ifstream in(entry.path());
    int number = 0;
    for (std::string line; std::getline(in, line);) {
      ++number;
      std::string target = included(line);
      if (!target.empty())
        result.push_back({std::filesystem::relative(entry.path(), root).string(), number, target});
    }
  }
  return result;
}

// Arrows that DESIGN does not draw. <memory> and <sys/mman.h> name no file below the root and do not count.
std::vector<std::string> wrong_arrows(const std::filesystem::path& root) {
  std::vector<std::string> wrong;
  for (const auto& [folder, allowed] : kMayInclude) {
    for (const auto& include : includes(root, folder)) {
      std::filesystem::path target(include.target);
      std::string problem;
      if (include.target.find("..") != std::string::npos) {
        problem = "leaves its folder by ..";
      } else if (kMayInclude.contains(target.begin()->string()) &&
                 std::next(target.begin()) != target.end()) {
        if (!allowed.contains(target.begin()->string()))
          problem = folder + "/ must not know " + target.begin()->string() + "/";
      } else if (std::filesystem::is_regular_file((root / include.file).parent_path() / target)) {
        problem = "is not named from the root of the repository";
      } else if (std::filesystem::is_regular_file(root / target)) {
        problem = folder + "/ must not know " + target.begin()->string() + "/";
      }
      if (!problem.empty())
        wrong.push_back(include.file + ":" + std::to_string(include.line) + ": \"" + include.target +
                        "\": " + problem);
    }
  }
  return wrong;
}

TEST(Arrows, PointDownOnly) {
  for (const auto& line : wrong_arrows(DUET_SOURCE_DIR)) ADD_FAILURE() << line;
}

TEST(Arrows, AreFoundInEveryFolder) {
  for (const auto& [folder, allowed] : kMayInclude)
    EXPECT_FALSE(includes(DUET_SOURCE_DIR, folder).empty()) << folder;
}

TEST(Arrows, TheCheckSeesEachKindOfWrongArrow) {
  std::string pattern = (std::filesystem::temp_directory_path() / "duet_arrows_XXXXXX").string();
  ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
  std::filesystem::path root = pattern;
  for (const auto& [folder, allowed] : kMayInclude)
    std::filesystem::create_directories(root / folder / "deep");
  std::filesystem::create_directories(root / "tests");
  auto write = [&](const char* file, const char* text) { std::ofstream(root / file) << text; };
  write("tests/helper.h", "");
  write("memory/a.h", "#pragma once\n#include <memory>\n#include \"memory/b.h\"\n");
  write("memory/b.h", "#include \"model/program.h\"\n");  // up
  write("tokenizer/c.cc",
        "#include \"memory/a.h\"\n#  include <model/x.h>\n");  // sideways, in angle brackets
  write("model/deep/d.h", "#include \"../e.h\"\n");
  write("model/e.h", "");
  write("model/f.cc", "#include \"e.h\"\n#include \"tests/helper.h\"\n");
  write("runner/g.cc", "#include \"model/e.h\"\n#include \"tokenizer/c.h\"\n#include \"memory/a.h\"\n");
  std::vector<std::string> wrong = wrong_arrows(root);
  std::filesystem::remove_all(root);
  std::vector<std::string> places;
  for (const auto& line : wrong) places.push_back(line.substr(0, line.find(": ")));
  std::sort(places.begin(), places.end());
  std::vector<std::string> expected = {"memory/b.h:1", "model/deep/d.h:1", "model/f.cc:1", "model/f.cc:2",
                                       "tokenizer/c.cc:2"};
  EXPECT_EQ(places, expected);
}

}  // namespace
