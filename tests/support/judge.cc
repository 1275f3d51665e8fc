#include "tests/support/judge.h"

#include <algorithm>
#include <utility>

#include <absl/strings/str_cat.h>

#include "engine/core/math.h"
#include "tests/support/test_model.h"

namespace longshore {
namespace {

// What storage in a dtype may change: of an output, of a log-sum-exp, of a ranking score.
struct StorageError {
  double nmse;
  double out;
  double log_sum_exp;
  double score;
};

StorageError StorageErrorOf(DType kv_dtype) {
  switch (kv_dtype) {
    case DType::kF16: return {1.5e-8, 2e-4, 1e-4, 1e-3};
    case DType::kBf16: return {4e-7, 1e-3, 6e-4, 8e-3};
    default: return {5e-12, 6e-6, 4e-6, 3e-5};
  }
}

// Half a unit in the last place, relative to the smallest value of a binade.
double RoundingOf(DType query_dtype) {
  switch (query_dtype) {
    case DType::kF16: return 0x1p-11;
    case DType::kBf16: return 0x1p-8;
    default: return 0.0;
  }
}

// Of a ranking score. A power multiplies log-probabilities, and what they err by.
double ScoreTolerance(const Strictness& strictness, const oracle::Policy& policy) {
  const bool power = policy.ranking == oracle::Ranking::kProbabilityPower;
  return strictness.score * (power ? std::max(1.0, policy.probability_power) : 1.0);
}

constexpr double kLargestOutput = 5.0;  // of Gaussian values

std::vector<double> Rounded(const std::vector<double>& values, DType sent, DType stored) {
  std::vector<double> rounded;
  rounded.reserve(values.size());
  for (const double value : values) {
    const double single = oracle::RoundTo(oracle::Storage::kF32, value);
    rounded.push_back(
        oracle::RoundTo(OracleStorage(stored), oracle::RoundTo(OracleStorage(sent), single)));
  }
  return rounded;
}

void Extend(const StepOutput& rows, StepOutput* all) {
  const auto extend = [](const auto& more, auto* to) {
    to->insert(to->end(), more.begin(), more.end());
  };
  extend(rows.out, &all->out);
  extend(rows.log_sum_exp, &all->log_sum_exp);
  extend(rows.out_bytes, &all->out_bytes);
  extend(rows.log_sum_exp_bytes, &all->log_sum_exp_bytes);
}

std::vector<int64_t> Widen(const std::vector<int32_t>& tokens) {
  return {tokens.begin(), tokens.end()};
}

}  // namespace

Strictness StrictnessOf(const ModelShape& model, double logit_size) {
  const StorageError storage = StorageErrorOf(model.kv_dtype);
  const double rounding = RoundingOf(model.query_dtype);
  return {.out = {.nmse = storage.nmse * logit_size * logit_size + rounding * rounding,
                  .max_abs = storage.out * logit_size + rounding * kLargestOutput},
          .log_sum_exp = storage.log_sum_exp * logit_size,
          .score = storage.score * logit_size};
}

Judge::Judge(Engine* engine, const SessionSpec& spec, const Strictness& strictness)
    : session_(engine, spec),
      model_(session_.model()),
      policy_(spec.policy),
      strictness_(strictness) {
  for (int32_t layer = 0; layer < model_.num_layers; ++layer) {
    oracle::Model model = OracleModel(model_, layer);
    model.rope.beyond_from_start =
        policy_.extension == Extension::kFromStart && spec.max_tokens > model_.TrainedTokens(layer);
    const oracle::Policy decode = OraclePolicy(policy_, Phase::kDecode, layer);
    JudgedLayer judged{.decode = {model, decode, layer}, .prefill = {}, .bare = {}, .selected = {}};
    if (!(policy_.Of(Phase::kPrefill, layer) == policy_.Of(Phase::kDecode, layer))) {
      judged.prefill.emplace(model, OraclePolicy(policy_, Phase::kPrefill, layer), layer);
      judged.masks_carry_over = false;
    }
    if (!model.sink_logits.empty()) {
      oracle::Model bare = model;
      bare.sink_logits.clear();
      judged.bare.emplace(bare, decode, layer);
    }
    layers_.push_back(std::move(judged));
  }
}

TokenRows Judge::AsStored(const TokenRows& rows, bool kv_in_query_dtype) const {
  const DType sent = kv_in_query_dtype ? model_.query_dtype : model_.kv_dtype;
  return {.tokens = rows.tokens,
          .q = Rounded(rows.q, model_.query_dtype, model_.query_dtype),
          .k = Rounded(rows.k, sent, model_.kv_dtype),
          .v = Rounded(rows.v, sent, model_.kv_dtype)};
}

void Judge::Append(const TokenRows& rows, int32_t layer) {
  session_.Append(rows, layer);
  const TokenRows stored = AsStored(rows, false);
  JudgedLayer& judged = layers_[static_cast<size_t>(layer)];
  for (oracle::Layer* each : {&judged.decode, judged.prefill ? &*judged.prefill : nullptr,
                              judged.bare ? &*judged.bare : nullptr}) {
    if (each != nullptr) {
      each->Append(stored.k, stored.v);
    }
  }
}

StepOutput Judge::Prefill(const TokenRows& rows, int32_t layer, const CallOptions& options) {
  return Run(StepKind::kPrefill, rows, layer, options);
}

StepOutput Judge::Decode(const TokenRows& rows, int32_t layer, const CallOptions& options) {
  return Run(StepKind::kDecode, rows, layer, options);
}

void Judge::Truncate(int64_t position) {
  const auto lengths = session_.engine().Truncate(session_.id(), position);
  ASSERT_TRUE(lengths.ok()) << lengths.status();
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    JudgedLayer& judged = layers_[layer];
    const int64_t length = std::min(position, judged.decode.length());
    EXPECT_EQ((*lengths)[layer], length);
    judged.decode.Truncate(length);
    if (judged.prefill) judged.prefill->Truncate(length);
    if (judged.bare) judged.bare->Truncate(length);
  }
}

