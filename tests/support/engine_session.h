#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engine/engine.h"
#include "tests/support/random_tokens.h"

namespace longshore {

/// Backends that every conformance case runs on.
std::vector<std::string> TestBackends();
/// That of a test which asks for none: LONGSHORE_TEST_BACKEND, or "cpu".
std::string DefaultTestBackend();

/// The backend of that name; "guarded" is a GuardedBackend.
std::unique_ptr<Backend> MakeTestBackend(const std::string& name = DefaultTestBackend(),
                                         int32_t threads = 1);

/// An engine with a pool of `pool_bytes`, on the backend of that name.
std::unique_ptr<Engine> MakeTestEngine(const std::string& backend = DefaultTestBackend(),
                                       int32_t threads = 1,
                                       int64_t pool_bytes = int64_t{64} << 20);

/// A nameless session that reserves its pages.
SessionSpec TestSpec(const ModelShape& model, const AttentionPolicy& policy, int64_t max_tokens);

/// What a test may choose about a call besides its rows.
struct CallOptions {
  bool kv_in_query_dtype = false;  ///< send k and v in query_dtype, not in kv_dtype
  bool log_sum_exp = true;
  bool exclude_sink_logits = false;
};

/// One session's part of a call.
struct CallPart {
  uint64_t session_id = 0;
  int64_t position = 0;
  uint64_t append_id = 0;
  TokenRows rows;
};

/// What a call gave one session.
struct StepOutput {
  std::vector<double> out;           ///< [rows, num_heads, head_dim]
  std::vector<double> log_sum_exp;   ///< [rows, num_heads]; empty if not wanted
  std::vector<std::byte> out_bytes;  ///< the same, as the engine wrote it
  std::vector<std::byte> log_sum_exp_bytes;
};

struct CallOutput {
  StepTrace trace;
  std::vector<int64_t> layer_tokens;
  std::vector<StepOutput> parts;  ///< one a part; empty for kAppend
};

/// Packs the parts' rows in the session's dtypes, submits one call and waits for it. Also checks
/// that nothing behind the outputs was written.
absl::StatusOr<CallOutput> RunCall(Engine* engine,
                                   StepKind kind,
                                   int32_t layer,
                                   std::span<const CallPart> parts,
                                   const CallOptions& options = {});

/// Whether two outputs are equal to the last bit.
::testing::AssertionResult IsSameBits(const StepOutput& actual, const StepOutput& expected);

/// What a session shows of itself, to see whether a call changed anything.
struct SessionState {
  std::vector<int64_t> layer_tokens;
  int64_t page_bytes_used = 0;
  int64_t page_bytes_reserved = 0;
  int64_t pool_free_bytes = 0;
  std::vector<MaskState> masks;                           ///< [num_layers]
  std::vector<std::vector<std::vector<int32_t>>> stages;  ///< [num_layers, stages]

  bool operator==(const SessionState&) const = default;
};
SessionState StateOf(const Engine& engine, uint64_t session_id);

/// One session of an engine, which must outlive it. Knows where each layer ends and numbers its
/// calls.
class EngineSession {
 public:
  /// Opens the session; the spec must be valid.
  EngineSession(Engine* engine, SessionSpec spec);

  uint64_t id() const { return id_; }
  Engine& engine() const { return *engine_; }
  const ModelShape& model() const { return *engine_->ShapeOf(id_).value(); }
  /// Length of a layer.
  int64_t Tokens(int32_t layer = 0) const;

  /// One call at the end of `layer`.
  absl::StatusOr<StepOutput> Run(StepKind kind,
                                 const TokenRows& rows,
                                 int32_t layer = 0,
                                 const CallOptions& options = {});
  /// Run, which must succeed. What the last one did is in trace().
  StepOutput Append(const TokenRows& rows, int32_t layer = 0);
  StepOutput Prefill(const TokenRows& rows, int32_t layer = 0);
  StepOutput Decode(const TokenRows& rows, int32_t layer = 0);
  /// The last Run once more; it must be a replay.
  StepOutput Replay();

  LayerSelection Selection(int32_t layer = 0) const;
  const StepTrace& trace() const { return trace_; }

 private:
  struct LastRun {
    StepKind kind = StepKind::kDecode;
    int32_t layer = 0;
    CallPart part;
    CallOptions options;
  };

  Engine* engine_;
  uint64_t id_ = 0;
  uint64_t next_append_id_ = 1;
  LastRun last_run_;
  StepTrace trace_;
};

}  // namespace longshore
