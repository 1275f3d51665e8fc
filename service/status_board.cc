#include "service/status_board.h"

#include <algorithm>
#include <utility>

namespace longshore {
namespace {

SessionLine LineOf(const SessionInfo& info) {
  SessionLine line;
  line.id = info.id;
  line.name = info.spec.name;
  line.tokens = *std::max_element(info.layer_tokens.begin(), info.layer_tokens.end());
  line.max_tokens = info.spec.max_tokens;
  line.bytes_used = info.page_bytes_used;
  line.bytes_reserved = info.page_bytes_reserved;
  return line;
}

}  // namespace

const char* NameOf(Readiness readiness) {
  switch (readiness) {
    case Readiness::kLoading: return "loading";
    case Readiness::kServing: return "serving";
    case Readiness::kDraining: return "draining";
    case Readiness::kDeviceLost: return "device lost";
  }
  return "unknown";
}

void StatusBoard::SetReadiness(Readiness readiness) {
  Readiness before = readiness_;
  while (before != Readiness::kDeviceLost && !readiness_.compare_exchange_weak(before, readiness)) {
  }
}

void StatusBoard::SetDevice(const DeviceInfo& device) {
  const MutexLock lock(&mutex_);
  device_ = device;
}

void StatusBoard::Update(const Engine& engine, const AddLease& add_lease) {
  const Clock::time_point now = Clock::now();
  if (now < next_update_ && engine.num_sessions() == num_sessions_) {
    return;
  }
  next_update_ = now + kPeriod;
  num_sessions_ = engine.num_sessions();
  std::vector<SessionLine> lines;
  for (const SessionInfo& info : engine.List()) {
    SessionLine& line = lines.emplace_back(LineOf(info));
    if (add_lease) {
      add_lease(&line);
    }
  }
  const MutexLock lock(&mutex_);
  sessions_.swap(lines);
  updated_ = now;
}

StatusBoard::View StatusBoard::Read() const {
  View view{.instance_id = instance_id_, .readiness = readiness_, .device = {}, .sessions = {}};
  const MutexLock lock(&mutex_);
  view.device = device_;
  view.sessions = sessions_;
  view.sessions_age_seconds = std::chrono::duration<double>(Clock::now() - updated_).count();
  return view;
}

}  // namespace longshore
