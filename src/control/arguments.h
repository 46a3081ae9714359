// SPDX-License-Identifier: Apache-2.0
// What a cleatd is started with. A value of main's.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/paths.h"
#include "base/result.h"
#include "control/daemon.h"

namespace cleat::control {

struct Arguments {
  std::string state_dir = DefaultStateDir();
  std::string paths_file = PathLists::kDefaultPath;
  std::string listen;         // empty: the default socket
  std::string engine_socket;  // empty: the default one
  std::string group;
  std::vector<std::string> grants;
  std::string tls_listen;
  TlsFiles tls;
  std::string metrics_address;
  bool metrics_histograms = true;
  std::string audit_log;
  bool audit_required = false;
  std::vector<std::string> kek_files;
  uint32_t keep_deleted_days = kKeepDeletedDaysDefault;
  uint32_t kill_silent_engine_s = 0;
  bool secret_arena = true;
  bool wiping_free = true;
  bool check = false;
  std::string log_level = "info";
};

// Fills `arguments` from the command line. Nothing, or the exit status with which the process is to end at once: help was
// asked for, or there was a mistake; people have been told by then.
std::optional<int> ParseArguments(int argc, const char* const* argv, Arguments* arguments);

// What they say of the daemon, checked. The log is there.
Result<DaemonOptions> OptionsFrom(const Arguments& arguments);
// Makes the folders of the state and of the sockets.
Status MakeFolders(const DaemonOptions& options);

}  // namespace cleat::control
