// What the verbs enqueue: blocks of queries are laid out in a workspace, as many at once as fit.

#include <algorithm>
#include <vector>

#include "engine/core/block.h"
#include "engine/core/math.h"
#include "engine/cpu/check_inputs.h"
#include "engine/cuda/cuda_backend.h"
#include "engine/cuda/cuda_status.h"
#include "engine/cuda/kernels.h"

namespace longshore::cuda {
namespace {

constexpr int64_t kWorkspaceBytes = int64_t{3} << 29;
constexpr int64_t kWorkspaceFloats = kWorkspaceBytes / static_cast<int64_t>(sizeof(float));
constexpr size_t kMostBlocks = 32768;  // of a launch

// Tokens to be written, cut at pages.
std::vector<PagePart> SplitAtPages(std::span<const AppendItem> items) {
  std::vector<PagePart> parts;
  for (size_t index = 0; index < items.size(); ++index) {
    const AppendItem& item = items[index];
    const int64_t end = item.replay ? item.position : item.position + item.rows;
    ForEachPagePart(item.position, end, [&](int64_t token, int64_t part_end) {
      parts.push_back({.item = static_cast<int32_t>(index),
                       .rows = static_cast<int32_t>(part_end - token),
                       .token = token});
    });
  }
  return parts;
}

// Takes blocks from the front of `blocks` while their layouts fit the workspace together; one
// always does.
template <class Block, class Layout, class LayOut>
std::vector<Layout> TakeLayouts(std::span<const Block> blocks, const LayOut& lay_out) {
  std::vector<Layout> layouts;
  int64_t used = 0;
  for (const Block& block : blocks) {
    const Layout layout = lay_out(block, used);
    if (!layouts.empty() && (layout.end > kWorkspaceFloats || layouts.size() == kMostBlocks)) {
      break;
    }
    used = layout.end;
    layouts.push_back(layout);
  }
  return layouts;
}

template <class Layout, class Field>
auto MostOf(std::span<const Layout> layouts, Field Layout::*field) {
  Field most = 0;
  for (const Layout& layout : layouts) {
    most = std::max(most, layout.*field);
  }
  return most;
}

// Which kernels score a block. Their blocks are launched together, those with keys as stored and
// those whose keys are turned apart.
enum class StageKind : uint8_t { kDecode, kPrefill, kDecodeDescent, kPrefillDescent, kPlain };
constexpr size_t kNumStageKinds = 5;
StageKind KindOf(const DeviceTraits& device, const PruneArgs& args, const PruneBlock& block) {
  return IsDecodeStage(args, block)            ? StageKind::kDecode
         : IsPrefillStage(device, args, block) ? StageKind::kPrefill
         : IsDecodeDescent(args, block)        ? StageKind::kDecodeDescent
         : IsPrefillDescent(args, block)       ? StageKind::kPrefillDescent
                                               : StageKind::kPlain;
}

// Whether `bounds` and `exact` meet keys that are turned.
bool TurnsKeys(const PruneBlock& block) {
  return block.block.rope.pairs > 0 && !PruneKeysAreUnrotated(block.rule.style);
}

// Ranks by the plain kernels.
void RankPlainly(const PruneLaunch& launch, CallQueue* queue) {
  LaunchStageQueries(launch, queue->stream());
  if (launch.stage.selector == Selector::kDescent) {
    LaunchScoreDescent(launch, queue->stream());
  } else {
    LaunchScoreKeys(launch, queue->stream());
  }
  if (launch.ranking != Ranking::kScoreMax) {
    LaunchLogSumExps(launch, queue->stream());
  }
  LaunchRank(launch, queue);
}

// Descriptions where kernels look for them: with the launch, or in memory where they are many.
template <class T>
absl::StatusOr<const T*> Describe(std::span<const T> values,
                                  bool may_travel,
                                  T (&few)[kFewBlocks],
                                  HostTransfers* transfers) {
  if (may_travel && values.size() <= std::size(few)) {
    std::copy(values.begin(), values.end(), few);
    return static_cast<const T*>(nullptr);
  }
  return transfers->Array(values);
}

}  // namespace

absl::Status CudaBackend::ReserveWorkspace(int64_t floats) {
  const int64_t bytes = Max(floats * static_cast<int64_t>(sizeof(float)), kWorkspaceBytes);
  if (bytes <= workspace_bytes_) {
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(queue_.stream()), "waiting for the device"));
  cudaFree(workspace_);
  workspace_ = nullptr;
  workspace_bytes_ = 0;
  void* data = nullptr;
  RETURN_IF_ERROR(
      AllocationStatus(cudaMalloc(&data, static_cast<size_t>(bytes)), bytes, "device memory"));
  workspace_ = static_cast<std::byte*>(data);
  workspace_bytes_ = bytes;
  return absl::OkStatus();
}

