#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <string>

#include "tests/simulation/contract_model.h"
#include "tests/simulation/player.h"
#include "tests/simulation/system.h"

namespace longshore::simulation {

/// What a simulation did, to see that it met everything.
struct Tally {
  int64_t operations = 0;
  int64_t lives = 0;  ///< engines, each with a line in front, from start to stop
  std::map<std::string, int64_t> answers;  ///< by reason; "OK" for those that were served
  int64_t replays = 0;
};

/// Plays random clients against System and judges every answer by ContractModel, life after life of
/// a daemon. The same seed gives the same operations in the same order.
class Simulation {
 public:
  explicit Simulation(uint32_t seed) : random_(seed) {}

  /// At least `operations` more. Empty, or what went wrong, with the last operations.
  std::string Run(int64_t operations);
  const Tally& tally() const { return tally_; }

 private:
  enum class Ending : uint8_t { kIdle, kDrain, kDeviceLost };
  struct Life;

  std::string RunLife(int64_t operations);
  std::string RunRound(Life* life, std::vector<Operation> operations);
  static bool IsFull(const World& world,
                     const std::vector<Operation>& operations,
                     const std::vector<size_t>& line,
                     size_t index);
  std::string DropUnwanted(const std::vector<Operation>& operations,
                           const std::vector<Outcome>& outcomes,
                           std::vector<size_t>* line);
  std::string Refuse(const Operation& operation,
                     const Outcome& outcome,
                     const std::vector<Refusal>& refusals);
  std::string JudgeTurns(Life* life,
                         const std::vector<Operation>& operations,
                         const std::vector<Outcome>& outcomes,
                         const std::vector<size_t>& line);
  std::string EndLife(Life* life, Ending ending);
  std::string LoseDevice(Life* life);
  std::string CloseAll(Life* life);
  std::string ExpectAll(Life* life,
                        std::vector<Operation> operations,
                        System::End end,
                        const Refusal& refusal);
  std::string Fail(const Operation& operation, const Outcome& outcome, const std::string& what);
  void Log(const Operation& operation, const Outcome& outcome);

  Random random_;
  Tally tally_;
  std::deque<std::string> log_;  // the last operations
};

}  // namespace longshore::simulation
