// Decode attention of one layer on a GPU, 8B shapes: the verbs of a step, captured in graphs and
// replayed, one after the other on several copies of keys and values, so that no cache holds them.
// One JSON object a line on stdout.
//
//   cuda_decode_bench [--verbs]    each verb by itself, too

#include <chrono>
#include <cstring>

#include "engine/policy.h"
#include "tests/bench/cuda_layer.h"

namespace longshore::bench {
namespace {

constexpr int32_t kReplays = 50;
constexpr std::chrono::milliseconds kWarmUp{200};
constexpr int32_t kCopies = 4;
constexpr int64_t kMostChunks = 32768;

// What is measured: a policy at a context, by some sessions at once.
struct Case {
  AttentionPolicy policy;
  int64_t tokens = 0;
  int32_t sessions = 1;
  std::string name;  // of the policy, for people

  const LayerPolicy& layers() const { return policy.decode.rest; }
  int32_t stages() const { return static_cast<int32_t>(layers().stages.size()); }
  bool beyond() const { return tokens > kTrainedTokens; }
};

// A layer of one session, and what each stage keeps of it.
struct SelectedLayer {
  Layer layer;
  std::vector<Buffer> selected;
};

class Bench {
 public:
  Bench(cuda::CudaBackend* backend, const Case& measured)
      : backend_(backend),
        case_(measured),
        rope_(MakeRope(measured.tokens, backend)) {
    q_ = Take(backend->Allocate(MemorySpace::kDevice, case_.sessions * kHeads * kHeadDim * 2));
    k_ = Take(backend->Allocate(MemorySpace::kDevice, case_.sessions * kTokenBytes));
    out_ = Take(backend->Allocate(MemorySpace::kDevice, case_.sessions * kHeads * kHeadDim * 2));
    Check(cudaDeviceSynchronize());
    Fill(q_.data(), q_.bytes());
    Fill(k_.data(), k_.bytes());
    for (int32_t at = 0; at < kCopies * case_.sessions; ++at) {
      SelectedLayer& layer = layers_.emplace_back();
      layer.layer = MakeLayer(case_.tokens, backend);
      for (int32_t stage = 0; stage < case_.stages(); ++stage) {
        layer.selected.push_back(Take(backend->Allocate(MemorySpace::kDevice, kMostChunks * 4)));
      }
    }
  }

  // Microseconds of one step that runs the stages from `first_stage` on and what the others allow.
  double Measure(int32_t first_stage, bool append = true, bool attend = true) {
    Run(0, first_stage, append, attend);  // makes room, loads kernels
    Check(backend_->Wait(Take(backend_->Mark())));
    Check(cudaStreamBeginCapture(backend_->stream(), cudaStreamCaptureModeRelaxed));
    constexpr int32_t kSteps = 16;
    for (int32_t step = 0; step < kSteps; ++step) {
      Run(step % kCopies, first_stage, append, attend);
    }
    cudaGraph_t graph = nullptr;
    Check(cudaStreamEndCapture(backend_->stream(), &graph));
    cudaGraphExec_t exec = nullptr;
    Check(cudaGraphInstantiate(&exec, graph, 0));
    // Clocks need work to rise.
    const auto warm = std::chrono::steady_clock::now() + kWarmUp;
    while (std::chrono::steady_clock::now() < warm) {
      Check(cudaGraphLaunch(exec, backend_->stream()));
      Check(cudaStreamSynchronize(backend_->stream()));
    }
    const double microseconds = MedianMicroseconds(exec) / kSteps;
    Check(cudaGraphExecDestroy(exec));
    Check(cudaGraphDestroy(graph));
    return microseconds;
  }

  // Over a round of refreshes, with stage i and those after it run every refresh_steps-th step.
  double Average(const std::vector<double>& by_first_stage) const {
    double average = 0;
    double coarser = 0;  // share of steps that run a coarser stage
    for (int32_t stage = 0; stage < case_.stages(); ++stage) {
      const double share = 1.0 / case_.layers().stages[static_cast<size_t>(stage)].refresh_steps;
      average += (share - coarser) * by_first_stage[static_cast<size_t>(stage)];
      coarser = share;
    }
    return average + (1 - coarser) * by_first_stage.back();
  }

