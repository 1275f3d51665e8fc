// Plays random clients against an engine behind its queue, and judges every answer by a model of
// the contract. Prints a JSON line for tests/bench/record.py; on a difference the seed and the last
// operations, and ends with 1.

#include <chrono>
#include <cstdio>
#include <random>
#include <string>

#include <absl/flags/flag.h>
#include <absl/flags/parse.h>
#include <absl/flags/usage.h>
#include <absl/strings/str_cat.h>

#include "tests/simulation/simulation.h"

ABSL_FLAG(int64_t, operations, 50'000, "at least so many; a million takes some minutes");
ABSL_FLAG(uint32_t, seed, 0, "the same one repeats a run; 0: a random one");

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("random clients against a model of the contract");
  absl::ParseCommandLine(argc, argv);
  const uint32_t given = absl::GetFlag(FLAGS_seed);
  const uint32_t seed = given != 0 ? given : std::random_device{}();
  const auto begin = std::chrono::steady_clock::now();
  longshore::simulation::Simulation simulation(seed);
  const std::string wrong = simulation.Run(absl::GetFlag(FLAGS_operations));
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  const longshore::simulation::Tally& tally = simulation.tally();
  if (!wrong.empty()) {
    const std::string operations = std::to_string(tally.operations + 1);
    std::fprintf(stderr, "%s\nseed %u: again with --seed=%u --operations=%s\n", wrong.c_str(), seed,
                 seed, operations.c_str());
    return 1;
  }
  std::string answers;
  for (const auto& [reason, count] : tally.answers) {
    absl::StrAppend(&answers, answers.empty() ? "" : ", ", "\"", reason, "\": ", count);
  }
  std::printf(
      "{\"id\": \"sim_operations\", \"value\": %lld, \"unit\": \"operations\", \"seed\": %u, "
      "\"seconds\": %.1f, \"lives\": %lld, \"answers\": {%s}}\n",
      static_cast<long long>(tally.operations), seed, elapsed.count(),
      static_cast<long long>(tally.lives), answers.c_str());
  return 0;
}
