// What the recall monitor says against a full computation, on a real model's queries and keys. One
// JSON object a line on stdout; see recall_error.py.
//
//   recall_error_bench FOLDER LAYERS...   FOLDER/qNN.npy and kNN.npy as capture.py writes them

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "tests/bench/recall_bench.h"

namespace longshore {
namespace {

// [tokens, heads, head_dim] f32 of a .npy file.
struct Rows {
  int64_t tokens = 0;
  int32_t heads = 0;
  int32_t depth = 0;
  std::vector<float> values;

  const float* At(int64_t token) const {
    return values.data() + token * static_cast<int64_t>(heads) * depth;
  }
};

Rows ReadNpy(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  char head[10] = {};
  file.read(head, sizeof(head));
  std::string text(static_cast<size_t>(static_cast<unsigned char>(head[8])) +
                       static_cast<size_t>(static_cast<unsigned char>(head[9])) * 256,
                   '\0');
  file.read(text.data(), std::ssize(text));
  Rows rows;
  long long tokens = 0;
  const size_t shape = text.find("'shape': (");
  if (!file || text.find("<f4") == std::string::npos || shape == std::string::npos ||
      std::sscanf(text.c_str() + shape + 10, "%lld, %d, %d", &tokens, &rows.heads, &rows.depth) !=
          3) {  // NOLINT(cert-err34-c): the file is our own
    Die(path + " is not [tokens, heads, head_dim] f32");
  }
  rows.tokens = tokens;
  rows.values.resize(static_cast<size_t>(tokens * rows.heads * rows.depth));
  file.read(reinterpret_cast<char*>(rows.values.data()),
            static_cast<std::streamsize>(rows.values.size() * sizeof(float)));
  return rows;
}

// SmolLM2: Llama's halves, base 100000, trained to 8192 tokens.
RopeSpec RopeOf(int32_t depth) {
  RopeSpec rope{.trained_tokens = 8192};
  for (int32_t pair = 0; pair < depth / 2; ++pair) {
    rope.inv_freq.push_back(std::pow(100000.0, -2.0 * pair / depth));
  }
  return rope;
}

// Turned to their positions, in double, and rounded to f32 as they would be stored.
std::vector<double> Rotated(const Rows& rows, int64_t tokens) {
  const RopeSpec rope = RopeOf(rows.depth);
  const auto pairs = static_cast<int32_t>(rope.inv_freq.size());
  std::vector<double> turned(static_cast<size_t>(tokens * rows.heads * rows.depth));
  for (int64_t token = 0; token < tokens; ++token) {
    for (int32_t pair = 0; pair < pairs; ++pair) {
      const double angle = static_cast<double>(token) * rope.inv_freq[static_cast<size_t>(pair)];
      const double cosine = std::cos(angle);
      const double sine = std::sin(angle);
      for (int32_t head = 0; head < rows.heads; ++head) {
        const float* from = rows.At(token) + static_cast<int64_t>(head) * rows.depth;
        double* to = turned.data() + (token * rows.heads + head) * rows.depth;
        to[pair] = static_cast<float>(from[pair] * cosine - from[pair + pairs] * sine);
        to[pair + pairs] = static_cast<float>(from[pair + pairs] * cosine + from[pair] * sine);
      }
    }
  }
  return turned;
}

// What is exported of a block.
struct Shares {
  double mean = 0;
  double worst = 1;
  double middle = 0;
};

Shares SharesOf(const std::vector<double>& mass, const std::vector<double>& middle) {
  Shares shares;
  for (size_t head = 0; head < mass.size(); ++head) {
    shares.mean += mass[head] / static_cast<double>(mass.size());
    shares.middle += middle[head] / static_cast<double>(mass.size());
    shares.worst = std::min(shares.worst, mass[head]);
  }
  return shares;
}

// Absolute differences of one kind, in percentage points.
class Errors {
 public:
  void Add(const Shares& measured, const Shares& full) {
    for (const double difference :
         {measured.mean - full.mean, measured.worst - full.worst, measured.middle - full.middle}) {
      largest_ = std::max(largest_, 100 * std::abs(difference));
      sum_ += 100 * std::abs(difference);
      ++count_;
    }
    bias_mean_ += 100 * (measured.mean - full.mean);
    bias_worst_ += 100 * (measured.worst - full.worst);
    kept_ += 100 * full.mean;
    worst_ += 100 * full.worst;
    middle_ += 100 * full.middle;
    ++blocks_;
  }
  double largest() const { return largest_; }
  double mean() const { return sum_ / count_; }
  int32_t blocks() const { return blocks_; }
  std::string Json() const {
    char text[512];
    std::snprintf(text, sizeof(text),
                  ", \"mean_error\": %.6g, \"bias_of_mean\": %.6g, \"bias_of_worst_head\": %.6g, "
                  "\"blocks\": %d, \"mass_kept\": %.4g, \"worst_head_mass_kept\": %.4g, "
                  "\"middle_kept\": %.4g",
                  mean(), bias_mean_ / blocks_, bias_worst_ / blocks_, blocks_, kept_ / blocks_,
                  worst_ / blocks_, middle_ / blocks_);
    return text;
  }

