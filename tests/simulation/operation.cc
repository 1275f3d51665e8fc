#include "tests/simulation/operation.h"

#include <algorithm>
#include <array>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

namespace longshore::simulation {
namespace {

constexpr std::array<const char*, 9> kKinds = {"open",   "describe", "list",    "truncate", "close",
                                               "expire", "append",   "prefill", "decode"};
constexpr std::array<const char*, 16> kFlaws = {"",
                                                "no items",
                                                "repeated session",
                                                "no rows",
                                                "too many rows",
                                                "position -1",
                                                "no k",
                                                "dtype 99",
                                                "rows of k",
                                                "bytes of v",
                                                "region",
                                                "mixed dtypes",
                                                "head count",
                                                "layer number",
                                                "max_tokens",
                                                "broken policy"};
constexpr std::array<const char*, 6> kFaults = {
    "", "non-finite", "starved append", "starved attend", "no device memory", "device fails"};

template <size_t N, typename Enum>
std::string Remark(const std::array<const char*, N>& names, Enum value) {
  const char* name = names[static_cast<size_t>(value)];
  return *name == '\0' ? "" : absl::StrCat(" [", name, "]");
}

}  // namespace

std::vector<uint64_t> Operation::Sessions() const {
  if (!IsStep()) {
    const bool names_one =
        kind == OpKind::kDescribe || kind == OpKind::kTruncate || kind == OpKind::kClose;
    return names_one ? std::vector<uint64_t>{session} : std::vector<uint64_t>{};
  }
  std::vector<uint64_t> sessions;
  for (const OpItem& item : items) {
    sessions.push_back(item.session);
  }
  return sessions;
}

std::string Operation::Text() const {
  std::string text = kKinds[static_cast<size_t>(kind)];
  if (kind == OpKind::kOpen) {
    absl::StrAppend(&text, " shape ", shape, " policy ", policy, " max_tokens ", max_tokens,
                    overcommit ? " overcommit" : "", short_lease ? " short lease" : "");
  } else if (IsStep()) {
    absl::StrAppend(&text, " layer ", layer);
    for (const OpItem& item : items) {
      absl::StrAppend(&text, " {", item.session, " at ", item.position, " rows ", item.rows, " id ",
                      item.append_id, "}");
    }
  } else if (kind != OpKind::kList && kind != OpKind::kExpire) {
    absl::StrAppend(&text, " ", session);
    absl::StrAppend(&text, kind == OpKind::kTruncate ? absl::StrCat(" to ", position) : "");
  }
  absl::StrAppend(&text, " by ", kCallers[caller], Remark(kFlaws, flaw), Remark(kFaults, fault),
                  cancelled ? " [cancelled]" : "", expired ? " [expired]" : "");
  return text;
}

std::string Outcome::Text() const {
  std::string text = turn.has_value() ? absl::StrCat("turn ", *turn, " ") : "no turn ";
  if (!ok()) {
    absl::StrAppend(&text, absl::StatusCodeToString(code), " ", reason, ": ", message);
    return text;
  }
  absl::StrAppend(&text, "OK", session == 0 ? "" : absl::StrCat(" session ", session),
                  layer_tokens.empty() ? "" : " tokens ", absl::StrJoin(layer_tokens, ","));
  for (const SessionLine& line : lines) {
    absl::StrAppend(&text, " {", line.id, ": ", absl::StrJoin(line.layer_tokens, ","), " used ",
                    line.used_bytes, " reserved ", line.reserved_bytes, "}");
  }
  return text;
}

}  // namespace longshore::simulation
