#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "tests/support/compare.h"
#include "tests/support/engine_session.h"
#include "tests/support/oracle.h"

namespace longshore {

/// How strictly a session is judged.
struct Strictness {
  Tolerance out;
  double log_sum_exp = 0.0;  ///< largest difference
  /// Of a ranking score, or of two branches of a descent; 0: selections must be equal, ties
  /// included.
  double score = 0.0;
};

/// What the dtypes of a model allow, for logits of about unit size, which grow `logit_size` times.
///
/// f32: sums of up to a few thousand products err by about 1e-6 of their size. Storage in bf16 or
/// f16: engine and oracle round rotated queries and keys at the same place, but a value that lies
/// within fp32's error of the middle between two elements may go either way. One element then
/// differs by a unit in the last place, up to 2^-7 (bf16) or 2^-10 (f16) of itself, and moves a
/// logit by as much times |q_d k_d| / sqrt(head_dim), about 1e-3 or 1e-4 for Gaussian rows; that
/// happens about once in 1e4 elements. Output in bf16 or f16: half a unit in the last place, up to
/// 2^-8 or 2^-11 of the value.
Strictness StrictnessOf(const ModelShape& model, double logit_size = 1.0);

/// One session of an engine beside the oracle: every call runs on both, and outputs, log-sum-exp,
/// regions, refresh clock and selections are compared.
///
/// Rows are sent in calls that end at absolute multiples of the query block, so that every block's
/// selection can be seen. What a stage keeps may differ from the oracle's where scores are within
/// Strictness::score of the last place; what follows is then judged from the engine's choice. Where
/// branches of a descent are as close, either may have been followed, and a chunk may score
/// whatever the ways find: then no chunk that is left out may score more, at its worst, than a
/// chosen one at its best.
class Judge {
 public:
  Judge(Engine* engine, const SessionSpec& spec, const Strictness& strictness);

  void Append(const TokenRows& rows, int32_t layer = 0);
  /// The outputs of all rows, as the engine gave them.
  StepOutput Prefill(const TokenRows& rows, int32_t layer = 0, const CallOptions& options = {});
  StepOutput Decode(const TokenRows& rows, int32_t layer = 0, const CallOptions& options = {});
  void Truncate(int64_t position);

  EngineSession& session() { return session_; }
  /// Blocks whose stages chose otherwise than the oracle, within the tolerance.
  int64_t near_ties() const { return near_ties_; }
  /// Stages that were judged with more candidates than they may keep.
  int64_t judged_prunings() const { return judged_prunings_; }

 private:
  using Selected = std::vector<std::vector<int64_t>>;  // [stages] first tokens of chunks

  struct JudgedLayer {
    oracle::Layer decode;
    std::optional<oracle::Layer> prefill;  // where prefill has another policy
    std::optional<oracle::Layer> bare;     // without learned sinks, where there are any
    bool masks_carry_over = true;          // a prefill's selection can be seen
    Selected selected;                     // by the engine, after the last call
  };

  // A call of one query block.
  struct BlockCall {
    StepKind kind = StepKind::kDecode;
    int32_t layer = 0;
    int64_t position = 0;
    TokenRows rows;  // as the oracle sees them
    CallOptions options;
  };

  TokenRows AsStored(const TokenRows& rows, bool kv_in_query_dtype) const;
  StepOutput Run(StepKind kind, const TokenRows& rows, int32_t layer, const CallOptions& options);
  void JudgeBlock(const BlockCall& call, const StepOutput& actual);
  bool JudgeSelection(const BlockCall& call, const oracle::Layer& layer, Selected* selected);
  bool JudgeStage(const BlockCall& call, const oracle::Layer& layer, int stage, Selected* selected);
  void JudgeMask(const oracle::BlockTrace& trace, const LayerSelection& selection) const;

  EngineSession session_;
  ModelShape model_;
  AttentionPolicy policy_;
  Strictness strictness_;
  std::vector<JudgedLayer> layers_;
  int64_t near_ties_ = 0;
  int64_t judged_prunings_ = 0;
};

}  // namespace longshore
