// SPDX-License-Identifier: Apache-2.0
// Plays an engine: speaks the protocol over a real socket, keeps what it is given, fails and stalls on
// request. It has a thread of its own; all methods may be called from the test's.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "cleat/engine/v1/engine.pb.h"
#include "control/link/seqpacket.h"
#include "fake_host.h"

namespace cleat::control {

class FakeEngine {
 public:
  FakeEngine(std::string socket_path, std::string name = "engine-0");
  ~FakeEngine();

  // Connects and says hello with what it has. False, with `refusal`, when cleatd refuses.
  bool Connect();
  void Disconnect();
  // What is held is done, and its answers are lost.
  void DisconnectBeforeAnswers();
  // A new process: it has nothing any more.
  void Restart();
  // Its process ends: what it had is gone, its locks are free. Connect() starts a new one.
  void Die();

  const std::string& refusal() const { return refusal_; }
  void set_protocol(uint32_t version) { protocol_min_ = protocol_max_ = version; }
  // With a host it plays who serves what, and a virtio-blk controller with its disk is CONNECTING.
  void set_host(FakeHost* host) { host_ = host; }
  void set_stands_by_for(std::string engine) { stands_by_for_ = std::move(engine); }
  // Which paths it takes for listed: as its next hello says, and as it finds them when it is told to read them again.
  void set_path_lists(const std::string& text);
  void set_controllers_max(uint32_t max) { controllers_max_ = max; }
  // Each message goes through it in both directions, as through an engine of another version.
  using Filter = std::function<engine::v1::Envelope(const engine::v1::Envelope&)>;
  void set_filter(Filter filter) { filter_ = std::move(filter); }
  // For EngineLink: of the process that is connecting.
  static UniqueFd OpenProcess(pid_t pid);
  void set_incarnation(uint64_t incarnation) { incarnation_ = incarnation; }
  // Goes with the next hellos, if it is valid.
  void set_counters(UniqueFd counters) { counters_ = std::move(counters); }

  // The requests since the last call, as "Attach controllers/a 0 disks/d", in the order of their arrival.
  std::vector<std::string> TakeRequests();
  // Waits until that request has come (and not been taken).
  void WaitForRequest(const std::string& request);

  // The next attaches are answered with this error.
  void FailAttaches(int times, std::string code, std::string message);
  void FailResizes(int times);
  void FailLimits(int times);
  void FailShareGroups(int times);
  void FailYields(int times, std::string code, std::string message);
  void FailTakes(int times);
  // Requests are logged but not answered until Release(): all of them, or those that begin like this.
  void Hold(std::string prefix = {});
  void Release();
  // Its process is stopped: it reads and answers nothing, heartbeats too, until Thaw().
  void Freeze();
  void Thaw();
  bool IsAskedInVain();  // it has a heartbeat to answer when it goes on
  // What it says of its I/O reactor from now on: one that does not go on hangs. It is asleep until then.
  void HangReactor(bool hangs);
  // Tells cleatd, and takes it as a fact, that an attachment has failed by itself.
  void BreakAttachment(const std::string& controller, uint32_t target, const std::string& message);
  // Puts a controller there that nobody asked for.
  void Plant(const engine::v1::Controller& controller);

  // The guest of a blk controller has forgotten its last disk, and waits for the one that is attached.
  void ForgetLastDisk(const std::string& controller);
  void SetControllerState(const std::string& controller, engine::v1::ControllerState state);
  // As PutController told it last.
  engine::v1::Controller ControllerAt(const std::string& controller);
  engine::v1::Disk DiskAt(const std::string& controller, uint32_t target);
  // By name; empty when it has none.
  std::map<std::string, engine::v1::Group> Groups();
  std::map<std::string, engine::v1::Cluster> Clusters();
  // As an engine that knows no clusters.
  void FailClusters(int times);
  // What a discovery service says, in that many messages; without any, `code` and `message` are why it can't be read.
  void SetDiscovery(std::vector<engine::v1::Discovery> parts);
  void FailDiscoveries(std::string code, std::string message);
  // Of the service that it watches for that request, the first one: what it has now; why it is not watched any more.
  void TellWatched(const std::vector<engine::v1::Discovery>& parts);
  void EndWatched(const std::string& code, const std::string& message);
  engine::v1::Discover LastDiscover();
  // Of its own accord, and tells cleatd: the disk is larger; it is shut out of its storage.
  void GrowDisk(const std::string& controller, uint32_t target, uint64_t size_bytes);
  void FenceAttachment(const std::string& controller, uint32_t target, const std::string& message);
  // The same of how its storage does.
  void SetIoPath(const std::string& controller, uint32_t target, const std::string& io_path);
  void SetPaths(const std::string& controller, uint32_t target, const engine::v1::PathsStatus& paths);
  void SetStorage(const std::string& controller, uint32_t target, engine::v1::StorageState storage,
                  engine::v1::AttachmentState state = engine::v1::ATTACHMENT_STATE_ACTIVE);
  // Of its own accord, as no engine should: it has nothing of the controller any more, and says that and no word of its disks.
  void DropController(const std::string& controller);
  void ReportCeph(const engine::v1::CephStatus& status);
  engine::v1::ControllerType TypeOf(const std::string& controller);
  bool Has(const std::string& controller, uint32_t target);
  engine::v1::ControllerState StateOf(const std::string& controller);  // UNSPECIFIED: it has none
  engine::v1::AttachmentState StateOf(const std::string& controller, uint32_t target);
  // Of the last TakeController.
  engine::v1::HandOver TakenWith();
  bool TakenWithCounters();
  // The next controller that it yields brings that, as the connections of its hosts.
  void GiveWithYield(UniqueFd connections);
  // What came as such with the last TakeController; invalid: nothing, or it was taken from here before.
  UniqueFd TakeConnections();
  UniqueFd MemoryOf(const std::string& disk);
  // The engine has that, as if cleatd had given it.
  void SetMemory(const std::string& disk, UniqueFd memory);

