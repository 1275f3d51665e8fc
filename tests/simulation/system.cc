#include "tests/simulation/system.h"

#include <condition_variable>
#include <future>
#include <mutex>
#include <utility>

#include <absl/strings/numbers.h>

#include "engine/session_size.h"
#include "service/errors.h"
#include "tests/simulation/ledger_backend.h"
#include "tests/simulation/step_message.h"

namespace longshore::simulation {
namespace {

constexpr std::chrono::milliseconds kLongDrain{20'000};
constexpr std::chrono::hours kShortLease{1};
constexpr std::chrono::hours kLongLease{7 * 24};

SessionSpec SpecOf(const World& world, const Operation& open) {
  SessionSpec spec;
  spec.model = world.shapes[open.shape];
  spec.policy = world.policies[open.policy];
  spec.max_tokens = open.max_tokens;
  spec.overcommit = open.overcommit;
  if (open.flaw == Flaw::kManyTokens) {
    spec.max_tokens = world.engine.max_tokens_per_session + 1;
  } else if (open.flaw == Flaw::kBrokenPolicy) {
    spec.policy.query_block = 7;
  }
  return spec;
}

SessionLine LineOf(const SessionInfo& info) {
  return {.id = info.id,
          .layer_tokens = info.layer_tokens,
          .used_bytes = info.page_bytes_used,
          .reserved_bytes = info.page_bytes_reserved};
}

DeviceQueueOptions QueueOptions(const World& world, std::function<void(Engine&)> on_job_run) {
  DeviceQueueOptions options;
  options.max_jobs = world.max_jobs;
  options.max_bytes = world.max_bytes;
  options.search_interval = std::chrono::milliseconds(0);  // no clock decides who is let in
  options.on_job_run = std::move(on_job_run);
  return options;
}

}  // namespace

// Outcomes of a line of operations, until all are there.
class System::Round {
 public:
  explicit Round(size_t operations) : outcomes_(operations), open_(operations) {}

  // Written by whoever answers operation `index`, before Answer().
  Outcome* outcome(size_t index) { return &outcomes_[index]; }
  void Answer(size_t index, const absl::Status& status) {
    Outcome& outcome = outcomes_[index];
    outcome.code = status.code();
    outcome.message = std::string{status.message()};
    if (const std::optional<ErrorDetails> details = DetailsOf(status); details.has_value()) {
      outcome.reason = details->reason;
      outcome.field = details->field;
      int64_t position = 0;
      for (const auto& [key, value] : details->metadata) {
        if (key == "expected_position" && absl::SimpleAtoi(value, &position)) {
          outcome.expected_position = position;
        }
      }
    }
    const std::lock_guard lock(mutex_);
    --open_;
    changed_.notify_all();
  }
  std::vector<Outcome> Await() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return open_ == 0; });
    return std::move(outcomes_);
  }

  std::vector<std::unique_ptr<StepOnWire>> steps;

 private:
  std::vector<Outcome> outcomes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t open_;
};

System::System(const World& world)
    : world_(world),
      registry_("simulated", world.engine.first_session_id),
      queue_(QueueOptions(world, [this](Engine& engine) { ReadUsage(engine); }),
             [this] {
               queue_thread_ = std::this_thread::get_id();
               return Engine::Create(world_.engine, std::make_unique<LedgerBackend>(&device_));
             }),
      runner_(world_.engine, &registry_, &queue_, &metrics_) {
  LONGSHORE_CHECK(queue_.WaitReady().ok());
}

System::~System() = default;

void System::ReadUsage(const Engine& engine) {
  const PoolUsage pool = engine.pool_usage();
  usage_ = {.used_bytes = pool.used_bytes,
            .reserved_bytes = pool.reserved_bytes,
            .free_bytes = pool.free_bytes,
            .table_bytes = engine.table_bytes(),
            .sessions = engine.num_sessions()};
  ++turns_;
}

std::vector<Outcome> System::Run(std::span<Operation> operations, End end) {
  std::promise<void> begun;
  std::promise<void> gate;
  Job hold;
  hold.run = [&](Engine& /*engine*/) {
    begun.set_value();
    gate.get_future().wait();
    return absl::OkStatus();
  };
  std::promise<void> held_ended;
  hold.done = [&](const absl::Status& /*status*/) { held_ended.set_value(); };
  const bool holds = operations.size() > 1 || end == End::kDrain;
  if (holds) {
    queue_.Push(std::move(hold));
    begun.get_future().wait();
  }
  Round round(operations.size());
  for (size_t index = 0; index < operations.size(); ++index) {
    Send(&operations[index], &round, index);
  }
  if (end == End::kDrain) {
    queue_.Drain(std::chrono::milliseconds(0));
  }
  if (holds) {
    gate.set_value();
    held_ended.get_future().wait();
  }
  return round.Await();
}

