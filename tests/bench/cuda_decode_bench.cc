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

// A layer, and what is selected in it.
struct SelectedLayer {
  Layer layer;
  Buffer selected[2];
};

class Bench {
 public:
  Bench(cuda::CudaBackend* backend, int64_t tokens, int32_t copies, bool beyond)
      : backend_(backend),
        tokens_(tokens),
        beyond_(beyond),
        rope_(MakeRope(tokens, backend)) {
    q_ = Take(backend->Allocate(MemorySpace::kDevice, kHeads * kHeadDim * 2));
    k_ = Take(backend->Allocate(MemorySpace::kDevice, kTokenBytes));
    out_ = Take(backend->Allocate(MemorySpace::kDevice, kHeads * kHeadDim * 2));
    lse_ = Take(backend->Allocate(MemorySpace::kDevice, kHeads * 4));
    Check(cudaDeviceSynchronize());
    Fill(q_.data(), q_.bytes());
    Fill(k_.data(), k_.bytes());
    for (int32_t copy = 0; copy < copies; ++copy) {
      SelectedLayer& layer = layers_.emplace_back();
      layer.layer = MakeLayer(tokens, backend);
      for (Buffer& selected : layer.selected) {
        selected = Take(backend->Allocate(MemorySpace::kDevice, 4096 * 4));
      }
    }
  }

  // Microseconds of one step that runs the stages from `first_stage` on and what `verbs` allows.
  double Measure(int32_t first_stage, bool append, bool attend) {
    cudaStream_t stream = backend_->stream();
    Run(layers_[0], first_stage, append, attend);  // makes room, loads kernels
    Check(backend_->Wait(Take(backend_->Mark())));
    Check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    int32_t steps = 0;
    for (; steps < 16; ++steps) {
      Run(layers_[static_cast<size_t>(steps) % layers_.size()], first_stage, append, attend);
    }
    cudaGraph_t graph = nullptr;
    Check(cudaStreamEndCapture(stream, &graph));
    cudaGraphExec_t exec = nullptr;
    Check(cudaGraphInstantiate(&exec, graph, 0));
    cudaEvent_t begin = nullptr;
    cudaEvent_t end = nullptr;
    Check(cudaEventCreate(&begin));
    Check(cudaEventCreate(&end));
    // Clocks need work to rise.
    const auto warm = std::chrono::steady_clock::now() + kWarmUp;
    while (std::chrono::steady_clock::now() < warm) {
      Check(cudaGraphLaunch(exec, stream));
      Check(cudaStreamSynchronize(stream));
    }
    std::vector<float> times;
    for (int32_t replay = 0; replay < kReplays; ++replay) {
      Check(cudaEventRecord(begin, stream));
      Check(cudaGraphLaunch(exec, stream));
      Check(cudaEventRecord(end, stream));
      Check(cudaEventSynchronize(end));
      float milliseconds = 0;
      Check(cudaEventElapsedTime(&milliseconds, begin, end));
      times.push_back(milliseconds);
    }
    Check(cudaGraphExecDestroy(exec));
    Check(cudaGraphDestroy(graph));
    std::nth_element(times.begin(), times.begin() + kReplays / 2, times.end());
    return 1000.0 * times[kReplays / 2] / steps;
  }

