// SPDX-License-Identifier: Apache-2.0
#include "engine/link/command_link.h"

#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>

#include "base/log_request.h"
#include "base/unix_socket.h"

namespace cleat::engine {
namespace {

constexpr uint64_t kRetryNs = 50 * kNsPerMs;
constexpr uint64_t kRefusedRetryNs =
    5 * kNsPerSecond;                    // cleatd is there and doesn't want us: another version?
constexpr size_t kOutgoingMax = 16384;   // messages; a cleatd that reads nothing for so long is hung up on
constexpr uint32_t kRequestsMax = 8192;  // running at once
constexpr size_t kFdsMax = 4;            // with one message

// The process that listens there must be root's or our own user's: it may tell us to open files.
Status CheckPeer(int fd, const std::string& path) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0)
    return ErrnoError(errno, "SO_PEERCRED of " + path);
  if (peer.uid != 0 && peer.uid != geteuid()) {
    return Error(ErrorCode::kPermissionDenied, path + " is served by user " + std::to_string(peer.uid) +
                                                   ": only root and this engine's user may command it");
  }
  return Ok{};
}

}  // namespace

struct CommandLink::Connection {
  struct Watch : FdWatch {
    explicit Watch(CommandLink& l) : FdWatch(&OnEvent), link(l) {}
    static void OnEvent(FdWatch& watch, uint32_t events) {
      CommandLink& link = static_cast<Watch&>(watch).link;
      if ((events & EPOLLOUT) != 0) link.Flush();
      if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR | EPOLLRDHUP)) != 0) link.OnReadable();
    }
    CommandLink& link;
  };

  Connection(CommandLink& link, UniqueFd s) : socket(std::move(s)), watch(link) {}

  UniqueFd socket;
  Watch watch;  // dies before the socket
  bool welcome = false;
  bool refused = false;
  bool broken = false;
  std::deque<Outgoing> outgoing;
  // Changes wait here until there is room, and so a thing that changes often is reported as it last was.
  std::set<std::string> changed_controllers;
  std::set<std::pair<std::string, uint32_t>> changed_attachments;
  // So do the logs of discovery services that are watched, by request: the last one of each.
  std::map<uint64_t, DiscoveryReport> watched_logs;
};

CommandLink::CommandLink(Reactor& control, Engine& engine, Options options)
    : control_(control),
      engine_(engine),
      options_(std::move(options)),
      hung_up_(control),
      gate_(control),
      takes_over_(control),
      discoveries_(engine),
      heartbeats_(control, options_.reactors) {}

CommandLink::~CommandLink() {
  CLEAT_CHECK(connection_ == nullptr);
}

void CommandLink::Start() {
  engine_.SetListener(this);
  CLEAT_CHECK(gate_.TryEnter());
  Spawn(KeepConnected());
}

void CommandLink::HangUp() {
  stopping_.Cancel();
  engine_.SetListener(nullptr);
}

Task<void> CommandLink::Stop() {
  HangUp();
  co_await gate_.Close();
}

Task<void> CommandLink::KeepConnected() {
  while (!stopping_.cancelled()) {
    uint64_t retry_ns = kRetryNs;
    auto connection = Connect();
    if (connection) {
      told_unreachable_ = false;
      connection_ = std::move(connection).value();
      ++connections_;
      hung_up_.Reset();
      HelloMessage hello = options_.hello;
      if (options_.paths != nullptr) hello.path_lists = options_.paths->Text();
      Send(EncodeHello(hello), options_.counters.Duplicate());
      co_await hung_up_.Wait(&stopping_);
      retry_ns = connection_->refused ? kRefusedRetryNs : kRetryNs;
      heartbeats_.End();
      discoveries_.StopAll();
      connection_.reset();
    } else if (!told_unreachable_) {
      told_unreachable_ = true;
      spdlog::warn(
          "cleatd: not reachable: {}; what is attached is served on, and cleatd tried again every {} ms",
          connection.error().message, kRetryNs / kNsPerMs);
    }
    co_await control_.SleepFor(retry_ns, &stopping_);
    if (takes_ == 0) continue;
    const Deadline deadline(control_, takes_over_, control_.now_ns() + options_.takes_wait_ns);
    co_await takes_over_.Wait(&stopping_);
  }
  gate_.Leave();
}

