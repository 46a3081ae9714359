// SPDX-License-Identifier: Apache-2.0
#include "base/exit_status.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <string_view>

#include "base/log.h"
#include "base/paths.h"
#include "base/unique_fd.h"

namespace cleat {
namespace {

constexpr uint64_t kCountMax = 9;  // from there on it waits for kMaxMs
constexpr mode_t kMode = 0600;

// Since the last failure; none is as old as can be.
uint64_t AgeMs(const UniqueFd& file) {
  struct stat info {};
  timespec now{};
  if (fstat(file.get(), &info) != 0 || clock_gettime(CLOCK_REALTIME, &now) != 0 ||
      now.tv_sec < info.st_mtim.tv_sec)
    return 0;
  return static_cast<uint64_t>(now.tv_sec - info.st_mtim.tv_sec) * 1000;
}

uint64_t ReadCount(const UniqueFd& file) {
  std::array<char, 8> text{};
  const ssize_t got = pread(file.get(), text.data(), text.size(), 0);
  uint64_t count = 0;
  if (got > 0) std::from_chars(text.data(), text.data() + got, count);
  return std::min(count, kCountMax);
}

// One digit, in place: it takes no room that the last one has not taken.
bool WriteCount(const UniqueFd& file, uint64_t count) {
  const char digit = static_cast<char>('0' + count);
  return pwrite(file.get(), &digit, 1, 0) == 1;
}

}  // namespace

bool IsFinal(ExitStatus status) {
  return status == ExitStatus::kUsage || status == ExitStatus::kDamaged ||
         status == ExitStatus::kNoPermission || status == ExitStatus::kConfiguration;
}

ExitStatus ExitStatusOf(const Error& error) {
  switch (error.code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kNotFound:
    case ErrorCode::kFailedPrecondition:
      return ExitStatus::kConfiguration;
    case ErrorCode::kPermissionDenied:
      return ExitStatus::kNoPermission;
    case ErrorCode::kDataLoss:
      return ExitStatus::kDamaged;
    case ErrorCode::kAlreadyExists:
    case ErrorCode::kAborted:
    case ErrorCode::kUnavailable:
      return ExitStatus::kBusy;
    case ErrorCode::kResourceExhausted:
    case ErrorCode::kUnimplemented:
      return ExitStatus::kSystem;
    case ErrorCode::kIo:
      return ExitStatus::kIo;
    case ErrorCode::kDeadlineExceeded:
    case ErrorCode::kCancelled:
    case ErrorCode::kInternal:
      break;
  }
  return ExitStatus::kInternal;
}

std::string ExitStatusHelp() {
  return "Exit status: 0 done; 64 command line; 65 damaged store; 69 another process has the store, a socket "
         "or an address; "
         "70 bug; 71 the system lacks memory, descriptors or an interface; 73 a file can't be written; 74 "
         "storage fails; "
         "77 no permission; 78 configuration. After 64, 65, 77 and 78 systemd does not start it again.";
}

uint64_t RestartDelay::NextMs(uint64_t lived_ms) {
  const UniqueFd file(open(path_.c_str(), O_CREAT | O_RDWR | O_NOFOLLOW | O_CLOEXEC, kMode));
  if (!file.valid()) return kMaxMs;
  const bool calm = lived_ms >= kCalmMs || AgeMs(file) >= kMaxMs + kCalmMs;
  const uint64_t failures = calm ? 0 : ReadCount(file);
  if (!WriteCount(file, std::min(failures + 1, kCountMax))) return kMaxMs;
  return std::min(kFirstMs << failures, kMaxMs);
}

int EndAfter(ExitStatus status, const std::string& runtime_dir, const std::string& service,
             uint64_t lived_ms) {
  const bool managed =
      std::getenv("INVOCATION_ID") != nullptr;  // NOLINT(concurrency-mt-unsafe): main's thread
  if (!managed || IsFinal(status)) return static_cast<int>(status);
  (void)MakeDirectory(runtime_dir);
  const uint64_t delay_ms = RestartDelay(runtime_dir + "/" + service + ".failures").NextMs(lived_ms);
  spdlog::warn("{}: ends in {:.1f} s, since the service manager starts it again at once", service,
               static_cast<double>(delay_ms) / 1000);
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGTERM);
  sigaddset(&ends, SIGINT);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  const timespec wait{.tv_sec = static_cast<time_t>(delay_ms / 1000),
                      .tv_nsec = static_cast<long>(delay_ms % 1000 * 1'000'000)};
  sigtimedwait(&ends, nullptr, &wait);
  return static_cast<int>(status);
}

}  // namespace cleat