 private:
  double MedianMicroseconds(cudaGraphExec_t exec) const {
    cudaEvent_t begin = nullptr;
    cudaEvent_t end = nullptr;
    Check(cudaEventCreate(&begin));
    Check(cudaEventCreate(&end));
    std::vector<float> times;
    for (int32_t replay = 0; replay < kReplays; ++replay) {
      Check(cudaEventRecord(begin, backend_->stream()));
      Check(cudaGraphLaunch(exec, backend_->stream()));
      Check(cudaEventRecord(end, backend_->stream()));
      Check(cudaEventSynchronize(end));
      float milliseconds = 0;
      Check(cudaEventElapsedTime(&milliseconds, begin, end));
      times.push_back(milliseconds);
    }
    Check(cudaEventDestroy(begin));
    Check(cudaEventDestroy(end));
    std::nth_element(times.begin(), times.begin() + kReplays / 2, times.end());
    return 1000.0 * times[kReplays / 2];
  }

  const SelectedLayer& LayerOf(int32_t copy, int32_t session) const {
    const int64_t at = int64_t{copy} * case_.sessions + session;
    return layers_[static_cast<size_t>(at)];
  }
  int32_t* SelectedOf(int32_t copy, int32_t session, int32_t stage) const {
    return reinterpret_cast<int32_t*>(
        LayerOf(copy, session).selected[static_cast<size_t>(stage)].data());
  }
  RopeRule RuleOf(const RopeChoice& rope) const {
    return {.style = rope.At(case_.beyond()),
            .window_tokens = case_.layers().window_tokens,
            .trained_tokens = kTrainedTokens,
            .block_first_position = position()};
  }
  int64_t position() const { return case_.tokens - 2; }  // most steps fill no page

  QueryBlock BlockOf(int32_t copy, int32_t session) const {
    const bool dense = case_.layers().middle == Middle::kDense;
    return {.kv = LayerOf(copy, session).layer.kv,
            .rope = rope_.rows(),
            .first_position = position(),
            .first_row = session,
            .rows = 1,
            .regions = dense ? Regions{}
                             : SplitRegions(position(), case_.policy.sink_tokens,
                                            case_.layers().window_tokens,
                                            case_.layers().MiddleChunkTokens())};
  }

  // Chunks that a stage keeps of what the stage before it has kept.
  int32_t KeptBy(int32_t stage) const {
    return KeptChunks(case_.layers(), BlockOf(0, 0).regions, stage);
  }

  void Append(int32_t copy) {
    std::vector<AppendItem> items;
    items.reserve(static_cast<size_t>(case_.sessions));
    for (int32_t session = 0; session < case_.sessions; ++session) {
      items.push_back({.kv = LayerOf(copy, session).layer.kv,
                       .position = position(),
                       .first_row = session,
                       .rows = 1,
                       .rope = rope_.rows(),
                       .summaries = {.unrotated = true}});
    }
    AppendArgs args;
    args.shape = ShapeOfLayer();
    args.items = items;
    args.k = RowsOf(k_, case_.sessions, kKvHeads);
    args.v = RowsOf(k_, case_.sessions, kKvHeads);
    Check(backend_->Append(args));
  }

  void Prune(int32_t copy, int32_t stage) {
    std::vector<PruneBlock> blocks;
    for (int32_t session = 0; session < case_.sessions; ++session) {
      PruneBlock& block =
          blocks.emplace_back(PruneBlock{.block = BlockOf(copy, session),
                                         .rule = RuleOf(StageOf(stage).rope),
                                         .selected = SelectedOf(copy, session, stage),
                                         .num_selected = KeptBy(stage)});
      if (stage > 0) {
        block.parents = SelectedOf(copy, session, stage - 1);
        block.num_parents = KeptBy(stage - 1);
        block.parent_chunk_tokens = StageOf(stage - 1).chunk_tokens;
      }
    }
    PruneArgs args;
    args.shape = ShapeOfLayer();
    args.stage = StageOf(stage);
    args.ranking = case_.policy.ranking;
    args.query_stride = case_.policy.query_stride;
    args.blocks = blocks;
    args.q = RowsOf(q_, case_.sessions, kHeads);
    Check(backend_->Prune(args));
  }
  const PruningStage& StageOf(int32_t stage) const {
    return case_.layers().stages[static_cast<size_t>(stage)];
  }

  void Attend(int32_t copy) {
    const int32_t last = case_.stages() - 1;
    std::vector<AttendBlock> blocks;
    for (int32_t session = 0; session < case_.sessions; ++session) {
      AttendBlock& block = blocks.emplace_back(
          AttendBlock{.block = BlockOf(copy, session),
                      .rule = RuleOf(case_.policy.AttentionRopeOf(case_.layers()))});
      if (last >= 0) {
        block.selected = SelectedOf(copy, session, last);
        block.num_selected = KeptBy(last);
        block.selected_chunk_tokens = StageOf(last).chunk_tokens;
      }
    }
    AttendArgs args;
    args.shape = ShapeOfLayer();
    args.blocks = blocks;
    args.q = RowsOf(q_, case_.sessions, kHeads);
    args.out = RowsOf(out_, case_.sessions, kHeads);
    Check(backend_->Attend(args));
  }