 private:
  void Run(const SelectedLayer& layer, int32_t first_stage, bool append, bool attend) {
    const int64_t position = tokens_ - 2;  // most steps fill no page
    if (append) {
      const AppendItem item{.kv = layer.layer.kv,
                            .position = position,
                            .first_row = 0,
                            .rows = 1,
                            .rope = rope_.rows(),
                            .summaries = {.unrotated = true}};
      AppendArgs args;
      args.shape = ShapeOfLayer();
      args.items = {&item, 1};
      args.k = RowsOf(k_, 1, kKvHeads);
      args.v = RowsOf(k_, 1, kKvHeads);
      Check(backend_->Append(args));
    }
    QueryBlock block{.kv = layer.layer.kv,
                     .rope = rope_.rows(),
                     .first_position = position,
                     .first_row = 0,
                     .rows = 1,
                     .regions = SplitRegions(position, 256, 1024, 64)};
    auto* coarse = reinterpret_cast<int32_t*>(layer.selected[0].data());
    auto* fine = reinterpret_cast<int32_t*>(layer.selected[1].data());
    const RopeStyle prune = beyond_ ? RopeStyle::kRelative : RopeStyle::kTruePositions;
    for (int32_t stage = first_stage; stage < 2; ++stage) {
      PruneBlock pruned{.block = block,
                        .rule = {.style = prune, .window_tokens = 1024, .trained_tokens = 131072},
                        .parents = stage == 0 ? nullptr : coarse,
                        .num_parents = stage == 0 ? 0 : 128,
                        .parent_chunk_tokens = 64,
                        .selected = stage == 0 ? coarse : fine,
                        .num_selected = stage == 0 ? 128 : 256};
      PruneArgs args;
      args.shape = ShapeOfLayer();
      args.stage.selector = stage == 0 ? Selector::kBounds : Selector::kExact;
      args.stage.chunk_tokens = stage == 0 ? 64 : 8;
      args.stage.keep_tokens = stage == 0 ? 8192 : 2048;
      args.blocks = {&pruned, 1};
      args.q = RowsOf(q_, 1, kHeads);
      Check(backend_->Prune(args));
    }
    if (attend) {
      const AttendBlock attended{
          .block = block,
          .rule = {.style = beyond_ ? RopeStyle::kStreaming : RopeStyle::kTruePositions,
                   .window_tokens = 1024,
                   .trained_tokens = 131072},
          .selected = fine,
          .num_selected = 256,
          .selected_chunk_tokens = 8};
      AttendArgs args;
      args.shape = ShapeOfLayer();
      args.blocks = {&attended, 1};
      args.q = RowsOf(q_, 1, kHeads);
      args.out = RowsOf(out_, 1, kHeads);
      Check(backend_->Attend(args));
    }
  }

  cuda::CudaBackend* backend_;
  int64_t tokens_;
  bool beyond_;
  RopeTable rope_;
  Buffer q_;
  Buffer k_;
  Buffer out_;
  Buffer lse_;
  std::vector<SelectedLayer> layers_;
};

void Print(const std::string& id, double microseconds, int64_t tokens) {
  std::printf(
      "{\"id\": \"%s\", \"value\": %.2f, \"unit\": \"us\", \"shapes\": \"one layer, 32/8 heads, "
      "128 dims, bf16, batch 1, %lld tokens, standard\"}\n",
      id.c_str(), microseconds, static_cast<long long>(tokens));
  std::fflush(stdout);
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
    const bool beyond = tokens > kTrainedTokens;
    Bench bench(backend, tokens, 4, beyond);
    if (verbs) {
      bench.Measure(0, true, true);  // selections are there
      Print("verb_append_" + at, bench.Measure(2, true, false), tokens);
      Print("verb_bounds_and_exact_" + at, bench.Measure(0, false, false), tokens);
      Print("verb_exact_" + at, bench.Measure(1, false, false), tokens);
      Print("verb_attend_" + at, bench.Measure(2, false, true), tokens);
    }
    const double full = bench.Measure(0, true, true);
    const double last = bench.Measure(1, true, true);
    const double cached = bench.Measure(2, true, true);
    Print("decode_" + at + "_full", full, tokens);
    Print("decode_" + at + "_last_stage", last, tokens);
    Print("decode_" + at + "_cached", cached, tokens);
    Print("decode_" + at + "_standard_avg", (full + 3 * last + 12 * cached) / 16, tokens);
  }
}

}  // namespace
}  // namespace longshore::bench

int main(int argc, char** argv) {
  longshore::bench::Main(argc > 1 && std::strcmp(argv[1], "--verbs") == 0);
}
