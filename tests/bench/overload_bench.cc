// How much of its capacity a daemon still serves when five times as much is asked of it. One JSON
// object on stdout; ends with 1 if a call was answered otherwise than it may be under load.
//
//   overload_bench TARGET DAEMON_PID SECONDS CONTEXT PREFILLS
//       CONTEXT   tokens that each step attends to, which is how long it takes
//       PREFILLS  clients that do nothing but send prompt pieces meanwhile
//
// tests/bench/overload.py starts the daemon for it.
//
// Decode steps of many sessions, one call each at a time. First and last the capacity, by as many
// clients as the daemon's line nearly holds, each of which sends its next step when the last is
// answered; in between the same generator sends five times as many a second, whatever is answered,
// each with a deadline. A step that was refused or late is sent again when the session's turn
// comes: the same step, so that one that had been applied is a replay. Served is a step that was
// answered in time.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/bench/load_generator.h"

namespace longshore {
namespace {

constexpr int32_t kCapacityClients = 48;
constexpr double kOverload = 5.0;
constexpr std::chrono::seconds kCapacityTime{15};  // at most
constexpr std::chrono::seconds kWarmUpTime{1};

int64_t ResidentBytes(const std::string& pid) {
  std::ifstream statm("/proc/" + pid + "/statm");
  int64_t size = 0;
  int64_t resident = 0;
  statm >> size >> resident;
  return resident * 4096;
}

struct Arguments {
  std::string target;
  std::string pid;
  std::chrono::seconds time;
  int32_t context;
  int32_t prefills;
};

struct Overload {
  Counts counts;
  double capacity_before = 0;  // steps a second
  double capacity_after = 0;   // the machine's speed drifts
  double seconds = 0;
  int64_t served = 0;  // within them
  int64_t growth_bytes = 0;
};

void Measure(const Arguments& arguments, LoadGenerator* generator, Overload* overload) {
  generator->RunClosed(kCapacityClients, kWarmUpTime);
  const std::chrono::seconds capacity_time = std::min(kCapacityTime, arguments.time);
  overload->capacity_before = generator->RunClosed(kCapacityClients, capacity_time);

  std::vector<std::thread> prefills;
  std::atomic<bool> done = false;
  for (int32_t index = 0; index < arguments.prefills; ++index) {
    const uint64_t session = BeginSession(arguments.target, arguments.context);
    prefills.emplace_back(
        [&, session] { RunPrefills(arguments.target, session, arguments.context, done); });
  }
  std::fputs("overload begins\n", stderr);
  const int64_t before = ResidentBytes(arguments.pid);
  std::thread watch([&] {
    while (!done) {
      const int64_t growth = ResidentBytes(arguments.pid) - before;
      overload->growth_bytes = std::max(overload->growth_bytes, growth);
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  });
  const LoadClock::time_point begin = LoadClock::now();
  generator->RunOpen(kOverload * overload->capacity_before, arguments.time, &overload->counts);
  overload->seconds = std::chrono::duration<double>(LoadClock::now() - begin).count();
  overload->served = overload->counts.of(Answer::kServed);
  generator->AwaitIdle();
  done = true;
  watch.join();
  for (std::thread& prefill : prefills) {
    prefill.join();
  }
  overload->capacity_after = generator->RunClosed(kCapacityClients, capacity_time);
}

void Print(const Arguments& arguments, Overload* overload) {
  Counts& counts = overload->counts;
  const double capacity = (overload->capacity_before + overload->capacity_after) / 2;
  const double served = static_cast<double>(overload->served) / overload->seconds;
  std::printf(
      "{\"id\": \"overload_goodput_share\", \"value\": %.3f, \"unit\": \"of the capacity\", "
      "\"capacity_per_s\": [%.0f, %.0f], \"sent_per_s\": %.0f, \"served_per_s\": %.0f, "
      "\"served_p50_ms\": "
      "%.1f, \"served_p99_ms\": %.1f, \"refused_queue_full\": %lld, \"refused_deadline\": %lld, "
      "\"other\": %lld, \"not_sent\": %lld, \"rss_growth_mib\": %.1f, \"seconds\": %.0f, "
      "\"shapes\": \"decode steps, 1 layer, %d/%d heads, %d dims, bf16, dense over %d tokens; %d "
      "sessions, 5 times the capacity\"}\n",
      served / capacity, overload->capacity_before, overload->capacity_after,
      static_cast<double>(counts.sent()) / overload->seconds, served, counts.ServedMs(0.5),
      counts.ServedMs(0.99), static_cast<long long>(counts.of(Answer::kFull)),
      static_cast<long long>(counts.of(Answer::kLate)),
      static_cast<long long>(counts.of(Answer::kOther)), static_cast<long long>(counts.not_sent()),
      static_cast<double>(overload->growth_bytes) / (1 << 20), overload->seconds, kLoadHeads,
      kLoadKvHeads, kLoadHeadDim, arguments.context, kLoadSessions);
  std::fflush(stdout);
}

}  // namespace
}  // namespace longshore

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fputs("overload_bench TARGET DAEMON_PID SECONDS CONTEXT PREFILLS\n", stderr);
    return 2;
  }
  const longshore::Arguments arguments{.target = argv[1],
                                       .pid = argv[2],
                                       .time = std::chrono::seconds(std::atoi(argv[3])),
                                       .context = std::atoi(argv[4]),
                                       .prefills = std::atoi(argv[5])};
  longshore::LoadGenerator generator(arguments.target, arguments.context);
  longshore::Overload overload;
  longshore::Measure(arguments, &generator, &overload);
  longshore::Print(arguments, &overload);
  return overload.counts.of(longshore::Answer::kOther) == 0 ? 0 : 1;
}