  void Run(int32_t copy, int32_t first_stage, bool append, bool attend) {
    if (append) {
      Append(copy);
    }
    for (int32_t stage = first_stage; stage < case_.stages(); ++stage) {
      Prune(copy, stage);
    }
    if (attend) {
      Attend(copy);
    }
  }

  cuda::CudaBackend* backend_;
  Case case_;
  RopeTable rope_;
  Buffer q_;
  Buffer k_;
  Buffer out_;
  std::vector<SelectedLayer> layers_;
};

void Print(const std::string& id, double microseconds, const Case& of) {
  std::printf(
      "{\"id\": \"%s\", \"value\": %.2f, \"unit\": \"us\", \"shapes\": \"one layer, 32/8 heads, "
      "128 dims, bf16, batch %d, %lld tokens, %s\"}\n",
      id.c_str(), microseconds, of.sessions, static_cast<long long>(of.tokens), of.name.c_str());
  std::fflush(stdout);
}

AttentionPolicy Preset(const std::string& name) { return Take(PresetPolicy(name)); }

// Steps by their first stale stage, and the average over a round.
std::vector<double> ByFirstStage(Bench* bench, const Case& measured) {
  std::vector<double> times;
  for (int32_t stage = 0; stage <= measured.stages(); ++stage) {
    times.push_back(bench->Measure(stage));
  }
  return times;
}

void MeasureStandard(cuda::CudaBackend* backend,
                     const std::string& at,
                     int64_t tokens,
                     bool verbs) {
  const Case measured{.policy = Preset("standard"), .tokens = tokens, .name = "standard"};
  Bench bench(backend, measured);
  const std::vector<double> times = ByFirstStage(&bench, measured);
  if (verbs) {
    Print("verb_append_" + at, bench.Measure(2, true, false), measured);
    Print("verb_bounds_and_exact_" + at, bench.Measure(0, false, false), measured);
    Print("verb_exact_" + at, bench.Measure(1, false, false), measured);
    Print("verb_attend_" + at, bench.Measure(2, false, true), measured);
  }
  Print("decode_" + at + "_full", times[0], measured);
  Print("decode_" + at + "_last_stage", times[1], measured);
  Print("decode_" + at + "_cached", times[2], measured);
  Print("decode_" + at + "_standard_avg", bench.Average(times), measured);
}

void MeasureOthers(cuda::CudaBackend* backend) {
  Case tokens{.policy = Preset("standard"),
              .tokens = int64_t{1} << 20,
              .name = "standard with single tokens in the last stage"};
  tokens.policy.decode.rest.stages.back().chunk_tokens = 1;
  Bench of_tokens(backend, tokens);
  Print("decode_1m_standard_tokens_avg", of_tokens.Average(ByFirstStage(&of_tokens, tokens)),
        tokens);

  const Case batch{
      .policy = Preset("standard"), .tokens = 1 << 16, .sessions = 16, .name = "standard"};
  Bench of_batch(backend, batch);
  Print("batch16_64k_per_session",
        of_batch.Average(ByFirstStage(&of_batch, batch)) / batch.sessions, batch);

  const Case paper{.policy = Preset("paper-3k"),
                   .tokens = int64_t{1} << 20,
                   .name = "paper-3k, layers from 3 on"};
  Bench of_paper(backend, paper);
  const std::vector<double> times = ByFirstStage(&of_paper, paper);
  Print("paper_decode_1m_avg", of_paper.Average(times), paper);
  Print("paper_decode_1m_full", times.front(), paper);

  const Case dense{.policy = Preset("dense"), .tokens = int64_t{1} << 20, .name = "dense"};
  Print("dense_decode_1m", Bench(backend, dense).Measure(0), dense);
}

void Main(bool verbs) {
  auto made = cuda::CudaBackend::Create();
  Check(made.status());
  auto* backend = static_cast<cuda::CudaBackend*>(made->get());
  for (const auto& [at, tokens] : {std::pair{std::string("64k"), 1 << 16},
                                   {"128k", 1 << 17},
                                   {"256k", 1 << 18},
                                   {"512k", 1 << 19},
                                   {"1m", 1 << 20},
                                   {"2m", 1 << 21}}) {
    MeasureStandard(backend, at, tokens, verbs);
  }
  MeasureOthers(backend);
}

}  // namespace
}  // namespace longshore::bench

int main(int argc, char** argv) {
  longshore::bench::Main(argc > 1 && std::strcmp(argv[1], "--verbs") == 0);
}
