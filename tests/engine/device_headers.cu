// Calls the decisions of engine/algo and the number types of engine/core from a kernel, so that CI
// notices when a header stops being host/device. Nothing here runs; the kernels of the CUDA backend
// will.

#include "engine/algo/ranking.h"
#include "engine/algo/regions.h"
#include "engine/algo/rope.h"
#include "engine/core/half.h"
#include "engine/kv/kv_view.h"

namespace longshore {

struct DecisionArgs {
  KvView kv;
  int64_t position;
  RopeRule rule;
  float* out;  // [3]
};

__global__ void __launch_bounds__(32) DecisionsKernel(const __grid_constant__ DecisionArgs args) {
  const Regions regions = SplitRegions(args.position, 256, 1024, 64);
  const AttendIds ids = MakeAttendIds(args.rule, regions, 2048);
  const auto* key = reinterpret_cast<const Bf16*>(args.kv.Keys(regions.sink_end));
  args.out[0] = RanksBefore(ToFloat(key[threadIdx.x]), 8, 0.125F, 16) ? 1.0F : 0.0F;
  args.out[1] = static_cast<float>(ids.OfQuery(args.position) + ids.OfKey(args.position, 5, 3));
  args.out[2] = static_cast<float>(PruneQueryId(args.rule, args.position, 1024) +
                                   RefreshTick(args.position, 3, 16));
}

}  // namespace longshore