void System::Send(Operation* operation, Round* round, size_t index) {
  if (!operation->IsStep()) {
    operation->bytes = 16;
    SendSessionCall(*operation, round, index);
    return;
  }
  StepOnWire* step =
      round->steps.emplace_back(std::make_unique<StepOnWire>(world_, *operation)).get();
  operation->bytes = step->request_bytes();
  Job job = JobFor(*operation, round, index);
  runner_.Start(
      step->message(),
      {.request_bytes = operation->bytes,
       .deadline = job.deadline,
       .cancelled = std::move(job.cancelled),
       .name = kCallers[operation->caller]},
      [step, round, index, done = std::move(job.done)](const absl::Status& status) mutable {
        if (status.ok()) {
          step->ReadAnswer(round->outcome(index));
        }
        done(status);
      });
}

void System::SendSessionCall(const Operation& operation, Round* round, size_t index) {
  Job job = JobFor(operation, round, index);
  job.sessions = operation.Sessions();
  job.bytes = operation.bytes;
  std::vector<SessionRegistry::Use> uses;
  for (const uint64_t id : job.sessions) {
    absl::StatusOr<SessionRegistry::Use> use = registry_.Begin(id, kCallers[operation.caller]);
    if (!use.ok()) {
      job.done(use.status());
      return;
    }
    uses.push_back(*std::move(use));
  }
  job.done = [uses = std::move(uses),
              done = std::move(job.done)](const absl::Status& status) mutable {
    uses.clear();
    done(status);
  };
  job.run = [this, &operation, round, index](Engine& engine) {
    absl::Status status = RunSessionCall(operation, &engine, round->outcome(index));
    if (!engine.device_status().ok()) {
      queue_.DeviceLost(engine.device_status());
      return DeviceLostError("the session was not opened");
    }
    return status;
  };
  queue_.Push(std::move(job));
}

absl::Status System::Open(const Operation& operation, Engine* engine, Outcome* outcome) {
  ASSIGN_OR_RETURN(outcome->session, engine->Open(SpecOf(world_, operation)));
  registry_.Add(outcome->session, {.owner = kCallers[operation.caller],
                                   .lease = operation.short_lease ? kShortLease : kLongLease,
                                   .last_used = SessionRegistry::Clock::now()});
  return absl::OkStatus();
}

absl::Status System::RunSessionCall(const Operation& operation, Engine* engine, Outcome* outcome) {
  switch (operation.kind) {
    case OpKind::kOpen: return Open(operation, engine, outcome);
    case OpKind::kDescribe: {
      ASSIGN_OR_RETURN(const SessionInfo info, engine->Describe(operation.session));
      outcome->lines.push_back(LineOf(info));
      return absl::OkStatus();
    }
    case OpKind::kTruncate: {
      ASSIGN_OR_RETURN(outcome->layer_tokens,
                       engine->Truncate(operation.session, operation.position));
      return absl::OkStatus();
    }
    case OpKind::kClose:
      RETURN_IF_ERROR(engine->Close(operation.session));
      registry_.Remove(operation.session);
      return absl::OkStatus();
    case OpKind::kExpire:
      for (const uint64_t id : registry_.Expire(SessionRegistry::Clock::now() + 2 * kShortLease)) {
        RETURN_IF_ERROR(engine->Close(id));
      }
      return absl::OkStatus();
    default:
      for (const SessionInfo& info : engine->List()) {
        if (MayUse(kCallers[operation.caller], registry_.Find(info.id).owner)) {
          outcome->lines.push_back(LineOf(info));
        }
      }
      return absl::OkStatus();
  }
}

// What every operation's job has in common.
Job System::JobFor(const Operation& operation, Round* round, size_t index) {
  Job job;
  if (operation.expired) {
    job.deadline = std::chrono::system_clock::now() - std::chrono::seconds(1);
  }
  job.cancelled = [cancelled = operation.cancelled] { return cancelled; };
  // A job that had its turn is answered on the queue's thread, after ReadUsage. Whether it had one
  // shows in the count of turns.
  job.done = [this, round, index](const absl::Status& status) {
    const std::optional<ErrorDetails> details = DetailsOf(status);
    const bool refused =
        details.has_value() && (details->reason == kQueueFull || details->reason == kDraining);
    if (std::this_thread::get_id() == queue_thread_ && !refused) {
      round->outcome(index)->turn = turns_;
      round->outcome(index)->usage = usage_;
    }
    round->Answer(index, status);
  };
  return job;
}

void System::StarveDevice(bool starve) {
  device_.Fail(FakeVerb::kAllocate,
               starve ? MakeError(absl::StatusCode::kResourceExhausted, "no memory in this test",
                                  {.reason = kHostMemory, .field = "", .metadata = {}})
                      : absl::OkStatus());
}

bool System::Drain() { return queue_.Drain(kLongDrain); }

int64_t System::TableBytesOf(const World& world, const Operation& open) {
  return TableBytes(SpecOf(world, open));
}

}  // namespace longshore::simulation
