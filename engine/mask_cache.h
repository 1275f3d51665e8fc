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
/// concern. Each stage has two slots. A call that runs it fills the one that was not current, as
/// the plan says, and a call that does not leaves both alone: nothing is ever copied.
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
  /// One of a stage's two slots, in device memory: first tokens of the chunks that it keeps. A
  /// state says which slot, and how many.
  int32_t* Selected(size_t stage, int32_t slot) const;

  /// A new call, which was planned from state() and leaves `after` behind: what is current becomes
  /// the previous generation.
  void BeginCall(const MaskState& after) {
    previous_ = state_;
    state_ = after;
  }
  /// The last call again, planned from previous().
  void ReplayCall(const MaskState& after) { state_ = after; }
  /// The call that began did not end: what it found is current. What the call before it had found
  /// may be gone.
  void UndoCall() { state_ = previous_; }
  /// Nothing current is to be used: the next call runs every stage.
  void Invalidate() { state_.valid = false; }

  /// Invalid if any stage was refreshed at or past `position`; that holds for both generations.
  void TruncateTo(int64_t position);

 private:
  int64_t total_chunks_ = 0;
  std::array<int64_t, kMaxStages> offsets_ = {};  // of each stage among the chunks
  Buffer storage_;                                // [2 slots, total_chunks_] int32
  MaskState state_;
  MaskState previous_;
};

}  // namespace longshore
