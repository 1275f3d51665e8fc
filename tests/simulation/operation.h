#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/status.h"

namespace longshore::simulation {

enum class OpKind : uint8_t {
  kOpen,
  kDescribe,
  kList,
  kTruncate,
  kClose,
  kExpire,  ///< two hours pass: the daemon closes sessions of short leases that nobody uses
  kAppend,
  kPrefill,
  kDecode
};

/// What is wrong with a step's message; the model knows what each is answered with.
enum class Flaw : uint8_t {
  kNone,
  kNoItems,
  kRepeatedSession,
  kNoRows,
  kTooManyRows,
  kNegativePosition,
  kNoKeys,
  kUnknownDtype,
  kWrongRows,     ///< of k, against the items
  kMissingBytes,  ///< of v, against its shape
  kRegion,        ///< data that this build does not serve
  kMixedDtypes,   ///< of k and v
  kWrongHeads,    ///< of k, v and q, against the model: only the engine knows
  kWrongLayer,    ///< the same
  kManyTokens,    ///< of kOpen: max_tokens above the limit
  kBrokenPolicy,  ///< of kOpen
};

/// What the device does to a step, or to a whole round.
enum class Fault : uint8_t {
  kNone,
  kNonFinite,       ///< refuses the rows
  kStarvedAppend,   ///< throws std::bad_alloc once the rows are written
  kStarvedAttend,   ///< throws it before it attends
  kNoDeviceMemory,  ///< Allocate fails: of kOpen, and perhaps of a step
  kDeviceFails,     ///< fails for good
};

/// The rows of one session in a step, and of each row the word that its key begins with.
struct OpItem {
  uint64_t session = 0;
  int64_t position = 0;
  int64_t rows = 0;
  uint64_t append_id = 0;
  std::vector<uint64_t> words;  ///< [rows]
};

/// Who calls. The first sees and may use everything, the others what is theirs.
inline constexpr const char* kCallers[] = {"local", "host:10.0.0.1", "host:10.0.0.2"};

/// One thing that a client does.
struct Operation {
  OpKind kind = OpKind::kList;
  uint64_t session = 0;      ///< kDescribe, kTruncate, kClose
  int64_t position = 0;      ///< kTruncate
  size_t shape = 0;          ///< kOpen, and steps: of which their tensors are
  size_t policy = 0;         ///< kOpen
  int64_t max_tokens = 0;    ///< kOpen
  bool overcommit = false;   ///< kOpen
  bool short_lease = false;  ///< kOpen: of one hour, else of a week
  size_t caller = 0;         ///< index of kCallers
  int32_t layer = 0;
  std::vector<OpItem> items;  ///< of a step
  bool log_sum_exp = false;
  Flaw flaw = Flaw::kNone;
  Fault fault = Fault::kNone;
  bool cancelled = false;  ///< by its caller, while it waits
  bool expired = false;    ///< its deadline has passed when it comes
  int64_t bytes = 0;       ///< of the request; set by whoever sends it

  bool IsStep() const { return kind >= OpKind::kAppend; }
  bool Attends() const { return kind >= OpKind::kPrefill; }
  /// Sessions that it names, in the order of its message.
  std::vector<uint64_t> Sessions() const;
  /// One line for people.
  std::string Text() const;
};

/// What a session or a whole engine shows of itself.
struct SessionLine {
  uint64_t id = 0;
  std::vector<int64_t> layer_tokens;
  int64_t used_bytes = 0;
  int64_t reserved_bytes = 0;
  bool operator==(const SessionLine&) const = default;
};
struct EngineUsage {
  int64_t used_bytes = 0;
  int64_t reserved_bytes = 0;
  int64_t free_bytes = 0;
  int64_t table_bytes = 0;
  int64_t sessions = 0;
  bool operator==(const EngineUsage&) const = default;
};

/// How an operation was answered.
struct Outcome {
  absl::StatusCode code = absl::StatusCode::kOk;
  std::string reason;   ///< empty when OK
  std::string message;  ///< the same
  std::string field;    ///< to blame, where there is one
  std::optional<int64_t> expected_position;
  std::optional<int64_t> turn;  ///< the how many-th of the queue's jobs it was; none: never begun
  EngineUsage usage;            ///< after it, when it had a turn
  uint64_t session = 0;         ///< kOpen
  std::vector<int64_t> layer_tokens;
  std::vector<SessionLine> lines;  ///< kDescribe, kList
  std::vector<uint64_t> words;     ///< [rows] that each row of `out` begins with
  bool echoed = true;              ///< the rest of `out` and the log-sum-exp are the rows' own

  bool ok() const { return code == absl::StatusCode::kOk; }
  std::string Text() const;
};

}  // namespace longshore::simulation
