#pragma once

#include <cstdint>

#include "engine/backend.h"
#include "engine/model_shape.h"

namespace longshore {

/// cos and sin of every rotary id below `max_ids`, in two levels: id = 64 b + r needs row b of the
/// coarse part and row r of the fine part, and one complex product. At 1M ids and 64 pairs that is
/// 8 MB instead of 512. Angles are those of double precision; attention_scaling is in the fine
/// part.
///
/// Owns its rows in memory that the backend's kernels read. Immutable.
class RopeTable {
 public:
  static constexpr int32_t kFineIds = 64;

  /// One cos and sin in double precision for every 16384 ids and pair; what lies between is
  /// composed of those: 64 pairs at 16Mi ids take a tenth of a second. ResourceExhausted names the
  /// bytes.
  static absl::StatusOr<RopeTable> Create(const RopeSpec& spec, int64_t max_ids, Backend* backend);
  /// Bytes of a table of `pairs` pairs.
  static int64_t BytesFor(int64_t pairs, int64_t max_ids);

  RopeRows rows() const;
  int64_t max_ids() const { return max_ids_; }

 private:
  RopeTable(const RopeSpec& spec, int64_t max_ids, Buffer storage);

  RopePairing pairing_;
  int32_t pairs_;
  float attention_scaling_;
  int64_t trained_tokens_;
  int64_t max_ids_;
  Buffer storage_;  // fine cos, fine sin [64, pairs], coarse cos, coarse sin [ceil(max_ids / 64),
                    // pairs]
};

}  // namespace longshore
