// Runs every target over its corpus and over a fixed number of mutations of it, without libFuzzer:
// a test for builds with any compiler.
//
//   fuzz_replay CORPUS_DIRECTORY PROTO_README     (tests/fuzz/corpus, proto/README.md)

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "tests/fuzz/check.h"
#include "tests/fuzz/mutate.h"
#include "tests/fuzz/target.h"

namespace longshore::fuzz {
namespace {

constexpr int kMutationsOfASeed = 40;
constexpr size_t kMaxBytes = size_t{1} << 16;

std::string Read(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// Every seed, and a chain of mutations that starts at it.
int RunTarget(const Target& target, const std::filesystem::path& corpus) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(corpus / target.name)) {
    files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  Require(!files.empty(), "no corpus for ", target.name);
  std::mt19937_64 random(1);
  int runs = 0;
  for (const std::filesystem::path& file : files) {
    std::string bytes = Read(file);
    target.run(bytes);
    for (int mutation = 0; mutation < kMutationsOfASeed; ++mutation) {
      const std::string mutated = Mutate(target, bytes, kMaxBytes, &random);
      bytes = mutated.empty() ? bytes.substr(0, bytes.size() / 2) : mutated;
      target.run(bytes);
    }
    runs += 1 + kMutationsOfASeed;
  }
  return runs;
}

// What the fuzzers take for a known error is one that clients are told of.
void RequireRowsOf(const std::string& readme) {
  for (const Row& row : KnownRows()) {
    const std::string begin =
        absl::StrCat("| ", absl::StatusCodeToString(row.code), " | `", row.reason, "` |");
    Require(readme.find(begin) != std::string::npos, "proto/README.md has no row ", begin);
  }
}

}  // namespace
}  // namespace longshore::fuzz

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fputs("fuzz_replay CORPUS_DIRECTORY PROTO_README\n", stderr);
    return 2;
  }
  longshore::fuzz::RequireRowsOf(longshore::fuzz::Read(argv[2]));
  for (const longshore::fuzz::Target& target : longshore::fuzz::Targets()) {
    std::printf("%s: %d runs\n", target.name, longshore::fuzz::RunTarget(target, argv[1]));
  }
  return 0;
}
