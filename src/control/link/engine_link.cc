// SPDX-License-Identifier: Apache-2.0
#include "control/link/engine_link.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <utility>

#include "base/log.h"
#include "control/model/model.h"
#include "control/model/names.h"

namespace cleat::control {
namespace {

// Tokens of epoll that aren't peers, which count from 1.
constexpr uint64_t kListenerToken = ~uint64_t{0};
constexpr uint64_t kWakeToken = ~uint64_t{0} - 1;
// Processes' tokens are those of the connections that they had, with this.
constexpr uint64_t kProcessToken = uint64_t{1} << 62;
constexpr size_t kProcessesMax = 256;
constexpr int kEventsPerRound = 64;
constexpr int kDatagramsPerTurn = 64;  // of one peer, before the others get theirs
constexpr uint64_t kReadNsMax =
    100 * kNsPerMs;  // before the timer: who never stops talking does not stop the time
constexpr int kWaitMsMax = 60'000;

bool Watch(const UniqueFd& epoll, int operation, int fd, uint64_t token, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = token;
  return epoll_ctl(epoll.get(), operation, fd, &event) == 0;
}

bool IsReadable(const UniqueFd& fd) {
  pollfd state{.fd = fd.get(), .events = POLLIN, .revents = 0};
  return poll(&state, 1, 0) > 0;
}

// The pid is that of the process which connected. It is looked at afterwards whether the connection still stands: then
// the pid was not another process' by the time of the call.
UniqueFd OpenPidfd(pid_t pid) {
  return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
}

Status KillByPidfd(int process) {
  if (syscall(SYS_pidfd_send_signal, process, SIGKILL, nullptr, 0) == 0) return Ok{};
  return ErrnoError(errno, "pidfd_send_signal");
}

}  // namespace

struct EngineLink::Peer {
  enum class Stage { kHello, kInventory, kServing };

  PeerId id = 0;
  UniqueFd socket;
  pid_t pid = 0;
  UniqueFd process;  // readable when it has ended; invalid: nobody can tell
  Stage stage = Stage::kHello;
  EngineInfo info;
  UniqueFd counters;  // that came with its hello
  engine::v1::Inventory inventory;
  uint64_t received = 0;  // messages
  uint64_t last_request = 0;
  struct Unanswered {
    Done done;
    engine::v1::Reply so_far;  // of an answer in parts
  };
  std::map<uint64_t, Unanswered> unanswered;
  std::deque<Datagram> unsent;
  bool doomed = false;
  std::string why;
};

Result<std::unique_ptr<EngineLink>> EngineLink::Listen(const std::string& path, const Clock& clock) {
  CLEAT_ASSIGN(auto listener, ListenSeqpacket(path));
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll.valid() || !wake.valid() ||
      !Watch(epoll, EPOLL_CTL_ADD, listener.get(), kListenerToken, EPOLLIN) ||
      !Watch(epoll, EPOLL_CTL_ADD, wake.get(), kWakeToken, EPOLLIN)) {
    return ErrnoError(errno, "epoll");
  }
  return std::unique_ptr<EngineLink>(
      new EngineLink(std::move(listener), std::move(epoll), std::move(wake), path, clock));
}

EngineLink::EngineLink(UniqueFd listener, UniqueFd epoll, UniqueFd wake, std::string path, const Clock& clock)
    : listener_(std::move(listener)),
      epoll_(std::move(epoll)),
      wake_(std::move(wake)),
      path_(std::move(path)),
      clock_(clock),
      open_process_(OpenPidfd),
      kill_process_(KillByPidfd) {}

EngineLink::~EngineLink() {
  Stop();
  unlink(path_.c_str());
}

void EngineLink::Start(Events& events, Counters* counters) {
  Begin(events, counters);
  thread_ = std::thread([this] { Run(); });
}

void EngineLink::Begin(Events& events, Counters* counters) {
  events_ = &events;
  counters_ = counters;
}

