#include "tests/simulation/player.h"

#include <algorithm>
#include <utility>

namespace longshore::simulation {
namespace {

constexpr int64_t kFewSessions = 4;
constexpr int64_t kLongRound = 70;  // in which one may be overtaken as often as it ever is

}  // namespace

std::vector<Operation> Player::DrawRound(int64_t most) {
  plans_.clear();
  int64_t operations = 1;
  if (most > 1 && random_.OneIn(8)) {
    operations = random_.Uniform(2, random_.OneIn(4) ? most : std::min(most, int64_t{12}));
  }
  std::vector<Operation> round;
  const bool rush = operations > kLongRound && random_.OneIn(2);
  for (int64_t index = 0; index < operations; ++index) {
    rushes_ = rush && index > 2;
    Operation& operation = round.emplace_back(Draw());
    operation.caller = DrawCaller(operation);
    operation.cancelled = random_.OneIn(50);
    operation.expired = random_.OneIn(50);
    if (operation.IsStep() && operation.flaw == Flaw::kNone && !operation.cancelled &&
        !operation.expired) {
      Remember(operation);
    }
  }
  return round;
}

Operation Player::Draw() {
  const int64_t few = std::ssize(model_.sessions()) < kFewSessions ? 20 : 3;
  const int64_t ticket = random_.Uniform(1, 200);
  if (model_.sessions().empty() || (ticket <= few && !rushes_)) {
    return DrawOpen();
  }
  if (rushes_) {
    return DrawStep();
  }
  if (ticket <= 30) {
    if (ticket <= 24) {
      return DrawSessionCall(OpKind::kTruncate);
    }
    if (random_.OneIn(20)) {
      return DrawSessionCall(OpKind::kExpire);
    }
    return DrawSessionCall(ticket <= 26   ? OpKind::kClose
                           : ticket <= 28 ? OpKind::kDescribe
                                          : OpKind::kList);
  }
  return DrawStep();
}

Operation Player::DrawOpen() {
  Operation open;
  open.kind = OpKind::kOpen;
  open.shape = static_cast<size_t>(random_.Uniform(0, std::ssize(world_.shapes) - 1));
  open.policy = static_cast<size_t>(random_.Uniform(0, std::ssize(world_.policies) - 1));
  open.max_tokens = random_.OneIn(40) ? 0 : random_.Uniform(world_.crowded ? 500 : 1, 640);
  open.overcommit = world_.crowded != random_.OneIn(world_.crowded ? 40 : 2);
  open.short_lease = random_.OneIn(4);
  if (random_.OneIn(20)) {
    open.flaw = random_.OneIn(2) ? Flaw::kManyTokens : Flaw::kBrokenPolicy;
  }
  return open;
}

Operation Player::DrawSessionCall(OpKind kind) {
  Operation call;
  call.kind = kind;
  call.session = DrawSession();
  const auto found = model_.sessions().find(call.session);
  if (kind == OpKind::kTruncate && found != model_.sessions().end()) {
    int64_t longest = 0;
    for (const ModelLayer& layer : found->second.layers) {
      longest = std::max(longest, layer.tokens());
    }
    // A little back as a runner does it, anywhere, or past both ends.
    call.position =
        random_.OneIn(2)
            ? std::max(int64_t{0}, longest - random_.Uniform(0, world_.crowded ? 130 : 8))
        : random_.OneIn(6) ? 0
                           : random_.Uniform(-1, longest + 2);
  }
  return call;
}

uint64_t Player::DrawSession() {
  if (model_.sessions().empty() || random_.OneIn(60)) {  // gone, not opened yet, or never
    const uint64_t first = world_.engine.first_session_id;
    const auto past_end = static_cast<int64_t>(model_.next_session_id() - first) + 1;
    const uint64_t id = first + static_cast<uint64_t>(random_.Uniform(0, past_end));
    return random_.OneIn(5) ? id >> random_.Uniform(1, 40) : id;
  }
  auto it = model_.sessions().begin();
  std::advance(it, random_.Uniform(0, std::ssize(model_.sessions()) - 1));
  return it->first;
}

// Mostly whom the session belongs to, or the one who sees all.
size_t Player::DrawCaller(const Operation& operation) {
  const std::vector<uint64_t> sessions = operation.Sessions();
  const auto found = model_.sessions().find(sessions.empty() ? 0 : sessions[0]);
  if (found == model_.sessions().end() || random_.OneIn(40)) {
    return static_cast<size_t>(random_.Uniform(0, std::ssize(kCallers) - 1));
  }
  return sessions.size() > 1 || random_.OneIn(3) ? 0 : found->second.owner;
}

// Mostly of the same model, as the items of one call must be.
uint64_t Player::DrawSessionLike(uint64_t other) {
  const auto found = model_.sessions().find(other);
  if (found == model_.sessions().end() || random_.OneIn(20)) {
    return DrawSession();
  }
  std::vector<uint64_t> alike;
  for (const auto& [id, session] : model_.sessions()) {
    if (session.shape == found->second.shape) {
      alike.push_back(id);
    }
  }
  return alike[static_cast<size_t>(random_.Uniform(0, std::ssize(alike) - 1))];
}

int64_t Player::DrawRows(OpKind kind) {
  if (kind == OpKind::kDecode) {
    return random_.OneIn(4) ? random_.Uniform(1, world_.engine.max_rows_per_decode_item) : 1;
  }
  // Three items of 64 rows are as many as a call may have.
  return random_.Uniform(1, world_.crowded || random_.OneIn(6) ? 64 : 16);
}

Player::Plan& Player::PlanOf(uint64_t session, int32_t layer) {
  const auto [it, added] = plans_.try_emplace({session, layer});
  const auto found = model_.sessions().find(session);
  if (added && found != model_.sessions().end() && layer < std::ssize(found->second.layers)) {
    const ModelLayer& of_model = found->second.layers[static_cast<size_t>(layer)];
    it->second = {of_model.tokens(), of_model.last_call};
  }
  return it->second;
}

OpItem Player::DrawItem(OpKind kind, uint64_t session, int32_t layer) {
  const Plan& plan = PlanOf(session, layer);
  OpItem item;
  item.session = session;
  item.rows = DrawRows(kind);
  item.append_id = random_.OneIn(20) ? 0 : static_cast<uint64_t>(random_.Uniform(1, 1 << 30));
  item.position = plan.tokens;
  if (random_.OneIn(7)) {  // the last call again, or nearly
    item.position = plan.last_call.position;
    item.rows = std::max(int64_t{1}, plan.last_call.rows);
    item.append_id = plan.last_call.append_id;
    switch (random_.Uniform(0, 12)) {
      case 0: item.append_id ^= 1; break;
      case 1: item.rows = std::min(item.rows + 1, int64_t{64}); break;
      case 2: item.append_id = 0; break;
      default: break;
    }
  } else if (random_.OneIn(25)) {
    item.position = random_.Uniform(0, plan.tokens + 3);
  }
  for (int64_t row = 0; row < item.rows; ++row) {
    item.words.push_back(static_cast<uint64_t>(random_.Uniform(0, int64_t{1} << 60)));
  }
  return item;
}

Operation Player::DrawStep() {
  Operation step;
  step.kind = random_.OneIn(world_.crowded ? 5 : 2) || rushes_ ? OpKind::kDecode
              : random_.OneIn(3)                               ? OpKind::kAppend
                                                               : OpKind::kPrefill;
  const uint64_t first = DrawSession();
  const auto found = model_.sessions().find(first);
  if (found != model_.sessions().end()) {
    step.shape = found->second.shape;
    step.layer = static_cast<int32_t>(
        random_.Uniform(0, std::ssize(found->second.layers) - (random_.OneIn(100) ? 0 : 1)));
  }
  const Plan& plan = PlanOf(first, step.layer);
  if (plan.last_call.rows > 0 && random_.OneIn(6) && !rushes_) {
    step.kind = plan.last_call.kind;  // a replay has the same
  }
  const int64_t items = random_.OneIn(world_.crowded ? 2 : 4) ? random_.Uniform(1, 3) : 1;
  std::vector<uint64_t> sessions = {first};
  while (std::ssize(sessions) < items) {
    sessions.push_back(DrawSessionLike(first));
  }
  std::sort(sessions.begin() + 1, sessions.end());
  for (const uint64_t session : sessions) {
    const std::vector<uint64_t> there = step.Sessions();
    if (std::find(there.begin(), there.end(), session) == there.end()) {
      OpItem item = DrawItem(step.kind, session, step.layer);
      if (step.kind == OpKind::kDecode && item.rows > world_.engine.max_rows_per_decode_item) {
        item.rows = 1;
        item.words.resize(1);
      }
      step.items.push_back(std::move(item));
    }
  }
  step.log_sum_exp = random_.OneIn(2);
  if (random_.OneIn(25)) {
    step.flaw = static_cast<Flaw>(random_.Uniform(1, static_cast<int64_t>(Flaw::kWrongLayer)));
  } else if (random_.OneIn(40)) {
    constexpr Fault kFaults[] = {Fault::kNonFinite, Fault::kStarvedAppend, Fault::kStarvedAttend};
    step.fault = kFaults[random_.Uniform(0, 2)];
  }
  return step;
}

void Player::Remember(const Operation& step) {
  for (const OpItem& item : step.items) {
    Plan& plan = PlanOf(item.session, step.layer);
    if (plan.tokens == item.position && step.fault == Fault::kNone) {
      plan.tokens += item.rows;
      plan.last_call = {step.kind, item.position, item.rows, item.append_id};
    }
  }
}

}  // namespace longshore::simulation
