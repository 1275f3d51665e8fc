// Prefill attention of one layer on a GPU, 8B shapes: the verbs of the last piece of a prompt. One
// JSON object a line on stdout.
//
//   cuda_prefill_bench [ID...]    those alone, of prefill_32k_at_64k to _2m,
//   dense_prefill_32k_at_128k
//                                 and _1m, paper_prefill_32k_at_1m and _early,
//                                 prefill_1m_all_layers_s

#include <functional>

#include <absl/strings/str_cat.h>

#include "engine/policy.h"
#include "tests/bench/cuda_layer.h"

namespace longshore::bench {
namespace {

constexpr int32_t kPieceRows = 32768;
constexpr int32_t kRuns = 5;

// What is measured: the rows [end - kPieceRows, end) of a session, in layers of a policy.
struct Case {
  AttentionPolicy policy;
  LayerPolicy layers;
  std::string name;  // for people
  int64_t end = 0;

  int32_t stages() const { return static_cast<int32_t>(layers.stages.size()); }
  const PruningStage& Stage(int32_t stage) const {
    return layers.stages[static_cast<size_t>(stage)];
  }
  bool dense() const { return layers.middle == Middle::kDense; }
};

Case CaseOf(const std::string& preset, int64_t end) {
  const AttentionPolicy policy = Take(PresetPolicy(preset));
  return {.policy = policy, .layers = policy.prefill.rest, .name = preset, .end = end};
}

class Bench {
 public:
  Bench(cuda::CudaBackend* backend, const Layer& layer, const RopeTable& rope, Case measured)
      : backend_(backend),
        case_(std::move(measured)) {
    constexpr int64_t kBytes = int64_t{kPieceRows} * kHeads * kHeadDim * 2;
    q_ = Take(backend->Allocate(MemorySpace::kDevice, kBytes));
    out_ = Take(backend->Allocate(MemorySpace::kDevice, kBytes));
    const int32_t rows = case_.policy.query_block;
    for (int32_t stage = 0; stage < case_.stages(); ++stage) {
      selected_.push_back(Take(backend->Allocate(
          MemorySpace::kDevice, int64_t{kPieceRows} / rows * case_.Stage(stage).KeepChunks() * 4)));
    }
    Check(cudaDeviceSynchronize());
    Fill(q_.data(), q_.bytes());
    for (int32_t row = 0; row < kPieceRows; row += rows) {
      const int64_t position = case_.end - kPieceRows + row;
      blocks_.push_back({.kv = layer.kv,
                         .rope = rope.rows(),
                         .first_position = position,
                         .first_row = row,
                         .rows = rows,
                         .regions = case_.dense()
                                        ? Regions{}
                                        : SplitRegions(position, case_.policy.sink_tokens,
                                                       case_.layers.window_tokens,
                                                       case_.layers.MiddleChunkTokens())});
    }
  }

  // Median milliseconds of all verbs; `id` not empty: printed, and each verb's.
  double Measure(const std::string& id) {
    std::vector<Verb> verbs;
    verbs.reserve(static_cast<size_t>(case_.stages()) + 1);
    for (int32_t stage = 0; stage < case_.stages(); ++stage) {
      verbs.push_back({NameOfStage(stage), [this, stage] { Prune(stage); }});
    }
    verbs.push_back({"_attend", [this] { Attend(); }});
    std::vector<std::vector<double>> times(verbs.size() + 1);
    for (int32_t run = 0; run <= kRuns; ++run) {
      double all = 0;
      for (size_t verb = 0; verb < verbs.size(); ++verb) {
        const double milliseconds = Time(verbs[verb].run);
        all += milliseconds;
        if (run > 0) {
          times[verb].push_back(milliseconds);
        }
      }
      if (run > 0) {
        times.back().push_back(all);
      }
    }
    for (size_t verb = 0; verb < times.size(); ++verb) {
      std::nth_element(times[verb].begin(), times[verb].begin() + kRuns / 2, times[verb].end());
      if (!id.empty()) {
        Print(verb < verbs.size() ? id + verbs[verb].name : id, times[verb][kRuns / 2]);
      }
    }
    return times.back()[kRuns / 2];
  }

 private:
  struct Verb {
    std::string name;
    std::function<void()> run;
  };

  std::string NameOfStage(int32_t stage) const {
    switch (case_.Stage(stage).selector) {
      case Selector::kBounds: return "_bounds";
      case Selector::kExact: return "_exact";
      default: return absl::StrCat("_stage", stage);
    }
  }

  double Time(const std::function<void()>& verb) {
    cudaEvent_t begin = nullptr;
    cudaEvent_t end = nullptr;
    Check(cudaEventCreate(&begin));
    Check(cudaEventCreate(&end));
    Check(cudaEventRecord(begin, backend_->stream()));
    verb();
    Check(cudaEventRecord(end, backend_->stream()));
    Check(backend_->Wait(Take(backend_->Mark())));
    float milliseconds = 0;
    Check(cudaEventElapsedTime(&milliseconds, begin, end));
    Check(cudaEventDestroy(begin));
    Check(cudaEventDestroy(end));
    return milliseconds;
  }

  void Print(const std::string& id, double milliseconds) const {
    std::printf(
        "{\"id\": \"%s\", \"value\": %.3f, \"unit\": \"ms\", \"shapes\": \"one layer, 32/8 heads, "
        "128 dims, bf16, the last %d rows of %lld tokens, %s\"}\n",
        id.c_str(), milliseconds, kPieceRows, static_cast<long long>(case_.end),
        case_.name.c_str());
    std::fflush(stdout);
  }

