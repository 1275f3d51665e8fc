#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/backend.h"
#include "engine/core/error.h"
#include "engine/engine_options.h"
#include "engine/group_run.h"
#include "engine/kv/page_pool.h"
#include "engine/model_shape.h"
#include "engine/policy.h"
#include "engine/recall_probe.h"
#include "engine/session.h"
#include "engine/step.h"

namespace longshore {

/// What a session looks like from outside.
struct SessionInfo {
  uint64_t id = 0;
  SessionSpec spec;
  std::vector<int64_t> layer_tokens;  ///< [num_layers]
  int64_t page_bytes_used = 0;
  int64_t page_bytes_reserved = 0;
};

/// What a layer has selected for its next decode step.
struct LayerSelection {
  MaskState mask;  ///< mask.valid false: nothing, the rest means nothing then
  std::vector<std::vector<int32_t>> stages;  ///< first tokens of the chunks that each stage keeps
};

/// Sessions, their keys and values, and the steps on them. Owned and called by one thread; knows no
/// protocol. Every call either applies whole or leaves everything as it was, unless the device
/// fails: then what it changed is unknown, and the engine is of no further use. Where the standard
/// library finds no memory for a call it throws std::bad_alloc, and that leaves everything as it
/// was, too, but that the call before it may no longer be replayed (POSITION_CONFLICT).
///
/// Errors carry ErrorDetails. NotFound SESSION_NOT_FOUND; InvalidArgument INVALID_FIELD, NON_FINITE
/// and OUT_OF_RANGE_VALUE (see magnitude.h); Aborted POSITION_CONFLICT and OutOfRange POSITION_GAP
/// with expected_position; ResourceExhausted POOL_FULL, TOO_MANY_SESSIONS, HOST_MEMORY; OutOfRange
/// MAX_TOKENS and TOKENS_EXPIRED; Internal DEVICE_FAILED.
class Engine {
 public:
  /// InvalidArgument names the option that is out of range and both numbers.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const EngineOptions& options,
                                                        std::unique_ptr<Backend> backend);
  /// Key summaries that lie beside a pool of `pool_bytes`.
  static int64_t SummaryBytes(int64_t pool_bytes);
  ~Engine();

  absl::StatusOr<uint64_t> Open(SessionSpec spec);
  /// The shape that a session was opened with; lives as long as the session.
  absl::StatusOr<const ModelShape*> ShapeOf(uint64_t session_id) const;
  absl::StatusOr<SessionInfo> Describe(uint64_t session_id) const;
  std::vector<SessionInfo> List() const;
  /// The cached mask of a layer, for tests and monitors. Waits for the device.
  absl::StatusOr<LayerSelection> SelectionOf(uint64_t session_id, int32_t layer) const;
  /// Forgets tokens at and past `position` in every layer. Returns the layers' lengths. OutOfRange
  /// if no layer reaches `position`, or a sliding-window layer has freed tokens that its next query
  /// would see (TOKENS_EXPIRED). What the layer's last call saw is never freed. The session's calls
  /// must have been waited for.
  absl::StatusOr<std::vector<int64_t>> Truncate(uint64_t session_id, int64_t position);
  /// The session's calls must have been waited for.
  absl::Status Close(uint64_t session_id);

  /// What Submit would refuse of a call before it needs any memory: everything but NON_FINITE,
  /// OUT_OF_RANGE_VALUE, POOL_FULL, and its outputs, which are not looked at and may be missing.
  /// For callers that make room for outputs only then.
  absl::Status Check(const StepCall& call) const;
  /// Checks, plans, reserves and enqueues one call; its sessions count it as applied. The tensors
  /// must stay until Wait(ticket.fence). After a failure of the device the answer is its error.
  absl::StatusOr<StepTicket> Submit(const StepCall& call);
  /// Blocks until the call is done. An error concerns the device, never the input.
  absl::Status Wait(const StepTicket& ticket);
  /// Goes on measuring the last block that was sampled, for about `max_products` products of an
  /// element of a query and one of a key: what keeps a caller's time, whatever the model. Changes
  /// no session and no answer, and waits for the device. An error concerns the device.
  absl::StatusOr<RecallSlice> AdvanceRecall(int64_t max_products);
  /// OK until the device fails in Open, Submit, Wait or AdvanceRecall; its error, DEVICE_FAILED,
  /// from then on.
  const absl::Status& device_status() const { return device_status_; }

  const EngineOptions& options() const { return options_; }
  const DeviceInfo& device() const { return backend_->info(); }
  PoolUsage pool_usage() const { return pool_.usage(); }
  const RecallCounts& recall_counts() const { return recall_.counts(); }
  int64_t table_bytes() const { return table_bytes_; }
  int64_t num_sessions() const { return static_cast<int64_t>(sessions_.size()); }

 private:
  struct Work;  // one item of a call: its session, layer, plan, and whether it is a replay
  using Group = std::vector<BlockPlan>;  // of one policy, independent of each other

  Engine(const EngineOptions& options, std::unique_ptr<Backend> backend);

  absl::Status CheckSpec(SessionSpec* spec) const;
  absl::Status Prepare(Session* session);
  absl::StatusOr<Session*> Find(uint64_t session_id) const;
  SessionInfo InfoOf(const Session& session) const;
  static absl::Status CheckNotExpired(const Session& session, int64_t position);
  void FreePage(Session* session, int32_t page_id);
  void DropPages(Session* session, LayerState* layer, int64_t tokens);
  void DropExpired(const Work& work);
  KvView ViewOf(const Session& session, const LayerState& layer) const;

  absl::StatusOr<std::vector<Work>> CheckItems(const StepCall& call) const;
  static std::vector<Group> PlanCall(const StepCall& call, std::span<Work> work);
  absl::Status ReserveSelections(std::span<const Group> groups);
  absl::Status TakePages(std::span<Work> work);
  absl::Status UpdatePageTables(std::span<Work> work);
  void Undo(std::span<Work> work);
  absl::Status RunAppend(const StepCall& call, std::span<Work> work, StepTrace* trace);
  absl::Status RunAttention(const StepCall& call,
                            std::span<Work> work,
                            std::span<const Group> groups,
                            StepTrace* trace);
  std::vector<SelectionSlots> PlaceSelections(std::span<const Work> work,
                                              std::span<const BlockPlan> blocks) const;
  absl::Status RunBlocks(const StepCall& call,
                         std::span<const Work> work,
                         std::span<const BlockPlan> blocks,
                         StepTrace* trace);
  absl::Status SampleRecall(const StepCall& call, std::span<const Work> work, const GroupRun& run);
  void Commit(const StepCall& call, std::span<Work> work, StepTicket* ticket);

  // The error of a device that failed for `cause`, now and from now on.
  absl::Status DeviceFailed(const absl::Status& cause);
  // A status of code `refusal` as it is; any other error means that the device failed.
  absl::Status RefusalOrFailure(absl::StatusCode refusal, const absl::Status& status);

  EngineOptions options_;
  std::unique_ptr<Backend> backend_;  // outlives everything below, which frees through it
  Buffer pages_;
  std::array<Buffer, kNumSummaryKinds> summaries_;
  Buffer selections_;  // of the query blocks that no mask cache keeps
  RecallProbe recall_;
  PagePool pool_;
  std::unordered_map<uint64_t, std::unique_ptr<Session>> sessions_;
  absl::Status device_status_;
  int64_t table_bytes_ = 0;  // of all open sessions
  uint64_t next_session_id_;
};

}  // namespace longshore
