// SPDX-License-Identifier: Apache-2.0
#include "base/notify.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "base/clock.h"

namespace cleat {
namespace {

std::string_view Value(const char* text) {
  return text == nullptr ? std::string_view() : std::string_view(text);
}

std::optional<uint64_t> Number(std::string_view text) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// A name in the file system, or with '@' in front an abstract one.
Result<UniqueFd> Connect(std::string_view name) {
  const std::string what = "NOTIFY_SOCKET '" + std::string(name) + "'";
  sockaddr_un address{};
  if (name.size() < 2 || (name[0] != '/' && name[0] != '@') || name.size() >= sizeof address.sun_path) {
    return Error(ErrorCode::kInvalidArgument, what + ": is no unix socket's name; unset it to start without");
  }
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, name.data(), name.size());
  if (name[0] == '@') address.sun_path[0] = '\0';
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
  UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket || connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) {
    return ErrnoError(errno, what + " can't be reached; unset it to start without");
  }
  return socket;
}

// What ends a line would begin another assignment.
std::string StatusLine(std::string_view status) {
  std::string line = "STATUS=" + std::string(status);
  std::replace(line.begin(), line.end(), '\n', ' ');
  return line;
}

uint64_t WatchdogNs(const ServiceNotifier::Environment& environment) {
  const std::string_view process = Value(environment("WATCHDOG_PID"));
  if (!process.empty() && Number(process) != static_cast<uint64_t>(getpid())) return 0;
  const auto us = Number(Value(environment("WATCHDOG_USEC")));
  return us && *us <= UINT64_MAX / kNsPerUs ? *us * kNsPerUs : 0;
}

}  // namespace

Result<ServiceNotifier> ServiceNotifier::FromEnvironment() {
  return From([](const char* name) { return std::getenv(name); });
}

Result<ServiceNotifier> ServiceNotifier::From(const Environment& environment) {
  ServiceNotifier notifier;
  const std::string_view name = Value(environment("NOTIFY_SOCKET"));
  if (name.empty()) return notifier;
  CLEAT_ASSIGN(notifier.socket_, Connect(name));
  notifier.watchdog_ns_ = WatchdogNs(environment);
  return notifier;
}

Status ServiceNotifier::Ready(std::string_view status) {
  return Send("READY=1\n" + StatusLine(status), 0);
}

Status ServiceNotifier::Stopping(std::string_view status) {
  return Send("STOPPING=1\n" + StatusLine(status), MSG_DONTWAIT);
}

Status ServiceNotifier::Report(std::string_view status) {
  return Send(StatusLine(status), MSG_DONTWAIT);
}

Status ServiceNotifier::Alive() {
  return Send("WATCHDOG=1", MSG_DONTWAIT);
}

Status ServiceNotifier::Send(const std::string& message, int flags) {
  if (!active()) return Ok{};
  while (send(socket_.get(), message.data(), message.size(), flags | MSG_NOSIGNAL) < 0) {
    if (errno == EINTR) continue;
    return ErrnoError(errno, "telling the service manager " + message.substr(0, message.find('\n')));
  }
  return Ok{};
}

}  // namespace cleat
