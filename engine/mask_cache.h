#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "engine/backend.h"
#include "engine/plan.h"

namespace longshore {

/// The selection of one layer of one session, kept between decode steps, in two generations: as it
/// is, and as it was before the last call, so that a replay of that call sees what the call saw.
///
/// Holds the selected tokens in memory that kernels read and write; who runs the stages is not its
/// concern.
class MaskCache {
 public:
  /// Room for the output of every one of `stages` in a session of `max_tokens`.
  static absl::StatusOr<MaskCache> Create(std::span<const PruningStage> stages,
                                          int64_t max_tokens,
                                          Backend* backend);
  static int64_t BytesFor(std::span<const PruningStage> stages, int64_t max_tokens);

  const MaskState& state() const { return state_; }
  /// As it was before the last call, for its replay.
  const MaskState& previous() const { return previous_; }
  /// First tokens of the chunks that `stage` keeps; state() says how many.
  int32_t* Selected(int32_t stage) const;

  /// A new call begins: what is current becomes the previous generation.
  absl::Status BeginCall(Backend* backend);
  /// The last call is run again: the previous generation becomes current.
  absl::Status RewindCall(Backend* backend);
  /// Nothing current is to be used: the next call runs every stage.
  void Invalidate() { state_.valid = false; }
  /// The call has been planned: its blocks leave this behind.
  void Commit(const MaskState& state) { state_ = state; }

  /// Invalid if any stage was refreshed at or past `position`; that holds for both generations.
  void TruncateTo(int64_t position);

 private:
  int32_t* Generation(int64_t index) const;
  absl::Status CopyGeneration(int64_t from, int64_t to, Backend* backend);

  int64_t total_chunks_ = 0;
  std::array<int64_t, kMaxStages> offsets_ = {};  // of each stage in a generation, in chunks
  Buffer storage_;  // [2 generations, total_chunks_] int32: current, previous
  MaskState state_;
  MaskState previous_;
};

}  // namespace longshore
