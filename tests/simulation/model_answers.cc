// What the contract model knows of answers, of the pool and of turns.

#include <algorithm>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "tests/simulation/contract_model.h"

namespace longshore::simulation {
namespace {

constexpr int64_t kSlabBytes = int64_t{8} << 20;
constexpr int32_t kMostOvertakes = 64;

int64_t CeilOf(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; }

std::string TextOf(const std::vector<SessionLine>& lines) {
  Outcome outcome;
  outcome.lines = lines;
  return outcome.Text();
}

}  // namespace

int64_t ModelLayer::pages() const {
  return std::max(CeilOf(tokens(), 64) - expired_pages, int64_t{0});
}

int64_t ModelSession::used_pages() const {
  int64_t pages = 0;
  for (const ModelLayer& layer : layers) {
    pages += layer.pages();
  }
  return pages;
}

std::string ContractModel::CheckAnswer(const Operation& operation, const Outcome& outcome) const {
  switch (operation.kind) {
    case OpKind::kOpen:
      return outcome.session + 1 == next_session_id()
                 ? ""
                 : absl::StrCat("session ids count up: expected ", next_session_id() - 1);
    case OpKind::kDescribe:
    case OpKind::kList: {
      std::vector<SessionLine> lines;
      for (const auto& [id, session] : sessions_) {
        const bool sees = operation.caller == 0 || operation.caller == session.owner;
        if (operation.kind == OpKind::kList ? sees : id == operation.session) {
          lines.push_back(LineOf(id));
        }
      }
      return lines == outcome.lines ? "" : absl::StrCat("expected ", TextOf(lines));
    }
    case OpKind::kTruncate: {
      const SessionLine line = LineOf(operation.session);
      return line.layer_tokens == outcome.layer_tokens ? ""
                                                       : absl::StrCat("expected ", TextOf({line}));
    }
    case OpKind::kExpire:
    case OpKind::kClose: return "";
    default: return CheckStepAnswer(operation, outcome);
  }
}

std::string ContractModel::CheckStepAnswer(const Operation& operation,
                                           const Outcome& outcome) const {
  const auto layer_index = static_cast<size_t>(operation.layer);
  std::vector<int64_t> layer_tokens;
  std::vector<uint64_t> words;
  for (const OpItem& item : operation.items) {
    const ModelSession& session = sessions_.at(item.session);
    const ModelLayer& layer = session.layers[layer_index];
    layer_tokens.push_back(layer.tokens());
    const int64_t window = world_.shapes[session.shape].layer_sliding_window[layer_index];
    for (int64_t row = 0; operation.Attends() && row < item.rows; ++row) {
      const int64_t position = item.position + row;
      const int64_t oldest = window == 0 ? 0 : std::max(int64_t{0}, position - window + 1);
      words.push_back(layer.sums[static_cast<size_t>(position) + 1] -
                      layer.sums[static_cast<size_t>(oldest)]);
    }
  }
  if (layer_tokens != outcome.layer_tokens) {
    return absl::StrCat("expected layer_tokens ", absl::StrJoin(layer_tokens, ","));
  }
  if (!outcome.echoed) {
    return "a row's answer is not its own";
  }
  const auto differs =
      std::mismatch(words.begin(), words.end(), outcome.words.begin(), outcome.words.end());
  if (differs.first != words.end() || differs.second != outcome.words.end()) {
    return absl::StrCat("row ", differs.first - words.begin(), " of ", words.size(),
                        " saw other tokens than those that were sent");
  }
  return "";
}

int64_t ContractModel::PageBytesOf(size_t shape) const {
  const ModelShape& model = world_.shapes[shape];
  return int64_t{2} * 64 * model.num_kv_heads * model.head_dim * SizeOf(model.kv_dtype);
}

// A session that opens has its pages for certain. A sliding-window layer needs the window and two
// calls, the last one and the next; the first and the last page may hold one token each of it.
int64_t ContractModel::PromisedPages(const Operation& open) const {
  int64_t pages = 0;
  for (const int64_t window : world_.shapes[open.shape].layer_sliding_window) {
    const int64_t all = CeilOf(open.max_tokens, 64);
    const int64_t seen = CeilOf(window + 2 * world_.engine.max_rows_per_prefill, 64) + 1;
    pages += window == 0 || window >= open.max_tokens ? all : std::min(all, seen);
  }
  return open.overcommit ? 0 : pages;
}

// The arena is cut into slabs, each of which serves one page size at a time. Among pages of one
// size that is exact; how many slabs another size holds depends on where its pages lie.
ContractModel::Fit ContractModel::FitOf(size_t shape, int64_t pages) const {
  struct Class {
    int64_t used = 0;
    int64_t reserved = 0;
  };
  std::map<int64_t, Class> classes;  // by page bytes
  for (const auto& [id, session] : sessions_) {
    Class& of_size = classes[PageBytesOf(session.shape)];
    of_size.used += session.used_pages();
    of_size.reserved += std::max(int64_t{0}, session.promised_pages - session.used_pages());
  }
  const int64_t slabs = world_.engine.pool_bytes / kSlabBytes;
  const int64_t page_bytes = PageBytesOf(shape);
  int64_t most_free = slabs;
  int64_t least_free = slabs;
  for (const auto& [bytes, other] : classes) {
    if (bytes != page_bytes) {
      const int64_t pages_per_slab = kSlabBytes / bytes;
      most_free -= CeilOf(other.used + other.reserved, pages_per_slab);
      least_free -= other.used + CeilOf(other.reserved, pages_per_slab);
    }
  }
  const Class& own = classes[page_bytes];
  const int64_t wanted = own.used + own.reserved + pages;
  const int64_t pages_per_slab = kSlabBytes / page_bytes;
  if (wanted > most_free * pages_per_slab) {
    return Fit::kNo;
  }
  return wanted <= least_free * pages_per_slab ? Fit::kYes : Fit::kPerhaps;
}

EngineUsage ContractModel::Usage() const {
  EngineUsage usage;
  usage.sessions = std::ssize(sessions_);
  for (const auto& [id, session] : sessions_) {
    const SessionLine line = LineOf(id);
    usage.used_bytes += line.used_bytes;
    usage.reserved_bytes += line.reserved_bytes;
    usage.table_bytes += session.table_bytes;
  }
  usage.free_bytes = world_.engine.pool_bytes - usage.used_bytes - usage.reserved_bytes;
  return usage;
}

SessionLine ContractModel::LineOf(uint64_t id) const {
  const ModelSession& session = sessions_.at(id);
  const int64_t used = session.used_pages();
  SessionLine line;
  line.id = id;
  for (const ModelLayer& layer : session.layers) {
    line.layer_tokens.push_back(layer.tokens());
  }
  line.used_bytes = used * PageBytesOf(session.shape);
  const int64_t reserved = session.overcommit ? 0 : session.promised_pages - used;
  line.reserved_bytes = reserved * PageBytesOf(session.shape);
  return line;
}

std::vector<size_t> OrderOfTurns(const std::vector<const Operation*>& line) {
  const auto is_bulk = [](const Operation& operation) {
    return operation.kind == OpKind::kAppend || operation.kind == OpKind::kPrefill;
  };
  std::vector<std::vector<uint64_t>> sessions;
  std::vector<size_t> waiting;
  for (const Operation* operation : line) {
    waiting.push_back(waiting.size());
    sessions.push_back(operation->Sessions());
  }
  const auto share_session = [&](size_t one, size_t other) {
    return std::find_first_of(sessions[one].begin(), sessions[one].end(), sessions[other].begin(),
                              sessions[other].end()) != sessions[one].end();
  };
  std::vector<int32_t> overtaken(line.size());
  std::vector<size_t> order;
  while (!waiting.empty()) {
    // The first that is short and may pass everybody before it; if there is none, the very first.
    auto next = waiting.begin();
    for (auto it = waiting.begin(); it != waiting.end(); ++it) {
      if (is_bulk(*line[*it])) {
        continue;
      }
      const bool passes = std::all_of(waiting.begin(), it, [&](size_t before) {
        return overtaken[before] < kMostOvertakes && !share_session(before, *it);
      });
      if (passes) {
        next = it;
        break;
      }
    }
    std::for_each(waiting.begin(), next, [&](size_t before) { ++overtaken[before]; });
    order.push_back(*next);
    waiting.erase(next);
  }
  return order;
}

}  // namespace longshore::simulation
