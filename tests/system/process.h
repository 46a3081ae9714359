// SPDX-License-Identifier: Apache-2.0
// A child process with its output in a log file. It never outlives the test: the destructor ends it, and the
// kernel does when the test itself dies. To be started and ended from the test's main thread (the kernel's
// promise is bound to the thread that started the child, which has to stay).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace cleat::system_test {

// "nobody" on every Linux; what a child runs as when the test is root and wants it unprivileged.
inline constexpr uid_t kNobody = 65534;

struct ProcessStats {
  uint64_t descriptors = 0;
  uint64_t threads = 0;
  uint64_t mappings = 0;
  uint64_t resident_bytes = 0;
  uint64_t cpu_ns = 0;  // user and system, since the start; in whole clock ticks
};

class Process {
 public:
  struct Options {
    std::string program;  // path of the executable; need not be accessible to nobody
    std::vector<std::string> arguments;
    std::string log_path;  // appended to
    std::string directory = "/";
    bool as_nobody = false;    // the caller is root
    std::string preload = {};  // LD_PRELOAD; none: as the caller's
    uint64_t open_files = 0;   // so many it may have open (RLIMIT_NOFILE); 0: as the caller
  };
  static Result<std::unique_ptr<Process>> Start(const Options& options);
  ~Process();  // Kill()
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  bool Running();
  void Kill();  // SIGKILL, and waits until it is gone
  // SIGTERM, and the wait status (as of waitpid); kDeadlineExceeded when it goes on running.
  Result<int> Terminate(uint64_t timeout_ns);
  // The wait status of a process that ended by itself; -1 while it runs.
  int wait_status() const { return wait_status_; }

  // While it runs.
  ProcessStats Stats() const;
  uid_t User() const;  // the effective one

 private:
  Process(pid_t pid, UniqueFd pidfd) : pid_(pid), pidfd_(std::move(pidfd)) {}
  bool WaitExit(int timeout_ms);

  const pid_t pid_;
  UniqueFd pidfd_;
  int wait_status_ = -1;
};

// The whole file, or "" when there is none.
std::string ReadTextFile(const std::string& path);
// The names of a process' threads that may run on the machine's first CPU.
std::vector<std::string> ThreadsOnFirstCpu(pid_t pid);

}  // namespace cleat::system_test
