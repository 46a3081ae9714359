// SPDX-License-Identifier: Apache-2.0
#include "process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <utility>

#include "base/clock.h"

namespace cleat::system_test {
namespace {

constexpr int kExecFailed = 127;

// Everything the child needs, made before the fork: after it only system calls are allowed.
struct Image {
  int program = -1;
  int log = -1;
  char* const* argv = nullptr;
  char* const* environment = nullptr;
  const char* directory = "/";
  bool as_nobody = false;
  uint64_t open_files = 0;
  pid_t parent = 0;
};

[[noreturn]] void Become(const Image& image) {
  sigset_t none;
  sigemptyset(&none);
  pthread_sigmask(SIG_SETMASK, &none, nullptr);
  const int null = open("/dev/null", O_RDONLY);
  dup2(null, STDIN_FILENO);
  dup2(image.log, STDOUT_FILENO);
  dup2(image.log, STDERR_FILENO);
  // Of this thread alone, as the kernel has it: glibc's own calls talk to all threads, and here there is but
  // one.
  if (image.as_nobody && (syscall(SYS_setgroups, 0, nullptr) != 0 || syscall(SYS_setgid, kNobody) != 0 ||
                          syscall(SYS_setuid, kNobody) != 0)) {
    _exit(kExecFailed);
  }
  const rlimit files{image.open_files, image.open_files};
  if (image.open_files != 0 && setrlimit(RLIMIT_NOFILE, &files) != 0) _exit(kExecFailed);
  if (chdir(image.directory) != 0) _exit(kExecFailed);
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // after setuid, which clears it
  if (getppid() != image.parent) _exit(kExecFailed);
  fexecve(image.program, image.argv, image.environment);
  _exit(kExecFailed);
}

// Errors of a sanitizer build of the children show in their log and exit status.
std::vector<std::string> Environment(const std::string& preload) {
  std::vector<std::string> environment;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text(*variable);
    if (text.starts_with("ASAN_OPTIONS=") || text.starts_with("UBSAN_OPTIONS=") || text.starts_with("XDG_"))
      continue;
    if (!preload.empty() && text.starts_with("LD_PRELOAD=")) continue;
    environment.emplace_back(text);
  }
  if (!preload.empty()) environment.emplace_back("LD_PRELOAD=" + preload);
  environment.emplace_back(
      "ASAN_OPTIONS=detect_leaks=1:exitcode=99:quarantine_size_mb=16:allocator_may_return_null=1");
  environment.emplace_back("UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1");
  return environment;
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& string : strings) pointers.push_back(string.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

Result<std::unique_ptr<Process>> Process::Start(const Options& options) {
  const UniqueFd program(open(options.program.c_str(), O_RDONLY | O_CLOEXEC));
  if (!program) return ErrnoError(errno, options.program);
  const UniqueFd log(open(options.log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!log) return ErrnoError(errno, options.log_path);
  std::vector<std::string> arguments{options.program};
  arguments.insert(arguments.end(), options.arguments.begin(), options.arguments.end());
  std::vector<std::string> environment = Environment(options.preload);
  const std::vector<char*> argv = Pointers(arguments);
  const std::vector<char*> envp = Pointers(environment);
  Image image;
  image.program = program.get();
  image.log = log.get();
  image.argv = argv.data();
  image.environment = envp.data();
  image.directory = options.directory.c_str();
  image.as_nobody = options.as_nobody;
  image.open_files = options.open_files;
  image.parent = getpid();

  const pid_t pid = fork();
  if (pid < 0) return ErrnoError(errno, "fork");
  if (pid == 0) Become(image);
  UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!pidfd) return ErrnoError(errno, "pidfd_open");
  return std::unique_ptr<Process>(new Process(pid, std::move(pidfd)));
}

Process::~Process() {
  Kill();
}

bool Process::WaitExit(int timeout_ms) {
  if (wait_status_ >= 0) return true;
  pollfd ended{.fd = pidfd_.get(), .events = POLLIN, .revents = 0};
  int ready = 0;
  do {
    ready = poll(&ended, 1, timeout_ms);
  } while (ready < 0 && errno == EINTR);
  if (ready <= 0) return false;
  return waitpid(pid_, &wait_status_, 0) == pid_;
}

bool Process::Running() {
  return !WaitExit(0);
}

void Process::Kill() {
  if (wait_status_ >= 0) return;
  kill(pid_, SIGKILL);
  WaitExit(-1);
}

Result<int> Process::Terminate(uint64_t timeout_ns) {
  if (wait_status_ < 0) kill(pid_, SIGTERM);
  if (WaitExit(static_cast<int>(timeout_ns / kNsPerMs))) return wait_status_;
  return Error(ErrorCode::kDeadlineExceeded,
               fmt::format("process {} has not ended {} s after SIGTERM", pid_, timeout_ns / kNsPerSecond));
}

ProcessStats Process::Stats() const {
  ProcessStats stats;
  const std::string proc = fmt::format("/proc/{}", pid_);
  std::error_code gone;
  for (auto it = std::filesystem::directory_iterator(proc + "/fd", gone);
       it != std::filesystem::directory_iterator(); it.increment(gone)) {
    ++stats.descriptors;
  }
  const std::string maps = ReadTextFile(proc + "/maps");
  stats.mappings = static_cast<uint64_t>(std::count(maps.begin(), maps.end(), '\n'));
  // proc(5): the fields behind the command, which is in parentheses; the first of them is number 3.
  const std::string line = ReadTextFile(proc + "/stat");
  std::istringstream rest(line.substr(std::min(line.size(), line.rfind(')') + 1)));
  const std::vector<std::string> fields{std::istream_iterator<std::string>(rest), {}};
  if (fields.size() < 22) return stats;
  const auto field = [&](size_t number) { return std::stoull(fields[number - 3]); };
  const auto ticks_per_second = static_cast<uint64_t>(sysconf(_SC_CLK_TCK));
  stats.cpu_ns = (field(14) + field(15)) * (kNsPerSecond / ticks_per_second);
  stats.threads = field(20);
  stats.resident_bytes = field(24) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return stats;
}

uid_t Process::User() const {
  const std::string status = ReadTextFile(fmt::format("/proc/{}/status", pid_));
  const size_t at = status.find("\nUid:");
  unsigned real = 0;
  unsigned effective = 0;
  if (at == std::string::npos || std::sscanf(status.c_str() + at, "\nUid: %u %u", &real, &effective) != 2)
    return ~0U;
  return effective;
}

std::string ReadTextFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<std::string> ThreadsOnFirstCpu(pid_t pid) {
  constexpr std::string_view kField = "Cpus_allowed_list:\t";
  std::vector<std::string> names;
  for (const auto& task : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task")) {
    const std::string status = ReadTextFile(task.path() / "status");
    const size_t at = status.find(kField);
    if (at == std::string::npos || status[at + kField.size()] != '0')
      continue;  // a list begins with its lowest
    std::string name = ReadTextFile(task.path() / "comm");
    names.push_back(name.substr(0, name.find('\n')));
  }
  return names;
}

}  // namespace cleat::system_test
