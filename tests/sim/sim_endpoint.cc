// SPDX-License-Identifier: Apache-2.0
#include "sim_endpoint.h"

#include <algorithm>
#include <utility>

namespace cleat::sim {

using vhost::EndpointState;

SimNetwork::SimNetwork(World& world, const Plan& plan, Defect defect)
    : world_(world), plan_(plan), defect_(defect), random_(world.random().Next()) {}

SimNetwork::~SimNetwork() {
  CLEAT_CHECK(endpoints_.empty());
}

void SimNetwork::PeerChanged(const std::string& socket_path) {
  for (const auto& [key, endpoint] : endpoints_) {
    if (endpoint->options_.socket_path == socket_path) endpoint->peer_changed_.Pulse();
  }
}

Result<std::unique_ptr<vhost::Endpoint>> SimNetwork::Make(const vhost::EndpointOptions& options,
                                                          virtio::DeviceModel& model,
                                                          vhost::StatusFn on_status) {
  if (random_.Chance(plan_.make_fails_percent, 100)) {
    return world_.injections().Make(ErrorCode::kResourceExhausted, options.name + ": no device is left");
  }
  if (HasEndpoint(options.name)) world_.Violation(options.name + " has two endpoints");
  return std::unique_ptr<vhost::Endpoint>(
      std::make_unique<SimEndpoint>(*this, options, model, std::move(on_status)));
}

bool SimNetwork::HasEndpoint(const std::string& controller) const {
  return std::any_of(endpoints_.begin(), endpoints_.end(),
                     [&](const auto& entry) { return entry.second->options_.name == controller; });
}

std::string SimNetwork::Describe() const {
  std::string text = "endpoints:";
  for (const auto& [key, endpoint] : endpoints_) {
    const vhost::EndpointStatus status = endpoint->status();
    text += " " + endpoint->options_.name + " phase " + std::to_string(static_cast<int>(status.state)) +
            " rings " + std::to_string(status.rings_up) + " " + status.message + ";";
  }
  return text;
}

SimEndpoint::SimEndpoint(SimNetwork& network, const vhost::EndpointOptions& options,
                         virtio::DeviceModel& model, vhost::StatusFn on_status)
    : network_(network),
      options_(options),
      model_(model),
      on_status_(std::move(on_status)),
      id_(network.next_id_++),
      peer_changed_(network.world_.control()),
      stopped_(network.world_.control()) {
  network_.endpoints_.emplace(this, this);
}

SimEndpoint::~SimEndpoint() {
  if (phase_ != EndpointState::kStopped)
    network_.world_.Violation(options_.name + ": endpoint destroyed unstopped");
  network_.endpoints_.erase(this);
}

Status SimEndpoint::Start() {
  if (network_.random_.Chance(network_.plan_.start_fails_percent, 100)) {
    return network_.world_.injections().Make(ErrorCode::kAlreadyExists,
                                             options_.socket_path + " is a directory");
  }
  Spawn(Run());
  return Ok{};
}

Task<void> SimEndpoint::Stop() {
  if (phase_ == EndpointState::kStopped) co_return;
  cancel_.Cancel();
  if (connection_ != nullptr) {
    connection_->closed = true;
    connection_->wake.Pulse();
  }
  co_await stopped_.Wait();
}

// As an endpoint on a socket does: whoever is in the middle of a handshake is let finish it.
Task<Status> SimEndpoint::Yield(uint64_t deadline_ns) {
  Reactor& control = network_.world_.control();
  while (phase_ != EndpointState::kStopped && phase_ != EndpointState::kConnecting) {
    if (connection_ != nullptr) {
      auto yield = connection_->yield.Ask(deadline_ns);
      const Status yielded = co_await std::move(yield);
      if (yielded) break;
      if (yielded.error().code != ErrorCode::kCancelled) co_return yielded;
    } else if (control.now_ns() >= deadline_ns) {
      co_return Error(ErrorCode::kDeadlineExceeded, status().message);
    }
    co_await control.SleepFor(kYieldRetryNs);
  }
  auto stop = Stop();
  co_await std::move(stop);
  co_return Ok{};
}

Task<void> SimEndpoint::Run() {
  while (!cancel_.cancelled()) {
    EnterPhase(EndpointState::kConnecting);
    const auto peer = network_.peers_.find(options_.socket_path);
    if (peer == network_.peers_.end() || !peer->second->listening()) {
      co_await peer_changed_.Wait(&cancel_);
      continue;
    }
    auto serve = ServeOne(*peer->second);
    co_await std::move(serve);
    if (!last_error_.empty()) co_await network_.world_.control().SleepFor(kErrorDelayNs, &cancel_);
  }
  phase_ = EndpointState::kStopped;
  stopped_.Set();
}

Task<void> SimEndpoint::ServeOne(SimPeer& peer) {
  Reactor& control = network_.world_.control();
  ++connections_;
  last_error_.clear();
  vhost::Session::Options options;
  options.name = options_.name;
  options.io_reactors = options_.io_reactors;
  options.ownership = options_.ownership;
  options.memory_pinned = options_.memory_pinned;
  session_ = std::make_unique<vhost::Session>(std::move(options), control, network_.world_.blocking(), model_,
                                              [this] { Changed(); });
  Connection connection(*session_, model_, options_.name, id_, control);
  connection_ = &connection;
  session_->OnOwned([&connection] { connection.wake.Pulse(); });
  EnterPhase(EndpointState::kHandshake);
  auto serve = peer.Serve(connection);
  const Status served = co_await std::move(serve);
  connection_ = nullptr;
  connection.yield.End();
  if (!served) last_error_ = served.error().message;
  EnterPhase(EndpointState::kDraining);
  auto end = session_->End();
  co_await std::move(end);
  session_.reset();
  peer.Disconnected();
}

void SimEndpoint::EnterPhase(EndpointState phase) {
  phase_ = phase;
  Changed();
}

void SimEndpoint::Changed() {
  if (network_.defect_ != Defect::kHideStatus) on_status_();
}

vhost::EndpointStatus SimEndpoint::status() const {
  vhost::EndpointStatus status;
  status.state = phase_;
  status.message = last_error_;
  status.connections = connections_;
  if (session_ == nullptr) return status;
  status.rings_up = session_->rings_up();
  if (phase_ != EndpointState::kHandshake) return status;
  const std::string broken = session_->broken();
  if (!broken.empty()) {
    status.state = EndpointState::kBroken;
    status.message = broken;
  } else if (status.rings_up > 0) {
    status.state = EndpointState::kReady;
  } else if (session_->waits()) {
    status.message = session_->pending_reason();
  }
  return status;
}

}  // namespace cleat::sim
