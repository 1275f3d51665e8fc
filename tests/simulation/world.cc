#include "tests/simulation/world.h"

#include "engine/kv/page_pool.h"
#include "tests/support/test_model.h"

namespace longshore::simulation {
namespace {

// Heads of keys and of queries alike.
ModelShape Shape(int32_t heads, int32_t head_dim, DType dtype, std::vector<int64_t> windows) {
  ModelShape model = TestModel(heads, heads, head_dim);
  model.num_layers = static_cast<int32_t>(windows.size());
  model.layer_rope_table.assign(windows.size(), 0);
  model.layer_sliding_window = std::move(windows);
  model.query_dtype = dtype;
  model.kv_dtype = dtype;
  return model;
}

}  // namespace

World MakeWorld(const WorldKind& kind) {
  World world;
  world.crowded = kind.crowded;
  world.engine.pool_bytes = (kind.crowded ? 1 : 2) * PagePool::kDefaultSlabBytes;
  world.engine.max_sessions = 12;
  world.engine.max_tokens_per_session = 640;
  world.engine.max_items_per_call = 4;
  world.engine.max_rows_per_prefill = 192;
  world.engine.max_rows_per_decode_item = 4;
  world.engine.first_session_id = (uint64_t{7} << 32) + 1000;
  world.max_jobs = kind.max_jobs;
  world.max_bytes = int64_t{1} << 20;
  // 64 tokens of 512 bytes of keys and as many of values: pages of 64 KiB, 128 in a slab.
  const size_t layers = kind.crowded ? 6 : 2;
  world.shapes = {Shape(2, 64, DType::kF32, std::vector<int64_t>(layers)),
                  Shape(1, 128, DType::kF32, {100, 0}), Shape(4, 64, DType::kBf16, {0, 64, 1})};
  if (kind.mixed_pages) {  // 32 and 160 KiB, of which 256 and 51 fit a slab
    world.shapes.push_back(Shape(1, 64, DType::kF32, {0}));
    world.shapes.push_back(Shape(4, 80, DType::kF32, {0, 70}));
  }
  world.policies = {SmallStandard(), SmallDense(), SmallStreaming(), OneStage(4, 64, 3)};
  // Tables for about ten sessions, so that this limit is met now and then, too.
  world.engine.max_table_bytes = int64_t{300} << 10;
  return world;
}

}  // namespace longshore::simulation
