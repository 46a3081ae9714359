// SPDX-License-Identifier: Apache-2.0
// A host to be measured: cleatd and one engine with one reactor, or more of those, in a folder of their own below the
// temporary directory. All end, and the folder goes, with it; also when this process is killed (the kernel ends them
// then). Of the thread that made it, which has to stay.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "../../system/process.h"
#include "base/result.h"

namespace cleat::bench {

struct HostOptions {
  std::string bin_dir;
  std::string parent_dir;                          // of its folder
  int engine_core = 0;                             // the reactors'
  std::string cleatd_preload = {};                 // LD_PRELOAD of cleatd
  bool with_keys = false;                          // engines know the key-encryption key that cleatd makes
  std::vector<std::string> cleatd_arguments = {};  // beside those that it always gets
};

// Of the API: "engine-0" is the one that there always is.
inline std::string EngineId(size_t number) {
  return "engine-" + std::to_string(number);
}

class BenchHost {
 public:
  static Result<std::unique_ptr<BenchHost>> Start(const HostOptions& options);
  ~BenchHost();
  BenchHost(const BenchHost&) = delete;
  BenchHost& operator=(const BenchHost&) = delete;

  const std::string& folder() const { return folder_; }
  std::string address() const { return "unix:" + folder_ + "/api.sock"; }
  std::string SocketOf(const std::string& controller) const { return folder_ + "/" + controller + ".sock"; }
  pid_t engine_pid() const { return engines_.front().process->pid(); }
  pid_t cleatd_pid() const { return cleatd_->pid(); }
  // Another one beside the first, "engine-1" and so on; not waited for. It is given `more` whenever it is started.
  Status AddEngine(const std::vector<std::string>& more = {});
  // SIGSTOP.
  void StopEngine(size_t engine = 0);
  // SIGKILL, and waits until it is gone. StartEngine then; it is not waited for.
  void KillEngine(size_t engine = 0) { engines_[engine].process->Kill(); }
  Status StartEngine(size_t engine = 0);
  // SIGTERM to all; an error when one does not end well. Done by the destructor otherwise, without a word.
  Status End();
  // The last lines of all logs, for a failure.
  std::string LogTails() const;

 private:
  struct Engine {
    std::string name;
    std::string log;  // without ".log"
    std::vector<std::string> more;
    std::unique_ptr<system_test::Process> process;
  };

  BenchHost(const HostOptions& options, std::string folder) : options_(options), folder_(std::move(folder)) {}
  std::string EngineSocket() const { return folder_ + "/engine.sock"; }
  Result<std::unique_ptr<system_test::Process>> Spawn(const std::string& program,
                                                      const std::vector<std::string>& arguments,
                                                      const std::string& log) const;

  const HostOptions options_;
  const std::string folder_;
  std::unique_ptr<system_test::Process> cleatd_;
  std::vector<Engine> engines_;
};

}  // namespace cleat::bench
