// SPDX-License-Identifier: Apache-2.0
#include "vhost/socket_endpoint.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/log_request.h"
#include "base/process_state.h"
#include "block/memory_guard.h"

namespace cleat::vhost {
namespace {

constexpr uint64_t kLibraryRetryNs = kNsPerMs;
// Files that take no longer than this to close are not worth a line.
constexpr uint64_t kTellUnclosedNs = kNsPerSecond;

constexpr const char* kUntracked =
    "served, but not safe against the death of this engine: the peer keeps no log of requests in flight "
    "(vhost-user "
    "protocol feature INFLIGHT_SHMFD), and those could be lost or carried out twice. A stop in good order is "
    "safe. Use "
    "QEMU 9.1 or later, or restart the VM after the engine died";

std::string UnclosedFiles(size_t count) {
  return std::to_string(count) +
         " files that front ends have sent can't be closed: whoever is behind them does not answer (a FUSE "
         "server, the other end of a socket). Look at the VM's QEMU, which sends no such files; end what is "
         "behind them";
}

Error BlockedError() {
  return {ErrorCode::kPermissionDenied,
          "the front end made an eventfd of a ring blocking and filled it, so that a reactor waited. No "
          "connection is taken "
          "for " +
              std::to_string(SocketEndpoint::kBlockedDelayNs / kNsPerSecond / 60) +
              " minutes: look at the VM's QEMU, which no driver in the guest makes do that; delete the "
              "controller and make "
              "it anew to end that sooner"};
}

}  // namespace

// ---- SocketEndpointFactory

SocketEndpointFactory::SocketEndpointFactory(Reactor& control, BlockingPool& pool, ProtocolLibrary& library,
                                             SocketPaths* paths)
    : control_(control),
      pool_(pool),
      library_(library),
      paths_(paths == nullptr ? any_paths_ : *paths),
      close_aside_(control) {}

SocketEndpointFactory::~SocketEndpointFactory() {
  CLEAT_CHECK(endpoints_.empty());
}

void SocketEndpointFactory::MemoryWatch::OnBroken(FdWatch& watch, uint32_t /*epoll_events*/) {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = read(block::MemoryGuard::event_fd(), &count, sizeof count);
  for (SocketEndpoint* endpoint : static_cast<MemoryWatch&>(watch).factory.endpoints_)
    endpoint->CheckMemory();
}

Result<std::unique_ptr<Endpoint>> SocketEndpointFactory::Make(const EndpointOptions& options,
                                                              virtio::DeviceModel& model,
                                                              StatusFn on_status) {
  if (endpoints_.size() >= library_.devices_max()) {
    return Error(
        ErrorCode::kResourceExhausted,
        options.name + ": this engine has its " + std::to_string(library_.devices_max()) +
            " controllers, the most that the vhost library takes in a process: delete one, or use another "
            "engine on this host");
  }
  if (model.queues() == 0 || model.queues() > kRingsMax) {
    return Error(ErrorCode::kInvalidArgument, options.name + ": " + std::to_string(model.queues()) +
                                                  " queues; a controller has 1 to " +
                                                  std::to_string(kRingsMax));
  }
  if (!memory_watch_.watching() && block::MemoryGuard::event_fd() >= 0) {
    CLEAT_TRY(memory_watch_.Start(control_, block::MemoryGuard::event_fd(), EPOLLIN));
  }
  if (watcher_ == nullptr) watcher_ = std::make_unique<SocketPathWatcher>(control_);
  return std::unique_ptr<Endpoint>(
      std::make_unique<SocketEndpoint>(*this, options, model, std::move(on_status)));
}

// ---- SocketEndpoint

SocketEndpoint::SocketEndpoint(SocketEndpointFactory& factory, const EndpointOptions& options,
                               virtio::DeviceModel& model, StatusFn on_status)
    : factory_(factory),
      options_(options),
      model_(model),
      on_status_(std::move(on_status)),
      files_(factory.close_aside_,
             [this] {
               files_closed_.Set();
               connector_->FilesClosed();
             }),
      stopped_(factory.control_),
      files_closed_(factory.control_) {
  if (options.mode == SocketMode::kClient) {
    connector_ = std::make_unique<ClientConnector>(factory.control_, options.socket_path,
                                                   factory.watcher_.get(), factory.paths_);
  } else {
    connector_ =
        std::make_unique<ServerConnector>(factory.control_, options.socket_path, factory.paths_, &files_);
  }
  factory_.endpoints_.insert(this);
}

SocketEndpoint::~SocketEndpoint() {
  CLEAT_CHECK(phase_ == EndpointState::kStopped);
  factory_.endpoints_.erase(this);
}

Status SocketEndpoint::Start() {
  CLEAT_CHECK(phase_ == EndpointState::kStopped);
  Status started = connector_->Start();
  if (!started) return Error(started.error().code, options_.name + ": " + started.error().message);
  cancel_ = std::make_unique<CancelToken>();
  stopped_.Reset();
  last_error_.clear();
  blocked_ = false;
  phase_ = EndpointState::kConnecting;
  const log::RequestScope nobody("");  // what its peers do later is nobody's request
  Spawn(Run());
  return Ok{};
}

Task<void> SocketEndpoint::Stop() {
  if (phase_ == EndpointState::kStopped) co_return;
  cancel_->Cancel();
  if (relay_ != nullptr) relay_->Stop();
  co_await stopped_.Wait();
  Changed();
}

// A connection that ends meanwhile is drained as part of it, in the time that is left. One that still waits for the library
// has no ring, and is dropped at once.
Task<Status> SocketEndpoint::Yield(uint64_t deadline_ns) {
  Reactor& control = factory_.control_;
  while (serving_ || phase_ == EndpointState::kDraining) {
    if (serving_) {
      const Status yielded = co_await relay_->Yield(deadline_ns);
      if (yielded) break;
      if (yielded.error().code != ErrorCode::kCancelled) co_return yielded;
    } else if (control.now_ns() >= deadline_ns) {
      co_return Error(ErrorCode::kDeadlineExceeded, status().message);
    }
    co_await control.SleepFor(kLibraryRetryNs);
  }
  co_await Stop();
  co_return Ok{};
}

Task<void> SocketEndpoint::Run() {
  Reactor& control = factory_.control_;
  while (!cancel_->cancelled()) {
    phase_ = EndpointState::kConnecting;
    Changed();
    co_await AwaitRoomForFiles();
    auto peer = co_await connector_->Next(*cancel_);
    if (!peer && peer.error().code == ErrorCode::kResourceExhausted) continue;
    if (!peer) break;
    ++connections_;
    Status served = co_await Serve(std::move(peer).value());
    if (!served && !cancel_->cancelled()) {
      last_error_ = served.error().message;
      own_shortage_ = served.error().code == ErrorCode::kResourceExhausted;
      spdlog::warn("{}: front end disconnected: {}: {}", options_.name, options_.socket_path, last_error_);
    }
    if (!blocked_) continue;
    phase_ = EndpointState::kConnecting;
    Changed();
    co_await control.SleepFor(kBlockedDelayNs, cancel_.get());
  }
  connector_->Stop();
  phase_ = EndpointState::kStopped;
  stopped_.Set();
}

// A front end that sends files that hang has had its chance.
Task<void> SocketEndpoint::AwaitRoomForFiles() {
  Reactor& control = factory_.control_;
  const Deadline late(control, files_closed_, control.now_ns() + kTellUnclosedNs);
  for (bool told = false; !files_.has_room() && !cancel_->cancelled();) {
    files_closed_.Reset();
    if (late.passed() && !std::exchange(told, true)) {
      spdlog::warn("{}: no connection taken: {}", options_.name, UnclosedFiles(files_.closing()));
      Changed();
    }
    co_await files_closed_.Wait(cancel_.get());
  }
}

Task<Status> SocketEndpoint::Serve(UniqueFd peer) {
  Reactor& control = factory_.control_;
  phase_ = EndpointState::kHandshake;
  silent_ = had_ring_ = false;
  peer_process_ = IdentityOf(peer).process;
  connected_ns_ = control.now_ns();
  Session::Options session_options;
  session_options.name = options_.name;
  session_options.io_reactors = options_.io_reactors;
  session_options.memory_pinned = options_.memory_pinned;
  session_options.ownership = options_.ownership;
  session_ = std::make_unique<Session>(std::move(session_options), control, factory_.pool_, model_, [this] {
    if (session_ == nullptr) return;
    if (session_->rings_up() > 0) {
      last_error_.clear();
      if (!std::exchange(had_ring_, true)) connector_->PeerServed();
    }
    CheckBlocked();
    Changed();
  });
  relay_ = std::make_unique<Relay>(control, *session_, model_, &files_);
  spdlog::info("{}: front end connected: {}", options_.name, options_.socket_path);
  Changed();
  control.AddTimer(silence_timer_, connected_ns_ + kLookAtSilentNs);

  auto library = co_await ConnectLibrary();
  Status served = Ok{};
  if (library) {
    serving_ = true;
    served = co_await relay_->Run(std::move(peer), std::move(library).value());
    serving_ = false;
    if (relay_->yielded()) cancel_->Cancel();  // somebody else is the next one to connect
  } else {
    served = std::move(library).error();
    files_.CloseSocket(std::move(peer));
  }

  silence_timer_.Cancel();
  const bool useful = had_ring_ || control.now_ns() - connected_ns_ >= kUsefulNs;
  const bool own_shortage = !served.ok() && served.error().code == ErrorCode::kResourceExhausted;
  connector_->PeerLost({.good = own_shortage || (served.ok() && relay_->messages() > 0), .useful = useful});
  phase_ = EndpointState::kDraining;
  Changed();
  // A front end that was hung up on, or hung up, may be back; one whose controller is stopped will not.
  const bool stopped = cancel_->cancelled() && !factory_.process_ends_;
  co_await session_->End(stopped ? StopFor::kGuest : StopFor::kSuccessor);
  blocked_ = session_->blocked();
  if (blocked_) served = BlockedError();
  relay_.reset();
  session_.reset();
  co_return served;
}

Task<Result<UniqueFd>> SocketEndpoint::ConnectLibrary() {
  const Offer offer = session_->offer();
  for (;;) {
    auto library = factory_.library_.Connect(offer);
    if (library || library.error().code != ErrorCode::kUnavailable) co_return library;
    if (cancel_->cancelled()) co_return library;
    co_await factory_.control_.SleepFor(kLibraryRetryNs, cancel_.get());
  }
}

void SocketEndpoint::SilenceTimer::Fire(Timer& timer) {
  SocketEndpoint& endpoint = static_cast<SilenceTimer&>(timer).endpoint;
  if (endpoint.relay_ == nullptr || endpoint.relay_->messages() > 0) return;
  endpoint.LookAtSilentPeer();
}

// A listener that is stopped is told of soon, and looked at again: it may go on, and still not say a word.
void SocketEndpoint::LookAtSilentPeer() {
  Reactor& control = factory_.control_;
  const uint64_t silent_at_ns = connected_ns_ + kSilentPeerNs;
  auto stands_still = peer_process_ == 0 ? std::nullopt : WhyProcessStandsStill(peer_process_);
  if (stands_still || control.now_ns() < silent_at_ns) {
    control.AddTimer(silence_timer_, std::max(silent_at_ns, control.now_ns() + kLookAgainNs));
  }
  if (!stands_still && control.now_ns() < silent_at_ns) return;
  std::string why = std::move(stands_still).value_or("");
  if (std::exchange(silent_, true) && stands_still_ == why) return;
  stands_still_ = std::move(why);
  hidden_ = peer_process_ == 0 ? "" : WhyProcessIsHidden(peer_process_).value_or("");
  spdlog::warn("{}: front end is silent: {}", options_.name, status().message);
  Changed();
}

void SocketEndpoint::CheckMemory() {
  if (session_ == nullptr || relay_ == nullptr) return;
  std::string broken = session_->broken_memory();
  if (!broken.empty()) relay_->Fail(Error(ErrorCode::kInvalidArgument, std::move(broken)));
}

void SocketEndpoint::CheckBlocked() {
  if (serving_ && session_->blocked()) relay_->Fail(BlockedError());
}

void SocketEndpoint::Changed() {
  if (on_status_) on_status_();
}

EndpointStatus SocketEndpoint::status() const {
  EndpointStatus status;
  status.state = phase_;
  status.connections = connections_;
  const std::string before = last_error_.empty() ? "" : "; the last connection ended: " + last_error_;
  switch (phase_) {
    case EndpointState::kConnecting:
      // What broke stays in sight until a ring is up again. What this engine lacks is not the peer's fault.
      if (!last_error_.empty() && !own_shortage_) status.state = EndpointState::kBroken;
      status.message =
          (files_.has_room() ? connector_->waiting_for() : UnclosedFiles(files_.closing())) + before;
      break;
    case EndpointState::kHandshake: {
      status.rings_up = session_->rings_up();
      const std::string broken = session_->broken();
      if (!broken.empty()) {
        status.state = EndpointState::kBroken;
        status.message = broken + "; the guest has to reset the device";
      } else if (status.rings_up > 0) {
        status.state = EndpointState::kReady;
        const uint32_t draining = session_->draining_requests();
        if (draining > 0) {
          status.message =
              relay_->last_request() + " waits for " + std::to_string(draining) + " requests in the storage";
        } else if (session_->untracked()) {
          status.message = kUntracked;
        }
      } else if (session_->waits()) {
        status.message = "the guest's rings wait: " + session_->pending_reason();
      } else if (relay_->messages() > 0) {
        status.message = "connected, no ring is up (last message: " + relay_->last_request() +
                         "): waiting for the guest's driver" + before;
      } else if (silent_ && !stands_still_.empty()) {
        status.message = "connected to " + options_.socket_path +
                         ", whose listener does not go on: " + stands_still_ + before;
      } else if (silent_) {
        status.message = "connected to " + options_.socket_path + ", but the peer has not said a word. " +
                         (hidden_.empty() ? "Either another" : "Either " + hidden_ + "; or another") +
                         " back end is connected to it, or it is QEMU before 9.1 with a vhost-user-scsi "
                         "device, which can't reconnect: use QEMU 9.1 or later, or restart the VM" +
                         before;
      } else {
        status.message = "connected, waiting for the peer's first message" + before;
      }
      break;
    }
    case EndpointState::kDraining:
      status.message = std::to_string(session_ == nullptr ? 0 : session_->draining_requests()) +
                       " requests of the last connection are still in the storage";
      break;
    default:
      break;
  }
  return status;
}

}  // namespace cleat::vhost