 private:
  using Key = std::pair<std::string, uint32_t>;

  void EndConnection();
  void Run();
  void Answer(Datagram request);
  engine::v1::Reply Do(Datagram& request, std::vector<UniqueFd>& fds);
  engine::v1::Reply DoHeartbeat() const;
  engine::v1::Reply DoResize(const engine::v1::ResizeDisk& resize);
  engine::v1::Reply DoLimit(const engine::v1::LimitDisk& limit);
  void TellAttachment(const engine::v1::AttachmentStatus& status);
  engine::v1::Reply DoClusters(const engine::v1::Envelope& envelope);
  engine::v1::Reply DoDiscover(const engine::v1::Envelope& envelope);
  void SendParts(uint64_t request, const std::vector<engine::v1::Discovery>& parts, bool whole);
  void SendReply(uint64_t request, const engine::v1::Reply& reply);
  engine::v1::Reply DoGroups(Datagram& request);
  engine::v1::Reply DoYield(const std::string& name, std::vector<UniqueFd>& fds);
  engine::v1::Reply DoTake(Datagram& request);
  void SetState(const std::string& name, engine::v1::ControllerState state);
  void Forget();
  engine::v1::Reply DoAttach(const engine::v1::Attachment& attachment);
  void Send(const engine::v1::Envelope& envelope, std::vector<UniqueFd> fds = {});
  engine::v1::Envelope WaitFor();

  const std::string socket_path_;
  const std::string name_;
  uint32_t protocol_min_ = 1;
  uint32_t protocol_max_ = 15;
  uint32_t controllers_max_ = 100;
  std::string stands_by_for_;
  std::string path_lists_;
  FakeHost* host_ = nullptr;
  Filter filter_;
  UniqueFd process_;  // readable when it has died
  UniqueFd counters_;
  std::string refusal_;
  std::thread thread_;

  std::mutex mutex_;
  std::condition_variable changed_;
  UniqueFd socket_;
  uint64_t incarnation_ = 1;
  std::map<std::string, engine::v1::ControllerStatus> controllers_;
  std::map<Key, engine::v1::AttachmentStatus> attachments_;
  std::map<std::string, UniqueFd> memories_;
  std::map<std::string, engine::v1::Group> groups_;
  std::map<std::string, engine::v1::Cluster> clusters_;
  int clusters_to_fail_ = 0;
  std::vector<engine::v1::Discovery> discovered_;
  engine::v1::Discover last_discover_;
  uint64_t watched_ = 0;  // the request
  bool groups_shared_ = false;
  int limits_to_fail_ = 0;
  int shares_to_fail_ = 0;
  std::vector<std::string> requests_;
  std::deque<Datagram> held_;
  bool holding_ = false;
  std::string hold_prefix_;
  bool frozen_ = false;
  bool reactor_hangs_ = false;
  int yields_to_fail_ = 0;
  int takes_to_fail_ = 0;
  engine::v1::HandOver taken_with_;
  bool taken_with_counters_ = false;
  UniqueFd to_yield_;
  UniqueFd taken_connections_;
  int resizes_to_fail_ = 0;
  int attaches_to_fail_ = 0;
  std::string fail_code_;
  std::string fail_message_;
};

}  // namespace cleat::control
