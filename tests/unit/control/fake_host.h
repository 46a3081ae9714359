// SPDX-License-Identifier: Apache-2.0
// The host of engines that are played (fake_engine.h). Any thread.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace cleat::control {

// What the engines that are played have in common: the disks' locks. It knows who serves which controller, and of each
// attempt to serve one that another engine serves.
class FakeHost {
 public:
  // False, and noted, when another one serves it. `why`: what the engine was asked.
  bool Serve(const std::string& controller, const std::string& engine, const std::string& why);
  void Release(const std::string& controller, const std::string& engine);
  void ReleaseAll(const std::string& engine);
  std::string ServerOf(const std::string& controller);
  std::vector<std::string> Violations();

 private:
  std::mutex mutex_;
  std::map<std::string, std::string> servers_;
  std::vector<std::string> violations_;
};

}  // namespace cleat::control