 private:
  double largest_ = 0;
  double sum_ = 0;
  double bias_mean_ = 0;
  double bias_worst_ = 0;
  double kept_ = 0;
  double worst_ = 0;
  double middle_ = 0;
  int32_t count_ = 0;
  int32_t blocks_ = 0;
};

// One layer's queries and keys, in a session that attends by one policy.
class Study {
 public:
  // `all_rows`: of a block, however long it takes; else as few as the monitor ever takes.
  Study(const Rows& queries, const Rows& keys, const AttentionPolicy& policy, bool all_rows)
      : queries_(queries),
        keys_(keys),
        policy_(policy),
        rotated_queries_(Rotated(queries, queries.tokens)),
        rotated_keys_(Rotated(keys, keys.tokens)),
        engine_(MakeEngine(Options(all_rows), 0)) {
    SessionSpec spec;
    spec.model = {.num_layers = 1,
                  .num_heads = queries.heads,
                  .num_kv_heads = keys.heads,
                  .head_dim = queries.depth,
                  .rope_tables = {RopeOf(queries.depth)}};
    spec.policy = policy;
    spec.max_tokens = keys.tokens;
    session_ = Must(engine_->Open(spec));
  }

  // Appends up to `position`, runs `rows` rows there and returns what the monitor says.
  RecallSample Measure(StepKind kind, int64_t position, int64_t rows) {
    Submit(StepKind::kAppend, position - tokens_);
    Submit(kind, rows);
    while (true) {
      const RecallSlice slice = Must(engine_->AdvanceRecall(int64_t{1} << 24));
      if (slice.sample.has_value()) {
        return *slice.sample;
      }
      if (slice.products == 0) {
        Die("nothing was sampled");
      }
    }
  }

  // The full computation, in double, over every token: mean over the rows at `positions`.
  Shares Full(const std::vector<int64_t>& positions) const {
    const LayerSelection selection = Must(engine_->SelectionOf(session_, 0));
    // 0: outside the middle, 1: in it, 2: selected
    std::vector<int> part(static_cast<size_t>(keys_.tokens));
    for (int64_t token = policy_.sink_tokens; token < selection.mask.middle_end; ++token) {
      part[static_cast<size_t>(token)] = 1;
    }
    const PruningStage& last = policy_.decode.rest.stages.back();
    for (const int32_t first : selection.stages.back()) {
      std::fill_n(part.begin() + first, last.chunk_tokens, 2);
    }
    const auto heads = static_cast<size_t>(queries_.heads);
    std::vector<double> mass(heads);
    std::vector<double> middle(heads);
    for (const int64_t position : positions) {
      for (int32_t head = 0; head < queries_.heads; ++head) {
        double sums[3] = {};
        AddExponentials(position, head, part, sums);
        const double rows = static_cast<double>(positions.size());
        mass[static_cast<size_t>(head)] +=
            (sums[0] + sums[2]) / (sums[0] + sums[1] + sums[2]) / rows;
        middle[static_cast<size_t>(head)] += sums[2] / (sums[1] + sums[2]) / rows;
      }
    }
    return SharesOf(mass, middle);
  }

 private:
  void AddExponentials(int64_t position,
                       int32_t head,
                       const std::vector<int>& part,
                       double* sums) const {
    const int32_t depth = queries_.depth;
    const int32_t kv_head = head / (queries_.heads / keys_.heads);
    const double* query = rotated_queries_.data() + (position * queries_.heads + head) * depth;
    std::vector<double> logits;
    for (int64_t token = 0; token <= position; ++token) {
      const double* key = rotated_keys_.data() + (token * keys_.heads + kv_head) * depth;
      double dot = 0;
      for (int32_t dim = 0; dim < depth; ++dim) {
        dot += query[dim] * key[dim];
      }
      logits.push_back(dot / std::sqrt(static_cast<double>(depth)));
    }
    const double largest = *std::max_element(logits.begin(), logits.end());
    for (size_t token = 0; token < logits.size(); ++token) {
      sums[part[token]] += std::exp(logits[token] - largest);
    }
  }

  static EngineOptions Options(bool all_rows) {
    EngineOptions options;
    options.recall_sample_every = 1;
    options.pool_bytes = int64_t{128} << 20;
    options.recall_max_block_products = all_rows ? int64_t{1} << 60 : 1;
    return options;
  }

