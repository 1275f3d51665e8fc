#include "client/cpp/ctl/command_line.h"

#include <CLI/CLI.hpp>

#include <cstdio>
#include <utility>

#include "longshore/client/error.h"

namespace longshore::ctl {
namespace {

// An error as a line for people, and the exit code that goes with it.
int Report(const absl::Status& status) {
  const std::string reason = client::ReasonOf(status);
  std::fprintf(stderr, "error: %s (%s%s%s)\n", std::string{status.message()}.c_str(),
               absl::StatusCodeToString(status.code()).c_str(), reason.empty() ? "" : ", ",
               reason.c_str());
  const bool no_answer = status.code() == absl::StatusCode::kUnavailable ||
                         status.code() == absl::StatusCode::kDeadlineExceeded;
  return no_answer ? kExitNoAnswer : kExitRefused;
}

template <typename T>
CLI::Option* AddTo(CLI::App* app,
                   const std::string& group,
                   const std::string& name,
                   T* value,
                   const std::string& help) {
  return app->add_option("--" + name, *value, help)->group(group);
}

}  // namespace

CommandLine::CommandLine(const std::string& name, const std::string& description)
    : owned_(std::make_unique<CLI::App>(description, name)),
      app_(owned_.get()),
      outcome_(std::make_shared<absl::StatusOr<int>>(kExitOk)) {}
CommandLine::CommandLine(CLI::App* command) : app_(command) {}
CommandLine::CommandLine(CommandLine&&) noexcept = default;
CommandLine::~CommandLine() = default;

void CommandLine::AddVersion(const std::string& text) {
  app_->set_version_flag("--version", text, "print the version and exit");
}

CommandLine CommandLine::Command(const std::string& name,
                                 const std::string& summary,
                                 const std::string& details) {
  CommandLine command(app_->add_subcommand(name, summary));
  if (!details.empty()) {
    command.app_->footer("\n" + details);
  }
  command.outcome_ = outcome_;
  return command;
}

void CommandLine::Add(const std::string& name, std::string* value, const std::string& help) {
  AddTo(app_, group_, name, value, help)->capture_default_str();
}
void CommandLine::Add(const std::string& name, int32_t* value, const std::string& help) {
  AddTo(app_, group_, name, value, help)->capture_default_str();
}
void CommandLine::Add(const std::string& name, int64_t* value, const std::string& help) {
  AddTo(app_, group_, name, value, help)->capture_default_str();
}
void CommandLine::Add(const std::string& name, double* value, const std::string& help) {
  AddTo(app_, group_, name, value, help)->capture_default_str();
}
void CommandLine::Add(const std::string& name,
                      std::optional<int64_t>* value,
                      const std::string& help) {
  AddTo(app_, group_, name, value, help);
}
void CommandLine::Add(const std::string& name,
                      std::optional<double>* value,
                      const std::string& help) {
  AddTo(app_, group_, name, value, help);
}
void CommandLine::AddRequired(const std::string& name, int64_t* value, const std::string& help) {
  AddTo(app_, group_, name, value, help)->required();
}

void CommandLine::AddChoice(const std::string& name,
                            std::string* value,
                            const std::vector<std::string>& choices,
                            const std::string& help) {
  AddTo(app_, group_, name, value, help)->capture_default_str()->check(CLI::IsMember(choices));
}

void CommandLine::AddFlag(const std::string& name, bool* value, const std::string& help) {
  app_->add_flag("--" + name, *value, help)->group(group_);
}

void CommandLine::AddArgument(const std::string& name,
                              std::string* value,
                              const std::string& help) {
  app_->add_option(name, *value, help)->required();
}
void CommandLine::AddArgument(const std::string& name, uint64_t* value, const std::string& help) {
  // The library takes -3 for 2^64 - 3.
  app_->add_option(name, *value, help)->required()->check(CLI::NonNegativeNumber);
}

void CommandLine::Run(std::function<absl::StatusOr<int>()> run) {
  app_->callback([run = std::move(run), outcome = outcome_] { *outcome = run(); });
}

int CommandLine::Main(int argc, char** argv) {
  try {  // the library's way to say that parsing ended
    app_->parse(argc, argv);
  } catch (const CLI::ParseError& ended) {
    return app_->exit(ended) == 0 ? kExitOk : kExitUsage;
  }
  // Not the library's own check, which comes before the one for words that are no command.
  const CLI::App* last = app_;
  while (!last->get_subcommands().empty()) {
    last = last->get_subcommands().front();
  }
  if (!last->get_subcommands(nullptr).empty()) {
    std::fprintf(stderr, "%s needs a command: see %s --help\n", last->get_name().c_str(),
                 app_->get_name().c_str());
    return kExitUsage;
  }
  if (!outcome_->ok()) {
    return Report(outcome_->status());
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {  // a full disk
    return Report(absl::DataLossError("not all of it could be written to stdout"));
  }
  return **outcome_;
}

}  // namespace longshore::ctl
