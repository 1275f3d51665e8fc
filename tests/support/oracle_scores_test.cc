#include "tests/support/oracle_scores.h"

#include <algorithm>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "tests/support/oracle_quarter_turns.h"

namespace longshore::oracle {
namespace {

using Numbers = std::vector<double>;
using Tokens = std::vector<int64_t>;

/// One descent over all of `keys`, one head of one dimension, rows at the end of the keys.
struct OneDescent {
  Numbers keys;
  Numbers queries = {1};
  Representative representative = Representative::kFirst;
  DescentScore score = DescentScore::kFinal;
  Model model = {};

  /// The lowest and the highest logit of each row.
  LogitRanges Run(double tolerance = 0.0) const {
    const Stage stage = {.selector = Selector::kDescent,
                         .chunk_tokens = std::ssize(keys) / model.kv_heads / model.head_dim,
                         .representative = representative,
                         .descent_score = score};
    const Policy policy;
    const int64_t rows = std::ssize(queries) / model.heads / model.head_dim;
    StageScorer scorer(
        model, policy, stage,
        {.first_position = 100, .last_position = 100 + rows - 1, .queries = queries, .keys = keys});
    return scorer.Score(Tokens{0}, tolerance);
  }

  Numbers Scores() const {
    Numbers scores;
    for (const auto& of_row : Run().low) scores.push_back(of_row.at(0));
    return scores;
  }
};

/// The tokens at which some descent over `chunk` tokens ends.
Tokens Ends(int64_t chunk, Representative representative) {
  std::mt19937 random(7);
  std::set<int64_t> ends;
  for (int sample = 0; sample < 400; ++sample) {
    Numbers keys(chunk);
    for (int64_t token = 0; token < chunk; ++token) keys[token] = static_cast<double>(token);
    std::shuffle(keys.begin(), keys.end(), random);
    const double end = OneDescent{.keys = keys, .representative = representative}.Scores().at(0);
    ends.insert(std::find(keys.begin(), keys.end(), end) - keys.begin());
  }
  return {ends.begin(), ends.end()};
}

TEST(OracleScores, DescentsEndWhereTheLeftBranchIsEmpty) {
  for (const auto representative : {Representative::kFirst, Representative::kMiddle}) {
    EXPECT_EQ(Ends(1, representative), Tokens{0});
    EXPECT_EQ(Ends(2, representative), Tokens{0});                // m = 0
    EXPECT_EQ(Ends(3, representative), (Tokens{0, 1}));           // [0] and [1, 2]
    EXPECT_EQ(Ends(4, representative), (Tokens{0, 1, 2}));        // [0], [1] and [2, 3]
    EXPECT_EQ(Ends(8, representative), (Tokens{0, 1, 3, 5, 6}));  // [0], [1 2], [3 4], [5], [6 7]
  }
}

TEST(OracleScores, DescentFollowsTheFirstTokens) {
  // 3 beats 0; 5 beats 3; then 5 or 6 of [5] and [6, 7].
  EXPECT_EQ((OneDescent{.keys = {1, 9, 9, 2, 9, 5, 4, 9}}.Scores()), Numbers{5});
  EXPECT_EQ((OneDescent{.keys = {1, 9, 9, 2, 9, 5, 6, 9}}.Scores()), Numbers{6});
  EXPECT_EQ((OneDescent{.keys = {1, 9, 9, 2, 9, 1, 9, 9}}.Scores()), Numbers{2});
  EXPECT_EQ((OneDescent{.keys = {3, 4, 9, 2, 9, 9, 9, 9}}.Scores()), Numbers{4});
  EXPECT_EQ((OneDescent{.keys = {3, 1, 9, 2, 9, 9, 9, 9}}.Scores()), Numbers{3});
}

TEST(OracleScores, DescentFollowsTheMiddleTokens) {
  const auto score = [](const Numbers& keys) {
    return OneDescent{.keys = keys, .representative = Representative::kMiddle}.Scores().at(0);
  };
  // Of [0, 2] the middle is 1, of [3, 7] it is 5; of [3, 4] it is 3, of [5, 7] it is 6.
  EXPECT_EQ(score({9, 1, 9, 4, 9, 2, 3, 9}), 4);
  EXPECT_EQ(score({9, 1, 9, 4, 9, 2, 5, 9}), 5);  // [5] is 2, [6, 7] is 5
  EXPECT_EQ(score({9, 1, 9, 4, 9, 8, 5, 9}), 8);
  EXPECT_EQ(score({4, 3, 9, 9, 9, 2, 9, 9}), 4);  // [0] is 4, [1, 2] is 3
}

TEST(OracleScores, TiesGoLeft) {
  EXPECT_EQ((OneDescent{.keys = {5, 6, 0, 5, 0, 9, 0, 0}}.Scores()), Numbers{6});
  EXPECT_EQ((OneDescent{.keys = {5, 5, 7, 5}}.Scores()), Numbers{5});
}

TEST(OracleScores, RunningMaximaRememberFollowedRepresentatives) {
  // 5 leads to [3, 7], 3 beats 6 there; 1, though larger, was never followed.
  const OneDescent descent = {.keys = {0, 8, 0, 4, 0, 9, 2, 0},
                              .representative = Representative::kMiddle};
  EXPECT_EQ(descent.Scores(), Numbers{4});
  OneDescent running = descent;
  running.score = DescentScore::kRunningMaximum;
  EXPECT_EQ(running.Scores(), Numbers{9});
  running.keys[5] = 8.5;
  running.keys[6] = 3;
  EXPECT_EQ(running.Scores(), Numbers{8.5});
  EXPECT_EQ((OneDescent{.keys = {3, 7}, .score = DescentScore::kRunningMaximum}.Scores()),
            Numbers{3});
}

TEST(OracleScores, RowsOfABlockShareOneWay) {
  // Row 1 asks for small keys and decides: max(1, 2) of token 0, max(3, 6) of token 1.
  OneDescent descent = {.keys = {-1, -3, 0}, .queries = {1, -2}};
  EXPECT_EQ(descent.Scores(), (Numbers{-3, 6}));
  // Each row's maximum is its own: row 0 of [1, 3], then of [1]; row 1 leads there.
  descent = {.keys = {0, -4, 2, 9},
             .queries = {1, -2},
             .representative = Representative::kMiddle,
             .score = DescentScore::kRunningMaximum};
  // [0] scores 0, [1, 3] by token 2 scores 2; [1] scores 8, [2, 3] scores 2.
  EXPECT_EQ(descent.Scores(), (Numbers{2, 8}));
  descent.score = DescentScore::kFinal;
  EXPECT_EQ(descent.Scores(), (Numbers{-4, 8}));
}

TEST(OracleScores, HeadsGoTheirOwnWays) {
  OneDescent descent = {.keys = {2, 1, 5}, .queries = {1, -1}, .model = {.heads = 2}};
  EXPECT_EQ(descent.Scores(), (Numbers{2, -1}));
  descent = {.keys = {2, 20, 3, 10}, .queries = {1, 1}, .model = {.heads = 2, .kv_heads = 2}};
  EXPECT_EQ(descent.Scores(), (Numbers{2, 20}));
}

TEST(OracleScores, OnlyScoredRowsChooseTheWay) {
  const Policy policy = {.query_stride = 2};
  const Stage stage = {.selector = Selector::kDescent, .chunk_tokens = 3};
  const Model model;
  const Numbers keys = {1, 5, 0};
  const Numbers queries = {1, -9, 1};
  StageScorer scorer(model, policy, stage,
                     {.first_position = 10, .last_position = 12, .queries = queries, .keys = keys});
  EXPECT_EQ(scorer.Score(Tokens{0}, 0.0).low, (LogitTable{{5}, {5}}));
}

TEST(OracleScores, NearTiesGoBothWaysIfTold) {
  OneDescent descent = {.keys = {5, 6, 0, 5.25, 0, 9, 0, 0}};
  LogitRanges logits = descent.Run(0.2);
  EXPECT_EQ(logits.low, LogitTable{{9}});
  EXPECT_EQ(logits.high, LogitTable{{9}});
  logits = descent.Run(0.25);
  EXPECT_EQ(logits.low, LogitTable{{6}});
  EXPECT_EQ(logits.high, LogitTable{{9}});
  descent.model.scale = 0.5;  // scaled scores differ by 1/8
  logits = descent.Run(0.125);
  EXPECT_EQ(logits.low, LogitTable{{3}});
  EXPECT_EQ(logits.high, LogitTable{{4.5}});
  EXPECT_EQ(descent.Run(0.12).low, LogitTable{{4.5}});
  descent.keys[3] = 5.0;
  EXPECT_EQ(descent.Run().high, LogitTable{{3}});
  EXPECT_EQ(descent.Run(1e-9).high, LogitTable{{4.5}});
}

/// Scores of candidates for the row at `position`, the last of its block, by `score_max`, keys
/// turned by quarters.
struct QuarterTurn {
  Numbers keys;  // [tokens, 2]
  Stage stage;
  Tokens candidates;
  int64_t position = 8;
  double attention_scaling = 1.0;
  int64_t trained_tokens = 0;
  int64_t rows_before = 0;

