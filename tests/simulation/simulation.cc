#include "tests/simulation/simulation.h"

#include <algorithm>
#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

namespace longshore::simulation {
namespace {

using absl::StatusCode;

constexpr size_t kLogLines = 40;
constexpr int64_t kOperationsOfALife = 3000;

World DrawWorld(Random* random) {
  return MakeWorld({.mixed_pages = random->OneIn(4),
                    .crowded = random->OneIn(3),
                    .max_jobs = random->OneIn(3) ? 100 : 20});
}

}  // namespace

// One daemon from start to stop, and what is expected of it.
struct Simulation::Life {
  explicit Life(Random* random)
      : world(DrawWorld(random)),
        model(world),
        system(world),
        player(world, model, random) {}

  World world;
  ContractModel model;
  System system;
  Player player;
};

std::string Simulation::Run(int64_t operations) {
  const int64_t end = tally_.operations + operations;
  while (tally_.operations < end) {
    const int64_t rest = end - tally_.operations;
    if (std::string wrong = RunLife(std::min(rest, kOperationsOfALife)); !wrong.empty()) {
      return wrong;
    }
  }
  return "";
}

std::string Simulation::RunLife(int64_t operations) {
  Life life(&random_);
  ++tally_.lives;
  log_.clear();
  const int64_t end = tally_.operations + operations;
  while (tally_.operations < end) {
    const bool starved = random_.OneIn(100);
    if (starved) {
      life.system.StarveDevice(true);
      life.model.StarveDevice(true);
    }
    std::string wrong = RunRound(&life, life.player.DrawRound(life.world.max_jobs + 20));
    if (starved) {
      life.system.StarveDevice(false);
      life.model.StarveDevice(false);
    }
    if (!wrong.empty()) {
      return wrong;
    }
  }
  return EndLife(&life, static_cast<Ending>(random_.Uniform(0, 2)));
}

// One line of operations: which of them are let in, in which order they have their turn, and what
// each is answered.
std::string Simulation::RunRound(Life* life, std::vector<Operation> operations) {
  const std::vector<Outcome> outcomes = life->system.Run(operations);
  std::vector<size_t> line;  // indices of those that are let in
  for (size_t index = 0; index < operations.size(); ++index) {
    std::vector<Refusal> refusals;
    if (const auto at_door = life->model.RefusalAtDoor(operations[index])) {
      refusals = {*at_door};
    } else {
      if (IsFull(life->world, operations, line, index)) {
        if (std::string wrong = DropUnwanted(operations, outcomes, &line); !wrong.empty()) {
          return wrong;
        }
      }
      if (IsFull(life->world, operations, line, index)) {
        refusals = {{StatusCode::kResourceExhausted, "QUEUE_FULL", ""}};
      } else {
        line.push_back(index);
        continue;
      }
    }
    if (std::string wrong = Refuse(operations[index], outcomes[index], refusals); !wrong.empty()) {
      return wrong;
    }
  }
  return JudgeTurns(life, operations, outcomes, line);
}

bool Simulation::IsFull(const World& world,
                        const std::vector<Operation>& operations,
                        const std::vector<size_t>& line,
                        size_t index) {
  int64_t bytes = 0;
  for (const size_t waits : line) {
    bytes += operations[waits].bytes;
  }
  return std::ssize(line) >= world.max_jobs ||
         (!line.empty() && operations[index].bytes > world.max_bytes - bytes);
}

// Those of a full line that are cancelled or too late make room.
std::string Simulation::DropUnwanted(const std::vector<Operation>& operations,
                                     const std::vector<Outcome>& outcomes,
                                     std::vector<size_t>* line) {
  std::vector<size_t> wanted;
  for (const size_t index : *line) {
    const auto refusals = Unwanted(operations[index]);
    if (refusals.empty()) {
      wanted.push_back(index);
    } else if (std::string wrong = Refuse(operations[index], outcomes[index], refusals);
               !wrong.empty()) {
      return wrong;
    }
  }
  *line = std::move(wanted);
  return "";
}

std::string Simulation::Refuse(const Operation& operation,
                               const Outcome& outcome,
                               const std::vector<Refusal>& refusals) {
  Log(operation, outcome);
  const std::string wrong = ContractModel::JudgeRefusal(refusals, outcome);
  return wrong.empty() ? "" : Fail(operation, outcome, wrong);
}

std::string Simulation::JudgeTurns(Life* life,
                                   const std::vector<Operation>& operations,
                                   const std::vector<Outcome>& outcomes,
                                   const std::vector<size_t>& line) {
  std::vector<const Operation*> in_line;
  std::map<uint64_t, int64_t> uses;  // by calls of the line that have not had their turn
  for (const size_t index : line) {
    in_line.push_back(&operations[index]);
    for (const uint64_t session : operations[index].Sessions()) {
      ++uses[session];
    }
  }
  std::optional<int64_t> turn;
  for (const size_t place : OrderOfTurns(in_line)) {
    const Operation& operation = *in_line[place];
    const Outcome& outcome = outcomes[line[place]];
    Log(operation, outcome);
    if (!outcome.turn.has_value() || (turn.has_value() && *outcome.turn != *turn + 1)) {
      return Fail(operation, outcome, "expected the next turn");
    }
    turn = outcome.turn;
    std::set<uint64_t> in_use;
    for (const auto& [session, calls] : uses) {
      if (calls > 0) {
        in_use.insert(session);
      }
    }
    const int64_t sessions = std::ssize(life->model.sessions());
    if (std::string wrong = life->model.Judge(operation, outcome, in_use); !wrong.empty()) {
      return Fail(operation, outcome, absl::StrCat(wrong, " (", sessions, " sessions before)"));
    }
    for (const uint64_t session : operation.Sessions()) {
      --uses[session];
    }
  }
  return "";
}

std::string Simulation::EndLife(Life* life, Ending ending) {
  if (ending == Ending::kDeviceLost) {
    return LoseDevice(life);
  }
  if (std::string wrong = CloseAll(life); !wrong.empty()) {
    return wrong;
  }
  const Refusal draining = {StatusCode::kUnavailable, "DRAINING", ""};
  if (ending == Ending::kDrain) {  // while calls wait
    if (std::string wrong =
            ExpectAll(life, life->player.DrawRound(20), System::End::kDrain, draining);
        !wrong.empty()) {
      return wrong;
    }
  }
  if (!life->system.Drain()) {
    return "something still runs after a drain";
  }
  return ExpectAll(life, life->player.DrawRound(1), System::End::kServe, draining);
}

// Nothing may be left of sessions that were closed.
std::string Simulation::CloseAll(Life* life) {
  while (!life->model.sessions().empty()) {
    Operation close;
    close.kind = OpKind::kClose;
    close.session = life->model.sessions().begin()->first;
    if (std::string wrong = RunRound(life, {close}); !wrong.empty()) {
      return wrong;
    }
  }
  Operation list;
  list.kind = OpKind::kList;
  return RunRound(life, {list});
}

// The device fails in the middle of a step: that one, all that wait and all that come later are
// told so.
std::string Simulation::LoseDevice(Life* life) {
  std::vector<Operation> operations;
  Operation step;
  step.kind = OpKind::kAppend;
  for (const auto& [id, session] : life->model.sessions()) {
    const int64_t tokens = session.layers[0].tokens();
    if (!session.overcommit && tokens < session.max_tokens) {
      step.shape = session.shape;
      step.items = {{.session = id, .position = tokens, .rows = 1, .append_id = 1, .words = {1}}};
    }
  }
  if (step.items.empty()) {
    return "";  // nobody to lose it under
  }
  step.fault = Fault::kDeviceFails;
  operations.push_back(step);
  for (Operation& waits : life->player.DrawRound(10)) {
    // Behind it in the line, whatever may overtake what.
    if (waits.IsStep() && waits.kind != OpKind::kDecode) {
      operations.push_back(std::move(waits));
    }
  }
  const Refusal lost = {StatusCode::kUnavailable, "DEVICE_LOST", ""};
  std::string wrong = ExpectAll(life, std::move(operations), System::End::kServe, lost);
  return wrong.empty() ? ExpectAll(life, life->player.DrawRound(1), System::End::kServe, lost)
                       : wrong;
}

// All are refused so, but those whose message is wrong to begin with.
std::string Simulation::ExpectAll(Life* life,
                                  std::vector<Operation> operations,
                                  System::End end,
                                  const Refusal& refusal) {
  int64_t bytes = 0;
  const std::vector<Outcome> outcomes = life->system.Run(operations, end);
  for (size_t index = 0; index < operations.size(); ++index) {
    bytes += 2 * operations[index].bytes;
    std::vector<Refusal> expected = {refusal};
    if (const auto at_door = life->model.RefusalAtDoor(operations[index])) {
      expected = {*at_door};
    } else if (bytes > life->world.max_bytes) {
      expected = Unwanted(operations[index]);
      expected.push_back(refusal);
      expected.push_back({StatusCode::kResourceExhausted, "QUEUE_FULL", ""});
    }
    if (std::string wrong = Refuse(operations[index], outcomes[index], expected); !wrong.empty()) {
      return wrong;
    }
  }
  return "";
}

void Simulation::Log(const Operation& operation, const Outcome& outcome) {
  ++tally_.operations;
  ++tally_.answers[outcome.ok() ? "OK" : outcome.reason];
  log_.push_back(absl::StrCat(tally_.operations, ": ", operation.Text(), " -> ", outcome.Text()));
  if (log_.size() > kLogLines) {
    log_.pop_front();
  }
}

std::string Simulation::Fail(const Operation& operation,
                             const Outcome& outcome,
                             const std::string& what) {
  return absl::StrCat(absl::StrJoin(log_, "\n"), "\noperation ", tally_.operations, ": ",
                      operation.Text(), "\nwas answered: ", outcome.Text(), "\n", what);
}

}  // namespace longshore::simulation
