#include "tests/support/oracle.h"

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>

#include "tests/support/oracle_positions.h"
#include "tests/support/oracle_scores.h"

namespace longshore::oracle {
namespace {

void Require(bool condition, const std::string& message) {
  if (!condition) throw std::invalid_argument("oracle: " + message);
}

}  // namespace

Layer::Layer(Model model, Policy policy, int layer_index)
    : model_(std::move(model)),
      policy_(std::move(policy)),
      layer_index_(layer_index) {
  ValidatePolicy(model_, policy_);
}

Attention Layer::Prefill(int64_t position,
                         std::span<const double> queries,
                         std::span<const double> keys,
                         std::span<const double> values) {
  return AppendAndAttend(Phase::kPrefill, position, queries, keys, values);
}

Attention Layer::Decode(int64_t position,
                        std::span<const double> queries,
                        std::span<const double> keys,
                        std::span<const double> values) {
  return AppendAndAttend(Phase::kDecode, position, queries, keys, values);
}

void Layer::Append(std::span<const double> keys, std::span<const double> values) {
  const int64_t token_elements = int64_t{model_.kv_heads} * model_.head_dim;
  Require(keys.size() == values.size() && std::ssize(keys) % token_elements == 0,
          "keys and values are whole tokens, as many of each");
  for (const auto rows : {keys, values}) {
    for (const double element : rows) {
      Require(RoundTo(model_.kv_dtype, element) == element, "keys and values fit the storage type");
    }
  }
  keys_.insert(keys_.end(), keys.begin(), keys.end());
  values_.insert(values_.end(), values.begin(), values.end());
  length_ += std::ssize(keys) / token_elements;
}

void Layer::Truncate(int64_t length) {
  Require(length >= 0 && length <= length_, "truncate to a position that exists");
  const int64_t token_elements = int64_t{model_.kv_heads} * model_.head_dim;
  length_ = length;
  keys_.resize(length * token_elements);
  values_.resize(length * token_elements);
  for (const MaskStage& stage : mask_.stages) {
    if (stage.refresh_position >= length) mask_.valid = false;
  }
}

Attention Layer::AppendAndAttend(Phase phase,
                                 int64_t position,
                                 std::span<const double> queries,
                                 std::span<const double> keys,
                                 std::span<const double> values) {
  Require(position == length_,
          "position " + std::to_string(position) + " is not the length " + std::to_string(length_));
  Require(std::ssize(queries) * model_.kv_heads == std::ssize(keys) * model_.heads,
          "as many rows of queries as of keys");
  Append(keys, values);

  trace_.clear();
  Attention attention;
  const Call call = {.phase = phase, .position = position, .queries = queries};
  for (int64_t first = position; first < length_;) {
    const int64_t end = BlockEnd(policy_, first, length_);
    const auto block = Queries(call, first, end);
    trace_.push_back(SelectBlock(call, first));
    Selection selection{.middle_end = trace_.back().middle_end, .chosen = {}};
    if (!trace_.back().stages.empty()) selection.chosen = trace_.back().stages.back().chosen;
    const Attention of_block = Attend(first, block, selection);
    attention.out.insert(attention.out.end(), of_block.out.begin(), of_block.out.end());
    attention.lse.insert(attention.lse.end(), of_block.lse.begin(), of_block.lse.end());
    first = end;
  }
  return attention;
}

// Rows [begin, end) of a call's queries.
std::span<const double> Layer::Queries(const Call& call, int64_t begin, int64_t end) const {
  const int64_t row_elements = int64_t{model_.heads} * model_.head_dim;
  return call.queries.subspan((begin - call.position) * row_elements, (end - begin) * row_elements);
}

// Whether the block that holds `position` may choose together with `block`.
bool Layer::Shares(const BlockTrace& block, int64_t position) const {
  const int64_t last = BlockEnd(policy_, position, length_) - 1;
  return !IsDense(model_, policy_, last) && IsBeyond(model_, last) == block.beyond;
}

// First of the rows that choose together with `block` in a stage: those of its stage's block that
// are in the call, and near it in style.
int64_t Layer::StageBegin(const Call& call, int stage, const BlockTrace& block) const {
  const int64_t size = policy_.stages[stage].query_block_tokens;
  if (call.phase == Phase::kDecode || size == 0) return block.first_position;
  int64_t begin = std::max(call.position, block.first_position / size * size);
  while (!Shares(block, begin)) begin = BlockEnd(policy_, begin, length_);
  return begin;
}

// One past the last of them.
int64_t Layer::StageEnd(const Call& call, int stage, const BlockTrace& block) const {
  const int64_t size = policy_.stages[stage].query_block_tokens;
  int64_t end = block.last_position + 1;
  if (call.phase == Phase::kDecode || size == 0) return end;
  const int64_t limit = std::min(length_, (block.first_position / size + 1) * size);
  while (end < limit && Shares(block, end)) end = BlockEnd(policy_, end, length_);
  return end;
}

BlockTrace Layer::SelectBlock(const Call& call, int64_t position) {
  BlockTrace block;
  block.first_position = position;
  block.last_position = BlockEnd(policy_, position, length_) - 1;
  block.dense = IsDense(model_, policy_, block.last_position);
  block.beyond = IsBeyond(model_, block.last_position);
  if (block.dense) {
    mask_ = {};
    return block;
  }
  if (policy_.stages.empty()) {
    block.middle_end = MiddleEnd(policy_, position);
    return block;
  }
  block.middle_end = MiddleEnd(policy_, StageBegin(call, 0, block));

  const auto num_stages = static_cast<int>(policy_.stages.size());
  const int first_stale = call.phase == Phase::kPrefill ? 0 : FirstStaleStage(block.last_position);
  if (first_stale == 0) mask_.middle_end = block.middle_end;
  block.middle_end = mask_.middle_end;
  mask_.valid = true;
  mask_.beyond = block.beyond;
  mask_.stages.resize(num_stages);
  for (int stage = 0; stage < num_stages; ++stage) {
    MaskStage& mask_stage = mask_.stages[stage];
    StageTrace trace;
    trace.refreshed = stage >= first_stale;
    if (trace.refreshed) {
      const auto coarser = stage == 0 ? std::vector<int64_t>{} : mask_.stages[stage - 1].chosen;
      trace.candidates = StageCandidates(policy_, stage, mask_.middle_end, coarser);
      const int64_t begin = StageBegin(call, stage, block);
      const auto queries = Queries(call, begin, StageEnd(call, stage, block));
      trace.scores = ScoreStage(stage, begin, queries, trace.candidates);
      const int64_t keep = KeepCount(policy_.stages[stage], std::ssize(trace.candidates));
      mask_stage.chosen = KeepBest(trace.candidates, trace.scores, keep);
      mask_stage.refresh_position = block.last_position;
    }
    trace.refresh_position = mask_stage.refresh_position;
    trace.chosen = mask_stage.chosen;
    block.stages.push_back(std::move(trace));
  }
  return block;
}

int Layer::FirstStaleStage(int64_t last_position) const {
  if (!mask_.valid || mask_.beyond != IsBeyond(model_, last_position)) return 0;
  const auto num_stages = static_cast<int>(policy_.stages.size());
  for (int stage = 0; stage < num_stages; ++stage) {
    if (IsStale(policy_.stages[stage].refresh_steps, layer_index_,
                mask_.stages[stage].refresh_position, last_position)) {
      return stage;
    }
  }
  return num_stages;
}

std::vector<double> Layer::ScoreStage(int stage,
                                      int64_t position,
                                      std::span<const double> queries,
                                      std::span<const int64_t> candidates) const {
  return ScoreStageRanges(stage, position, queries, candidates, 0.0).low;
}

ScoreRanges Layer::ScoreStageRanges(int stage,
                                    int64_t position,
                                    std::span<const double> queries,
                                    std::span<const int64_t> candidates,
                                    double branch_tolerance) const {
  const int64_t block_tokens =
      std::max(policy_.query_block_tokens, policy_.stages.at(stage).query_block_tokens);
  const BlockRows rows{.first_position = position,
                       .last_position = CheckedLastPosition(position, queries, block_tokens),
                       .queries = queries,
                       .keys = keys_};
  StageScorer scorer(model_, policy_, policy_.stages.at(stage), rows);
  return RankRanges(policy_, scorer.Score(candidates, branch_tolerance));
}

Attention Layer::Attend(int64_t position,
                        std::span<const double> queries,
                        const Selection& selection) const {
  const int64_t last_position = CheckedLastPosition(position, queries, policy_.query_block_tokens);
  if (IsDense(model_, policy_, last_position)) {
    return DenseAttention(model_, position, queries, keys_, values_);
  }
  Require(selection.middle_end >= policy_.sink_tokens &&
              selection.middle_end <= std::max(policy_.sink_tokens, position),
          "the middle lies between the sink and the block's first row");
  const bool beyond = IsBeyond(model_, last_position);
  const int dim = model_.head_dim;
  RotatedRows rotated_queries(model_, model_.heads, queries);
  RotatedRows rotated_keys(model_, model_.kv_heads, keys_);

  Attention attention;
  for (int64_t row_position = position; row_position <= last_position; ++row_position) {
    const auto tokens =
        AttendedTokens(policy_, row_position, selection.middle_end, selection.chosen);
    Require(
        std::adjacent_find(tokens.begin(), tokens.end(), std::greater_equal<>()) == tokens.end(),
        "chosen chunks ascend and lie in the middle");
    for (int head = 0; head < model_.heads; ++head) {
      const int kv_head = head / (model_.heads / model_.kv_heads);
      std::vector<double> logits;
      std::vector<std::span<const double>> values;
      for (int64_t rank = 0; rank < std::ssize(tokens); ++rank) {
        const int64_t token = tokens[rank];
        const PairPlaces places = PlaceAttended(model_, policy_,
                                                {.pair = {.query_position = row_position,
                                                          .key_position = token,
                                                          .block_first = position,
                                                          .beyond = beyond},
                                                 .query_rank = std::ssize(tokens) - 1,
                                                 .key_rank = rank,
                                                 .key_in_window = token >= selection.middle_end});
        const auto query = rotated_queries.At(row_position - position, places.query);
        const auto key = rotated_keys.At(token, places.key);
        logits.push_back(
            Logit(model_, Dot(query.subspan(head * dim, dim), key.subspan(kv_head * dim, dim))));
        values.push_back(std::span<const double>(values_).subspan(
            (token * model_.kv_heads + kv_head) * dim, dim));
      }
      AttendOnce(model_, head, logits, values, attention);
    }
  }
  return attention;
}

int64_t Layer::CheckedLastPosition(int64_t position,
                                   std::span<const double> queries,
                                   int64_t query_block_tokens) const {
  const int64_t row_elements = int64_t{model_.heads} * model_.head_dim;
  Require(!queries.empty() && std::ssize(queries) % row_elements == 0, "queries are whole rows");
  const int64_t end = position + std::ssize(queries) / row_elements;
  Require(end <= length_, "the rows' keys have been appended");
  Require((end - 1) / query_block_tokens == position / query_block_tokens,
          "the rows lie within one query block");
  return end - 1;
}

}  // namespace longshore::oracle
