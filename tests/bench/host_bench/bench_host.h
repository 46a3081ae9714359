// SPDX-License-Identifier: Apache-2.0
// A host to be measured: cleatd and one engine with one reactor, in a folder of their own below the temporary
// directory. Both end, and the folder goes, with it; also when this process is killed (the kernel ends them then). Of
// the thread that made it, which has to stay.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "../../system/process.h"
#include "base/result.h"

namespace cleat::bench {

struct HostOptions {
  std::string bin_dir;
  std::string parent_dir;  // of its folder
  int engine_core = 0;     // the reactor's
};

class BenchHost {
 public:
  static Result<std::unique_ptr<BenchHost>> Start(const HostOptions& options);
  ~BenchHost();
  BenchHost(const BenchHost&) = delete;
  BenchHost& operator=(const BenchHost&) = delete;

  const std::string& folder() const { return folder_; }
  std::string address() const { return "unix:" + folder_ + "/api.sock"; }
  std::string SocketOf(const std::string& controller) const { return folder_ + "/" + controller + ".sock"; }
  pid_t engine_pid() const { return engine_->pid(); }
  pid_t cleatd_pid() const { return cleatd_->pid(); }
  // SIGKILL, and waits until it is gone. StartEngine then; it is not waited for.
  void KillEngine() { engine_->Kill(); }
  Status StartEngine();
  // SIGTERM to both; an error when one does not end well. Done by the destructor otherwise, without a word.
  Status End();
  // The last lines of both logs, for a failure.
  std::string LogTails() const;

 private:
  BenchHost(const HostOptions& options, std::string folder) : options_(options), folder_(std::move(folder)) {}
  std::string EngineSocket() const { return folder_ + "/engine.sock"; }
  Result<std::unique_ptr<system_test::Process>> Spawn(const std::string& program,
                                                      const std::vector<std::string>& arguments) const;

  const HostOptions options_;
  const std::string folder_;
  std::unique_ptr<system_test::Process> cleatd_;
  std::unique_ptr<system_test::Process> engine_;
};

}  // namespace cleat::bench