  Numbers Scores() const {
    Model model = {.head_dim = 2, .rope = QuarterTurns()};
    model.rope.attention_scaling = attention_scaling;
    model.rope.trained_tokens = trained_tokens;
    const Policy policy = {.query_stride = 64, .ranking = Ranking::kScoreMax};  // W = 1
    Numbers queries;
    for (int64_t row = 0; row <= rows_before; ++row) queries.insert(queries.end(), {1, 0});
    StageScorer scorer(model, policy, stage,
                       {.first_position = position - rows_before,
                        .last_position = position,
                        .queries = queries,
                        .keys = keys});
    return RankRanges(policy, scorer.Score(candidates, 0.0)).low;
  }
};

TEST(OracleScores, RelativeDescentTurnsBranchesByHand) {
  // The query at 2 is (-1, 0): a left branch's key (x, y) scores -x, a right one's, and the final
  // token, y.
  const Stage stage = {
      .selector = Selector::kDescent, .chunk_tokens = 4, .rope_within = RopeStyle::kRelative};
  QuarterTurn turn = {.keys = {-3, 10, -1, 2, 0, 7, 0, 0}, .stage = stage, .candidates = {0}};
  EXPECT_EQ(turn.Scores(), Numbers{10});  // 3 against 2: token 0
  turn.keys[3] = 4;
  EXPECT_EQ(turn.Scores(), Numbers{7});  // 3 against 4; then 1 against 7: token 2
  turn.keys[2] = -7;
  EXPECT_EQ(turn.Scores(), Numbers{4});  // 7 against 7: token 1, which scores its y
  turn.stage.descent_score = DescentScore::kRunningMaximum;
  EXPECT_EQ(turn.Scores(), Numbers{7});
  turn.attention_scaling = 2.0;
  EXPECT_EQ(turn.Scores(), Numbers{28});
}

TEST(OracleScores, ChunkIndexedTurnsByTheOrdinal) {
  const Stage exact = {.chunk_tokens = 2, .rope_within = RopeStyle::kChunkIndexed};
  // Three candidates of (1, 0), each of which also has a (0, 0); at 4 the query is (1, 0) again.
  const Numbers keys = {1, 0, 0, 0, 9, 9, 9, 9, 1, 0, 0, 0, 1, 0, 0, 0};
  QuarterTurn turn = {.keys = keys, .stage = exact, .candidates = {0, 4, 6}};
  EXPECT_EQ(turn.Scores(), (Numbers{1, 0, 0}));  // 1, 0, -1
  turn.position = 3;                             // the query is (0, -1)
  EXPECT_EQ(turn.Scores(), (Numbers{0, 0, 0}));  // 0, -1, 0
  turn.stage.chunk_tokens = 1;
  EXPECT_EQ(turn.Scores(), (Numbers{0, -1, 0}));
  turn.position = 4;
  EXPECT_EQ(turn.Scores(), (Numbers{1, 0, -1}));
  turn.stage.selector = Selector::kProbes;
  EXPECT_EQ(turn.Scores(), (Numbers{1, 0, -1}));
  turn.stage.selector = Selector::kDescent;
  turn.stage.chunk_tokens = 2;
  EXPECT_EQ(turn.Scores(), (Numbers{1, 0, -1}));
}

TEST(OracleScores, InfLlmTurnsTheQueryByTheWindow) {
  const Stage stage = {.rope_within = RopeStyle::kInfLlm};  // the query at 1 is (0, 1)
  const QuarterTurn turn = {
      .keys = {5, 1, 6, 2, 7, 3}, .stage = stage, .candidates = {0, 1, 2}, .attention_scaling = 2};
  EXPECT_EQ(turn.Scores(), (Numbers{4, 8, 12}));
}

TEST(OracleScores, ExtendedPositionsTurnByTheirDistance) {
  // Distances of a quarter turn each: 0 scores x, 1 scores y, 2 scores -x, 3 scores -y.
  const Numbers keys = {1, 10, 1, 10, 1, 10, 1, 10, 1, 10, 1, 10, 1, 10, 1, 10};
  const auto scores_at = [](int64_t distance) {
    const Numbers scores = {1, 10, -1, -10};
    return scores.at(distance % 4);
  };
  // n = 2, g = 3: distances 8 to 1 become 4, 3, 3, 3, 2, 2, 2, 1.
  const Stage self_extend = {.rope_within = RopeStyle::kSelfExtend,
                             .self_extend = {.group = 3, .neighbor_tokens = 2}};
  QuarterTurn turn = {.keys = keys, .stage = self_extend, .candidates = {0, 1, 2, 3, 4, 5, 6, 7}};
  Numbers expected;
  for (const int64_t distance : {4, 3, 3, 3, 2, 2, 2, 1}) expected.push_back(scores_at(distance));
  EXPECT_EQ(turn.Scores(), expected);
  // L = 4, w = 1, f = 8: ids 7 + floor(3 (i - 7) / 7) = 4, 4, 4, 5, 5, 6, 6, 7, at least 5.
  turn.trained_tokens = 4;
  turn.stage = {.rope_beyond = RopeStyle::kDynamicExtend};
  expected.clear();
  for (const int64_t distance : {3, 3, 3, 3, 3, 2, 2, 1}) expected.push_back(scores_at(distance));
  EXPECT_EQ(turn.Scores(), expected);
  // Row 9 of the same block: the same ids, at least 6. In a block of its own 6 would be at 7.
  turn.position = 9;
  turn.rows_before = 1;
  expected.clear();
  for (const int64_t distance : {3, 3, 3, 3, 3, 3, 3, 2}) expected.push_back(scores_at(distance));
  EXPECT_EQ(turn.Scores(), expected);
}

TEST(OracleScores, ProbesFindTheLargestOfWhatTheyLookAt) {
  const Numbers keys = {1, 2, 7, 3, 5, 8, 6, 9};
  const Model model;
  const Policy policy;
  const Numbers query = {1};
  const auto score = [&](int64_t probes) {
    const Stage stage = {.selector = Selector::kProbes, .chunk_tokens = 8, .probes = probes};
    StageScorer scorer(model, policy, stage,
                       {.first_position = 8, .last_position = 8, .queries = query, .keys = keys});
    return scorer.Score(Tokens{0}, 0.0).low.at(0).at(0);
  };
  EXPECT_EQ(score(1), 5);  // token 4
  EXPECT_EQ(score(2), 7);  // tokens 2 and 6
  EXPECT_EQ(score(4), 9);  // tokens 1, 3, 5 and 7
  EXPECT_EQ(score(8), 9);
}

TEST(OracleScores, NoSelectorPromisesMoreThanExact) {
  std::mt19937 random(8);
  const Model model = {.heads = 4, .kv_heads = 2, .head_dim = 3};
  Numbers keys(32 * 6);
  Numbers queries(5 * 12);
  for (double& key : keys) key = std::normal_distribution<>()(random);
  for (double& query : queries) query = std::normal_distribution<>()(random);
  const auto logits = [&](const Stage& stage) {
    const Policy policy = {.query_stride = 2};
    StageScorer scorer(
        model, policy, stage,
        {.first_position = 32, .last_position = 36, .queries = queries, .keys = keys});
    return scorer.Score(Tokens{0, 8, 16, 24}, 0.0).low;
  };
  const LogitTable exact = logits({.selector = Selector::kExact, .chunk_tokens = 8});
  EXPECT_EQ(logits({.selector = Selector::kProbes, .chunk_tokens = 8, .probes = 8}), exact);
  const LogitTable probes = logits({.selector = Selector::kProbes, .chunk_tokens = 8, .probes = 3});
  const LogitTable descent = logits({.selector = Selector::kDescent, .chunk_tokens = 8});
  ASSERT_EQ(exact.size(), 12U);  // 3 rows of 4 heads
  for (size_t table = 0; table < exact.size(); ++table) {
    for (size_t chunk = 0; chunk < 4; ++chunk) {
      EXPECT_LE(probes[table][chunk], exact[table][chunk]);
      EXPECT_LE(descent[table][chunk], exact[table][chunk]);
    }
  }
}

}  // namespace
}  // namespace longshore::oracle
