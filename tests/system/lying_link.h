// SPDX-License-Identifier: Apache-2.0
// Stands between an engine and cleatd, passes on what they say to each other, and lies to cleatd when it is told to: that
// the engine has let a controller go when it has not. For negative controls, with the real cleatd and real engines.
//
// It has a thread of its own. One engine at a time; when it or cleatd ends the connection, it waits for the next. Its socket
// is there before the constructor returns.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "base/unique_fd.h"
#include "control/link/seqpacket.h"

namespace cleat::system_test {

class LyingLink {
 public:
  // What becomes of cleatd's YieldController.
  enum class Yield : uint8_t {
    kTruth,     // the engine is asked, and its answer passed on
    kTooEarly,  // the engine is asked, and cleatd told at once that it is done
    kNotAtAll,  // cleatd is told so, and the engine hears nothing of it, nor of anything that comes later
    kHeld,      // it waits until Release()
  };

  LyingLink(std::string path, std::string cleatd_path);
  ~LyingLink();
  LyingLink(const LyingLink&) = delete;
  LyingLink& operator=(const LyingLink&) = delete;

  const std::string& path() const { return path_; }
  // From the next one on; given a controller, of that alone. `before_lie` is called on the link's thread, before cleatd gets
  // its answer.
  void SetYield(Yield yield, std::function<void()> before_lie = {}, const std::string& controller = {});
  // So many wait.
  uint64_t held() const { return held_count_.load(); }
  void Release();
  // The engine gets another group memory than the one that cleatd shares with everybody. Before the engine connects.
  void KeepGroupsApart() { groups_apart_ = true; }

 private:
  void Run();
  bool Meet();
  bool Serve();
  bool ServeRelease();
  bool PassToEngine();
  bool PassToCleatd();
  bool HandleYield(control::Datagram datagram);
  void ReplaceMemory(control::Datagram& datagram);
  static bool Send(const UniqueFd& to, const control::Datagram& datagram);

  const std::string path_;
  const std::string cleatd_path_;
  bool groups_apart_ = false;
  UniqueFd listener_;
  UniqueFd wake_;
  UniqueFd engine_;
  UniqueFd cleatd_;
  std::set<uint64_t> answered_;  // ids of requests whose true answers nobody wants any more
  bool deaf_ = false;            // the engine hears nothing any more
  std::deque<control::Datagram> held_;
  std::atomic<uint64_t> held_count_{0};
  std::atomic<bool> stopping_{false};

  std::mutex mutex_;  // of what follows
  Yield yield_ = Yield::kTruth;
  std::function<void()> before_lie_;
  std::string controller_;
  bool release_ = false;

  std::thread thread_;
};

}  // namespace cleat::system_test