absl::StatusOr<int32_t*> CudaBackend::Counters(int64_t count) {
  const auto bytes = count * static_cast<int64_t>(sizeof(int32_t));
  if (bytes > counters_.bytes()) {
    RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(queue_.stream()), "waiting for the device"));
    ASSIGN_OR_RETURN(counters_, Allocate(MemorySpace::kDevice, bytes));
  }
  return reinterpret_cast<int32_t*>(counters_.data());
}

absl::Status CudaBackend::Append(const AppendArgs& args) {
  // Tensors on the device come from benchmarks alone so far: no transport brings them yet, and the
  // one that will has to look at them there.
  for (const AppendItem& item : args.items) {
    if (args.k.space == MemorySpace::kHost) {
      RETURN_IF_ERROR(cpu::CheckInputs(args, item));
    }
  }
  const std::vector<PagePart> parts = SplitAtPages(args.items);
  if (parts.empty()) {
    return absl::OkStatus();
  }
  AppendLaunch launch;
  launch.shape = args.shape;
  launch.num_parts = static_cast<int32_t>(parts.size());
  ASSIGN_OR_RETURN(launch.items, Describe(args.items, true, launch.few_items, &transfers_));
  ASSIGN_OR_RETURN(launch.parts,
                   Describe(std::span<const PagePart>(parts), true, launch.few_parts, &transfers_));
  ASSIGN_OR_RETURN(launch.k, transfers_.InputOnce(args.k));
  ASSIGN_OR_RETURN(launch.v, transfers_.InputOnce(args.v));
  ASSIGN_OR_RETURN(launch.queries, transfers_.Bring(args.q));
  LaunchAppend(launch, &queue_);
  return LaunchStatus("appending");
}

absl::Status CudaBackend::Prune(const PruneArgs& args) {
  ASSIGN_OR_RETURN(const TensorRef q, transfers_.Input(args.q));
  std::vector<PruneBlock> of_kind[2 * kNumStageKinds];
  for (const PruneBlock& block : args.blocks) {
    const auto kind = static_cast<size_t>(KindOf(device_, args, block));
    of_kind[2 * kind + (TurnsKeys(block) ? 1 : 0)].push_back(block);
  }
  for (std::span<const PruneBlock> left : of_kind) {
    while (!left.empty()) {
      const auto layouts =
          TakeLayouts<PruneBlock, StageLayout>(left, [&](const PruneBlock& block, int64_t begin) {
            return LayOutStage(device_, args, block, begin);
          });
      RETURN_IF_ERROR(PruneBlocks(args, q, left.first(layouts.size()), layouts));
      left = left.subspan(layouts.size());
    }
  }
  return absl::OkStatus();
}

absl::Status CudaBackend::PruneBlocks(const PruneArgs& args,
                                      const TensorRef& q,
                                      std::span<const PruneBlock> blocks,
                                      std::span<const StageLayout> layouts) {
  RETURN_IF_ERROR(ReserveWorkspace(layouts.back().end));
  PruneLaunch launch{.shape = args.shape,
                     .stage = args.stage,
                     .ranking = args.ranking,
                     .probability_power = args.probability_power,
                     .query_stride = args.query_stride,
                     .q = q,
                     .workspace = reinterpret_cast<float*>(workspace_),
                     .num_blocks = static_cast<int32_t>(blocks.size()),
                     .most_scored = MostOf(layouts, &StageLayout::scored),
                     .most_candidates = MostOf(layouts, &StageLayout::candidates),
                     .most_shares = MostOf(layouts, &StageLayout::shares),
                     .turns = TurnsKeys(blocks.front()),
                     .shared_bytes = device_.shared_bytes};
  const StageKind kind = KindOf(device_, args, blocks.front());
  const bool decodes = kind == StageKind::kDecode || kind == StageKind::kDecodeDescent;
  ASSIGN_OR_RETURN(launch.blocks, Describe(blocks, decodes, launch.few_blocks, &transfers_));
  ASSIGN_OR_RETURN(launch.layouts, Describe(layouts, decodes, launch.few_layouts, &transfers_));
  if (launch.most_scored == 0) {
    // All candidates are kept.
  } else if (decodes) {
    if (kind == StageKind::kDecode) {
      LaunchDecodeScore(launch, &queue_);
    } else {
      LaunchDecodeDescent(launch, &queue_);
      if (args.ranking != Ranking::kScoreMax) {
        LaunchLogSumExps(launch, queue_.stream());
      }
    }
    LaunchRankAndSelect(launch, &queue_);
    return LaunchStatus("pruning");
  } else if (kind == StageKind::kPrefill) {
    const std::vector<PrefillTile> tiles = PrefillTiles(args, blocks, layouts);
    launch.num_tiles = static_cast<int32_t>(tiles.size());
    ASSIGN_OR_RETURN(launch.tiles, transfers_.Array(std::span<const PrefillTile>(tiles)));
    LaunchPrefillScore(launch, queue_.stream());
    if (KeepsScores(args.stage, args.ranking)) {
      LaunchRank(launch, &queue_);
    }
  } else if (kind == StageKind::kPrefillDescent) {
    LaunchPrefillDescent(launch, queue_.stream());
    if (KeepsScores(args.stage, args.ranking)) {
      LaunchLogSumExps(launch, queue_.stream());
      LaunchRank(launch, &queue_);
    }
  } else {
    RankPlainly(launch, &queue_);
  }
  LaunchSelect(launch, &queue_);
  return LaunchStatus("pruning");
}

