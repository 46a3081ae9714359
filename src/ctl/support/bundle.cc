// SPDX-License-Identifier: Apache-2.0
#include "ctl/support/bundle.h"

#include <fmt/format.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <utility>

#include "ctl/new_file.h"
#include "ctl/support/run_program.h"

namespace cleat::ctl {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFolder = "cleat-support";
constexpr std::chrono::seconds kArchiveTime{120};

// A folder of mode 0700 that goes with its owner.
class PrivateFolder {
 public:
  Status Make() {
    std::error_code error;
    std::string path = fs::temp_directory_path(error) / "cleat-support-XXXXXX";
    if (error || mkdtemp(path.data()) == nullptr)
      return ErrnoError(error ? error.value() : errno, "a folder for temporary files can't be made");
    path_ = path;
    return Ok{};
  }
  PrivateFolder() = default;
  ~PrivateFolder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  PrivateFolder(const PrivateFolder&) = delete;
  PrivateFolder& operator=(const PrivateFolder&) = delete;

  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

Status WritePart(const fs::path& path, const std::string& text) {
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  return file ? Status(Ok{}) : ErrnoError(errno, fmt::format("'{}' can't be written", path.string()));
}

}  // namespace

void Bundle::Add(std::string name, std::string text) {
  const bool cut = text.size() > kPartBytesMax;
  if (cut) text.erase(0, text.size() - kPartBytesMax);
  if (text.size() > kBytesMax - bytes_)
    return LeaveOut(std::move(name), fmt::format("the bundle would have more than {} bytes", kBytesMax));
  bytes_ += text.size();
  parts_.push_back({std::move(name), std::move(text), cut});
}

void Bundle::LeaveOut(std::string name, std::string why) {
  left_out_.push_back({std::move(name), std::move(why)});
}

std::string Bundle::Manifest() const {
  std::string text;
  for (const Part& part : parts_) {
    text += fmt::format("{}\t{} bytes{}\n", part.name, part.text.size(), part.cut ? ", the end of it" : "");
  }
  for (const LeftOut& left_out : left_out_) {
    text += fmt::format("LEFT OUT\t{}: {}\n", left_out.name, left_out.why);
  }
  return text;
}

Status WriteBundle(const Bundle& bundle, const std::string& path) {
  NewFile file(path, "name another file");
  CLEAT_TRY(file.Open());
  PrivateFolder folder;
  CLEAT_TRY(folder.Make());
  for (const Bundle::Part& part : bundle.parts()) {
    CLEAT_TRY(WritePart(folder.path() / kFolder / part.name, part.text));
  }
  CLEAT_TRY(WritePart(folder.path() / kFolder / "MANIFEST", bundle.Manifest()));
  CLEAT_ASSIGN(const ProgramEnd tar,
               RunProgram({"tar", "--create", "--gzip", "--file=-", "--owner=0", "--group=0",
                           "--mode=go=", "--sort=name", "--directory=" + folder.path().string(), kFolder},
                          {.time = kArchiveTime, .output_fd = file.fd()}));
  if (tar.status != 0)
    return Error(ErrorCode::kIo, fmt::format("tar ended with {}: {}", tar.status, tar.output));
  return file.Finish(false);
}

}  // namespace cleat::ctl
