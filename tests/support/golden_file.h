#pragma once

#include <filesystem>
#include <string>

namespace longshore {

/// The repository's root: the folder above this test's program that holds proto/ and tests/.
std::filesystem::path SourceRoot();

/// Fails unless the committed file at `path`, from the root, holds exactly `rendered`. With
/// LONGSHORE_UPDATE_GOLDEN set the file is written instead, and the test counts as skipped: read
/// the diff.
void ExpectGolden(const std::filesystem::path& path, const std::string& rendered);

}  // namespace longshore