absl::Status CudaBackend::Attend(const AttendArgs& args) {
  AttendTensors tensors;
  ASSIGN_OR_RETURN(tensors.q, transfers_.Input(args.q));
  ASSIGN_OR_RETURN(tensors.out, transfers_.Output(args.out));
  ASSIGN_OR_RETURN(tensors.log_sum_exp, transfers_.Output(args.log_sum_exp));
  std::vector<AttendBlock> of_kind[kNumAttendKinds];
  for (const AttendBlock& block : args.blocks) {
    of_kind[static_cast<size_t>(KindOf(device_, args.shape, block))].push_back(block);
  }
  for (std::span<const AttendBlock> left : of_kind) {
    while (!left.empty()) {
      const auto layouts = TakeLayouts<AttendBlock, AttendLayout>(
          left, [&](const AttendBlock& block, int64_t begin) {
            return LayOutAttend(device_, args.shape, block, begin);
          });
      RETURN_IF_ERROR(AttendBlocks(args, tensors, left.first(layouts.size()), layouts));
      left = left.subspan(layouts.size());
    }
  }
  for (const AttendBlock& block : args.blocks) {
    const auto returns = [&](const TensorRef& tensor, int64_t row_elements) {
      const int64_t row_bytes = row_elements * SizeOf(tensor.dtype);
      const int64_t begin = block.block.first_row * row_bytes;
      transfers_.Written(tensor, begin, begin + block.block.rows * row_bytes);
    };
    returns(args.out, int64_t{args.shape.num_heads} * args.shape.head_dim);
    if (args.log_sum_exp.data != nullptr) {
      returns(args.log_sum_exp, args.shape.num_heads);
    }
  }
  return absl::OkStatus();
}

absl::Status CudaBackend::AttendBlocks(const AttendArgs& args,
                                       const AttendTensors& tensors,
                                       std::span<const AttendBlock> blocks,
                                       std::span<const AttendLayout> layouts) {
  RETURN_IF_ERROR(ReserveWorkspace(layouts.back().end));
  AttendLaunch launch{.shape = args.shape,
                      .q = tensors.q,
                      .out = tensors.out,
                      .log_sum_exp = static_cast<float*>(tensors.log_sum_exp.data),
                      .sink_logits = args.sink_logits,
                      .workspace = reinterpret_cast<float*>(workspace_),
                      .num_blocks = static_cast<int32_t>(blocks.size()),
                      .most_rows = MostOf(layouts, &AttendLayout::rows),
                      .most_splits = MostOf(layouts, &AttendLayout::splits),
                      .kind = KindOf(device_, args.shape, blocks.front()),
                      .turns = blocks.front().block.rope.pairs > 0};
  const bool decodes = launch.kind == AttendKind::kDecode;
  ASSIGN_OR_RETURN(launch.blocks, Describe(blocks, decodes, launch.few_blocks, &transfers_));
  ASSIGN_OR_RETURN(launch.layouts, Describe(layouts, decodes, launch.few_layouts, &transfers_));
  if (decodes) {
    ASSIGN_OR_RETURN(launch.counters, Counters(std::ssize(blocks) * args.shape.num_kv_heads));
    LaunchDecodeAttend(launch, &queue_);
  } else {
    if (launch.kind == AttendKind::kPrefill) {
      LaunchPrefillAttend(launch, queue_.stream());
    } else {
      LaunchAttendQueries(launch, queue_.stream());
      LaunchAttendSplits(launch, queue_.stream());
    }
    LaunchMergeSplits(launch, queue_.stream());
  }
  return LaunchStatus("attending");
}

}  // namespace longshore::cuda
