#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <absl/status/statusor.h>

namespace CLI {  // NOLINT(readability-identifier-naming): the library's name
class App;
}

namespace longshore::ctl {

/// Exit codes, as `longshorectl --help` tells them.
enum ExitCode : int {
  kExitOk = 0,
  kExitCheckFailed = 1,  ///< conformance found a fault, or verify passed a threshold
  kExitUsage = 2,        ///< the command line is wrong
  kExitNoAnswer = 3,     ///< no daemon, or it starts or stops, or time is over
  kExitRefused = 4,      ///< what was asked for is not possible; the message says why
};

/// Commands and their options. Hides the library that parses them.
///
/// Values are written before the command runs; whoever adds an option keeps its value alive until
/// then. Defaults are what the values hold when they are added, and --help shows them.
class CommandLine {
 public:
  CommandLine(const std::string& name, const std::string& description);
  ~CommandLine();
  CommandLine(CommandLine&&) noexcept;
  CommandLine& operator=(CommandLine&&) = delete;

  /// --version, which prints `text` and ends. Of the outermost one only.
  void AddVersion(const std::string& text);

  /// A command below this one. `summary` is its line in the list; `details` what --help adds.
  CommandLine Command(const std::string& name,
                      const std::string& summary,
                      const std::string& details = "");

  /// Options with a value: --name VALUE, in the group of --help that Group() named last.
  void Add(const std::string& name, std::string* value, const std::string& help);
  void Add(const std::string& name, int32_t* value, const std::string& help);
  void Add(const std::string& name, int64_t* value, const std::string& help);
  void Add(const std::string& name, double* value, const std::string& help);
  void Add(const std::string& name, std::optional<int64_t>* value, const std::string& help);
  void Add(const std::string& name, std::optional<double>* value, const std::string& help);
  void AddRequired(const std::string& name, int64_t* value, const std::string& help);
  void AddChoice(const std::string& name,
                 std::string* value,
                 const std::vector<std::string>& choices,
                 const std::string& help);
  /// An option without a value.
  void AddFlag(const std::string& name, bool* value, const std::string& help);
  /// Required arguments by position.
  void AddArgument(const std::string& name, std::string* value, const std::string& help);
  void AddArgument(const std::string& name, uint64_t* value, const std::string& help);
  void Group(const std::string& title) { group_ = title; }

  /// What the command does: an ExitCode, or an error, which is printed and gives one.
  void Run(std::function<absl::StatusOr<int>()> run);

  /// Parses, runs the command that is named, and returns the exit code. Of the outermost one only.
  int Main(int argc, char** argv);

 private:
  explicit CommandLine(CLI::App* command);

  std::unique_ptr<CLI::App> owned_;  // the outermost one's
  CLI::App* app_;
  std::string group_ = "Options";
  std::shared_ptr<absl::StatusOr<int>> outcome_;  // of the command that ran
};

}  // namespace longshore::ctl
