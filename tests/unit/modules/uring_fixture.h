// SPDX-License-Identifier: Apache-2.0
// A reactor with an io_uring in real time on the test's own thread, and files to make disks of.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/clock.h"
#include "modules/uring/uring.h"
#include "reactor/blocking.h"
#include "reactor/reactor.h"
#include "tests/unit/modules/test_disk.h"

namespace cleat::test {

// A folder of its own that goes with everything in it that was made through it.
class ScratchFolder {
 public:
  explicit ScratchFolder(const std::string& where) : path_(where + "/cleat-uring-test-XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr) path_.clear();
  }
  ~ScratchFolder() {
    for (const std::string& file : files_) unlink(file.c_str());
    if (!path_.empty()) rmdir(path_.c_str());
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  bool made() const { return !path_.empty(); }
  const std::string& path() const { return path_; }
  std::string Path(const std::string& name) {
    files_.push_back(path_ + "/" + name);
    return files_.back();
  }
  std::string MakeFile(const std::string& name, uint64_t bytes) {
    std::string path = Path(name);
    const UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
    EXPECT_TRUE(fd) << path;
    EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
    return path;
  }

 private:
  std::string path_;
  std::vector<std::string> files_;
};

// Where the build is: a file system of a real disk, usually one with O_DIRECT.
inline std::string DiskFolder() {
  return ".";
}
inline std::string MemoryFolder() {
  return "/dev/shm";
}

class UringHost {
 public:
  UringHost() {
    Reactor::Options options;
    options.name = "io0";
    options.spin_ns = 0;  // sleeps, and so arms the ring, whenever it can
    reactor_ = std::move(Reactor::Make(clock_, options)).value();
    const Status added = hub_.emplace().AddReactor(*reactor_);
    EXPECT_TRUE(added.ok()) << added.error().message;
  }

  Reactor& reactor() { return *reactor_; }
  modules::UringHub& hub() { return *hub_; }
  BlockingPool& blocking() { return blocking_; }

  template <typename T>
  T Await(Task<T> task) {
    std::optional<T> result;
    Begin(std::move(task), result);
    while (!result) reactor_->RunOnce();
    return std::move(*result);
  }
  // `result`, which outlives the task, is set when it is over; somebody runs the reactor until then.
  template <typename T>
  void Begin(Task<T> task, std::optional<T>& result) {
    const auto held = std::make_shared<Task<T>>(std::move(task));
    reactor_->PostCall([held, &result] { Spawn(Keep(std::move(*held), result)); });
  }

  Result<std::unique_ptr<block::Device>> Open(modules::UringOptions options) {
    return Await(modules::OpenUring(std::move(options), *hub_, blocking_));
  }
  Result<std::unique_ptr<block::Device>> Open(const std::string& path, uint64_t bytes, uint32_t block = 512,
                                              block::AccessMode mode = block::AccessMode::kReadWrite,
                                              bool direct = true) {
    modules::UringOptions options(block::DiskShape("disks/u", bytes, block, 4096), path, mode);
    options.direct_io = direct;
    return Open(std::move(options));
  }
  std::unique_ptr<TestDisk> OpenDisk(const std::string& path, uint64_t bytes, uint32_t block = 512,
                                     bool direct = true) {
    auto opened = Open(path, bytes, block, block::AccessMode::kReadWrite, direct);
    if (!opened) ADD_FAILURE() << opened.error().message;
    return std::make_unique<TestDisk>(std::move(opened).value(), *reactor_, [this] { reactor_->RunOnce(); });
  }

 private:
  template <typename T>
  static Task<void> Keep(Task<T> task, std::optional<T>& result) {
    result.emplace(co_await task);
  }

  const MonotonicClock clock_;
  BlockingPool blocking_{1};
  std::unique_ptr<Reactor> reactor_;
  std::optional<modules::UringHub> hub_;
};

}  // namespace cleat::test