  void Submit(StepKind kind, int64_t rows) {
    if (rows == 0) {
      return;
    }
    const StepItem item{.session_id = session_, .position = tokens_, .rows = rows};
    std::vector<float> out(static_cast<size_t>(rows * queries_.heads * queries_.depth));
    const TensorRef k = Tensor(keys_.At(tokens_), DType::kF32, rows, keys_.heads, keys_.depth);
    StepCall call{.kind = kind, .items = {&item, 1}, .k = k, .v = k};
    if (kind != StepKind::kAppend) {
      call.q = Tensor(queries_.At(tokens_), DType::kF32, rows, queries_.heads, queries_.depth);
      call.out = Tensor(out.data(), DType::kF32, rows, queries_.heads, queries_.depth);
    }
    if (!engine_->Wait(Must(engine_->Submit(call))).ok()) {
      Die("the step failed");
    }
    tokens_ += rows;
  }

  const Rows& queries_;
  const Rows& keys_;
  AttentionPolicy policy_;
  std::vector<double> rotated_queries_;
  std::vector<double> rotated_keys_;
  std::unique_ptr<Engine> engine_;
  uint64_t session_ = 0;
  int64_t tokens_ = 0;
};

// `standard` that selects at any length, and with another budget.
AttentionPolicy Budget(int64_t sink, int64_t window, int32_t keep) {
  AttentionPolicy policy = Must(PresetPolicy("standard"));
  policy.dense_below_tokens = 0;
  policy.sink_tokens = sink;
  for (PhasePolicy* phase : {&policy.prefill, &policy.decode}) {
    phase->rest.window_tokens = window;
    phase->rest.stages[0].keep_tokens = keep * 4;
    phase->rest.stages[1].keep_tokens = keep;
  }
  return policy;
}

struct ErrorsOf {
  Errors decode;
  Errors prefill;
  Errors few_rows;  // of a prefill's block, against all of them
};

void StudyLayer(const Rows& queries, const Rows& keys, ErrorsOf* errors) {
  // The standard budget, and one that is far too small.
  for (const AttentionPolicy& policy : {Budget(256, 1024, 2048), Budget(64, 256, 256)}) {
    Study all(queries, keys, policy, true);
    Study few(queries, keys, policy, false);
    for (int64_t block = queries.tokens / 2; block + 128 <= queries.tokens; block += 512) {
      std::vector<int64_t> rows(64);
      std::iota(rows.begin(), rows.end(), block);
      const RecallSample prefilled = all.Measure(StepKind::kPrefill, block, 64);
      const Shares full = all.Full(rows);
      errors->prefill.Add(SharesOf(prefilled.mass_kept, prefilled.middle_kept), full);
      const RecallSample of_few = few.Measure(StepKind::kPrefill, block, 64);
      errors->few_rows.Add(SharesOf(of_few.mass_kept, of_few.middle_kept), full);
      for (int64_t step = 0; step < 6; ++step) {  // with selections of several ages
        const RecallSample decoded = all.Measure(StepKind::kDecode, block + 64 + step, 1);
        errors->decode.Add(SharesOf(decoded.mass_kept, decoded.middle_kept),
                           all.Full(decoded.positions));
      }
    }
  }
}

int Main(const std::string& folder, const std::vector<std::string>& layers) {
  ErrorsOf errors;
  for (const std::string& layer : layers) {
    StudyLayer(ReadNpy(absl::StrCat(folder, "/q", layer, ".npy")),
               ReadNpy(absl::StrCat(folder, "/k", layer, ".npy")), &errors);
    std::fprintf(stderr, "layer %s: within %.3g points\n", layer.c_str(),
                 std::max(errors.decode.largest(), errors.prefill.largest()));
  }
  const std::string setting = "SmolLM2-135M's queries and keys of 8192 tokens of real text, " +
                              std::to_string(layers.size()) +
                              " layers, keeping 2048 (S 256, W 1024) and 256 (S 64, W 256); mean "
                              "over heads, worst head and "
                              "middle";
  const std::string largest = ", \"shapes\": \"" + setting + "; largest error of a block\"";
  const std::string mean = ", \"shapes\": \"" + setting + "; mean error of a block\"";
  const char* unit = "percentage points";
  const bool prefill_is_worse = errors.prefill.largest() > errors.decode.largest();
  const Errors& worse = prefill_is_worse ? errors.prefill : errors.decode;
  Print("recall_monitor_error_points", worse.largest(), unit, worse.Json() + largest);
  Print("recall_monitor_error_points_decode", errors.decode.largest(), unit,
        errors.decode.Json() + largest);
  Print("recall_monitor_error_points_prefill", errors.prefill.largest(), unit,
        errors.prefill.Json() + largest);
  Print("recall_monitor_error_points_4_rows_of_64", errors.few_rows.mean(), unit,
        errors.few_rows.Json() + mean);
  return 0;
}

}  // namespace
}  // namespace longshore

int main(int argc, char** argv) {
  if (argc < 3) {
    longshore::Die("recall_error_bench FOLDER LAYERS...");
  }
  return longshore::Main(argv[1], {argv + 2, argv + argc});
}
