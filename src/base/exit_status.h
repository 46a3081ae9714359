// SPDX-License-Identifier: Apache-2.0
// How a daemon ends: the exit status says whether starting it again may help, and a daemon that keeps failing waits longer and longer
// before it ends, since its service manager starts it again 100 ms later whatever the cause. Numbers are those of sysexits.h.
//
// main's thread.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace cleat {

enum class ExitStatus : uint8_t {
  kDone = 0,
  kFailed = 1,          // an engine's disks did not drain in time
  kUsage = 64,          // the command line
  kDamaged = 65,        // the store: damaged, missing
  kBusy = 69,           // another process has the store, a socket or an address
  kInternal = 70,       // a bug
  kSystem = 71,         // the operating system refuses memory, descriptors, threads
  kCantCreate = 73,     // a file system is full, or can't be written
  kIo = 74,             // storage fails
  kNoPermission = 77,   // the operating system lets this user not do it
  kConfiguration = 78,  // a file that options name, or what they say of this host
};

// Starting it again does not help before somebody has corrected something: RestartPreventExitStatus= of the units has the same.
bool IsFinal(ExitStatus status);

// Of an error at the start.
ExitStatus ExitStatusOf(const Error& error);

// For --help: a line each.
std::string ExitStatusHelp();

// Counts failures of a service in a file, which outlives the process and not the host. After a life, or a pause, of a minute and more it begins anew.
class RestartDelay {
 public:
  static constexpr uint64_t kFirstMs = 100;
  static constexpr uint64_t kMaxMs = 30'000;
  static constexpr uint64_t kCalmMs = 60'000;

  explicit RestartDelay(std::string path) : path_(std::move(path)) {}
  // How long to wait before the process ends, after a life of `lived_ms`; counts this failure. Twice as long each time. A count that can't be
  // kept gives the longest.
  uint64_t NextMs(uint64_t lived_ms);

 private:
  const std::string path_;
};

// The exit status of a daemon that could not serve, for main to return. Where a service manager restarts it (INVOCATION_ID) and that may
// help, waits first, by the count of `service` in `runtime_dir`; SIGTERM and SIGINT end the wait.
int EndAfter(ExitStatus status, const std::string& runtime_dir, const std::string& service,
             uint64_t lived_ms);

}  // namespace cleat
