// SPDX-License-Identifier: Apache-2.0
// A pretend VM: QEMU's part as a SimPeer (negotiation, memory, rings up and down, connection lost and found) and the
// guest's as an Actor (requests on all its queues). Everything that it may choose is drawn from its seed. The test
// tells it what to go through; it does that when the protocol allows.
//
// Life of its rings: made when a connection begins that has none; kept over a lost connection, as QEMU keeps
// them, and served again from the used index; made anew after a reset, a kill, or when the endpoint is another one.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "guest_queue.h"
#include "sim_endpoint.h"

namespace cleat::sim {

struct GuestOptions {
  std::string name;  // for messages
  std::string socket_path;
  uint64_t seed = 1;
  uint16_t queues_max = 4;
  uint64_t think_ns_max = 100 * kNsPerUs;  // between two bursts of requests
  uint32_t burst_max = 6;
  Defect defect = Defect::kNone;
};

class SimGuest final : public SimPeer, public Actor {
 public:
  // From the serial that the guest reads, to the disk that it must be; the model is nullptr when there is none.
  using FindDiskFn = std::function<GuestDisk(const std::string& serial)>;

  SimGuest(World& world, SimNetwork& network, const GuestOptions& options, FindDiskFn find_disk);
  ~SimGuest() override;

  // ---- What the test does to it
  void PowerOn();
  void Kill();    // QEMU is gone, at once, with its memory
  void Hangup();  // the connection is lost; memory and rings stay, and it listens again
  void HangupInHandshake(uint32_t messages);  // of the next connection, after so many messages
  enum class Action : uint8_t { kReset, kPause, kResume, kHotPlug, kMisbehave };
  void Do(Action action);
  void AddLoad(uint64_t requests) { budget_ += requests; }
  void StopLoad() { budget_ = 0; }

  // ---- What it is up to
  const std::string& name() const { return options_.name; }
  bool powered() const { return powered_; }
  bool up() const { return up_; }                  // rings are served
  bool misbehaved() const { return misbehaved_; }  // its rings are broken by its own doing
  uint64_t open() const;
  uint64_t completed() const { return completed_; }
  // Nothing left to do: no actions waiting, no request without an answer that somebody could still give.
  bool Settled() const {
    return actions_.empty() && !acting_ && (!up_ || (open() == 0 && identified_)) && budget_ == 0;
  }

  // ---- SimPeer
  bool listening() const override { return powered_; }
  Task<Status> Serve(Connection& connection) override;
  void Disconnected() override;

  // ---- Actor
  bool Step() override;
  uint64_t NextNs() const override;
  std::string Describe() const override;

 private:
  bool Over(const Connection& connection);
  Task<Status> Converse(Connection& connection);
  Task<Status> Send(Connection& connection, Task<Status> message);
  Task<Status> Negotiate(Connection& connection);
  Task<Status> MapMemory(Connection& connection);
  Task<Status> SetInflight(Connection& connection);
  Task<Status> SetUpRing(Connection& connection, uint32_t index);
  Task<Status> SetUpRings(Connection& connection);
  Task<Status> Act(Connection& connection, Action action);
  Task<Status> Reset(Connection& connection);
  Task<Status> Pause(Connection& connection);
  Task<Status> Resume(Connection& connection);
  Task<Status> HotPlug(Connection& connection);
  void Misbehave();
  void MisbehavePacked(perf::PackedDriverRing& ring, uint64_t kind);

  void MakeMemory();
  void MakeQueues(Connection& connection);
  void DropQueues(DiskModel::Fate fate);
  void Identify(const std::string& serial);
  void Burst();

  World& world_;
  SimNetwork& network_;
  const GuestOptions options_;
  const FindDiskFn find_disk_;
  Random random_;

  bool powered_ = false;
  bool hang_up_ = false;
  bool up_ = false;
  bool acting_ = false;
  bool misbehaved_ = false;
  bool identified_ = false;
  Connection* connection_ = nullptr;
  uint64_t device_id_ = 0;  // the endpoint whose device the rings belong to
  uint64_t messages_left_ = UINT64_MAX;
  std::deque<Action> actions_;

  // Negotiated
  uint64_t features_ = 0;
  bool use_inflight_ = false;
  bool inflight_known_ = false;  // there is a log that fits the rings
  bool inflight_given_ = false;  // to this session
  vhost::Session::InflightArea inflight_;

  std::unique_ptr<perf::GuestMemory> memory_;
  bool plugged_ = false;  // the extra region is there
  std::unique_ptr<perf::LayoutPlanner> planner_;
  std::vector<std::unique_ptr<GuestQueue>> queues_;
  std::vector<bool> paused_;
  std::vector<OpenIo> orphans_;  // of a killed guest, until its requests have ended
  GuestDisk disk_;
  uint64_t budget_ = 0;
  uint64_t next_burst_ns_ = 0;
  uint64_t completed_ = 0;
};

}  // namespace cleat::sim
