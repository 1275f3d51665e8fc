#pragma once

#include <unistd.h>

#include <filesystem>
#include <string>

namespace longshore {

/// A directory of this process's own, short enough for sockets; goes with what is in it.
class TempDirectory {
 public:
  TempDirectory() : path_("/tmp/longshore-test-" + std::to_string(getpid())) {
    std::filesystem::create_directory(path_);
  }
  ~TempDirectory() { std::filesystem::remove_all(path_); }
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;

  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

  /// The one of this test program.
  static const TempDirectory& Get() {
    static const TempDirectory directory;
    return directory;
  }

 private:
  std::string path_;
};

}  // namespace longshore