StepOutput Judge::Run(StepKind kind,
                      const TokenRows& rows,
                      int32_t layer,
                      const CallOptions& options) {
  StepOutput all;
  for (int64_t row = 0; row < rows.tokens && !::testing::Test::HasFailure();) {
    const int64_t position = session_.Tokens(layer);
    const int64_t to_boundary = policy_.query_block - position % policy_.query_block;
    const int64_t end = Min(rows.tokens, row + to_boundary);
    const TokenRows block = Slice(model_, rows, row, end);
    SCOPED_TRACE(absl::StrCat(kind == StepKind::kPrefill ? "prefill" : "decode", " of ",
                              block.tokens, " rows at ", position, ", layer ", layer));
    const auto output = session_.Run(kind, block, layer, options);
    EXPECT_TRUE(output.ok()) << output.status();
    if (!output.ok()) {
      break;
    }
    JudgeBlock({.kind = kind,
                .layer = layer,
                .position = position,
                .rows = AsStored(block, options.kv_in_query_dtype),
                .options = options},
               *output);
    Extend(*output, &all);
    row = end;
  }
  return all;
}

// Runs the oracle on a block and compares what the engine made of it.
void Judge::JudgeBlock(const BlockCall& call, const StepOutput& actual) {
  JudgedLayer& judged = layers_[static_cast<size_t>(call.layer)];
  const TokenRows& rows = call.rows;
  const bool prefills = call.kind == StepKind::kPrefill;
  oracle::Layer& layer = prefills && judged.prefill ? *judged.prefill : judged.decode;
  oracle::Attention expected = prefills ? layer.Prefill(call.position, rows.q, rows.k, rows.v)
                                        : layer.Decode(call.position, rows.q, rows.k, rows.v);
  if (judged.bare) judged.bare->Append(rows.k, rows.v);
  if (judged.prefill) {
    oracle::Layer& other = prefills ? judged.decode : *judged.prefill;
    other.Append(rows.k, rows.v);
    other.InvalidateMask();
  }

  const oracle::BlockTrace& trace = layer.trace().at(0);
  Selected selected;
  bool same = true;
  if (prefills && !judged.masks_carry_over) {
    EXPECT_FALSE(session_.Selection(call.layer).mask.valid);
    for (const oracle::StageTrace& stage : trace.stages) selected.push_back(stage.chosen);
  } else {
    same = JudgeSelection(call, layer, &selected);
  }
  if (::testing::Test::HasFailure()) {
    return;  // the outputs would only repeat it
  }
  const oracle::Selection last = {
      .middle_end = trace.middle_end,
      .chosen = selected.empty() ? std::vector<int64_t>{} : selected.back()};
  if (call.options.exclude_sink_logits && judged.bare) {
    expected = judged.bare->Attend(call.position, rows.q, last);
  } else if (!same) {
    expected = layer.Attend(call.position, rows.q, last);
  }
  judged.selected = std::move(selected);
  EXPECT_TRUE(IsClose("out", {{rows.tokens, model_.num_heads, model_.head_dim}}, actual.out,
                      expected.out, strictness_.out));
  if (call.options.log_sum_exp) {
    // As large as its logits; the largest difference is what counts.
    EXPECT_TRUE(IsClose("log_sum_exp", {{rows.tokens, model_.num_heads}}, actual.log_sum_exp,
                        expected.lse, {.nmse = 1.0, .max_abs = strictness_.log_sum_exp}));
  }
}

