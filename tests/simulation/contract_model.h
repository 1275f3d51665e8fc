#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tests/simulation/operation.h"
#include "tests/simulation/refusal.h"
#include "tests/simulation/world.h"

namespace longshore::simulation {

/// What the contract says of one layer of a session.
struct ModelLayer {
  enum class Replay : uint8_t { kNo, kPerhaps, kYes };
  struct Call {
    OpKind kind = OpKind::kList;
    int64_t position = 0;
    int64_t rows = 0;
    uint64_t append_id = 0;
  };

  std::vector<uint64_t> sums = {0};  ///< [tokens + 1] of the weights of the tokens before
  int64_t expired_pages = 0;         ///< that the sliding window has left behind
  Replay replay = Replay::kNo;       ///< whether last_call may come again
  Call last_call;

  int64_t tokens() const { return std::ssize(sums) - 1; }
  int64_t pages() const;  ///< in use
};

struct ModelSession {
  size_t shape = 0;
  size_t owner = 0;  ///< index of kCallers
  bool short_lease = false;
  int64_t max_tokens = 0;
  bool overcommit = false;
  int64_t promised_pages = 0;  ///< used and reserved ones together; of overcommit none
  int64_t table_bytes = 0;
  std::vector<ModelLayer> layers;

  int64_t used_pages() const;
};

/// The contract (design section 3, proto/README.md) as a model of its own: sessions are lengths and
/// checksums, the pool is a number of pages. Knows nothing of how the engine does it.
class ContractModel {
 public:
  explicit ContractModel(const World& world) : world_(world) {}

  /// What a call is refused with when it arrives, before it is queued: for its message, or for
  /// sessions that are not open or not its caller's. Nothing if it is let in.
  std::optional<Refusal> RefusalAtDoor(const Operation& operation) const;
  /// Empty if the contract allows that outcome of an operation that had its turn; else what it says
  /// instead. What was applied is applied here, too. `in_use`: sessions that calls behind it in the
  /// line name.
  std::string Judge(const Operation& operation,
                    const Outcome& outcome,
                    const std::set<uint64_t>& in_use);
  /// The same for an operation that never began and must be answered with `expected`.
  static std::string JudgeRefusal(const std::vector<Refusal>& expected, const Outcome& outcome);

  /// Allocate fails from now on, or works again.
  void StarveDevice(bool starve) { starved_ = starve; }

  const std::map<uint64_t, ModelSession>& sessions() const { return sessions_; }
  uint64_t next_session_id() const {
    return world_.engine.first_session_id + static_cast<uint64_t>(opened_);
  }

 private:
  enum class Fit : uint8_t { kNo, kPerhaps, kYes };
  struct Verdict {
    std::vector<Refusal> must;  ///< if there are any: not served
    std::vector<Refusal> may;   ///< may come instead of what must
    void AddMemory(Fit fit);
  };

  std::optional<Refusal> SessionRefusal(uint64_t session,
                                        size_t caller,
                                        const std::string& prefix) const;
  void Expire(const std::set<uint64_t>& in_use);
  Verdict Expect(const Operation& operation) const;
  void ExpectOpen(const Operation& operation, Verdict* verdict) const;
  void ExpectTruncate(const Operation& operation, Verdict* verdict) const;
  void ExpectStep(const Operation& operation, Verdict* verdict) const;
  void ExpectItem(const Operation& operation, size_t index, Verdict* verdict) const;
  void Apply(const Operation& operation, const Outcome& outcome);
  void ApplyStep(const Operation& operation);
  void Starve(const Operation& operation, const Outcome& outcome);
  std::string CheckAnswer(const Operation& operation, const Outcome& outcome) const;
  std::string CheckStepAnswer(const Operation& operation, const Outcome& outcome) const;

  int64_t PageBytesOf(size_t shape) const;
  int64_t PromisedPages(const Operation& open) const;
  Fit FitOf(size_t shape, int64_t pages) const;
  EngineUsage Usage() const;
  SessionLine LineOf(uint64_t id) const;

  const World& world_;
  std::map<uint64_t, ModelSession> sessions_;
  std::map<uint64_t, size_t> expired_;  // owners
  int64_t opened_ = 0;
  bool starved_ = false;
};

/// Which operation comes when: first come first served, but decode steps and session calls overtake
/// prefills and appends of other sessions, each of those 64 times at most. Indices of `line` in the
/// order of their turns.
std::vector<size_t> OrderOfTurns(const std::vector<const Operation*>& line);

}  // namespace longshore::simulation
