// SPDX-License-Identifier: Apache-2.0
// What a service tells the manager that started it, in systemd's words (sd_notify(3)): one datagram a message, to the
// socket that $NOTIFY_SOCKET names. Started by hand there is none, and nothing is sent.
//
// A value that is made once at the start and lives as long as the process. Any thread, one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/unique_fd.h"

namespace cleat {

class ServiceNotifier {
 public:
  // Where variables are looked up: getenv, but for tests.
  using Environment = std::function<const char*(const char* name)>;

  // Tells nobody.
  ServiceNotifier() = default;
  // From NOTIFY_SOCKET, and WATCHDOG_USEC unless WATCHDOG_PID is another process. An error when there is a socket and
  // it can't be used: the manager would wait for READY until it gives up.
  static Result<ServiceNotifier> FromEnvironment();
  static Result<ServiceNotifier> From(const Environment& environment);

  bool active() const { return socket_.valid(); }
  // Within this time the manager wants to hear Alive(), or it kills the process. 0: it doesn't.
  uint64_t watchdog_ns() const { return watchdog_ns_; }

  // The service serves from now on. Waits for room in the manager's queue. `status` is one line for people, as below.
  Status Ready(std::string_view status);
  // The service is ending.
  Status Stopping(std::string_view status);
  // Neither of these two waits; a message that finds no room is lost, and the next one is true again.
  Status Report(std::string_view status);
  Status Alive();

 private:
  Status Send(const std::string& message, int flags);

  UniqueFd socket_;  // connected
  uint64_t watchdog_ns_ = 0;
};

}  // namespace cleat
