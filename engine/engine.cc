#include "engine/engine.h"

#include <algorithm>
#include <utility>

#include <absl/cleanup/cleanup.h>

#include "engine/core/math.h"
#include "engine/session_size.h"

namespace longshore {
namespace {

// Where keys and values are. A property of each page once there is a tier of host memory; until
// then of the whole pool.
constexpr MemorySpace kPagesSpace = MemorySpace::kDevice;

absl::Status CheckAtMost(absl::string_view field, int64_t value, int64_t limit) {
  return value <= limit ? absl::OkStatus() : InvalidField(field, value, " is more than ", limit);
}

absl::Status CheckOptions(const EngineOptions& options) {
  if (options.pool_bytes < PagePool::kDefaultSlabBytes) {
    return InvalidField("pool_bytes", options.pool_bytes, " is less than one slab of ",
                        PagePool::kDefaultSlabBytes);
  }
  if (options.recall_sample_every < 0) {
    return InvalidField("recall_sample_every", options.recall_sample_every, " is negative");
  }
  RETURN_IF_ERROR(CheckAtMost("pool_bytes", options.pool_bytes, PagePool::kMaxBytes));
  RETURN_IF_ERROR(CheckAtMost("max_tokens_per_session", options.max_tokens_per_session,
                              EngineOptions::kMaxTokens));
  return CheckAtMost("max_rows_per_prefill", options.max_rows_per_prefill,
                     EngineOptions::kMaxTokens);
}

}  // namespace

Engine::Engine(const EngineOptions& options, std::unique_ptr<Backend> backend)
    : options_(options),
      backend_(std::move(backend)),
      pool_(options.pool_bytes),
      next_session_id_(options.first_session_id) {}

Engine::~Engine() = default;

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& options,
                                                       std::unique_ptr<Backend> backend) {
  RETURN_IF_ERROR(CheckOptions(options));
  auto engine = std::unique_ptr<Engine>(new Engine(options, std::move(backend)));
  const int64_t bytes = engine->pool_.usage().total_bytes;
  ASSIGN_OR_RETURN(engine->pages_, engine->backend_->Allocate(kPagesSpace, bytes));
  for (Buffer& summaries : engine->summaries_) {
    ASSIGN_OR_RETURN(summaries, engine->backend_->Allocate(MemorySpace::kDevice,
                                                           SummaryBytes(bytes) / kNumSummaryKinds));
  }
  ASSIGN_OR_RETURN(engine->recall_,
                   RecallProbe::Create(options.recall_sample_every,
                                       options.recall_max_block_products, engine->backend_.get()));
  return engine;
}

int64_t Engine::SummaryBytes(int64_t pool_bytes) {
  constexpr int64_t kShare = KvView::kGranuleBytes / 64;  // of a granule, for each kind
  return pool_bytes / KvView::kGranuleBytes * kShare * kNumSummaryKinds;
}

