// SPDX-License-Identifier: Apache-2.0
// A VM host in a private folder: a real cleatd and a real cleat-engine, their sockets, their state, files for
// disks. To be used from the test's main thread (see process.h); the API from any.
//
// The destructor ends both, removes the folder, and fails the test when a process had died by itself or a
// sanitizer had something to say. Of a failed test it prints the ends of the logs; with CLEAT_TEST_KEEP set
// the folder stays.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "api.h"
#include "process.h"
#include "product.h"

namespace cleat::system_test {

inline constexpr const char* kEngineId = "engine-0";
inline constexpr const char* kEngineName = "engines/engine-0";

#if defined(CLEAT_ASAN)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

struct HostOptions {
  uint32_t reactors = 1;
  bool as_nobody = false;  // both processes; only for root. Ignored otherwise: they are unprivileged already
  bool with_engine = true;
  std::string listed_folder =
      {};                  // of the private folder, below which alone disks' files may be; empty: anywhere
  bool with_keys = false;  // the engine has cleatd's key-encryption key
  std::string log_level = "info";
  std::vector<std::string> cleatd_arguments = {};  // beside those that it always gets
  std::vector<std::string> engine_arguments = {};  // likewise
  uint64_t engine_open_files = 0;                  // that all engines may have; 0: as the test
  std::string engine_preload = {};                 // a library that negative controls give to all engines
  std::string cleatd_preload = {};                 // likewise, to cleatd
  Product cleatd = {};                             // the version that each of them is at first
  Product engine = {};                             // all engines
};

class Host {
 public:
  // Ready when it is made: the API answers and the engine, if there is to be one, is connected. Check ok().
  explicit Host(const HostOptions& options = {});
  ~Host();
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  bool ok() const { return ok_; }
  Api& api() { return *api_; }
  std::string address() const { return "unix:" + Path("api.sock"); }

  // In the private folder; usable by both processes.
  std::string Path(const std::string& name) const { return directory_ + "/" + name; }
  // A file of `size_bytes` that the processes may read and write.
  std::string MakeFile(const std::string& name, uint64_t size_bytes, unsigned mode = 0600);
  // Hands a file or socket to the user that the processes run as.
  void GiveAway(const std::string& path) const;
  bool as_nobody() const { return as_nobody_; }

  // ---- Processes.
  Process& cleatd() { return *cleatd_; }
  Process& engine() { return *engine_; }
  void StartCleatd();
  void StartEngine();
  void KillCleatd() { cleatd_->Kill(); }
  void KillEngine() { engine_->Kill(); }
  // kill -9, and a new one; returns when the engine is connected again.
  void RestartCleatd();
  void RestartEngine();
  // SIGTERM; the exit status has to be 0.
  void TerminateEngine();
  void TerminateCleatd();
  // Of another version from the next start on.
  void SetCleatd(const Product& product) { cleatd_product_ = product; }
  void SetEngine(const std::string& id, const Product& product) { engine_products_[id] = product; }
  // One more engine on this host, with the arguments that the first one has, until the host ends; returns when it is connected.
  // Given a socket, that is where it looks for cleatd.
  void AddEngine(const std::string& id, const std::vector<std::string>& arguments = {},
                 const std::string& control_socket = {});
  // Of any engine, by id.
  Process& engine(const std::string& id);
  void StartEngine(const std::string& id);  // again
  // Until the engine is connected: the process that runs now, by the number that each start of one has. Of one that was
  // killed cleatd may still think so, as long as it has not seen its connection end.
  bool WaitEngine(const std::string& id = kEngineId);
  // Once they are steady: descriptors and threads go away a little after what they belonged to. Waits until `done` likes
  // them (false when it never does).
  using LikesStats = std::function<bool(const ProcessStats&)>;
  static bool WaitStats(Process& process, const LikesStats& done, ProcessStats* last);
  bool WaitEngineStats(const LikesStats& done, ProcessStats* last) { return WaitStats(*engine_, done, last); }

  // ---- Logs. How many of the engine's lines hold `text`; from all its lives.
  size_t CountInEngineLog(std::string_view text) const;
  // Until a line does. What a daemon says of a change may come a little after the change can be seen.
  bool WaitEngineLog(std::string_view text, uint64_t timeout_ns = kWaitTimeoutNs);
  bool WaitCleatdLog(std::string_view text, uint64_t timeout_ns = kWaitTimeoutNs);
  std::string engine_log() const { return ReadTextFile(Path("cleat-engine.log")); }
  std::string cleatd_log() const { return ReadTextFile(Path("cleatd.log")); }

  // ---- Short cuts; they fail the test and return false when something goes wrong.
  // A disk and a controller of the same id with the socket Path(id + ".sock"), attached and READY.
  bool AttachNew(const std::string& id, const v1::DiskSpec& disk, uint32_t queues = 1,
                 v1::SocketMode mode = v1::SOCKET_MODE_CLIENT, bool read_only = false);
  // The opposite, until the lists have neither.
  bool Remove(const std::string& id);
  std::string SocketPath(const std::string& id) const { return Path(id + ".sock"); }
  bool WaitController(const std::string& id, v1::ControllerState state, std::string* message = nullptr);

 private:
  std::unique_ptr<Process> Spawn(const std::string& program, const std::vector<std::string>& arguments,
                                 const std::string& log, const std::string& preload = {},
                                 uint64_t open_files = 0);
  const Product& EngineProduct(const std::string& id) const;
  std::unique_ptr<Process> SpawnEngine(const std::string& id, const std::string& log,
                                       const std::vector<std::string>& more = {},
                                       const std::string& control_socket = {});
  bool IsOfProcess(const v1::EngineStatus& status, const std::string& id);
  void End(std::unique_ptr<Process>* process, const std::string& name);
  void CheckLog(const std::string& name) const;

  const HostOptions options_;
  const bool as_nobody_;
  std::string directory_;
  Product cleatd_product_;
  std::map<std::string, Product> engine_products_;  // by id; the others are options_.engine
  std::unique_ptr<Process> cleatd_;
  std::unique_ptr<Process> engine_;
  std::map<std::string, std::unique_ptr<Process>> more_engines_;  // by id
  std::unique_ptr<Api> api_;
  bool ok_ = false;
};

}  // namespace cleat::system_test
