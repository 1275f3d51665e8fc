// Prefill attention of one layer on a GPU, 8B shapes: the verbs of the last piece of a prompt. One
// JSON object a line on stdout.
//
//   cuda_prefill_bench [ID...]    those alone, of prefill_32k_at_64k to _2m,
//   dense_prefill_32k_at_128k
//                                 and _1m, prefill_1m_all_layers_s

#include <cstring>
#include <functional>
#include <span>

#include "engine/policy.h"
#include "tests/bench/cuda_layer.h"

namespace longshore::bench {
namespace {

constexpr int32_t kPieceRows = 32768;
constexpr int32_t kQueryBlock = 64;
constexpr int32_t kRuns = 5;
constexpr int32_t kCoarseChunks = 128;
constexpr int32_t kFineChunks = 256;

// Attention of the rows [end - kPieceRows, end) of a session.
class Bench {
 public:
  Bench(cuda::CudaBackend* backend,
        const Layer& layer,
        const RopeTable& rope,
        int64_t end,
        bool dense)
      : backend_(backend),
        end_(end),
        dense_(dense),
        beyond_(end > kTrainedTokens) {
    constexpr int64_t kBytes = int64_t{kPieceRows} * kHeads * kHeadDim * 2;
    constexpr int64_t kBlocks = kPieceRows / kQueryBlock;
    q_ = Take(backend->Allocate(MemorySpace::kDevice, kBytes));
    out_ = Take(backend->Allocate(MemorySpace::kDevice, kBytes));
    coarse_ = Take(backend->Allocate(MemorySpace::kDevice, kBlocks * kCoarseChunks * 4));
    fine_ = Take(backend->Allocate(MemorySpace::kDevice, kBlocks * kFineChunks * 4));
    Check(cudaDeviceSynchronize());
    Fill(q_.data(), q_.bytes());
    for (int64_t row = 0; row < kPieceRows; row += kQueryBlock) {
      const int64_t position = end - kPieceRows + row;
      blocks_.push_back({.kv = layer.kv,
                         .rope = rope.rows(),
                         .first_position = position,
                         .first_row = static_cast<int32_t>(row),
                         .rows = kQueryBlock,
                         .regions = dense ? Regions{} : SplitRegions(position, 256, 1024, 64)});
    }
  }

  // Median milliseconds of all verbs; `id` not empty: printed, and each verb's.
  double Measure(const std::string& id) {
    const Verb all_verbs[] = {{"_bounds", [&] { Prune(0); }},
                              {"_exact", [&] { Prune(1); }},
                              {"_attend", [&] { Attend(); }}};
    const std::span<const Verb> verbs = std::span(all_verbs).subspan(dense_ ? 2 : 0);
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
        id.c_str(), milliseconds, kPieceRows, static_cast<long long>(end_),
        dense_ ? "dense" : "standard");
    std::fflush(stdout);
  }

  static int32_t* At(const Buffer& buffer, size_t block, int32_t chunks) {
    return reinterpret_cast<int32_t*>(buffer.data()) + static_cast<int64_t>(block) * chunks;
  }

  // What a stage keeps of a block's chunks.
  int32_t ChunksOf(size_t index, int32_t chunk_tokens, int32_t keep) const {
    return static_cast<int32_t>(
        std::min<int64_t>(keep, blocks_[index].regions.MiddleTokens() / chunk_tokens));
  }

  void Prune(int32_t stage) {
    std::vector<PruneBlock> blocks;
    for (size_t index = 0; index < blocks_.size(); ++index) {
      int32_t* coarse = At(coarse_, index, kCoarseChunks);
      int32_t* fine = At(fine_, index, kFineChunks);
      blocks.push_back(
          {.block = blocks_[index],
           .rule = {.style = beyond_ ? RopeStyle::kRelative : RopeStyle::kTruePositions,
                    .window_tokens = 1024,
                    .trained_tokens = kTrainedTokens},
           .parents = stage == 0 ? nullptr : coarse,
           .num_parents = stage == 0 ? 0 : ChunksOf(index, 64, kCoarseChunks),
           .parent_chunk_tokens = 64,
           .selected = stage == 0 ? coarse : fine,
           .num_selected =
               stage == 0 ? ChunksOf(index, 64, kCoarseChunks) : ChunksOf(index, 8, kFineChunks)});
    }
    PruneArgs args;
    args.shape = ShapeOfLayer();
    args.stage.selector = stage == 0 ? Selector::kBounds : Selector::kExact;
    args.stage.chunk_tokens = stage == 0 ? 64 : 8;
    args.stage.keep_tokens = stage == 0 ? 8192 : 2048;
    args.query_stride = 4;
    args.blocks = blocks;
    args.q = RowsOf(q_, kPieceRows, kHeads);
    Check(backend_->Prune(args));
  }

  void Attend() {
    std::vector<AttendBlock> blocks;
    for (size_t index = 0; index < blocks_.size(); ++index) {
      AttendBlock block{
          .block = blocks_[index],
          .rule = {.style = beyond_ ? RopeStyle::kStreaming : RopeStyle::kTruePositions,
                   .window_tokens = 1024,
                   .trained_tokens = kTrainedTokens},
          .selected = At(fine_, index, kFineChunks),
          .num_selected = dense_ ? 0 : kFineChunks,
          .selected_chunk_tokens = 8};
      blocks.push_back(block);
    }
    AttendArgs args;
    args.shape = ShapeOfLayer();
    args.blocks = blocks;
    args.q = RowsOf(q_, kPieceRows, kHeads);
    args.out = RowsOf(out_, kPieceRows, kHeads);
    Check(backend_->Attend(args));
  }

  cuda::CudaBackend* backend_;
  int64_t end_;
  bool dense_;
  bool beyond_;
  Buffer q_;
  Buffer out_;
  Buffer coarse_;
  Buffer fine_;
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
  const auto measure = [&](const std::string& id, int64_t end, bool dense) {
    if (wanted(id)) {
      Bench(backend, layer, rope, end, dense).Measure(id);
    }
  };
  for (const auto& [name, tokens] : {std::pair{"64k", 1 << 16},
                                     {"128k", 1 << 17},
                                     {"256k", 1 << 18},
                                     {"512k", 1 << 19},
                                     {"1m", 1 << 20},
                                     {"2m", 1 << 21}}) {
    measure(std::string("prefill_32k_at_") + name, tokens, false);
  }
  measure("dense_prefill_32k_at_128k", 1 << 17, true);
  measure("dense_prefill_32k_at_1m", 1 << 20, true);
  if (wanted("prefill_1m_all_layers_s")) {
    double milliseconds = 0;
    for (int64_t end = kPieceRows; end <= int64_t{1} << 20; end += kPieceRows) {
      milliseconds += Bench(backend, layer, rope, end, false).Measure("");
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
