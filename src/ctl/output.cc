// SPDX-License-Identifier: Apache-2.0
#include "ctl/output.h"

#include <fmt/format.h>
#include <google/protobuf/util/json_util.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "ctl/yaml.h"

namespace cleat::ctl {
namespace {

// The shell then sees what it sees of every other tool (141), whatever was inherited for SIGPIPE.
[[noreturn]] void DieOfBrokenPipe() {
  std::signal(SIGPIPE, SIG_DFL);
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGPIPE);
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  std::raise(SIGPIPE);
  _exit(kFailed);
}

}  // namespace

void Print(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(STDOUT_FILENO, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<size_t>(written));
    } else if (errno == EPIPE) {
      DieOfBrokenPipe();
    } else if (errno == EAGAIN) {  // somebody else made it non-blocking
      pollfd writable{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
      poll(&writable, 1, -1);
    } else if (errno != EINTR) {
      // At once: gRPC's threads may be at work.
      _exit(Fail(kFailed, fmt::format("the output can't be written: {}", std::strerror(errno))));
    }
  }
}

ExitCode Fail(ExitCode code, std::string_view message) {
  // One write, so that lines of several processes don't mix.
  const std::string line = fmt::format("cleatctl: {}\n", message);
  std::fwrite(line.data(), 1, line.size(), stderr);
  return code;
}

void EndWithReader() {
  std::thread([] {
    pollfd reader{.fd = STDOUT_FILENO, .events = 0, .revents = 0};
    while (poll(&reader, 1, -1) < 0 && errno == EINTR) {
    }
    if ((reader.revents & POLLERR) != 0) DieOfBrokenPipe();
  }).detach();
}

std::string ToJson(const google::protobuf::Message& message, bool pretty) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = pretty;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  if (!status.ok()) return "{}\n";
  if (json.empty() || json.back() != '\n') json += '\n';
  return json;
}

std::string ToYaml(const google::protobuf::Message& message) {
  return JsonToYaml(ToJson(message, false));
}

}  // namespace cleat::ctl
