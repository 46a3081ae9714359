// SPDX-License-Identifier: Apache-2.0
// What a cleat-engine is started with. A value of main's; read only by then.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/path_lists.h"
#include "base/result.h"
#include "engine/process/termination.h"
#include "engine/protocol/spec.h"

namespace cleat::engine {

inline constexpr uint32_t kReactorsMax = 64;
static_assert(kReactorsMax <= kHandOverWordsMax, "a disk has a cell of the counters on each of its reactors");

struct Settings {
  std::string name = "engine-0";
  std::string control_socket;  // cleatd's
  std::string runtime_dir;
  uint32_t reactors = 1;
  std::vector<uint32_t> cpus;  // reactor N's is the N-th; fewer, or none: not pinned
  uint32_t spin_us = 50;
  bool kernel_tls = false;
  uint32_t drain_s = Termination::kDrainSecondsDefault;
  std::vector<std::string> kek_files;
  std::string state_dir;  // cleatd's; empty: not known
  std::string paths_file = PathLists::kDefaultPath;
  bool secret_arena = true;
  std::string stands_by_for;
  bool check = false;
  std::string log_level = "info";
};

// Fills `settings` from the command line. Nothing, or the exit status with which the process is to end at once: help was
// asked for, or there was a mistake; people have been told by then.
std::optional<int> ParseSettings(int argc, const char* const* argv, Settings* settings);

// What `--check` looks at: the first thing that a start would refuse, or go on without - paths that may be opened, key-encryption keys,
// cores. Makes nothing, so that it can be asked beside an engine that serves.
Status CheckSettings(const Settings& settings);

}  // namespace cleat::engine
