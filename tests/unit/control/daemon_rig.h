// SPDX-License-Identifier: Apache-2.0
// cleatd with its API, in a folder of its own, and what tests of its store look at.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "control/daemon.h"
#include "tests/support/temp_dir.h"

namespace cleat::control {

inline std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class DaemonRig : public ::testing::Test {
 protected:
  // Not started: a test may want other options.
  DaemonRig() {
    options_.state_dir = dir_ / "state";
    std::filesystem::create_directory(options_.state_dir);
    options_.api_socket = dir_ / "api.sock";
    options_.engine_socket = dir_ / "engine.sock";
  }
  // Anew, when it has run before.
  void Start() {
    daemon_.reset();
    auto daemon = Daemon::Start(options_);
    CLEAT_CHECK(daemon.ok());
    daemon_ = std::move(*daemon);
  }
  HostState& state() { return daemon_->state(); }

  std::vector<std::string> FilesOfState() const {
    std::vector<std::string> names;
    for (const auto& file : std::filesystem::directory_iterator(options_.state_dir))
      names.push_back(file.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }

  test::TempDir dir_;
  DaemonOptions options_;
  std::unique_ptr<Daemon> daemon_;
};

}  // namespace cleat::control
