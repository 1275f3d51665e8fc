// The program itself: flags, signals, exit codes.

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "tests/service/http_get.h"
#include "tests/service/test_server.h"
#include "tests/support/temp_directory.h"

namespace longshore {
namespace {

std::string DaemonPath() {
#ifdef LONGSHORED_BINARY
  return LONGSHORED_BINARY;
#else
  return std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() /
         "service/longshored";
#endif
}

// A longshored of its own, and what it wrote.
class Daemon {
 public:
  explicit Daemon(std::vector<std::string> arguments)
      : log_(TempDirectory::Get() / absl::StrCat("daemon-", started++, ".log")) {
    arguments.insert(arguments.begin(), DaemonPath());
    pid_ = fork();
    if (pid_ == 0) {
      const int fd = open(log_.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600);
      dup2(fd, STDOUT_FILENO);
      dup2(fd, STDERR_FILENO);
      std::vector<char*> pointers;
      pointers.reserve(arguments.size() + 1);
      for (std::string& argument : arguments) {
        pointers.push_back(argument.data());
      }
      pointers.push_back(nullptr);
      execv(pointers[0], pointers.data());
      _exit(127);
    }
  }
  ~Daemon() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      Wait();
    }
    std::filesystem::remove(log_);
  }
  void Signal(int number) const { kill(pid_, number); }
  /// The exit code, or 1000 + the signal that ended it.
  int Wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }
  /// Whether it has; Wait() tells how.
  bool HasEnded() const {
    siginfo_t info{};
    waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT);
    return info.si_pid != 0;
  }
  std::string Log() const {
    std::ostringstream text;
    text << std::ifstream(log_).rdbuf();
    return text.str();
  }
  /// Until the log holds `text`; false after ten seconds.
  bool AwaitLog(const std::string& text) const {
    for (int attempt = 0; attempt < 1000; ++attempt) {
      if (Log().find(text) != std::string::npos) {
        return true;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

 private:
  static inline int started = 0;
  std::string log_;
  pid_t pid_ = 0;
};

std::string SocketPath(const std::string& name) { return TempDirectory::Get() / (name + ".sock"); }

TEST(Daemon, ServesUntilSigtermAndRemovesItsSocket) {
  const std::string path = SocketPath("serve");
  Daemon daemon({"--listen", "unix:" + path, "--listen=127.0.0.1:0", "--pool-bytes=64MiB",
                 "--threads=1", "--metrics-listen="});
  ASSERT_TRUE(daemon.AwaitLog("ready")) << daemon.Log();
  EXPECT_NE(daemon.Log().find("listening at unix:" + path), std::string::npos) << daemon.Log();
  EXPECT_NE(daemon.Log().find("listening at 127.0.0.1:"), std::string::npos) << daemon.Log();
  EXPECT_NE(daemon.Log().find("pool of 64 MiB"), std::string::npos) << daemon.Log();
  EXPECT_EQ(daemon.Log().find("metrics at"), std::string::npos) << daemon.Log();
  {
    const auto channel = grpc::CreateChannel("unix:" + path, grpc::InsecureChannelCredentials());
    grpc::ClientContext context;
    v1::OpenSessionResponse response;
    EXPECT_TRUE(
        v1::Sessions::NewStub(channel)->OpenSession(&context, TestOpenRequest(), &response).ok());
  }
  daemon.Signal(SIGTERM);
  EXPECT_EQ(daemon.Wait(), 0) << daemon.Log();
  EXPECT_NE(daemon.Log().find("stopped"), std::string::npos) << daemon.Log();
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(Daemon, TakesOverFromADeadOneAndNotFromALiveOne) {
  const std::vector<std::string> arguments = {"--listen=unix:" + SocketPath("stale"),
                                              "--pool-bytes=64MiB", "--metrics-listen="};
  Daemon dies(arguments);
  ASSERT_TRUE(dies.AwaitLog("ready")) << dies.Log();
  dies.Signal(SIGKILL);
  EXPECT_EQ(dies.Wait(), 1000 + SIGKILL);
  Daemon lives(arguments);
  ASSERT_TRUE(lives.AwaitLog("ready")) << lives.Log();
  Daemon refused(arguments);
  EXPECT_EQ(refused.Wait(), 1);
  EXPECT_NE(refused.Log().find("in use"), std::string::npos) << refused.Log();
  lives.Signal(SIGINT);
  EXPECT_EQ(lives.Wait(), 0);
}

// Both find a dead daemon's socket; before there was a lock, both said that they were ready.
TEST(Daemon, OfTwoThatStartTogetherOneServes) {
  const std::string path = SocketPath("together");
  const std::vector<std::string> arguments = {"--listen=unix:" + path, "--pool-bytes=64MiB",
                                              "--threads=1", "--metrics-listen="};
  for (int round = 0; round < 3; ++round) {
    Daemon dies(arguments);
    ASSERT_TRUE(dies.AwaitLog("ready")) << dies.Log();
    dies.Signal(SIGKILL);
    dies.Wait();
    Daemon first(arguments);
    Daemon second(arguments);
    Daemon* refused = nullptr;
    for (int attempt = 0; attempt < 5000 && refused == nullptr; ++attempt) {
      for (Daemon* daemon : {&first, &second}) {
        refused = daemon->HasEnded() ? daemon : refused;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ASSERT_NE(refused, nullptr) << "both serve";
    EXPECT_EQ(refused->Wait(), 1);
    EXPECT_NE(refused->Log().find("is in use: another daemon holds"), std::string::npos)
        << refused->Log();
    Daemon& serves = refused == &first ? second : first;
    ASSERT_TRUE(serves.AwaitLog("ready")) << serves.Log();
    EXPECT_TRUE(std::filesystem::exists(path));
    serves.Signal(SIGTERM);
    EXPECT_EQ(serves.Wait(), 0);
  }
}

// As its log tells it; 0 if it does not.
int32_t MetricsPortOf(const Daemon& daemon) {
  const std::string log = daemon.Log();
  const std::string before = "metrics at http://127.0.0.1:";
  const size_t port = log.find(before);
  return port == std::string::npos ? 0 : std::stoi(log.substr(port + before.size()));
}

TEST(Daemon, TellsTheMetricsPortThatItGot) {
  Daemon daemon({"--listen=unix:" + SocketPath("metrics"), "--pool-bytes=64MiB", "--threads=1",
                 "--metrics-listen=127.0.0.1:0"});
  ASSERT_TRUE(daemon.AwaitLog("ready")) << daemon.Log();
  const int32_t port = MetricsPortOf(daemon);
  ASSERT_NE(port, 0) << daemon.Log();
  EXPECT_NE(HttpGet(port, "/metrics").find("longshore_"), std::string::npos);
}

// As a browser's, which has connected and says nothing yet.
TEST(Daemon, StopsInOrderWhileAConnectionToItsPagesIsSilent) {
  const std::string path = SocketPath("silent");
  Daemon daemon({"--listen=unix:" + path, "--pool-bytes=64MiB", "--threads=1",
                 "--metrics-listen=127.0.0.1:0"});
  ASSERT_TRUE(daemon.AwaitLog("ready")) << daemon.Log();
  HttpConnection silent(MetricsPortOf(daemon));
  silent.Send("GET /");
  daemon.Signal(SIGTERM);
  EXPECT_EQ(daemon.Wait(), 0) << daemon.Log();
  EXPECT_TRUE(daemon.AwaitLog("stopped")) << daemon.Log();
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(Daemon, FlagsGoOnTopOfTheFile) {
  const std::string file = TempDirectory::Get() / "config.textproto";
  std::ofstream out(file);
  out << "listen: 'unix:" << SocketPath("file") << "' pool_bytes: '32MiB' metrics_listen: ''";
  out.close();
  ASSERT_TRUE(out) << file;
  Daemon daemon({"--config=" + file, "--pool-bytes=64MiB"});
  ASSERT_TRUE(daemon.AwaitLog("ready")) << daemon.Log();
  EXPECT_NE(daemon.Log().find("listening at unix:" + SocketPath("file")), std::string::npos);
  EXPECT_NE(daemon.Log().find("pool of 64 MiB"), std::string::npos) << daemon.Log();
  daemon.Signal(SIGTERM);  // and not with the test, which would leave the socket behind
  EXPECT_EQ(daemon.Wait(), 0) << daemon.Log();
}

TEST(Daemon, WrongFlagsSayWhatIsWrong) {
  struct Case {
    std::vector<std::string> arguments;
    std::string in_log;
  };
  for (const Case& wrong : std::initializer_list<Case>{
           {{"--nonsense"}, "nonsense"},
           {{"--threads=many"}, "many"},
           {{"--threads=-1"}, "threads -1"},
           {{"--threads=-2"}, "threads -2"},
           {{"--pool-bytes=7000000TiB"}, "pool_bytes 7696581394432000000 is more than"},
           {{"--pool-bytes=9TiB", "--allow-overcommit-memory"}, "is more than 8796093022208"},
           {{"--pool-bytes=8TiB"}, "--allow-overcommit-memory"},
           {{"--pool-bytes=4GB"}, "pool_bytes \"4GB\""},
           {{"--listen=0.0.0.0:1"}, "allow_remote"},
           {{"--listen=nowhere"}, "neither unix:/path nor host:port"},
           {{"--config=/no/such"}, "/no/such"},
           {{"--backend=abacus", "--metrics-listen=", "--listen=unix:" + SocketPath("wrong")},
            "abacus"},
           {{"serve"}, "unexpected argument \"serve\""},
       }) {
    Daemon daemon(wrong.arguments);
    EXPECT_EQ(daemon.Wait(), 1) << daemon.Log();
    EXPECT_NE(daemon.Log().find(wrong.in_log), std::string::npos) << daemon.Log();
  }
}

TEST(Daemon, TellsItsVersionAndFlags) {
  Daemon version({"--version"});
  EXPECT_EQ(version.Wait(), 0);
  EXPECT_EQ(version.Log().substr(0, 11), "longshored ") << version.Log();
  Daemon help({"--help"});
  help.Wait();
  EXPECT_NE(help.Log().find("--pool_bytes"), std::string::npos) << help.Log();
}

}  // namespace
}  // namespace longshore