void EngineLink::Stop() {
  stopping_ = true;
  Wake();
  if (thread_.joinable()) thread_.join();
}

void EngineLink::Wake() {
  const uint64_t one = 1;
  // Full means that it is awake.
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
}

void EngineLink::Run() {
  while (!stopping_) {
    const uint64_t due_ns = ServeRound();
    ++rounds_;
    if (stopping_) break;
    const uint64_t now_ns = clock_.NowNs();
    const uint64_t wait_ms = due_ns > now_ns ? (due_ns - now_ns) / kNsPerMs + 1 : 0;
    ServeReady(static_cast<int>(std::min<uint64_t>(wait_ms, kWaitMsMax)));
  }
  peers_.clear();
}

uint64_t EngineLink::ServeRound() {
  // What has come by now is in time, also when this thread did not run for a while: it is read before the timer is told
  // how late it is.
  const uint64_t read_until_ns = clock_.NowNs();
  while (!stopping_ && ServeReady(0) && clock_.NowNs() - read_until_ns < kReadNsMax) {
  }
  if (stopping_) return read_until_ns;
  const uint64_t due_ns = events_->OnTimer(read_until_ns);
  return CloseDoomed() ? read_until_ns : due_ns;  // which may have begun something with a time of its own
}

void EngineLink::Cut() {
  stopping_ = true;
  shutdown(listener_.get(), SHUT_RDWR);
  for (const auto& [id, peer] : peers_) shutdown(peer->socket.get(), SHUT_RDWR);
}

bool EngineLink::ServeReady(int wait_ms) {
  std::array<epoll_event, kEventsPerRound> ready{};
  const int count = epoll_wait(epoll_.get(), ready.data(), kEventsPerRound, wait_ms);
  for (int i = 0; i < count; ++i) {
    const uint64_t token = ready[i].data.u64;
    if (token == kListenerToken) {
      Accept();
    } else if (token == kWakeToken) {
      uint64_t wakes = 0;
      [[maybe_unused]] const ssize_t got = read(wake_.get(), &wakes, sizeof(wakes));
      if (!stopping_) events_->OnWake();
    } else if ((token & kProcessToken) != 0) {
      ServeDeath(token);
    } else if (const auto peer = peers_.find(token); peer != peers_.end()) {
      Serve(*peer->second, ready[i].events);
    }
  }
  CloseDoomed();
  return count > 0;
}

void EngineLink::Accept() {
  UniqueFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket.valid()) return;
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) return;
  if (credentials.uid != geteuid() && credentials.uid != 0) {
    spdlog::warn(
        "engine socket: connection refused: process {} runs as user {}, an engine as user {} or root; start "
        "engines as cleatd's user",
        credentials.pid, credentials.uid, geteuid());
    return;
  }
  if (peers_.size() >= kPeersMax) {
    spdlog::warn(
        "engine socket: connection refused: process {} is one more than the {} that may connect; end those "
        "that are not needed",
        credentials.pid, kPeersMax);
    return;
  }
  auto peer = std::make_unique<Peer>();
  peer->id = ++last_peer_;
  peer->pid = credentials.pid;
  peer->socket = std::move(socket);
  peer->process = open_process_(credentials.pid);
  pollfd state{.fd = peer->socket.get(), .events = 0, .revents = 0};
  if (poll(&state, 1, 0) > 0 && (state.revents & POLLHUP) != 0) peer->process.Reset();
  if (!Watch(epoll_, EPOLL_CTL_ADD, peer->socket.get(), peer->id, EPOLLIN)) return;
  peers_.emplace(peer->id, std::move(peer));
}

