// Pages of a layer: taken for a call, given back by Truncate and Close, and by a call that ends
// before it is committed.

#include "engine/core/math.h"
#include "engine/engine_work.h"
#include "engine/session_size.h"

namespace longshore {

// Gives every new row a place. What was taken when it fails is for Undo.
absl::Status Engine::TakePages(std::span<Work> work) {
  const auto new_pages = [](const Work& item) {
    const int64_t pages = PagesFor(item.layer->tokens + item.item.rows);
    return item.replay ? 0 : pages - item.layer->pages.size();
  };
  for (const Work& item : work) {
    if (item.session->spec.overcommit) {  // the others were promised when they were opened
      RETURN_IF_ERROR(pool_.Reserve(item.session->page_bytes, new_pages(item)));
      item.session->reserved_pages += new_pages(item);
    }
  }
  for (const Work& item : work) {
    for (int64_t page = new_pages(item); page > 0; --page) {
      item.layer->pages.Push(pool_.AllocateReserved(item.session->page_bytes));
      --item.session->reserved_pages;
    }
  }
  return absl::OkStatus();
}

// Tells the kernels of this call where the pages are.
absl::Status Engine::UpdatePageTables(std::span<Work> work) {
  for (const Work& item : work) {
    const absl::Status status = item.layer->pages.Update(backend_.get());
    if (!status.ok()) {
      return DeviceFailed(status);
    }
  }
  return absl::OkStatus();
}

void Engine::FreePage(Session* session, int32_t page_id) {
  const bool keep_promise = !session->spec.overcommit;
  pool_.Free(session->page_bytes, page_id, keep_promise);
  session->reserved_pages += keep_promise ? 1 : 0;
}

// Returns the pages of a layer that hold none of its first `tokens` tokens. Cannot fail.
void Engine::DropPages(Session* session, LayerState* layer, int64_t tokens) {
  const int64_t kept = Max(PagesFor(tokens), layer->pages.first());
  while (layer->pages.size() > kept) {
    FreePage(session, layer->pages.Pop());
  }
  if (tokens == 0) {
    layer->pages.Clear();
  }
}

// Returns the pages of a sliding-window layer that neither a later call nor a replay of this one
// will read. Cannot fail.
void Engine::DropExpired(const Work& work) {
  const int64_t window = work.session->spec.model.SlidingWindow(work.layer_index);
  if (window == 0) {
    return;
  }
  PageTable& pages = work.layer->pages;
  while (OldestSeen(work.item.position, window) >= (pages.first() + 1) * kBlockTokens) {
    FreePage(work.session, pages.Expire());
  }
}

// Brings the sessions of a call that was not committed back to where they were: the call was
// refused, or there was no memory in the middle of it (std::bad_alloc). Cannot fail.
void Engine::Undo(std::span<Work> work) {
  // What was queued till then reads and writes tensors that the caller need not keep any longer.
  if (const absl::Status status = backend_->WaitForAll(); !status.ok()) {
    DeviceFailed(status).IgnoreError();
  }
  recall_.Abandon();
  for (Work& item : work) {
    Session& session = *item.session;
    DropPages(&session, item.layer, item.layer->tokens);
    if (session.spec.overcommit) {
      pool_.Unreserve(session.page_bytes, session.reserved_pages);
      session.reserved_pages = 0;
    }
    if (!item.mask_begun) {
      continue;
    }
    if (item.replay) {
      item.layer->mask.Invalidate();  // what another replay needs is still there
    } else {
      // What the call before had seen may be gone, so that its replay might not give the same bits.
      item.layer->mask.UndoCall();
      item.layer->last_call = LastCall{};
    }
  }
}

}  // namespace longshore
