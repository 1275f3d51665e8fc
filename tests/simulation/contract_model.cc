#include "tests/simulation/contract_model.h"

#include <algorithm>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "tests/simulation/system.h"

namespace longshore::simulation {
namespace {

using absl::StatusCode;
using Replay = ModelLayer::Replay;

constexpr int64_t kPageTokens = 64;

int64_t Pages(int64_t tokens) { return (tokens + kPageTokens - 1) / kPageTokens; }

// Rows at the layer's end: true; a repetition of its last call: false; else what is wrong.
struct Place {
  bool appends = false;
  bool replays = false;
  bool replays_perhaps = false;
};

Place PlaceOf(const Operation& operation, const OpItem& item, const ModelLayer& layer) {
  const ModelLayer::Call& last = layer.last_call;
  Place place;
  place.appends = item.position == layer.tokens();
  const bool same = !place.appends && last.kind == operation.kind &&
                    last.position == item.position && last.rows == item.rows &&
                    last.append_id == item.append_id && item.append_id != 0;
  place.replays = same && layer.replay == Replay::kYes;
  place.replays_perhaps = same && layer.replay == Replay::kPerhaps;
  return place;
}

std::string TextOf(const EngineUsage& usage) {
  return absl::StrCat("used ", usage.used_bytes, " reserved ", usage.reserved_bytes, " free ",
                      usage.free_bytes, " tables ", usage.table_bytes, " sessions ",
                      usage.sessions);
}

}  // namespace

void ContractModel::Verdict::AddMemory(Fit fit) {
  const Refusal full = {StatusCode::kResourceExhausted, "POOL_FULL", ""};
  if (fit == Fit::kNo) {
    must.push_back(full);
  } else if (fit == Fit::kPerhaps) {
    may.push_back(full);
  }
}

// Ids tell by their upper half which instance of the daemon they are of; 0 of none.
std::optional<Refusal> ContractModel::SessionRefusal(uint64_t session,
                                                     size_t caller,
                                                     const std::string& prefix) const {
  constexpr int kInstanceShift = 32;
  const auto found = sessions_.find(session);
  if (found != sessions_.end() && (caller == 0 || caller == found->second.owner)) {
    return std::nullopt;
  }
  Refusal refusal = {StatusCode::kNotFound, "SESSION_NOT_FOUND", prefix + "session_id"};
  const auto expired = expired_.find(session);
  const uint64_t instance = session >> kInstanceShift;
  if (instance != 0 && instance != world_.engine.first_session_id >> kInstanceShift) {
    refusal.reason = "INSTANCE_CHANGED";
  } else if (expired != expired_.end() && (caller == 0 || caller == expired->second)) {
    refusal.reason = "SESSION_EXPIRED";
  }
  return refusal;
}

std::optional<Refusal> ContractModel::RefusalAtDoor(const Operation& operation) const {
  std::optional<Refusal> refusal = MessageRefusal(operation);
  const std::vector<uint64_t> sessions = operation.Sessions();
  for (size_t index = 0; index < sessions.size() && !refusal.has_value(); ++index) {
    refusal = SessionRefusal(sessions[index], operation.caller,
                             operation.IsStep() ? absl::StrCat("items[", index, "].") : "");
  }
  return refusal;
}

std::string ContractModel::JudgeRefusal(const std::vector<Refusal>& expected,
                                        const Outcome& outcome) {
  return MatchesAny(expected, outcome) ? "" : absl::StrCat("expected ", TextOf(expected));
}

std::string ContractModel::Judge(const Operation& operation,
                                 const Outcome& outcome,
                                 const std::set<uint64_t>& in_use) {
  const Verdict verdict = Expect(operation);
  if (outcome.ok() && !verdict.must.empty()) {
    return absl::StrCat("expected ", TextOf(verdict.must));
  }
  if (!outcome.ok() && !MatchesAny(verdict.must, outcome) && !MatchesAny(verdict.may, outcome)) {
    return absl::StrCat("expected ", verdict.must.empty() ? "OK" : TextOf(verdict.must),
                        verdict.may.empty() ? "" : " or ", TextOf(verdict.may));
  }
  std::string wrong;
  if (outcome.ok()) {
    if (operation.kind == OpKind::kExpire) {
      Expire(in_use);
    }
    Apply(operation, outcome);
    wrong = CheckAnswer(operation, outcome);
  } else {
    Starve(operation, outcome);
  }
  if (wrong.empty() && outcome.usage != Usage()) {
    wrong = absl::StrCat("expected ", TextOf(Usage()), ", the engine has ", TextOf(outcome.usage));
  }
  return wrong;
}

ContractModel::Verdict ContractModel::Expect(const Operation& operation) const {
  Verdict verdict;
  verdict.must = Unwanted(operation);
  if (!verdict.must.empty()) {
    return verdict;
  }
  switch (operation.kind) {
    case OpKind::kOpen: ExpectOpen(operation, &verdict); break;
    case OpKind::kExpire:
    case OpKind::kList: break;
    case OpKind::kTruncate: ExpectTruncate(operation, &verdict); break;
    case OpKind::kDescribe:
    case OpKind::kClose:
      if (!sessions_.contains(operation.session)) {
        verdict.must.push_back({StatusCode::kNotFound, "SESSION_NOT_FOUND", "session_id"});
      }
      break;
    default: ExpectStep(operation, &verdict); break;
  }
  return verdict;
}

void ContractModel::ExpectOpen(const Operation& operation, Verdict* verdict) const {
  if (operation.flaw == Flaw::kManyTokens || operation.max_tokens < 1) {
    verdict->must.push_back(Invalid("max_tokens"));
  }
  if (operation.flaw == Flaw::kBrokenPolicy) {
    verdict->must.push_back(Invalid("policy.query_block"));
  }
  if (!verdict->must.empty()) {
    return;
  }
  const EngineUsage usage = Usage();
  if (usage.sessions >= world_.engine.max_sessions) {
    verdict->must.push_back({StatusCode::kResourceExhausted, "TOO_MANY_SESSIONS", ""});
  }
  if (usage.table_bytes + System::TableBytesOf(world_, operation) > world_.engine.max_table_bytes) {
    verdict->must.push_back({StatusCode::kResourceExhausted, "TABLES_FULL", ""});
  }
  verdict->AddMemory(FitOf(operation.shape, PromisedPages(operation)));
  if (starved_) {
    verdict->must.push_back({StatusCode::kResourceExhausted, "HOST_MEMORY", ""});
  }
}

void ContractModel::ExpectTruncate(const Operation& operation, Verdict* verdict) const {
  const auto found = sessions_.find(operation.session);
  if (found == sessions_.end()) {
    verdict->must.push_back({StatusCode::kNotFound, "SESSION_NOT_FOUND", "session_id"});
    return;
  }
  int64_t longest = 0;
  int64_t earliest = 0;
  for (size_t index = 0; index < found->second.layers.size(); ++index) {
    const ModelLayer& layer = found->second.layers[index];
    longest = std::max(longest, layer.tokens());
    if (layer.tokens() > operation.position && layer.expired_pages > 0) {
      // A query there sees window - 1 tokens before its own, and none of them may be gone.
      const int64_t window = world_.shapes[found->second.shape].layer_sliding_window[index];
      earliest = std::max(earliest, layer.expired_pages * kPageTokens + window - 1);
    }
  }
  if (operation.position < 0 || operation.position > longest) {
    verdict->must.push_back({StatusCode::kOutOfRange, "TRUNCATE_PAST_END", "position"});
  } else if (operation.position > 0 && operation.position < earliest) {
    verdict->must.push_back({StatusCode::kOutOfRange, "TOKENS_EXPIRED", "position"});
  }
}

void ContractModel::ExpectStep(const Operation& operation, Verdict* verdict) const {
  if (operation.flaw == Flaw::kWrongHeads) {
    verdict->must.push_back(Invalid("k.shape[1]"));
  }
  for (size_t index = 0; index < operation.items.size(); ++index) {
    ExpectItem(operation, index, verdict);
  }
  if (!verdict->must.empty()) {
    return;
  }
  int64_t pages = 0;
  for (const OpItem& item : operation.items) {
    const ModelSession& session = sessions_.at(item.session);
    const ModelLayer& layer = session.layers[static_cast<size_t>(operation.layer)];
    if (session.overcommit && item.position == layer.tokens()) {
      pages += Pages(layer.tokens() + item.rows) - Pages(layer.tokens());
    }
  }
  verdict->AddMemory(FitOf(operation.shape, pages));
  const Refusal host_memory = {StatusCode::kResourceExhausted, "HOST_MEMORY", ""};
  if (operation.fault == Fault::kNonFinite) {
    verdict->must.push_back({StatusCode::kInvalidArgument, "NON_FINITE", "k"});
  } else if (operation.fault == Fault::kStarvedAppend ||
             (operation.fault == Fault::kStarvedAttend && operation.Attends())) {
    verdict->must.push_back(host_memory);
  }
  if (starved_ && operation.Attends()) {
    verdict->may.push_back(host_memory);
  }
}

void ContractModel::ExpectItem(const Operation& operation, size_t index, Verdict* verdict) const {
  const OpItem& item = operation.items[index];
  const std::string prefix = absl::StrCat("items[", index, "].");
  const auto found = sessions_.find(item.session);
  if (found == sessions_.end()) {
    verdict->must.push_back({StatusCode::kNotFound, "SESSION_NOT_FOUND", prefix + "session_id"});
    return;
  }
  const ModelSession& session = found->second;
  if (operation.flaw == Flaw::kWrongLayer || operation.layer >= std::ssize(session.layers)) {
    verdict->must.push_back(Invalid("layer"));
    return;
  }
  const auto first = sessions_.find(operation.items[0].session);
  if (first != sessions_.end() && first->second.shape != session.shape) {
    verdict->must.push_back(Invalid(prefix + "session_id"));
  }
  if (session.shape != operation.shape) {
    // The tensors are of another model: which of their fields is blamed depends on both.
    for (const char* field : {"k.shape[1]", "k.shape[2]", "k.dtype"}) {
      verdict->must.push_back(Invalid(field));
    }
  }
  const ModelLayer& layer = session.layers[static_cast<size_t>(operation.layer)];
  const Place place = PlaceOf(operation, item, layer);
  if (place.appends && item.rows > session.max_tokens - layer.tokens()) {
    verdict->must.push_back({StatusCode::kOutOfRange, "MAX_TOKENS", prefix + "rows"});
  }
  if (place.appends || place.replays) {
    return;
  }
  const bool gap = item.position > layer.tokens();
  (place.replays_perhaps ? verdict->may : verdict->must)
      .push_back({gap ? StatusCode::kOutOfRange : StatusCode::kAborted,
                  gap ? "POSITION_GAP" : "POSITION_CONFLICT", prefix + "position", layer.tokens()});
}

void ContractModel::Apply(const Operation& operation, const Outcome& outcome) {
  switch (operation.kind) {
    case OpKind::kOpen: {
      ModelSession& session = sessions_[outcome.session];
      session.shape = operation.shape;
      session.max_tokens = operation.max_tokens;
      session.owner = operation.caller;
      session.short_lease = operation.short_lease;
      session.overcommit = operation.overcommit;
      session.promised_pages = PromisedPages(operation);
      session.table_bytes = System::TableBytesOf(world_, operation);
      session.layers.resize(static_cast<size_t>(world_.shapes[operation.shape].num_layers));
      ++opened_;
      break;
    }
    case OpKind::kTruncate:
      for (ModelLayer& layer : sessions_.at(operation.session).layers) {
        if (layer.tokens() > operation.position) {
          layer.sums.resize(static_cast<size_t>(operation.position) + 1);
          layer.replay = Replay::kNo;
          layer.expired_pages = operation.position == 0 ? 0 : layer.expired_pages;
        }
      }
      break;
    case OpKind::kClose: sessions_.erase(operation.session); break;
    case OpKind::kDescribe:
    case OpKind::kExpire:
    case OpKind::kList: break;
    default: ApplyStep(operation); break;
  }
}

void ContractModel::Expire(const std::set<uint64_t>& in_use) {
  for (auto it = sessions_.begin(); it != sessions_.end();) {
    if (it->second.short_lease && !in_use.contains(it->first)) {
      expired_[it->first] = it->second.owner;
      it = sessions_.erase(it);
    } else {
      ++it;
    }
  }
}

void ContractModel::ApplyStep(const Operation& operation) {
  for (const OpItem& item : operation.items) {
    ModelSession& session = sessions_.at(item.session);
    const auto index = static_cast<size_t>(operation.layer);
    ModelLayer& layer = session.layers[index];
    if (item.position != layer.tokens()) {
      layer.replay = Replay::kYes;
      continue;
    }
    for (const uint64_t word : item.words) {
      layer.sums.push_back(layer.sums.back() + Weight(layer.tokens(), word, ValueWord(word)));
    }
    layer.last_call = {operation.kind, item.position, item.rows, item.append_id};
    layer.replay = Replay::kYes;
    const int64_t window = world_.shapes[session.shape].layer_sliding_window[index];
    if (window > 0) {  // what this call saw stays, for its replay
      const int64_t oldest = std::max(int64_t{0}, item.position - window + 1);
      layer.expired_pages = std::max(layer.expired_pages, oldest / kPageTokens);
    }
  }
}

// What a refusal may leave behind: after HOST_MEMORY, and nothing else, the call before may be
// forgotten. And a conflict tells that it is.
void ContractModel::Starve(const Operation& operation, const Outcome& outcome) {
  const bool starved = outcome.reason == "HOST_MEMORY";
  const bool conflict = outcome.reason == "POSITION_CONFLICT";
  if (!operation.IsStep() || !(starved || conflict)) {
    return;
  }
  for (size_t index = 0; index < operation.items.size(); ++index) {
    const auto found = sessions_.find(operation.items[index].session);
    if (found == sessions_.end() || operation.layer >= std::ssize(found->second.layers)) {
      continue;
    }
    ModelLayer& layer = found->second.layers[static_cast<size_t>(operation.layer)];
    if (starved && layer.replay == Replay::kYes) {
      layer.replay = Replay::kPerhaps;
    }
    if (conflict && outcome.field == absl::StrCat("items[", index, "].position") &&
        PlaceOf(operation, operation.items[index], layer).replays_perhaps) {
      layer.replay = Replay::kNo;
    }
  }
}

}  // namespace longshore::simulation