void EngineLink::Serve(Peer& peer, uint32_t epoll_events) {
  // What a peer sent before it closed is still read.
  if ((epoll_events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) Receive(peer);
  if ((epoll_events & EPOLLOUT) != 0 && !peer.doomed) Flush(peer);
}

void EngineLink::Receive(Peer& peer) {
  for (int i = 0; i < kDatagramsPerTurn && !peer.doomed; ++i) {
    auto datagram = ReceiveDatagram(peer.socket.get());
    if (!datagram.ok()) return Doom(peer, datagram.error().message);
    if (!datagram->has_value()) return;
    ++peer.received;
    Handle(peer, std::move(**datagram));
  }
}

void EngineLink::Handle(Peer& peer, Datagram datagram) {
  const engine::v1::Envelope& envelope = datagram.envelope;
  if (peer.stage == Peer::Stage::kHello && envelope.has_hello()) {
    HandleHello(peer, datagram);
  } else if (peer.stage == Peer::Stage::kInventory && envelope.has_inventory()) {
    HandleInventory(peer, envelope.inventory());
  } else if (peer.stage == Peer::Stage::kServing && envelope.has_reply()) {
    HandleReply(peer, datagram);
  } else if (peer.stage == Peer::Stage::kServing && envelope.has_status_event()) {
    events_->OnStatus(peer.id, envelope.status_event());
  } else if (peer.stage != Peer::Stage::kInventory || !envelope.has_status_event()) {
    // (Events before the inventory's end are older than it.)
    Doom(peer, fmt::format("it sent message {} out of turn", static_cast<int>(envelope.body_case())));
  }
}

std::string EngineLink::WhyRefused(const Peer& peer, const engine::v1::Hello& hello) {
  if (hello.protocol_min() > kProtocol || hello.protocol_max() < kProtocolMin) {
    return fmt::format(
        "cleatd speaks protocol versions {} to {}, the engine {} to {}: upgrade the older of the two",
        kProtocolMin, kProtocol, hello.protocol_min(), hello.protocol_max());
  }
  if (auto status = CheckId("the engine's name", hello.engine()); !status.ok()) return status.error().message;
  if (!hello.stands_by_for().empty()) {
    if (auto status = CheckId("the engine that it stands by for", hello.stands_by_for()); !status.ok())
      return status.error().message;
    if (hello.stands_by_for() == hello.engine())
      return "an engine can't stand by for itself: name another one";
  }
  for (const auto& [id, other] : peers_) {
    if (id == peer.id || other->doomed || other->stage == Peer::Stage::kHello ||
        other->info.id != hello.engine()) {
      continue;
    }
    // A predecessor whose end has not been read yet, or the same process that lost its connection, makes way.
    pollfd state{.fd = other->socket.get(), .events = 0, .revents = 0};
    if (other->info.incarnation == hello.incarnation() ||
        (poll(&state, 1, 0) > 0 && (state.revents & POLLHUP) != 0)) {
      Doom(*other, "it connected anew");
      continue;
    }
    return fmt::format(
        "an engine of the name {} is connected already (process {}): give this one another name",
        hello.engine(), other->pid);
  }
  return {};
}

void EngineLink::TellGone(Peer& peer, bool lives) {
  events_->OnGone(peer.id, peer.why);
  if (counters_ != nullptr) counters_->OnGone(peer.info.id);
  if (!lives) AwaitDeath(peer);
}

// A process is waited for as long as it lives: an engine that only lost its connection serves on.
void EngineLink::AwaitDeath(Peer& peer) {
  if (!peer.process.valid()) {
    spdlog::error(
        "{}: end of process {} can't be noticed: it has no pidfd; its controllers stay with it until it "
        "connects again",
        EngineName(peer.info.id), peer.pid);
    return;
  }
  if (!IsReadable(peer.process)) {
    const uint64_t token = peer.id | kProcessToken;
    const bool watched =
        processes_.size() < kProcessesMax && Watch(epoll_, EPOLL_CTL_ADD, peer.process.get(), token, EPOLLIN);
    if (!watched) {
      spdlog::error(
          "{}: end of process {} can't be noticed: {} are watched already, or epoll refuses it; its "
          "controllers stay with it until it connects again",
          EngineName(peer.info.id), peer.pid, kProcessesMax);
      return;
    }
    processes_.emplace(
        token,
        Process{.engine = peer.info.id, .incarnation = peer.info.incarnation, .fd = std::move(peer.process)});
    return;
  }
  events_->OnDead(peer.info.id, peer.info.incarnation);
}

void EngineLink::ForgetProcesses(const std::string& engine) {
  EraseProcesses([&](const Process& process) { return process.engine == engine; });
}

void EngineLink::EraseProcesses(const std::function<bool(const Process& process)>& which) {
  for (auto it = processes_.begin(); it != processes_.end();) {
    const Process& process = it->second;
    if (!which(process)) {
      ++it;
      continue;
    }
    // Closing is not enough when somebody else has the same open file.
    Watch(epoll_, EPOLL_CTL_DEL, process.fd.get(), it->first, 0);
    it = processes_.erase(it);
  }
}

void EngineLink::ServeDeath(uint64_t token) {
  const auto node = processes_.extract(token);
  if (node.empty()) return;
  const Process& process = node.mapped();
  Watch(epoll_, EPOLL_CTL_DEL, process.fd.get(), token, 0);
  spdlog::warn(
      "{}: process ended; its guests wait for its next start, or for a standby that takes their controllers",
      EngineName(process.engine));
  events_->OnDead(process.engine, process.incarnation);
}

void EngineLink::HandleHello(Peer& peer, Datagram& datagram) {
  const engine::v1::Hello& hello = datagram.envelope.hello();
  Datagram reply;
  const std::string refusal = WhyRefused(peer, hello);
  if (!refusal.empty()) {
    reply.envelope.mutable_hello_reply()->set_refusal(refusal);
    Send(peer, std::move(reply));
    return Doom(peer, "refused: " + refusal);
  }
  // A predecessor's end comes before its successor's beginning.
  for (const auto& [id, other] : peers_) {
    if (other->doomed && other->info.id == hello.engine() && other->stage == Peer::Stage::kServing) {
      other->stage = Peer::Stage::kHello;
      TellGone(*other, other->info.incarnation == hello.incarnation());
    }
  }
  peer.info = {.peer = peer.id,
               .id = hello.engine(),
               .version = hello.version(),
               .incarnation = hello.incarnation(),
               .protocol = std::min(kProtocol, hello.protocol_max()),
               .reactors = hello.reactors(),
               .controllers_max = hello.controllers_max(),
               .stands_by_for = hello.stands_by_for(),
               .path_lists = hello.path_lists(),
               .pid = peer.pid};
  if (!datagram.fds.empty()) peer.counters = std::move(datagram.fds.front());
  peer.stage = Peer::Stage::kInventory;
  // The process lives and has connected anew: from now on the end of that connection tells of its death.
  EraseProcesses([&](const Process& process) {
    return process.engine == hello.engine() && process.incarnation == hello.incarnation();
  });
  reply.envelope.mutable_hello_reply()->set_protocol(peer.info.protocol);
  Send(peer, std::move(reply));
}

void EngineLink::HandleInventory(Peer& peer, const engine::v1::Inventory& chunk) {
  peer.inventory.MergeFrom(chunk);
  const size_t objects = static_cast<size_t>(peer.inventory.controllers_size()) +
                         static_cast<size_t>(peer.inventory.attachments_size()) +
                         static_cast<size_t>(peer.inventory.memories_size());
  if (objects > kInventoryMax)
    return Doom(peer, fmt::format("its inventory has more than {} objects", kInventoryMax));
  if (!chunk.last()) return;
  peer.stage = Peer::Stage::kServing;
  if (counters_ != nullptr) counters_->OnHello(peer.info.id, peer.info.incarnation, std::move(peer.counters));
  events_->OnEngine(peer.info, std::exchange(peer.inventory, {}));
}

void EngineLink::HandleReply(Peer& peer, Datagram& datagram) {
  const auto it = peer.unanswered.find(datagram.envelope.id());
  if (it == peer.unanswered.end()) {
    return Doom(peer, fmt::format("it answered request {}, which was not asked", datagram.envelope.id()));
  }
  engine::v1::Reply& so_far = it->second.so_far;
  so_far.MergeFrom(datagram.envelope.reply());
  if (datagram.envelope.reply().more()) {
    if (datagram.envelope.reply().whole()) {
      const engine::v1::Reply whole = std::exchange(so_far, {});
      return it->second.done(whole, UniqueFd());
    }
    if (so_far.ByteSizeLong() <= kReplyBytesMax) return;
    return Doom(peer, fmt::format("its answer to request {} has more than {} bytes", datagram.envelope.id(),
                                  kReplyBytesMax));
  }
  so_far.clear_more();  // of the parts before, which are one answer with this one
  const Peer::Unanswered answered = std::move(it->second);
  peer.unanswered.erase(it);
  answered.done(answered.so_far, datagram.fds.empty() ? UniqueFd() : std::move(datagram.fds.front()));
}

uint64_t EngineLink::Request(PeerId id, engine::v1::Envelope envelope, std::vector<UniqueFd> fds, Done done) {
  const auto it = peers_.find(id);
  if (it == peers_.end() || it->second->doomed) return 0;
  Peer& peer = *it->second;
  envelope.set_id(++peer.last_request);
  peer.unanswered.emplace(peer.last_request, Peer::Unanswered{.done = std::move(done), .so_far = {}});
  Datagram datagram;
  datagram.envelope = std::move(envelope);
  datagram.fds = std::move(fds);
  const uint64_t request = peer.last_request;
  Send(peer, std::move(datagram));
  return request;
}

uint64_t EngineLink::received(PeerId id) const {
  const auto it = peers_.find(id);
  return it == peers_.end() ? 0 : it->second->received;
}

Status EngineLink::Kill(PeerId id) {
  const auto it = peers_.find(id);
  if (it == peers_.end()) return Error(ErrorCode::kNotFound, "its connection has ended");
  const Peer& peer = *it->second;
  if (!peer.process.valid())
    return Error(ErrorCode::kUnavailable, fmt::format("process {} has no pidfd", peer.pid));
  return kill_process_(peer.process.get());
}

void EngineLink::Send(Peer& peer, Datagram datagram) {
  peer.unsent.push_back(std::move(datagram));
  if (peer.unsent.size() == 1) Flush(peer);
}

// The queue is bounded by what the reconciler asks at once: one request a controller and one a memory disk.
void EngineLink::Flush(Peer& peer) {
  while (!peer.unsent.empty()) {
    auto sent = SendDatagram(peer.socket.get(), peer.unsent.front());
    if (!sent.ok()) return Doom(peer, sent.error().message);
    if (!*sent) break;
    peer.unsent.pop_front();
  }
  const uint32_t events = peer.unsent.empty() ? EPOLLIN : EPOLLIN | EPOLLOUT;
  if (!Watch(epoll_, EPOLL_CTL_MOD, peer.socket.get(), peer.id, events))
    Doom(peer, "epoll refused its socket");
}

void EngineLink::Doom(Peer& peer, std::string why) {
  if (peer.doomed) return;
  peer.doomed = true;
  peer.why = std::move(why);
}

bool EngineLink::CloseDoomed() {
  bool any = false;
  for (auto it = peers_.begin(); it != peers_.end();) {
    Peer& peer = *it->second;
    if (!peer.doomed) {
      ++it;
      continue;
    }
    const bool told = peer.stage == Peer::Stage::kServing;
    spdlog::warn("{}: connection to cleatd ended: {} (process {})",
                 peer.info.id.empty() ? "engine socket" : EngineName(peer.info.id), peer.why, peer.pid);
    const std::unique_ptr<Peer> gone = std::move(it->second);
    it = peers_.erase(it);
    gone->socket.Reset();
    if (told) TellGone(*gone, false);
    any = true;
  }
  return any;
}

}  // namespace cleat::control
