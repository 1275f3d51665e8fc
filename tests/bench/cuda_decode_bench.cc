// Decode attention of one layer on a GPU, 8B shapes: the verbs of a step, captured in graphs and
// replayed, one after the other on several copies of keys and values, so that no cache holds them.
// One JSON object a line on stdout.
//
//   cuda_decode_bench [--verbs]    each verb by itself, too

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>

#include "engine/core/half.h"
#include "engine/cuda/cuda_backend.h"
#include "engine/policy.h"
#include "engine/rope_table.h"

namespace longshore {
namespace {

constexpr int32_t kHeads = 32;
constexpr int32_t kKvHeads = 8;
constexpr int32_t kHeadDim = 128;
constexpr int64_t kTokenBytes = int64_t{kKvHeads} * kHeadDim * 2;
constexpr int64_t kPageBytes = 2 * 64 * kTokenBytes;
constexpr int32_t kReplays = 50;
constexpr std::chrono::milliseconds kWarmUp{200};

void Check(bool ok, const std::string& what) {
  if (!ok) {
    std::fprintf(stderr, "cuda_decode_bench: %s\n", what.c_str());
    std::exit(1);  // NOLINT(concurrency-mt-unsafe): nothing else runs that minds
  }
}
void Check(const absl::Status& status) { Check(status.ok(), status.ToString()); }
void Check(cudaError_t error) { Check(error == cudaSuccess, cudaGetErrorString(error)); }

template <class T>
T Take(absl::StatusOr<T> value) {
  Check(value.status());
  return *std::move(value);
}

// Gaussian bf16 numbers, of which copies fill the memory.
void Fill(std::byte* device, int64_t bytes) {
  static const std::vector<Bf16> values = [] {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    std::vector<Bf16> made(int64_t{16} << 20);
    std::generate(made.begin(), made.end(), [&] { return ToBf16(normal(random)); });
    return made;
  }();
  const auto piece = static_cast<int64_t>(values.size() * sizeof(Bf16));
  for (int64_t at = 0; at < bytes; at += piece) {
    Check(cudaMemcpy(device + at, values.data(), static_cast<size_t>(std::min(piece, bytes - at)),
                     cudaMemcpyHostToDevice));
  }
}

// One layer of one session with `tokens` tokens.
struct Layer {
  Buffer pages;
  Buffer summaries;
  Buffer page_ids;
  Buffer selected[2];
  KvView kv;
};

class Bench {
 public:
  Bench(cuda::CudaBackend* backend, int64_t tokens, int32_t copies, bool beyond)
      : backend_(backend),
        tokens_(tokens),
        beyond_(beyond) {
    RopeSpec spec;
    for (int32_t pair = 0; pair < kHeadDim / 2; ++pair) {
      spec.inv_freq.push_back(std::pow(500000.0, -pair / 64.0));
    }
    spec.trained_tokens = 131072;
    rope_.emplace(Take(RopeTable::Create(spec, tokens + 4096, backend)));
    q_ = Take(backend->Allocate(MemorySpace::kDevice, kHeads * kHeadDim * 2));
    k_ = Take(backend->Allocate(MemorySpace::kDevice, kTokenBytes));
    out_ = Take(backend->Allocate(MemorySpace::kDevice, kHeads * kHeadDim * 2));
    lse_ = Take(backend->Allocate(MemorySpace::kDevice, kHeads * 4));
    Check(cudaDeviceSynchronize());
    Fill(q_.data(), q_.bytes());
    Fill(k_.data(), k_.bytes());
    shape_ = {.num_heads = kHeads,
              .num_kv_heads = kKvHeads,
              .head_dim = kHeadDim,
              .kv_dtype = DType::kBf16,
              .softmax_scale = 0.08838835F};
    for (int32_t copy = 0; copy < copies; ++copy) {
      layers_.push_back(MakeLayer());
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
  Layer MakeLayer() {
    Layer layer;
    const int64_t pages = tokens_ / 64 + 1;
    layer.pages = Take(backend_->Allocate(MemorySpace::kDevice, pages * kPageBytes));
    layer.summaries = Take(backend_->Allocate(MemorySpace::kDevice, pages * kPageBytes / 64));
    layer.page_ids = Take(backend_->Allocate(MemorySpace::kDevice, pages * 4));
    for (Buffer& selected : layer.selected) {
      selected = Take(backend_->Allocate(MemorySpace::kDevice, 4096 * 4));
    }
    Check(cudaDeviceSynchronize());
    Fill(layer.pages.data(), layer.pages.bytes());
    // Bounds that bound something: maxima above minima.
    Fill(layer.summaries.data(), layer.summaries.bytes());
    std::vector<int32_t> ids(static_cast<size_t>(pages));
    for (size_t page = 0; page < ids.size(); ++page) {
      ids[page] = static_cast<int32_t>(static_cast<int64_t>(page) * (kPageBytes / 4096));
    }
    Check(cudaMemcpy(layer.page_ids.data(), ids.data(), ids.size() * 4, cudaMemcpyHostToDevice));
    layer.kv.pages = layer.pages.data();
    layer.kv.summaries[0] = layer.summaries.data();
    layer.kv.summaries[1] = layer.summaries.data();
    layer.kv.page_ids = reinterpret_cast<const int32_t*>(layer.page_ids.data());
    layer.kv.value_offset = kPageBytes / 2;
    layer.kv.token_bytes = static_cast<int32_t>(kTokenBytes);
    layer.kv.head_bytes = kHeadDim * 2;
    layer.kv.dtype = DType::kBf16;
    return layer;
  }

  static TensorRef Rows(const Buffer& buffer, int32_t heads) {
    return {.data = buffer.data(),
            .dtype = DType::kBf16,
            .space = MemorySpace::kDevice,
            .rank = 3,
            .shape = {1, heads, kHeadDim, 0}};
  }

  void Run(const Layer& layer, int32_t first_stage, bool append, bool attend) {
    const int64_t position = tokens_ - 2;  // most steps fill no page
    if (append) {
      const AppendItem item{.kv = layer.kv,
                            .position = position,
                            .first_row = 0,
                            .rows = 1,
                            .rope = rope_->rows(),
                            .summaries = {.unrotated = true}};
      AppendArgs args;
      args.shape = shape_;
      args.items = {&item, 1};
      args.k = Rows(k_, kKvHeads);
      args.v = Rows(k_, kKvHeads);
      Check(backend_->Append(args));
    }
    QueryBlock block{.kv = layer.kv,
                     .rope = rope_->rows(),
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
      args.shape = shape_;
      args.stage.selector = stage == 0 ? Selector::kBounds : Selector::kExact;
      args.stage.chunk_tokens = stage == 0 ? 64 : 8;
      args.stage.keep_tokens = stage == 0 ? 8192 : 2048;
      args.blocks = {&pruned, 1};
      args.q = Rows(q_, kHeads);
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
      args.shape = shape_;
      args.blocks = {&attended, 1};
      args.q = Rows(q_, kHeads);
      args.out = Rows(out_, kHeads);
      Check(backend_->Attend(args));
    }
  }

  cuda::CudaBackend* backend_;
  int64_t tokens_;
  bool beyond_;
  AttentionShape shape_;
  std::optional<RopeTable> rope_;
  Buffer q_;
  Buffer k_;
  Buffer out_;
  Buffer lse_;
  std::vector<Layer> layers_;
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
  for (const bool beyond : {true, false}) {
    const int64_t tokens = beyond ? int64_t{1} << 20 : int64_t{1} << 17;
    const std::string at = beyond ? "1m" : "128k";
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
}  // namespace longshore

int main(int argc, char** argv) {
  longshore::Main(argc > 1 && std::strcmp(argv[1], "--verbs") == 0);
}
