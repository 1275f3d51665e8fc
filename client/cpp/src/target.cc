#include "client/cpp/src/target.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

namespace longshore::client {
namespace {

std::string PrivateDirectory() { return absl::StrCat("/tmp/longshored-", getuid()); }

}  // namespace

std::string DefaultTarget() {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): who changes the environment meanwhile asks for trouble
  const char* runtime_directory = std::getenv("XDG_RUNTIME_DIR");
  if (runtime_directory != nullptr && runtime_directory[0] == '/') {
    return absl::StrCat("unix:", runtime_directory, "/longshored.sock");
  }
  return getuid() == 0 ? "unix:/run/longshored.sock"
                       : absl::StrCat("unix:", PrivateDirectory(), "/longshored.sock");
}

absl::Status CheckPrivate(const std::string& target) {
  const std::string directory = PrivateDirectory();
  struct stat found {};
  if (!absl::StartsWith(target, absl::StrCat("unix:", directory, "/")) ||
      lstat(directory.c_str(), &found) != 0) {  // nothing listens there; the first call says so
    return absl::OkStatus();
  }
  const mode_t mode = found.st_mode & 07777U;
  if (S_ISDIR(found.st_mode) && found.st_uid == getuid() && mode == 0700) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrFormat(
      "%s belongs to user %d with mode %04o, not to user %d with mode 0700: remove it, or name a "
      "target",
      directory, found.st_uid, mode, getuid()));
}

}  // namespace longshore::client
