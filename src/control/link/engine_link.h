// SPDX-License-Identifier: Apache-2.0
// The socket that engines connect to, and the one thread that serves them all (epoll). It checks who
// connects, agrees on the protocol's version, collects the inventory, matches replies to requests. What to
// ask for is the reconciler's affair: it gets its calls on this thread.
//
// proto/cleat/engine/v1/engine.proto has the conversation.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "cleat/engine/v1/engine.pb.h"
#include "control/link/seqpacket.h"
#include "control/observe/counters.h"

namespace cleat::control {

// A connection; never used again.
using PeerId = uint64_t;

struct EngineInfo {
  PeerId peer = 0;
  std::string id;  // the engine's name: an id as resources have
  std::string version;
  uint64_t incarnation = 0;
  uint32_t protocol = 0;
  uint32_t reactors = 0;
  uint32_t controllers_max = 0;
  std::string stands_by_for = {};  // an engine's name; empty: none
  std::string path_lists = {};     // as it said at its hello; empty: it is of before version 4
  pid_t pid = 0;                   // of the process that connected, in cleatd's name space
};

class EngineLink {
 public:
  // With each engine the newest version that both speak; from kProtocolMoves on it can give and take controllers.
  static constexpr uint32_t kProtocol = 15;
  static constexpr uint32_t kProtocolMin = 1;
  static constexpr size_t kPeersMax = 64;
  static constexpr size_t kInventoryMax = 65536;             // objects in an inventory
  static constexpr size_t kReplyBytesMax = size_t{1} << 20;  // of one answer, in all of its parts

  // Called on the link's thread.
  class Events {
   public:
    virtual ~Events() = default;
    // An engine said hello and told what it has. From now on it can be asked.
    virtual void OnEngine(const EngineInfo& info, engine::v1::Inventory inventory) = 0;
    virtual void OnStatus(PeerId peer, const engine::v1::StatusEvent& event) = 0;
    // After this no callback of its requests comes.
    virtual void OnGone(PeerId peer, const std::string& why) = 0;
    // After OnGone, when the process of that connection has ended: whatever it had, it has no more. An engine of that name
    // may be connected again by then.
    virtual void OnDead(const std::string& engine, uint64_t incarnation) = 0;
    // After Wake(), once for any number of them.
    virtual void OnWake() = 0;
    // Before each wait. What came before `read_until_ns` was told, unless there was more than could be read in 100 ms: what
    // has not come by then is late. Gives the time at which it wants to be called at the latest.
    virtual uint64_t OnTimer(uint64_t read_until_ns) = 0;
  };

  // What becomes readable when that process has ended (pidfd_open); invalid when that can't be had.
  using OpenProcess = std::function<UniqueFd(pid_t pid)>;
  using KillProcess = std::function<Status(int process)>;  // with what OpenProcess gave
  using Done = std::function<void(const engine::v1::Reply& reply, UniqueFd fd)>;

  // `clock` outlives it. Listens at once, answers nobody before Start().
  static Result<std::unique_ptr<EngineLink>> Listen(const std::string& path, const Clock& clock);
  ~EngineLink();

  // For tests, whose engines are all in one process. Before Start().
  void SetOpenProcess(OpenProcess open_process) { open_process_ = std::move(open_process); }
  void SetKillProcess(KillProcess kill_process) { kill_process_ = std::move(kill_process); }
  // Both outlive Stop(). The descriptor that comes with a hello goes to `counters`, and when an engine is gone it is told.
  void Start(Events& events, Counters* counters = nullptr);
  void Stop();  // idempotent; from any other thread

  // ---- For a simulation, in place of Start and Stop. The thread that calls these is the link's thread.
  void Begin(Events& events, Counters* counters = nullptr);
  // Serves all that has come, then the timer. Returns when it is to be called again at the latest, in nanoseconds of the clock; earlier when
  // wait_fd() is readable.
  uint64_t ServeRound();
  int wait_fd() const { return epoll_.get(); }
  // As the kernel does when the process dies: engines find their connections ended, and nothing is sent or accepted any more.
  void Cut();

  void Wake();  // any thread
  // Rises as long as the thread goes on, after each Wake() at the latest. Any thread.
  uint64_t rounds() const { return rounds_; }
  std::thread::id thread() const { return thread_.get_id(); }  // between Start() and Stop()
  // On the link's thread. Dropped without a call of `done` when the peer is gone or goes. `done` is called once, but for an answer that goes on
  // (Reply.whole): with each whole part of that, and `more`, and then with its end. Gives the request's id, 0 when the peer is gone.
  // `fds`: kDatagramFdsMax at most, each valid.
  uint64_t Request(PeerId peer, engine::v1::Envelope envelope, std::vector<UniqueFd> fds, Done done);
  // How many messages have come over that connection; 0 when it has ended.
  uint64_t received(PeerId peer) const;
  // On the link's thread. Nothing is told any more of the ends of that engine's processes whose connections have ended.
  void ForgetProcesses(const std::string& engine);
  // Sends SIGKILL to the process of that connection, and to no other: its end is told by OnDead. An error when that can't be done.
  Status Kill(PeerId peer);

 private:
  struct Peer;
  // Whose connection has ended, and who has not.
  struct Process {
    std::string engine;
    uint64_t incarnation = 0;
    UniqueFd fd;
  };
  EngineLink(UniqueFd listener, UniqueFd epoll, UniqueFd wake, std::string path, const Clock& clock);
  void Run();
  bool ServeReady(int wait_ms);  // false: nothing was ready
  void Accept();
  void Serve(Peer& peer, uint32_t epoll_events);
  void Receive(Peer& peer);
  void Handle(Peer& peer, Datagram datagram);
  void HandleHello(Peer& peer, Datagram& datagram);
  void HandleInventory(Peer& peer, const engine::v1::Inventory& chunk);
  void HandleReply(Peer& peer, Datagram& datagram);
  std::string WhyRefused(const Peer& peer, const engine::v1::Hello& hello);
  void TellGone(Peer& peer, bool lives);
  void AwaitDeath(Peer& peer);
  void ServeDeath(uint64_t token);
  void EraseProcesses(const std::function<bool(const Process& process)>& which);
  void Send(Peer& peer, Datagram datagram);
  void Flush(Peer& peer);
  void Doom(Peer& peer, std::string why);  // closed at the end of the round
  bool CloseDoomed();                      // true: there were some

  UniqueFd listener_;
  UniqueFd epoll_;
  UniqueFd wake_;
  const std::string path_;
  const Clock& clock_;
  Events* events_ = nullptr;
  Counters* counters_ = nullptr;
  std::atomic<uint64_t> rounds_{0};
  std::thread thread_;
  std::atomic<bool> stopping_ = false;
  PeerId last_peer_ = 0;
  std::map<PeerId, std::unique_ptr<Peer>> peers_;
  OpenProcess open_process_;
  KillProcess kill_process_;
  std::map<uint64_t, Process> processes_;  // by token
};

}  // namespace cleat::control