// Whether the engine chose exactly as the oracle did. Fills what it chose, by stage.
bool Judge::JudgeSelection(const BlockCall& call, const oracle::Layer& layer, Selected* selected) {
  const oracle::BlockTrace& trace = layer.trace().at(0);
  const LayerSelection selection = session_.Selection(call.layer);
  const bool slides = model_.SlidingWindow(call.layer) > 0;
  EXPECT_EQ(session_.trace().sliding_blocks, slides ? 1 : 0);
  EXPECT_EQ(session_.trace().staged_blocks, trace.stages.empty() ? 0 : 1);
  EXPECT_EQ(session_.trace().dense_blocks, trace.dense && !slides ? 1 : 0);
  EXPECT_EQ(session_.trace().streaming_blocks, trace.dense || !trace.stages.empty() ? 0 : 1);
  EXPECT_EQ(selection.mask.valid, !trace.stages.empty());
  EXPECT_EQ(selection.stages.size(), trace.stages.size());
  if (::testing::Test::HasFailure() || trace.stages.empty()) {
    return true;
  }
  JudgeMask(trace, selection);
  bool same = true;
  for (size_t stage = 0; stage < trace.stages.size(); ++stage) {
    selected->push_back(Widen(selection.stages[stage]));
    const bool same_stage = JudgeStage(call, layer, static_cast<int>(stage), selected);
    same = same && same_stage;
  }
  near_ties_ += same ? 0 : 1;
  return same;
}

void Judge::JudgeMask(const oracle::BlockTrace& trace, const LayerSelection& selection) const {
  EXPECT_EQ(selection.mask.middle_end, trace.middle_end);
  EXPECT_EQ(selection.mask.beyond, trace.beyond);
  for (size_t stage = 0; stage < trace.stages.size(); ++stage) {
    EXPECT_EQ(selection.mask.refreshed_at[stage], trace.stages[stage].refresh_position)
        << "stage " << stage;
    EXPECT_EQ(session_.trace().stage_refreshed[stage], trace.stages[stage].refreshed ? 1 : 0)
        << "stage " << stage;
    EXPECT_EQ(session_.trace().stage_cached[stage], trace.stages[stage].refreshed ? 0 : 1)
        << "stage " << stage;
  }
}

bool Judge::JudgeStage(const BlockCall& call,
                       const oracle::Layer& layer,
                       int stage,
                       Selected* selected) {
  const oracle::BlockTrace& trace = layer.trace().at(0);
  const auto index = static_cast<size_t>(stage);
  const oracle::StageTrace& expected = trace.stages[index];
  const std::vector<int64_t>& chosen = (*selected)[index];
  if (!expected.refreshed) {
    const JudgedLayer& judged = layers_[static_cast<size_t>(call.layer)];
    EXPECT_EQ(chosen, judged.selected.at(index)) << "stage " << stage << " was not stale";
    return chosen == expected.chosen;
  }
  const oracle::Policy policy = OraclePolicy(
      policy_, call.kind == StepKind::kPrefill ? Phase::kPrefill : Phase::kDecode, call.layer);
  const std::vector<int64_t> coarser = stage == 0 ? std::vector<int64_t>{} : (*selected)[index - 1];
  const std::vector<int64_t> candidates =
      oracle::StageCandidates(policy, stage, trace.middle_end, coarser);
  const int64_t keep = oracle::KeepCount(policy.stages[index], std::ssize(candidates));
  judged_prunings_ += keep < std::ssize(candidates) ? 1 : 0;
  const bool one_way =
      policy.stages[index].selector != oracle::Selector::kDescent || strictness_.score == 0.0;
  const oracle::ScoreRanges scores =
      one_way && candidates == expected.candidates
          ? oracle::ScoreRanges{.low = expected.scores, .high = expected.scores}
          : layer.ScoreStageRanges(stage, call.position, call.rows.q, candidates,
                                   strictness_.score);
  if (strictness_.score == 0.0) {
    EXPECT_EQ(chosen, oracle::KeepBest(candidates, scores.low, keep)) << "stage " << stage;
  } else {
    EXPECT_EQ(oracle::SelectionError(candidates, scores, keep, chosen,
                                     ScoreTolerance(strictness_, policy)),
              "")
        << "stage " << stage << " (seed " << TestSeed() << ")";
  }
  return chosen == expected.chosen;
}

}  // namespace longshore