  // The chunks that a stage keeps of a block, and how many.
  int32_t* SelectedOf(size_t index, int32_t stage) const {
    return reinterpret_cast<int32_t*>(selected_[static_cast<size_t>(stage)].data()) +
           static_cast<int64_t>(index) * case_.Stage(stage).KeepChunks();
  }
  int32_t KeptBy(size_t index, int32_t stage) const {
    return KeptChunks(case_.layers, blocks_[index].regions, stage);
  }
  RopeRule RuleOf(const RopeChoice& rope) const {
    return {.style = rope.At(case_.end > kTrainedTokens),
            .window_tokens = case_.layers.window_tokens,
            .trained_tokens = kTrainedTokens};
  }

  void Prune(int32_t stage) {
    std::vector<PruneBlock> blocks;
    for (size_t index = 0; index < blocks_.size(); ++index) {
      PruneBlock& block = blocks.emplace_back(PruneBlock{.block = blocks_[index],
                                                         .rule = RuleOf(case_.Stage(stage).rope),
                                                         .selected = SelectedOf(index, stage),
                                                         .num_selected = KeptBy(index, stage)});
      if (stage > 0) {
        block.parents = SelectedOf(index, stage - 1);
        block.num_parents = KeptBy(index, stage - 1);
        block.parent_chunk_tokens = case_.Stage(stage - 1).chunk_tokens;
      }
    }
    PruneArgs args;
    args.shape = ShapeOfLayer();
    args.stage = case_.Stage(stage);
    args.ranking = case_.policy.ranking;
    args.query_stride = case_.policy.query_stride;
    args.blocks = blocks;
    args.q = RowsOf(q_, kPieceRows, kHeads);
    Check(backend_->Prune(args));
  }

  void Attend() {
    const int32_t last = case_.stages() - 1;
    std::vector<AttendBlock> blocks;
    for (size_t index = 0; index < blocks_.size(); ++index) {
      AttendBlock& block = blocks.emplace_back(AttendBlock{
          .block = blocks_[index], .rule = RuleOf(case_.policy.AttentionRopeOf(case_.layers))});
      if (last >= 0) {
        block.selected = SelectedOf(index, last);
        block.num_selected = KeptBy(index, last);
        block.selected_chunk_tokens = case_.Stage(last).chunk_tokens;
      }
    }
    AttendArgs args;
    args.shape = ShapeOfLayer();
    args.blocks = blocks;
    args.q = RowsOf(q_, kPieceRows, kHeads);
    args.out = RowsOf(out_, kPieceRows, kHeads);
    Check(backend_->Attend(args));
  }

  cuda::CudaBackend* backend_;
  Case case_;
  Buffer q_;
  Buffer out_;
  std::vector<Buffer> selected_;  // by stage: of each block, one behind the other
  std::vector<QueryBlock> blocks_;
};

void Main(const std::vector<std::string>& only) {
  auto made = cuda::CudaBackend::Create();
  Check(made.status());
  auto* backend = static_cast<cuda::CudaBackend*>(made->get());
  constexpr int64_t kMostTokens = int64_t{1} << 21;
  const RopeTable rope = MakeRope(kMostTokens, backend);
  const Layer layer = MakeLayer(kMostTokens, backend);
  const auto wanted = [&](const std::string& id) {
    return only.empty() || std::find(only.begin(), only.end(), id) != only.end();
  };
  const auto measure = [&](const std::string& id, const Case& measured) {
    if (wanted(id)) {
      Bench(backend, layer, rope, measured).Measure(id);
    }
  };
  for (const auto& [name, tokens] : {std::pair{"64k", 1 << 16},
                                     {"128k", 1 << 17},
                                     {"256k", 1 << 18},
                                     {"512k", 1 << 19},
                                     {"1m", 1 << 20},
                                     {"2m", 1 << 21}}) {
    measure(std::string("prefill_32k_at_") + name, CaseOf("standard", tokens));
  }
  measure("dense_prefill_32k_at_128k", CaseOf("dense", 1 << 17));
  measure("dense_prefill_32k_at_1m", CaseOf("dense", 1 << 20));
  Case paper = CaseOf("paper-3k", 1 << 20);
  measure("paper_prefill_32k_at_1m", paper);
  paper.layers = paper.policy.prefill.early;
  paper.name += ", its early layers";
  measure("paper_prefill_32k_at_1m_early", paper);
  if (wanted("prefill_1m_all_layers_s")) {
    double milliseconds = 0;
    for (int64_t end = kPieceRows; end <= int64_t{1} << 20; end += kPieceRows) {
      milliseconds += Bench(backend, layer, rope, CaseOf("standard", end)).Measure("");
    }
    std::printf(
        "{\"id\": \"prefill_1m_all_layers_s\", \"value\": %.2f, \"unit\": \"s\", \"shapes\": \"32 "
        "pieces of 32768 rows of one layer, times 32 layers, 32/8 heads, 128 dims, bf16, "
        "standard\"}\n",
        milliseconds * 32 / 1000);
  }
}

}  // namespace
}  // namespace longshore::bench

int main(int argc, char** argv) { longshore::bench::Main({argv + 1, argv + argc}); }
