// Pages of a layer: taken for a call, given back by Truncate and Close, and by a call that ends
// before it is committed.

#include "engine/core/math.h"
#include "engine/engine_work.h"
#include "engine/session_size.h"

namespace longshore {

// Gives every new row a place. What was taken when it fails is for Undo.
absl::Status Engine::TakePages(std::span<Work> work) {
  const auto new_pages = [](const Work& item) {
    return item.replay ? 0 : PagesFor(item.layer->tokens + item.item.rows) - item.layer->num_pages;
  };
  for (const Work& item : work) {
    if (item.session->spec.overcommit) {  // the others were promised when they were opened
      RETURN_IF_ERROR(pool_.Reserve(item.session->page_bytes, new_pages(item)));
      item.session->reserved_pages += new_pages(item);
    }
  }
  for (const Work& item : work) {
    for (int64_t page = new_pages(item); page > 0; --page) {
      item.layer->PageIds()[item.layer->num_pages] =
          pool_.AllocateReserved(item.session->page_bytes);
      ++item.layer->num_pages;
      --item.session->reserved_pages;
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
  const int64_t kept = Max(PagesFor(tokens), layer->first_page);
  for (; layer->num_pages > kept; --layer->num_pages) {
    FreePage(session, layer->PageIds()[layer->num_pages - 1]);
  }
  if (tokens == 0) {
    layer->num_pages = 0;
    layer->first_page = 0;
  }
}

// Returns the pages of a sliding-window layer that neither a later call nor a replay of this one
// will read. Cannot fail.
void Engine::DropExpired(const Work& work) {
  const int64_t window = work.session->spec.model.SlidingWindow(work.layer_index);
  if (window == 0) {
    return;
  }
  LayerState* layer = work.layer;
  for (; OldestSeen(work.item.position, window) >= (layer->first_page + 1) * kBlockTokens;
       ++layer->first_page) {
    int32_t& page_id = layer->PageIds()[layer->first_page];
    FreePage(work.session, page_id);
    page_id = kFreedPage;
  }
}

// Brings the sessions of a call that was not committed back to where they were: the call was
// refused, or there was no memory in the middle of it (std::bad_alloc). Cannot fail.
void Engine::Undo(std::span<Work> work) {
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
