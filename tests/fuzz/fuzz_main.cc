// libFuzzer's side: one program for all targets.
//
//   longshore_fuzz --target=prefill [libFuzzer's flags] CORPUS...
//   longshore_fuzz --list

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>

#include "tests/fuzz/mutate.h"
#include "tests/fuzz/target.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

const longshore::fuzz::Target* chosen = nullptr;

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  constexpr std::string_view kFlag = "--target=";
  int kept = 0;
  for (int index = 0; index < *argc; ++index) {
    const std::string_view argument = (*argv)[index];
    if (argument == "--list") {
      for (const longshore::fuzz::Target& target : longshore::fuzz::Targets()) {
        std::puts(target.name);
      }
      std::exit(0);  // NOLINT(concurrency-mt-unsafe): no other thread yet
    }
    if (argument.substr(0, kFlag.size()) == kFlag) {
      chosen = longshore::fuzz::FindTarget(argument.substr(kFlag.size()));
    } else {
      (*argv)[kept++] = (*argv)[index];
    }
  }
  *argc = kept;
  if (chosen == nullptr) {
    std::fputs("which target? --target=NAME; --list shows them\n", stderr);
    std::exit(2);  // NOLINT(concurrency-mt-unsafe): the same
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  chosen->run({reinterpret_cast<const char*>(data), size});
  return 0;
}

// Half of the time the message is changed, else its bytes, which need not stay a message.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data,
                                          size_t size,
                                          size_t max_size,
                                          unsigned int seed) {
  std::mt19937_64 random(seed);
  if (random() % 4 != 0) {
    const std::string mutated = longshore::fuzz::Mutate(
        *chosen, {reinterpret_cast<const char*>(data), size}, max_size, &random);
    if (!mutated.empty()) {
      std::copy(mutated.begin(), mutated.end(), data);
      return mutated.size();
    }
  }
  return LLVMFuzzerMutate(data, size, max_size);
}