Result<std::unique_ptr<CommandLink::Connection>> CommandLink::Connect() {
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) return ErrnoError(errno, "socket");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (options_.socket_path.size() > kSocketPathBytesMax) {
    return Error(ErrorCode::kInvalidArgument, "socket path " + options_.socket_path + " is too long");
  }
  std::memcpy(address.sun_path, options_.socket_path.data(), options_.socket_path.size());
  if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return ErrnoError(errno, "connecting to " + options_.socket_path);
  }
  CLEAT_TRY(CheckPeer(socket.get(), options_.socket_path));
  auto connection = std::make_unique<Connection>(*this, std::move(socket));
  CLEAT_TRY(connection->watch.Start(control_, connection->socket.get(), EPOLLIN | EPOLLOUT | EPOLLRDHUP));
  return connection;
}

void CommandLink::HangUp(const std::string& why) {
  if (connection_ == nullptr || connection_->broken) return;
  spdlog::info("cleatd: connection ended: {}", why);
  connection_->broken = true;
  connection_->watch.Stop();
  hung_up_.Set();
}

void CommandLink::OnReadable() {
  while (connection_ != nullptr && !connection_->broken && ReceiveOne()) {
  }
}

// One datagram. False when there is none.
bool CommandLink::ReceiveOne() {
  static uint8_t buffer[kMessageBytesMax];  // the control reactor is one thread
  auto received = ReceiveWithFds(connection_->socket.get(), buffer, kFdsMax);
  if (!received) {
    HangUp(received.error().message);
    return false;
  }
  if (!*received) return false;
  ReceivedMessage& message = **received;
  if (message.bytes == 0) {
    HangUp("cleatd closed it");
    return false;
  }
  OnMessage({buffer, message.bytes}, std::move(message.fds));
  return true;
}

void CommandLink::OnMessage(std::span<const uint8_t> bytes, std::vector<UniqueFd> fds) {
  auto incoming = Decode(bytes);
  if (!incoming) {
    const uint64_t id = DecodeId(bytes);
    spdlog::warn("cleatd: message refused: {}", incoming.error().message);
    if (id == 0) {
      HangUp("it sent a message that can't be read");
    } else {
      Send(EncodeReply(id, std::move(incoming).error()));
    }
    return;
  }
  if (const auto* reply = std::get_if<HelloReplyMessage>(&incoming->body)) {
    Welcome(*reply);
    return;
  }
  if (!connection_->welcome) {
    HangUp("it sent a request before its hello");
    return;
  }
  if (std::holds_alternative<HeartbeatMessage>(incoming->body)) {
    heartbeats_.OnHeartbeat();
    return Send(EncodeProgress(incoming->id, heartbeats_.Progress()));
  }
  if (const auto* stop = std::get_if<StopDiscoverMessage>(&incoming->body)) {
    discoveries_.Stop(stop->discover);
    return Send(EncodeReply(incoming->id, Status(Ok{})));
  }
  if (gate_.inside() > kRequestsMax || !gate_.TryEnter()) {
    Send(EncodeReply(incoming->id,
                     Error(ErrorCode::kResourceExhausted, "this engine has too many requests running")));
    return;
  }
  const log::RequestScope request(incoming->request);
  Spawn(RunRequest(std::move(incoming).value(), std::move(fds), connections_));
}

void CommandLink::Welcome(const HelloReplyMessage& reply) {
  if (!reply.refusal.empty()) {
    spdlog::error("cleatd: refuses this engine: {}", reply.refusal);
    connection_->refused = true;
    HangUp("refused");
    return;
  }
  if (reply.protocol < kProtocolMin || reply.protocol > kProtocolMax) {
    HangUp("it chose protocol version " + std::to_string(reply.protocol) +
           ", which this engine does not speak");
    return;
  }
  connection_->welcome = true;
  SendInventory();
  if (reply.protocol >= kProtocolHeartbeats) heartbeats_.Begin();
  spdlog::info("cleatd: connected: protocol version {}", reply.protocol);
}

// Changes from here on are reported as changes: nothing lies between the inventory and the first of them.
void CommandLink::SendInventory() {
  for (auto& message : EncodeInventory(engine_.Controllers(), engine_.Attachments(), engine_.Memories(),
                                       engine_.Groups(), engine_.Clusters())) {
    Send(std::move(message));
  }
  if (ceph_ != CephReport{}) Send(EncodeCeph(ceph_));
}

Task<Status> CommandLink::ReadPathLists() {
  if (options_.paths == nullptr) co_return Ok{};
  const std::function<Status()> read = [paths = options_.paths] { return paths->Reload(); };
  Status status = co_await options_.reading->Run(read);
  if (connection_ != nullptr && connection_->welcome) Send(EncodePathLists(options_.paths->Text()));
  co_return status;
}

