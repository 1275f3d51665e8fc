#pragma once

#include <cstdint>

#include <absl/functional/function_ref.h>

#include "engine/cpu/scratch.h"
#include "engine/cpu/stage_scores.h"

namespace longshore::cpu {

/// Runs body(index, scratch) for [0, count): on the team for a single block, in place where whole
/// blocks are what the team shares.
using Loop = absl::FunctionRef<void(int64_t count,
                                    absl::FunctionRef<void(int64_t index, Scratch* scratch)> body)>;

/// One rank for each candidate from the scaled scores of all KV heads and rows (design section 4,
/// table of rankings). With p = s - log-sum-exp of the row's scores over the candidates:
///
///   probability        max over rows of p
///   probability_sum    log of the sum over rows of exp(p)
///   probability_power  log of the sum over rows of exp(a p), a = args.probability_power
///   score_max          max over rows of s
///
/// Sums are taken in the order of rows. Returns [candidates], valid until scratch->Reset().
float* RankCandidates(const PruneArgs& args, const StageView& view, Loop loop, Scratch* scratch);

}  // namespace longshore::cpu
