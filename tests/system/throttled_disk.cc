// SPDX-License-Identifier: Apache-2.0
#include "throttled_disk.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/loop.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <sstream>
#include <vector>

namespace cleat::system_test {
namespace {

constexpr const char* kBlkio = "/sys/fs/cgroup/blkio";
constexpr const char* kUnified = "/sys/fs/cgroup";

// Control files take a line a write.
Status Write(const std::string& path, const std::string& line) {
  const UniqueFd file(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!file || write(file.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    return ErrnoError(errno, fmt::format("writing '{}' to {}", line, path));
  }
  return Ok{};
}

std::string Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

bool Exists(const std::string& path) {
  return access(path.c_str(), F_OK) == 0;
}

Error Lacks(const std::string& what) {
  return {ErrorCode::kUnimplemented, "a throttled disk takes " + what};
}

}  // namespace

Result<std::unique_ptr<ThrottledDisk>> ThrottledDisk::Make(uint64_t size_bytes) {
  if (geteuid() != 0) return Lacks("root");
  const UniqueFd control(open("/dev/loop-control", O_RDWR | O_CLOEXEC));
  const int number = control ? ioctl(control.get(), LOOP_CTL_GET_FREE) : -1;
  if (number < 0) return Lacks("a free loop device");
  std::string path = "/dev/loop" + std::to_string(number);
  UniqueFd device(open(path.c_str(), O_RDWR | O_CLOEXEC));
  UniqueFd content(memfd_create("throttled disk", MFD_CLOEXEC));
  loop_config config{};
  config.fd = static_cast<uint32_t>(content.get());
  config.info.lo_flags = LO_FLAGS_AUTOCLEAR;  // whoever is killed, the last user's end is the device's
  if (!device || !content || ftruncate(content.get(), static_cast<off_t>(size_bytes)) != 0 ||
      ioctl(device.get(), LOOP_CONFIGURE, &config) != 0) {
    return Lacks("a loop device");
  }
  std::unique_ptr<ThrottledDisk> disk(
      new ThrottledDisk(size_bytes, std::move(content), std::move(path), std::move(device)));
  if (Status made = disk->MakeGroup(); !made) return std::move(made).error();
  return disk;
}

Status ThrottledDisk::MakeGroup() {
  const std::string name = fmt::format("cleat-test-{}-{}", getpid(), path_.substr(path_.rfind('/') + 1));
  if (Exists(fmt::format("{}/blkio.throttle.io_serviced", kBlkio))) {
    group_ = fmt::format("{}/{}", kBlkio, name);
  } else if (Read(fmt::format("{}/cgroup.subtree_control", kUnified)).find("io") != std::string::npos ||
             Write(fmt::format("{}/cgroup.subtree_control", kUnified), "+io").ok()) {
    group_ = fmt::format("{}/{}", kUnified, name);
    unified_ = true;
  } else {
    return Lacks("the io controller of control groups");
  }
  if (mkdir(group_.c_str(), 0755) == 0) return Ok{};
  group_.clear();
  return Lacks("a control group that may be made");
}

ThrottledDisk::~ThrottledDisk() {
  if (!group_.empty()) {
    static_cast<void>(Release());
    static_cast<void>(ReleaseReads());
    std::istringstream processes(Read(group_ + "/cgroup.procs"));
    const std::string parent = group_.substr(0, group_.rfind('/'));
    for (std::string process; processes >> process;) (void)Write(parent + "/cgroup.procs", process);
    rmdir(group_.c_str());
  }
}

Status ThrottledDisk::Limit(const std::string& file, const std::string& unified_key,
                            const std::string& value) {
  struct stat node {};
  if (fstat(device_.get(), &node) != 0) return ErrnoError(errno, path_);
  const std::string device = fmt::format("{}:{}", major(node.st_rdev), minor(node.st_rdev));
  return unified_ ? Write(group_ + "/io.max", fmt::format("{} {}={}", device, unified_key, value))
                  : Write(fmt::format("{}/blkio.throttle.{}", group_, file), device + " " + value);
}

Status ThrottledDisk::Slow(pid_t process, uint32_t writes_per_second) {
  Status limited = Limit("write_iops_device", "wiops", std::to_string(writes_per_second));
  if (!limited) return limited;
  return Write(group_ + "/cgroup.procs", std::to_string(process));
}

// At a byte a second the smallest request takes more than an hour.
Status ThrottledDisk::Stop(const Direction& direction, pid_t process) {
  Status limited = Limit(direction.file, direction.unified_key, "1");
  if (!limited) return limited;
  return Write(group_ + "/cgroup.procs", std::to_string(process));
}

Status ThrottledDisk::LetGoOn(const Direction& direction) {
  return Limit(direction.file, direction.unified_key, unified_ ? "max" : "0");
}

std::string ThrottledDisk::Content() const {
  std::string content(size_bytes_, '\0');
  const ssize_t got = pread(content_.get(), content.data(), content.size(), 0);
  return got == static_cast<ssize_t>(content.size()) ? content : std::string();
}

}  // namespace cleat::system_test
