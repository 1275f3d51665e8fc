#pragma once

#include <map>
#include <vector>

#include "tests/simulation/contract_model.h"
#include "tests/support/random_tokens.h"

namespace longshore::simulation {

/// Draws what clients do: mostly what a runner does, often what a confused or unlucky one does.
/// Looks at the model to aim: rows where a layer ends, replays of its last call, near misses.
class Player {
 public:
  Player(const World& world, const ContractModel& model, Random* random)
      : world_(world),
        model_(model),
        random_(*random) {}

  /// Operations that come while the queue is busy: mostly one, at most `most`.
  std::vector<Operation> DrawRound(int64_t most);

 private:
  // Where a layer will be once everything drawn so far of this round is done.
  struct Plan {
    int64_t tokens = 0;
    ModelLayer::Call last_call;
  };

  Operation Draw();
  Operation DrawOpen();
  Operation DrawSessionCall(OpKind kind);
  Operation DrawStep();
  OpItem DrawItem(OpKind kind, uint64_t session, int32_t layer);
  size_t DrawCaller(const Operation& operation);
  uint64_t DrawSession();
  uint64_t DrawSessionLike(uint64_t other);
  int64_t DrawRows(OpKind kind);
  Plan& PlanOf(uint64_t session, int32_t layer);
  void Remember(const Operation& step);

  const World& world_;
  const ContractModel& model_;
  Random& random_;
  bool rushes_ = false;  // decode steps alone, behind what came before
  std::map<std::pair<uint64_t, int32_t>, Plan> plans_;
};

}  // namespace longshore::simulation
