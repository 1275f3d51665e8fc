#include "tests/support/oracle_recall.h"

#include <cmath>
#include <set>

#include "tests/support/oracle_math.h"
#include "tests/support/oracle_positions.h"
#include "tests/support/oracle_rules.h"

namespace longshore::oracle {

KeptMass MassKept(const Model& model,
                  Policy policy,
                  const Selection& selection,
                  const RecallRow& row) {
  if (policy.rope_within == RopeStyle::kStreaming) policy.rope_within = RopeStyle::kTruePositions;
  if (policy.rope_beyond == RopeStyle::kStreaming) policy.rope_beyond = RopeStyle::kInfLlm;
  const auto attended =
      AttendedTokens(policy, row.position, selection.middle_end, selection.chosen);
  const std::set<int64_t> kept(attended.begin(), attended.end());
  const int dim = model.head_dim;
  RotatedRows queries(model, model.heads, row.queries);
  RotatedRows keys(model, model.kv_heads, row.keys);

  KeptMass mass;
  for (int head = 0; head < model.heads; ++head) {
    const int kv_head = head / (model.heads / model.kv_heads);
    std::vector<double> of_all;
    std::vector<double> of_kept;
    std::vector<double> of_middle;
    std::vector<double> of_chosen;
    for (int64_t token = 0; token <= row.position; ++token) {
      const bool in_window = token >= selection.middle_end;
      const PairPlaces places = PlaceAttended(model, policy,
                                              {.pair = {.query_position = row.position,
                                                        .key_position = token,
                                                        .block_first = row.block_first,
                                                        .beyond = row.beyond},
                                               .key_in_window = in_window});
      const double dot = Dot(queries.At(0, places.query).subspan(head * dim, dim),
                             keys.At(token, places.key).subspan(kv_head * dim, dim));
      const double logit = Logit(model, dot);
      const bool in_middle = token >= policy.sink_tokens && !in_window;
      of_all.push_back(logit);
      if (kept.contains(token)) of_kept.push_back(logit);
      if (in_middle) of_middle.push_back(logit);
      if (in_middle && kept.contains(token)) of_chosen.push_back(logit);
    }
    mass.all.push_back(std::exp(LogSumExp(of_kept) - LogSumExp(of_all)));
    mass.middle.push_back(std::exp(LogSumExp(of_chosen) - LogSumExp(of_middle)));
  }
  return mass;
}

}  // namespace longshore::oracle