absl::Status Engine::CheckSpec(SessionSpec* spec) const {
  absl::StatusOr<ModelShape> model = NormalizeModelShape(spec->model);
  if (!model.ok()) {
    return PrefixField("model.", model.status());
  }
  spec->model = *std::move(model);
  if (absl::Status status = ValidatePolicy(spec->policy); !status.ok()) {
    return PrefixField("policy.", status);
  }
  if (spec->max_tokens < 1 || spec->max_tokens > options_.max_tokens_per_session) {
    return InvalidField("max_tokens", spec->max_tokens, " is not in 1..",
                        options_.max_tokens_per_session);
  }
  RETURN_IF_ERROR(CheckSessionSize(*spec, options_));
  if (static_cast<int64_t>(sessions_.size()) >= options_.max_sessions) {
    return MakeError(
        absl::StatusCode::kResourceExhausted,
        absl::StrCat(sessions_.size(), " sessions are open, the limit is ", options_.max_sessions),
        {.reason = "TOO_MANY_SESSIONS", .field = "", .metadata = {}});
  }
  const int64_t table_bytes = TableBytes(*spec);
  if (table_bytes > options_.max_table_bytes - table_bytes_) {
    return MakeError(
        absl::StatusCode::kResourceExhausted,
        absl::StrCat("tables of open sessions hold ", table_bytes_, " bytes, ", table_bytes,
                     " more are needed, the limit is ", options_.max_table_bytes),
        {.reason = "TABLES_FULL", .field = "", .metadata = {}});
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> Engine::Open(SessionSpec spec) {
  RETURN_IF_ERROR(device_status_);
  RETURN_IF_ERROR(CheckSpec(&spec));
  auto session = std::make_unique<Session>();
  session->page_bytes = PageBytes(spec.model);
  session->table_bytes = TableBytes(spec);
  session->spec = std::move(spec);
  const int64_t pages = session->spec.overcommit ? 0 : SessionPages(session->spec, options_);
  RETURN_IF_ERROR(pool_.Reserve(session->page_bytes, pages));
  // Also when the standard library finds no memory below, and throws.
  absl::Cleanup undo = [this, page_bytes = session->page_bytes, pages] {
    pool_.Unreserve(page_bytes, pages);
  };
  session->reserved_pages = pages;
  if (absl::Status status = Prepare(session.get()); !status.ok()) {
    return RefusalOrFailure(absl::StatusCode::kResourceExhausted, status);
  }
  session->id = next_session_id_;
  const int64_t table_bytes = session->table_bytes;
  sessions_.emplace(next_session_id_, std::move(session));
  std::move(undo).Cancel();
  table_bytes_ += table_bytes;
  return next_session_id_++;
}

// Everything of a session that needs memory besides its pages.
absl::Status Engine::Prepare(Session* session) {
  const SessionSpec& spec = session->spec;
  const int64_t max_ids = MaxRopeIds(spec);
  for (const RopeSpec& rope : spec.model.rope_tables) {
    ASSIGN_OR_RETURN(RopeTable table, RopeTable::Create(rope, max_ids, backend_.get()));
    session->rope_tables.push_back(std::move(table));
  }
  if (!spec.model.sink_logits.empty()) {
    const auto bytes = static_cast<int64_t>(spec.model.sink_logits.size() * sizeof(float));
    ASSIGN_OR_RETURN(session->sink_logits, backend_->Allocate(MemorySpace::kDevice, bytes));
    RETURN_IF_ERROR(
        backend_->Copy(session->sink_logits.data(), spec.model.sink_logits.data(), bytes));
    RETURN_IF_ERROR(backend_->WaitForAll());
  }
  for (int32_t layer = 0; layer < spec.model.num_layers; ++layer) {
    LayerState& state = session->layers.emplace_back();
    ASSIGN_OR_RETURN(state.pages, PageTable::Create(PagesFor(spec.max_tokens), backend_.get()));
    ASSIGN_OR_RETURN(state.mask,
                     MaskCache::Create(spec.MaskStages(layer), spec.max_tokens, backend_.get()));
  }
  return absl::OkStatus();
}

absl::StatusOr<Session*> Engine::Find(uint64_t session_id) const {
  const auto found = sessions_.find(session_id);
  if (found == sessions_.end()) {
    return MakeError(absl::StatusCode::kNotFound,
                     absl::StrCat("session_id ", session_id, " is not open"),
                     {.reason = "SESSION_NOT_FOUND", .field = "session_id", .metadata = {}});
  }
  return found->second.get();
}

absl::StatusOr<const ModelShape*> Engine::ShapeOf(uint64_t session_id) const {
  ASSIGN_OR_RETURN(const Session* session, Find(session_id));
  return &session->spec.model;
}

SessionInfo Engine::InfoOf(const Session& session) const {
  SessionInfo info;
  info.id = session.id;
  info.spec = session.spec;
  int64_t pages = 0;
  for (const LayerState& layer : session.layers) {
    info.layer_tokens.push_back(layer.tokens);
    pages += layer.pages.pages();
  }
  info.page_bytes_used = pages * session.page_bytes;
  info.page_bytes_reserved = session.reserved_pages * session.page_bytes;
  return info;
}

absl::StatusOr<SessionInfo> Engine::Describe(uint64_t session_id) const {
  ASSIGN_OR_RETURN(const Session* session, Find(session_id));
  return InfoOf(*session);
}

std::vector<SessionInfo> Engine::List() const {
  std::vector<SessionInfo> infos;
  for (const auto& [id, session] : sessions_) {
    infos.push_back(InfoOf(*session));
  }
  std::sort(infos.begin(), infos.end(),
            [](const SessionInfo& left, const SessionInfo& right) { return left.id < right.id; });
  return infos;
}

absl::StatusOr<LayerSelection> Engine::SelectionOf(uint64_t session_id, int32_t layer) const {
  ASSIGN_OR_RETURN(const Session* session, Find(session_id));
  if (layer < 0 || layer >= session->spec.model.num_layers) {
    return InvalidField("layer", layer, " is not below num_layers ",
                        session->spec.model.num_layers);
  }
  const MaskCache& mask = session->layers[static_cast<size_t>(layer)].mask;
  LayerSelection selection{.mask = mask.state(), .stages = {}};
  const size_t num_stages = session->spec.policy.Of(Phase::kDecode, layer).stages.size();
  for (size_t stage = 0; selection.mask.valid && stage < num_stages; ++stage) {
    std::vector<int32_t>& tokens =
        selection.stages.emplace_back(static_cast<size_t>(selection.mask.selected_chunks[stage]));
    RETURN_IF_ERROR(backend_->Copy(tokens.data(), mask.Selected(stage, selection.mask.slots[stage]),
                                   static_cast<int64_t>(tokens.size() * sizeof(int32_t))));
  }
  RETURN_IF_ERROR(backend_->WaitForAll());
  return selection;
}

// Whether every sliding-window layer still has what a query at `position` would see.
absl::Status Engine::CheckNotExpired(const Session& session, int64_t position) {
  const ModelShape& model = session.spec.model;
  int64_t earliest = 0;
  int32_t blamed = 0;
  for (int32_t layer = 0; layer < model.num_layers; ++layer) {
    const LayerState& state = session.layers[static_cast<size_t>(layer)];
    const int64_t oldest_kept = state.pages.first() * kBlockTokens;
    if (state.tokens > position && oldest_kept > 0 &&
        oldest_kept + model.SlidingWindow(layer) - 1 > earliest) {
      earliest = oldest_kept + model.SlidingWindow(layer) - 1;
      blamed = layer;
    }
  }
  if (position == 0 || position >= earliest) {
    return absl::OkStatus();
  }
  return MakeError(
      absl::StatusCode::kOutOfRange,
      absl::StrCat("position ", position, " is below ", earliest,
                   ", the earliest besides 0 that layer ", blamed, " can go back to: it sees ",
                   model.SlidingWindow(blamed), " tokens and has freed older ones"),
      {.reason = "TOKENS_EXPIRED",
       .field = "position",
       .metadata = {{"earliest_position", absl::StrCat(earliest)}}});
}

absl::StatusOr<std::vector<int64_t>> Engine::Truncate(uint64_t session_id, int64_t position) {
  ASSIGN_OR_RETURN(Session * session, Find(session_id));
  const int64_t longest = session->MaxLayerTokens();
  if (position < 0 || position > longest) {
    return MakeError(absl::StatusCode::kOutOfRange,
                     absl::StrCat("position ", position, " is not in 0..", longest,
                                  ", the longest layer's length"),
                     {.reason = "TRUNCATE_PAST_END",
                      .field = "position",
                      .metadata = {{"longest_layer_tokens", absl::StrCat(longest)}}});
  }
  RETURN_IF_ERROR(CheckNotExpired(*session, position));
  recall_.Forget(session_id, position);
  std::vector<int64_t> layer_tokens;
  for (LayerState& layer : session->layers) {
    if (layer.tokens > position) {
      layer.tokens = position;
      layer.last_call = LastCall{};
      layer.mask.TruncateTo(position);
      DropPages(session, &layer, position);
    }
    layer_tokens.push_back(layer.tokens);
  }
  return layer_tokens;
}

absl::Status Engine::Close(uint64_t session_id) {
  ASSIGN_OR_RETURN(Session * session, Find(session_id));
  recall_.Forget(session_id, 0);
  for (LayerState& layer : session->layers) {
    DropPages(session, &layer, 0);
  }
  pool_.Unreserve(session->page_bytes, session->reserved_pages);
  table_bytes_ -= session->table_bytes;
  sessions_.erase(session_id);
  return absl::OkStatus();
}

KvView Engine::ViewOf(const Session& session, const LayerState& layer) const {
  const ModelShape& model = session.spec.model;
  KvView view;
  view.pages = pages_.data();
  for (size_t kind = 0; kind < summaries_.size(); ++kind) {
    view.summaries[kind] = summaries_[kind].data();
  }
  view.page_ids = layer.pages.device_ids();
  view.value_offset = session.page_bytes / 2;
  view.head_bytes = static_cast<int32_t>(model.head_dim * SizeOf(model.kv_dtype));
  view.token_bytes = model.num_kv_heads * view.head_bytes;
  view.dtype = model.kv_dtype;
  return view;
}

}  // namespace longshore
