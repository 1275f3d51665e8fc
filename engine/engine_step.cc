#include <algorithm>
#include <utility>

#include <absl/cleanup/cleanup.h>

#include "engine/call_check.h"
#include "engine/core/math.h"
#include "engine/core/stopwatch.h"
#include "engine/engine_work.h"
#include "engine/group_run.h"

namespace longshore {
namespace {

Phase PhaseOf(StepKind kind) {
  return kind == StepKind::kPrefill ? Phase::kPrefill : Phase::kDecode;
}

AttentionShape AttentionShapeOf(const ModelShape& model) {
  return AttentionShape{.num_heads = model.num_heads,
                        .num_kv_heads = model.num_kv_heads,
                        .head_dim = model.head_dim,
                        .kv_dtype = model.kv_dtype,
                        .softmax_scale = model.softmax_scale,
                        .logit_soft_cap = model.logit_soft_cap};
}

InputLimits LimitsOf(const ModelShape& model, int32_t layer) {
  const RopeSpec* rope = model.RopeOf(layer);
  return LargestInputs(model.query_dtype, model.kv_dtype,
                       rope == nullptr ? 0.0F : rope->attention_scaling);
}

}  // namespace

absl::StatusOr<std::vector<Engine::Work>> Engine::CheckItems(const StepCall& call) const {
  RETURN_IF_ERROR(CheckCallItems(call, options_));
  std::vector<Work> work;
  int64_t first_row = 0;
  for (size_t index = 0; index < call.items.size(); ++index) {
    const StepItem& item = call.items[index];
    const std::string prefix = absl::StrCat("items[", index, "].");
    absl::StatusOr<Session*> session = Find(item.session_id);
    if (!session.ok()) {
      return PrefixField(prefix, session.status());
    }
    const ModelShape& model = (*session)->spec.model;
    if (call.layer < 0 || call.layer >= model.num_layers) {
      return InvalidField("layer", call.layer, " is not below num_layers ", model.num_layers);
    }
    if (index > 0 && !(model == work[0].session->spec.model)) {
      return InvalidField(absl::StrCat(prefix, "session_id"), item.session_id,
                          " has another model shape than items[0].session_id ",
                          work[0].item.session_id);
    }
    LayerState& layer = (*session)->layers[static_cast<size_t>(call.layer)];
    absl::StatusOr<bool> replay = IsReplay(call.kind, item, layer.tokens, layer.last_call);
    if (!replay.ok()) {
      return PrefixField(prefix, replay.status());
    }
    const int64_t max_tokens = (*session)->spec.max_tokens;
    if (!*replay && item.rows > max_tokens - layer.tokens) {
      return MakeError(
          absl::StatusCode::kOutOfRange,
          absl::StrCat(prefix, "rows ", item.rows, " from position ", item.position,
                       " pass the session's max_tokens ", max_tokens),
          {.reason = "MAX_TOKENS", .field = absl::StrCat(prefix, "rows"), .metadata = {}});
    }
    work.push_back(Work{.item = item,
                        .session = *session,
                        .layer = &layer,
                        .layer_index = call.layer,
                        .first_row = static_cast<int32_t>(first_row),
                        .replay = *replay,
                        .kv = ViewOf(**session, layer),
                        .plan = {}});
    first_row += item.rows;
  }
  RETURN_IF_ERROR(CheckCallInputs(call, work[0].session->spec.model));
  return work;
}

absl::Status Engine::Check(const StepCall& call) const { return CheckItems(call).status(); }

absl::StatusOr<StepTicket> Engine::Submit(const StepCall& call) {
  RETURN_IF_ERROR(device_status_);
  ASSIGN_OR_RETURN(std::vector<Work> work, CheckItems(call));
  RETURN_IF_ERROR(CheckCallOutputs(call, work[0].session->spec.model));
  // All that may fail for want of memory comes before the first change.
  const std::vector<Group> groups = PlanCall(call, work);
  RETURN_IF_ERROR(ReserveSelections(groups));
  StepTicket ticket;
  ticket.layer_tokens.reserve(work.size());
  // The standard library may still want some, and throw: then and for any early return, too.
  absl::Cleanup undo = [&] { Undo(work); };
  RETURN_IF_ERROR(TakePages(work));
  RETURN_IF_ERROR(UpdatePageTables(work));
  if (absl::Status status = RunAppend(call, work, &ticket.trace); !status.ok()) {
    return RefusalOrFailure(absl::StatusCode::kInvalidArgument, status);
  }
  // From here on nothing can be wrong with the call.
  if (absl::Status status = RunAttention(call, work, groups, &ticket.trace); !status.ok()) {
    return DeviceFailed(status);
  }
  Commit(call, work, &ticket);
  std::move(undo).Cancel();
  absl::StatusOr<Fence> fence = backend_->Mark();
  if (!fence.ok()) {
    return DeviceFailed(fence.status());
  }
  ticket.fence = *fence;
  return ticket;
}

absl::Status Engine::Wait(const StepTicket& ticket) {
  const absl::Status status = backend_->Wait(ticket.fence);
  return status.ok() ? status : DeviceFailed(status);
}

absl::Status Engine::DeviceFailed(const absl::Status& cause) {
  if (device_status_.ok()) {
    device_status_ = MakeError(absl::StatusCode::kInternal,
                               absl::StrCat("the device has failed: ", cause.message()),
                               {.reason = "DEVICE_FAILED", .field = "", .metadata = {}});
  }
  return device_status_;
}

absl::Status Engine::RefusalOrFailure(absl::StatusCode refusal, const absl::Status& status) {
  return status.ok() || status.code() == refusal ? status : DeviceFailed(status);
}

void Engine::Commit(const StepCall& call, std::span<Work> work, StepTicket* ticket) {
  for (Work& item : work) {
    if (!item.replay) {
      item.layer->tokens += item.item.rows;
      item.layer->last_call = LastCall{.any = true,
                                       .kind = call.kind,
                                       .position = item.item.position,
                                       .rows = item.item.rows,
                                       .append_id = item.item.append_id};
      ticket->trace.appended_tokens += item.item.rows;
      DropExpired(item);
    }
    ++ticket->trace.items;
    ticket->trace.replayed_items += item.replay ? 1 : 0;
    ticket->trace.rows += item.item.rows;
    ticket->layer_tokens.push_back(item.layer->tokens);
  }
  recall_.Commit();
}

absl::Status Engine::RunAppend(const StepCall& call, std::span<Work> work, StepTrace* trace) {
  const Stopwatch stopwatch;
  const ModelShape& model = work[0].session->spec.model;
  AppendArgs args;
  args.shape = AttentionShapeOf(model);
  args.limits = LimitsOf(model, call.layer);
  std::vector<AppendItem> items;
  for (const Work& item : work) {
    const SessionSpec& spec = item.session->spec;
    items.push_back(
        {.kv = item.kv,
         .position = item.item.position,
         .first_row = item.first_row,
         .rows = static_cast<int32_t>(item.item.rows),
         .replay = item.replay,
         .rope = item.session->RopeOf(item.layer_index),
         .summaries = PlanSummaries(spec.policy, spec.model, item.layer_index, spec.max_tokens)});
  }
  args.items = items;
  args.q = call.kind == StepKind::kAppend ? TensorRef{} : call.q;
  args.k = call.k;
  args.v = call.v;
  RETURN_IF_ERROR(backend_->Append(args));
  trace->append_seconds = stopwatch.Seconds();
  return absl::OkStatus();
}

// Plans every item, and groups the blocks in the order in which they run. Changes nothing but the
// plans in `work`.
std::vector<Engine::Group> Engine::PlanCall(const StepCall& call, std::span<Work> work) {
  if (call.kind == StepKind::kAppend) {
    return {};
  }
  for (size_t index = 0; index < work.size(); ++index) {
    Work& item = work[index];
    const MaskCache& mask = item.layer->mask;
    item.plan = PlanItem(
        ItemState{.policy = &item.session->spec.policy,
                  .layer = item.layer_index,
                  .trained_tokens = item.session->spec.model.TrainedTokens(item.layer_index),
                  .sliding_window_tokens = item.session->spec.model.SlidingWindow(item.layer_index),
                  .max_tokens = item.session->spec.max_tokens,
                  .phase = PhaseOf(call.kind),
                  .position = item.item.position,
                  .rows = item.item.rows,
                  .item = static_cast<int32_t>(index),
                  .first_row = item.first_row,
                  .mask = item.replay ? mask.previous() : mask.state()});
  }
  // Items of other policies run in groups of their own: a verb has one rule for all its blocks.
  std::vector<Group> groups;
  std::vector<bool> done(work.size());
  for (size_t first = 0; first < work.size(); ++first) {
    if (done[first]) {
      continue;
    }
    std::vector<const ItemPlan*> plans;
    for (size_t index = first; index < work.size(); ++index) {
      if (!done[index] && work[index].session->spec.policy == work[first].session->spec.policy) {
        plans.push_back(&work[index].plan);
        done[index] = true;
      }
    }
    for (Group& group : GroupBlocks(plans, PhaseOf(call.kind))) {
      groups.push_back(std::move(group));
    }
  }
  return groups;
}

// Room for what the stages of one group's blocks keep where no mask cache does: the blocks of a
// prefill whose selection nobody needs later. One buffer, which grows to the largest group.
absl::Status Engine::ReserveSelections(std::span<const Group> groups) {
  int64_t most_chunks = 0;
  for (const Group& group : groups) {
    int64_t chunks = 0;
    for (const BlockPlan& block : group) {
      for (size_t stage = 0; stage < kMaxStages; ++stage) {
        const bool needs_room = block.RunsStage(stage) && !block.Caches(stage);
        chunks += needs_room ? block.selected_chunks[stage] : 0;
      }
    }
    most_chunks = Max(most_chunks, chunks);
  }
  const auto bytes = static_cast<int64_t>(sizeof(int32_t)) * most_chunks;
  if (bytes > selections_.bytes()) {
    absl::StatusOr<Buffer> larger = backend_->Allocate(MemorySpace::kDevice, bytes);
    RETURN_IF_ERROR(RefusalOrFailure(absl::StatusCode::kResourceExhausted, larger.status()));
    selections_ = *std::move(larger);
  }
  return absl::OkStatus();
}

absl::Status Engine::RunAttention(const StepCall& call,
                                  std::span<Work> work,
                                  std::span<const Group> groups,
                                  StepTrace* trace) {
  if (call.kind == StepKind::kAppend) {
    return absl::OkStatus();
  }
  for (Work& item : work) {
    MaskCache& mask = item.layer->mask;
    item.mask_begun = true;
    if (item.replay) {
      mask.ReplayCall(item.plan.mask);
    } else {
      mask.BeginCall(item.plan.mask);
    }
  }
  for (const Group& group : groups) {
    RETURN_IF_ERROR(RunBlocks(call, work, group, trace));
  }
  return backend_->Admit(AdmitArgs{});
}

// Where the stages of a group's blocks put what they keep: the layer's mask cache, or the buffer
// that ReserveSelections made. Blocks that share a stage's selection follow each other.
std::vector<SelectionSlots> Engine::PlaceSelections(std::span<const Work> work,
                                                    std::span<const BlockPlan> blocks) const {
  auto* next = reinterpret_cast<int32_t*>(selections_.data());
  std::vector<SelectionSlots> slots(blocks.size());
  for (size_t index = 0; index < blocks.size(); ++index) {
    const BlockPlan& block = blocks[index];
    for (size_t stage = 0; stage < kMaxStages && block.selected_chunks[stage] > 0; ++stage) {
      if (block.Caches(stage)) {
        slots[index][stage] = work[static_cast<size_t>(block.item)].layer->mask.Selected(
            stage, block.mask_slots[stage]);
      } else if (!block.RunsStage(stage)) {
        slots[index][stage] = slots[index - 1][stage];
      } else {
        slots[index][stage] = next;
        next += block.selected_chunks[stage];
      }
    }
  }
  return slots;
}

absl::Status Engine::RunBlocks(const StepCall& call,
                               std::span<const Work> work,
                               std::span<const BlockPlan> blocks,
                               StepTrace* trace) {
  const Session& session = *work[static_cast<size_t>(blocks[0].item)].session;
  const std::vector<SelectionSlots> slots = PlaceSelections(work, blocks);
  GroupRun run{.shape = AttentionShapeOf(session.spec.model),
               .policy = &session.spec.policy,
               .layers = &session.spec.policy.Of(PhaseOf(call.kind), call.layer),
               .call = &call,
               .sink_logits = call.exclude_sink_logits ? nullptr : session.SinkLogits(call.layer),
               .blocks = blocks,
               .slots = slots,
               .queries = {}};
  for (const BlockPlan& block : blocks) {
    const Work& item = work[static_cast<size_t>(block.item)];
    run.queries.push_back({.kv = item.kv,
                           .rope = item.session->RopeOf(call.layer),
                           .first_position = block.first_position,
                           .first_row = block.first_row,
                           .rows = block.rows,
                           .regions = block.regions});
  }
  RETURN_IF_ERROR(RunGroup(run, backend_.get(), trace));
  return SampleRecall(call, work, run);  // before another group's selections take the place
}

}  // namespace longshore
