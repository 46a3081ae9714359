// SPDX-License-Identifier: Apache-2.0
#include "ctl/support/run_program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>

#include "base/unique_fd.h"

namespace cleat::ctl {
namespace {

using Clock = std::chrono::steady_clock;

// What the program's streams are; gives back what it holds.
class FileActions {
 public:
  FileActions() { posix_spawn_file_actions_init(&actions_); }
  ~FileActions() { posix_spawn_file_actions_destroy(&actions_); }
  FileActions(const FileActions&) = delete;
  FileActions& operator=(const FileActions&) = delete;

  void Set(int output, int errors) {
    posix_spawn_file_actions_addopen(&actions_, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions_, output, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions_, errors, STDERR_FILENO);
  }
  const posix_spawn_file_actions_t* get() const { return &actions_; }

 private:
  posix_spawn_file_actions_t actions_{};
};

// Until the program closes it. False: the time is over.
bool ReadUntilClosed(int fd, Clock::time_point deadline, size_t bytes_max, std::string& output) {
  std::array<char, 65536> piece;
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    pollfd readable{.fd = fd, .events = POLLIN, .revents = 0};
    const int ready = poll(&readable, 1, static_cast<int>(std::max<int64_t>(left.count(), 0)));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return false;
    const ssize_t count = read(fd, piece.data(), piece.size());
    if (count <= 0) return true;
    output.append(piece.data(), static_cast<size_t>(count));
    // Twice as much is held, so that not each piece moves all of it.
    if (output.size() > 2 * bytes_max) output.erase(0, output.size() - bytes_max);
  }
}

}  // namespace

Result<ProgramEnd> RunProgram(const std::vector<std::string>& command, const ProgramLimits& limits) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return ErrnoError(errno, command.front());
  const UniqueFd from(ends[0]);
  UniqueFd to(ends[1]);
  FileActions actions;
  actions.Set(limits.output_fd >= 0 ? limits.output_fd : to.get(), to.get());
  std::vector<char*> arguments;
  for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  pid_t pid = -1;
  if (const int error = posix_spawnp(&pid, arguments[0], actions.get(), nullptr, arguments.data(), environ))
    return ErrnoError(error, command.front());
  to.Reset();
  ProgramEnd end;
  const bool ended =
      ReadUntilClosed(from.get(), Clock::now() + limits.time, limits.output_bytes_max, end.output);
  if (!ended) kill(pid, SIGKILL);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (!ended)
    return Error(ErrorCode::kDeadlineExceeded,
                 fmt::format("{} took longer than {} s", command.front(), limits.time.count()));
  if (end.output.size() > limits.output_bytes_max)
    end.output.erase(0, end.output.size() - limits.output_bytes_max);
  end.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return end;
}

}  // namespace cleat::ctl
