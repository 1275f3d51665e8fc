#include "engine/mask_cache.h"

#include <utility>

#include "engine/core/math.h"

namespace longshore {
namespace {

void InvalidateFrom(int64_t position, MaskState* state) {
  for (const int64_t refreshed_at : state->refreshed_at) {
    if (refreshed_at >= position) {
      state->valid = false;
    }
  }
}

// Chunks that a stage keeps at most in a session of max_tokens.
int64_t MaxKept(const PruningStage& stage, int64_t max_tokens) {
  return Min(stage.KeepChunks(), max_tokens / stage.chunk_tokens);
}

}  // namespace

int64_t MaskCache::BytesFor(std::span<const PruningStage> stages, int64_t max_tokens) {
  int64_t chunks = 0;
  for (const PruningStage& stage : stages) {
    chunks += MaxKept(stage, max_tokens);
  }
  return static_cast<int64_t>(2 * sizeof(int32_t)) * chunks;
}

absl::StatusOr<MaskCache> MaskCache::Create(std::span<const PruningStage> stages,
                                            int64_t max_tokens,
                                            Backend* backend) {
  MaskCache cache;
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    cache.offsets_[stage] = cache.total_chunks_;
    cache.total_chunks_ += MaxKept(stages[stage], max_tokens);
  }
  if (cache.total_chunks_ > 0) {
    ASSIGN_OR_RETURN(cache.storage_,
                     backend->Allocate(MemorySpace::kDevice, BytesFor(stages, max_tokens)));
  }
  return cache;
}

int32_t* MaskCache::Selected(size_t stage, int32_t slot) const {
  return reinterpret_cast<int32_t*>(storage_.data()) + slot * total_chunks_ + offsets_[stage];
}

void MaskCache::TruncateTo(int64_t position) {
  InvalidateFrom(position, &state_);
  InvalidateFrom(position, &previous_);
}

}  // namespace longshore