Task<void> CommandLink::RunRequest(Incoming request, std::vector<UniqueFd> fds, uint64_t connection) {
  const bool takes = std::holds_alternative<TakeControllerMessage>(request.body);
  if (takes && takes_++ == 0) takes_over_.Reset();
  Answer answer{Status(Ok{})};
  if (std::holds_alternative<ReadPathListsMessage>(request.body)) {
    answer.status = co_await ReadPathLists();
  } else if (auto* const discover = std::get_if<DiscoverMessage>(&request.body)) {
    answer = co_await Discover(request.id, std::move(discover->discovery), connection);
  } else {
    answer = co_await CarryOut(engine_, request, fds);
  }
  if (takes && --takes_ == 0) takes_over_.Set();
  if (IsCurrent(connection)) {
    FlushChanges();  // what a request did is known before its reply
    FlushLog(request.id);
    SendAnswer(request.id, std::move(answer));
  }
  gate_.Leave();
}

bool CommandLink::IsCurrent(uint64_t connection) const {
  return connection_ != nullptr && !connection_->broken && connections_ == connection;
}

Task<Answer> CommandLink::Discover(uint64_t id, DiscoverySpec discovery, uint64_t connection) {
  DiscoverySeen seen;
  if (discovery.watch) {
    seen = [this, id, connection](DiscoveryReport report) {
      if (!IsCurrent(connection)) return;
      connection_->watched_logs.insert_or_assign(id, std::move(report));
      Flush();
    };
  }
  return discoveries_.Ask(id, std::move(discovery), std::move(seen));
}

void CommandLink::SendAnswer(uint64_t id, Answer answer) {
  if (answer.discovery) {
    for (auto& part : EncodeDiscovery(id, *answer.discovery, /*goes_on=*/false)) Send(std::move(part));
    return;
  }
  Send(EncodeReply(id, answer.status, answer.hand_over ? &*answer.hand_over : nullptr), std::move(answer.fd));
}

void CommandLink::ReportCeph(CephReport report) {
  ceph_ = std::move(report);
  if (connection_ != nullptr && connection_->welcome) Send(EncodeCeph(ceph_));
}

void CommandLink::ControllerChanged(const std::string& controller) {
  if (connection_ == nullptr || !connection_->welcome) return;
  connection_->changed_controllers.insert(controller);
  Flush();
}

void CommandLink::AttachmentChanged(const std::string& controller, uint32_t target) {
  if (connection_ == nullptr || !connection_->welcome) return;
  connection_->changed_attachments.emplace(controller, target);
  Flush();
}

void CommandLink::FlushChanges() {
  Connection& connection = *connection_;
  for (const std::string& name : std::exchange(connection.changed_controllers, {})) {
    const auto report = engine_.ControllerByName(name);
    connection.outgoing.push_back(
        {report ? EncodeController(*report) : EncodeControllerGone(name), UniqueFd()});
  }
  for (const auto& [controller, target] : std::exchange(connection.changed_attachments, {})) {
    const auto report = engine_.AttachmentByKey(controller, target);
    connection.outgoing.push_back(
        {report ? EncodeAttachment(*report) : EncodeAttachmentGone(controller, target), UniqueFd()});
  }
}

// Sends the log of a service that is watched, if there is one that was not sent.
void CommandLink::FlushLog(uint64_t id) {
  const auto log = connection_->watched_logs.extract(id);
  if (log.empty()) return;
  for (auto& part : EncodeDiscovery(id, log.mapped(), /*goes_on=*/true))
    connection_->outgoing.push_back({std::move(part), UniqueFd()});
}

// There is room for what has waited.
void CommandLink::FlushWaiting() {
  FlushChanges();
  while (!connection_->watched_logs.empty()) FlushLog(connection_->watched_logs.begin()->first);
}

void CommandLink::Send(std::vector<uint8_t> bytes, UniqueFd fd) {
  if (connection_ == nullptr || connection_->broken) return;
  if (connection_->outgoing.size() >= kOutgoingMax) {
    HangUp("it does not read what it is sent");
    return;
  }
  connection_->outgoing.push_back({std::move(bytes), std::move(fd)});
  Flush();
}

void CommandLink::Flush() {
  if (connection_ == nullptr || connection_->broken) return;
  if (connection_->outgoing.empty()) FlushWaiting();
  while (!connection_->outgoing.empty()) {
    const Outgoing& next = connection_->outgoing.front();
    const iovec part{const_cast<uint8_t*>(next.bytes.data()), next.bytes.size()};
    const std::span<const UniqueFd> fds(&next.fd, next.fd ? 1 : 0);
    const auto sent = SendWithFds(connection_->socket.get(), {&part, 1}, fds);
    if (!sent) return HangUp(sent.error().message);
    if (*sent == 0) return;  // the watch says when there is room
    connection_->outgoing.pop_front();
    if (connection_->outgoing.empty()) FlushWaiting();
  }
}

}  // namespace cleat::engine
