#include "tests/support/oracle_scores.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace longshore::oracle {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <typename Merge>
std::vector<double> RowByRow(const std::vector<double>& left,
                             const std::vector<double>& right,
                             Merge merge) {
  std::vector<double> merged;
  for (size_t row = 0; row < left.size(); ++row) merged.push_back(merge(left[row], right[row]));
  return merged;
}

}  // namespace

StageScorer::StageScorer(const Model& model,
                         const Policy& policy,
                         const Stage& stage,
                         const BlockRows& rows)
    : model_(model),
      policy_(policy),
      stage_(stage),
      rows_(rows),
      rotated_queries_(model, model.heads, rows.queries),
      rotated_keys_(model, model.kv_heads, rows.keys) {
  for (int64_t position = rows.first_position; position <= rows.last_position; ++position) {
    if ((rows.last_position - position) % policy.query_stride == 0) scored_.push_back(position);
  }
}

LogitRanges StageScorer::Score(std::span<const int64_t> candidates, double tolerance) {
  const size_t tables = scored_.size() * model_.heads;
  LogitRanges logits{.low = LogitTable(tables), .high = LogitTable(tables)};
  for (int64_t ordinal = 0; ordinal < std::ssize(candidates); ++ordinal) {
    for (int head = 0; head < model_.heads; ++head) {
      const auto ways =
          RawScores(head, {candidates[ordinal], ordinal, std::ssize(candidates)}, tolerance);
      std::vector<double> low = ways.at(0);
      std::vector<double> high = ways.at(0);
      for (const auto& way : ways) {
        low = RowByRow(low, way, [](double left, double right) { return std::min(left, right); });
        high = RowByRow(high, way, [](double left, double right) { return std::max(left, right); });
      }
      for (size_t row = 0; row < scored_.size(); ++row) {
        logits.low[row * model_.heads + head].push_back(Logit(model_, low[row]));
        logits.high[row * model_.heads + head].push_back(Logit(model_, high[row]));
      }
    }
  }
  return logits;
}

std::vector<std::vector<double>> StageScorer::RawScores(int head,
                                                        const Chunk& chunk,
                                                        double tolerance) {
  if (stage_.selector == Selector::kDescent) {
    Descent descent{.head = head, .chunk = chunk, .tolerance = tolerance};
    Descend({chunk.first, chunk.first + stage_.chunk_tokens - 1},
            std::vector<double>(scored_.size(), -kInfinity), &descent);
    return descent.ends;
  }
  std::vector<double> of_rows;
  for (const int64_t row_position : scored_) {
    of_rows.push_back(stage_.selector == Selector::kBounds ? Bound(row_position, head, chunk)
                                                           : BestDot(row_position, head, chunk));
  }
  return {of_rows};
}

StageScorer::Vectors StageScorer::Rotated(int64_t row_position,
                                          int head,
                                          const Chunk& chunk,
                                          int64_t token,
                                          KeyRole role) {
  const PairPlaces places = PlaceScored(model_, policy_, stage_,
                                        {.pair = {.query_position = row_position,
                                                  .key_position = token,
                                                  .block_first = rows_.first_position,
                                                  .beyond = IsBeyond(model_, rows_.last_position)},
                                         .role = role,
                                         .chunk_ordinal = chunk.ordinal,
                                         .num_chunks = chunk.count});
  const int dim = model_.head_dim;
  const int kv_head = head / (model_.heads / model_.kv_heads);
  const auto query = rotated_queries_.At(row_position - rows_.first_position, places.query);
  const auto key = rotated_keys_.At(token, places.key);
  return {query.subspan(head * dim, dim), key.subspan(kv_head * dim, dim)};
}

double StageScorer::Bound(int64_t row_position, int head, const Chunk& chunk) {
  std::vector<double> low(model_.head_dim, kInfinity);
  std::vector<double> high(model_.head_dim, -kInfinity);
  std::span<const double> query;
  for (int64_t token = chunk.first; token < chunk.first + stage_.chunk_tokens; ++token) {
    const Vectors pair = Rotated(row_position, head, chunk, token, KeyRole::kScored);
    query = pair.query;
    for (int dim = 0; dim < model_.head_dim; ++dim) {
      low[dim] = std::min(low[dim], pair.key[dim]);
      high[dim] = std::max(high[dim], pair.key[dim]);
    }
  }
  double bound = 0.0;
  for (int dim = 0; dim < model_.head_dim; ++dim) {
    bound += std::max(query[dim] * low[dim], query[dim] * high[dim]);
  }
  return bound;
}

// Of `exact`, which looks at every token, and of `probes`.
double StageScorer::BestDot(int64_t row_position, int head, const Chunk& chunk) {
  const bool probes = stage_.selector == Selector::kProbes;
  const int64_t looks = probes ? stage_.probes : stage_.chunk_tokens;
  double best = -kInfinity;
  for (int64_t look = 0; look < looks; ++look) {
    const int64_t offset = probes ? ProbeOffset(stage_, look) : look;
    const Vectors pair = Rotated(row_position, head, chunk, chunk.first + offset, KeyRole::kScored);
    best = std::max(best, Dot(pair.query, pair.key));
  }
  return best;
}

std::vector<double> StageScorer::DotsOfRows(const Descent& descent, int64_t token, KeyRole role) {
  std::vector<double> dots;
  for (const int64_t row_position : scored_) {
    const Vectors pair = Rotated(row_position, descent.head, descent.chunk, token, role);
    dots.push_back(Dot(pair.query, pair.key));
  }
  return dots;
}

// `best` is each row's maximum over the representatives followed so far.
void StageScorer::Descend(const Branch& branch, const std::vector<double>& best, Descent* descent) {
  const auto larger = [](double left, double right) { return std::max(left, right); };
  const bool running = stage_.descent_score == DescentScore::kRunningMaximum;
  const int64_t middle = (branch.first + branch.last) / 2;
  if (middle == branch.first) {
    const auto dots = DotsOfRows(*descent, RepresentativeOf(branch), KeyRole::kFinalToken);
    descent->ends.push_back(running ? RowByRow(best, dots, larger) : dots);
    return;
  }
  const Branch left{branch.first, middle - 1};
  const Branch right{middle, branch.last};
  const auto of_left = DotsOfRows(*descent, RepresentativeOf(left), KeyRole::kLeftBranch);
  const auto of_right = DotsOfRows(*descent, RepresentativeOf(right), KeyRole::kRightBranch);
  const double lead = *std::max_element(of_left.begin(), of_left.end()) -
                      *std::max_element(of_right.begin(), of_right.end());
  const bool near_tie =
      descent->tolerance > 0.0 && model_.scale * std::abs(lead) <= descent->tolerance;
  if (lead >= 0.0 || near_tie) Descend(left, RowByRow(best, of_left, larger), descent);
  if (lead < 0.0 || near_tie) Descend(right, RowByRow(best, of_right, larger), descent);
}

int64_t StageScorer::RepresentativeOf(const Branch& branch) const {
  const bool first = stage_.representative == Representative::kFirst;
  return first ? branch.first : (branch.first + branch.last) / 2;
}

}  // namespace longshore::oracle
