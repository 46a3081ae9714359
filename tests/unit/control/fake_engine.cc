// SPDX-License-Identifier: Apache-2.0
#include "fake_engine.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "base/check.h"

namespace cleat::control {
namespace {

constexpr std::chrono::seconds kPatience{60};
constexpr int kPatienceMs = 60'000;

std::string Describe(const engine::v1::Envelope& envelope) {
  if (envelope.has_put_controller()) {
    return "PutController " + envelope.put_controller().controller().name() +
           (envelope.put_controller().standby() ? " standby" : "");
  }
  if (envelope.has_yield_controller()) return "YieldController " + envelope.yield_controller().name();
  if (envelope.has_take_controller()) {
    return "TakeController " + envelope.take_controller().name() +
           (envelope.take_controller().has_hand_over() ? " handed over" : "");
  }
  if (envelope.has_delete_controller()) return "DeleteController " + envelope.delete_controller().name();
  if (envelope.has_serve_controller()) return "ServeController " + envelope.serve_controller().name();
  if (envelope.has_attach()) {
    const auto& attachment = envelope.attach().attachment();
    return fmt::format("Attach {} {} {}", attachment.controller(), attachment.target(),
                       attachment.disk().name());
  }
  if (envelope.has_detach()) {
    return fmt::format("Detach {} {}", envelope.detach().controller(), envelope.detach().target());
  }
  if (envelope.has_keep_memory()) return "KeepMemory " + envelope.keep_memory().memory().disk();
  if (envelope.has_drop_memory()) return "DropMemory " + envelope.drop_memory().disk();
  if (envelope.has_fetch_memory()) return "FetchMemory " + envelope.fetch_memory().disk();
  if (envelope.has_resize_disk()) {
    return fmt::format("ResizeDisk {} {}", envelope.resize_disk().disk(),
                       envelope.resize_disk().size_bytes());
  }
  if (envelope.has_share_groups()) return "ShareGroups";
  if (envelope.has_read_path_lists()) return "ReadPathLists";
  if (envelope.has_put_group()) {
    return fmt::format("PutGroup {} {}", envelope.put_group().group().name(),
                       envelope.put_group().group().limits().iops().per_second());
  }
  if (envelope.has_drop_group()) return "DropGroup " + envelope.drop_group().name();
  if (envelope.has_limit_disk()) {
    return fmt::format("LimitDisk {} {}", envelope.limit_disk().disk(),
                       envelope.limit_disk().limits().iops().per_second());
  }
  if (envelope.has_discover()) {
    const engine::v1::Discover& discover = envelope.discover();
    return fmt::format("{} {} as {} {} in {} ms", discover.watch() ? "Watch" : "Discover", discover.address(),
                       discover.host_nqn(), discover.host_id(), discover.timeout_ms());
  }
  if (envelope.has_stop_discover()) return "StopDiscover";
  if (envelope.has_put_cluster()) return "PutCluster " + envelope.put_cluster().cluster().name();
  if (envelope.has_drop_cluster()) return "DropCluster " + envelope.drop_cluster().name();
  return fmt::format("? {}", static_cast<int>(envelope.body_case()));
}

// Of the process that is connecting: one at a time, for Connect() waits for its answer.
std::mutex connecting_mutex;
UniqueFd connecting_process;

}  // namespace

UniqueFd FakeEngine::OpenProcess(pid_t) {
  const std::lock_guard lock(connecting_mutex);
  return connecting_process.valid() ? connecting_process.Duplicate() : UniqueFd();
}

FakeEngine::FakeEngine(std::string socket_path, std::string name)
    : socket_path_(std::move(socket_path)), name_(std::move(name)) {}

FakeEngine::~FakeEngine() {
  Disconnect();
}

bool FakeEngine::Connect() {
  if (!process_.valid()) process_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  {
    const std::lock_guard lock(connecting_mutex);
    connecting_process = process_.Duplicate();
  }
  auto socket = ConnectSeqpacket(socket_path_);
  CLEAT_CHECK(socket.ok());
  socket_ = std::move(*socket);
  engine::v1::Envelope envelope;
  auto& hello = *envelope.mutable_hello();
  hello.set_protocol_min(protocol_min_);
  hello.set_protocol_max(protocol_max_);
  if (!stands_by_for_.empty()) hello.set_stands_by_for(stands_by_for_);
  if (!path_lists_.empty()) hello.set_path_lists(path_lists_);
  hello.set_engine(name_);
  hello.set_version("0.0.1");
  hello.set_incarnation(incarnation_);
  hello.set_reactors(2);
  hello.set_controllers_max(controllers_max_);
  std::vector<UniqueFd> fds;
  if (counters_.valid()) fds.push_back(counters_.Duplicate());
  Send(envelope, std::move(fds));
  refusal_ = WaitFor().hello_reply().refusal();
  {
    const std::lock_guard lock(connecting_mutex);
    connecting_process.Reset();
  }
  if (!refusal_.empty()) {
    socket_.Reset();
    return false;
  }
  // A chunk an object, as a large inventory would come.
  const auto chunk = [&](auto add) {
    engine::v1::Envelope piece;
    add(*piece.mutable_inventory());
    Send(piece);
  };
  for (const auto& [name, status] : controllers_) {
    chunk([&, &s = status](engine::v1::Inventory& inventory) { *inventory.add_controllers() = s; });
  }
  for (const auto& [key, status] : attachments_) {
    chunk([&, &s = status](engine::v1::Inventory& inventory) { *inventory.add_attachments() = s; });
  }
  groups_shared_ = false;
  for (const auto& [name, group] : groups_) {
    chunk([&, &g = group](engine::v1::Inventory& inventory) { *inventory.add_groups() = g; });
  }
  for (const auto& [name, cluster] : clusters_) {
    chunk([&, &c = cluster](engine::v1::Inventory& inventory) {
      engine::v1::Cluster& told = *inventory.add_clusters();
      told.set_name(c.name());
      told.set_revision(c.revision());
    });
  }
  for (const auto& [disk, fd] : memories_) {
    chunk([&, &d = disk](engine::v1::Inventory& inventory) { inventory.add_memories()->set_disk(d); });
  }
  chunk([](engine::v1::Inventory& inventory) { inventory.set_last(true); });
  thread_ = std::thread([this] { Run(); });
  return true;
}

void FakeEngine::EndConnection() {
  if (socket_.valid()) shutdown(socket_.get(), SHUT_RDWR);
  if (thread_.joinable()) thread_.join();
}

void FakeEngine::DisconnectBeforeAnswers() {
  EndConnection();
  Release();
  Disconnect();
}

void FakeEngine::Disconnect() {
  EndConnection();
  const std::lock_guard lock(mutex_);
  socket_.Reset();
  held_.clear();
  holding_ = frozen_ = false;
}

void FakeEngine::Restart() {
  Disconnect();
  Forget();
  CLEAT_CHECK(Connect());
}

void FakeEngine::Die() {
  Disconnect();
  Forget();
}

void FakeEngine::Forget() {
  controllers_.clear();
  attachments_.clear();
  memories_.clear();
  groups_.clear();
  clusters_.clear();
  to_yield_.Reset();
  taken_connections_.Reset();
  ++incarnation_;
  if (host_ != nullptr) host_->ReleaseAll(name_);
  const uint64_t one = 1;
  if (process_.valid()) CLEAT_CHECK(write(process_.get(), &one, sizeof(one)) == sizeof(one));
  process_.Reset();
}

// The reply to hello, before the thread runs.
engine::v1::Envelope FakeEngine::WaitFor() {
  for (;;) {
    pollfd state{.fd = socket_.get(), .events = POLLIN, .revents = 0};
    CLEAT_CHECK(poll(&state, 1, kPatienceMs) == 1);
    auto datagram = ReceiveDatagram(socket_.get());
    CLEAT_CHECK(datagram.ok());
    if (datagram->has_value()) return (*datagram)->envelope;
  }
}

void FakeEngine::Run() {
  for (;;) {
    pollfd state{.fd = socket_.get(), .events = POLLIN, .revents = 0};
    if (poll(&state, 1, -1) < 0) continue;
    auto datagram = ReceiveDatagram(socket_.get());
    if (!datagram.ok()) return;
    if (!datagram->has_value()) continue;
    const std::lock_guard lock(mutex_);
    if (filter_) (*datagram)->envelope = filter_((*datagram)->envelope);
    if ((*datagram)->envelope.has_heartbeat() && !frozen_) {
      Answer(std::move(**datagram));
      continue;
    }
    if (!(*datagram)->envelope.has_heartbeat()) requests_.push_back(Describe((*datagram)->envelope));
    if (frozen_ || (holding_ && requests_.back().starts_with(hold_prefix_))) {
      held_.push_back(std::move(**datagram));
    } else {
      Answer(std::move(**datagram));
    }
    changed_.notify_all();
  }
}

void FakeEngine::Answer(Datagram request) {
  engine::v1::Envelope envelope;
  envelope.set_id(request.envelope.id());
  std::vector<UniqueFd> fds;
  *envelope.mutable_reply() = Do(request, fds);
  if (envelope.reply().more()) return;  // the rest comes later
  Send(envelope, std::move(fds));
}

void FakeEngine::set_path_lists(const std::string& text) {
  const std::lock_guard lock(mutex_);
  path_lists_ = text;
}

std::map<std::string, engine::v1::Cluster> FakeEngine::Clusters() {
  const std::lock_guard lock(mutex_);
  return clusters_;
}

void FakeEngine::FailClusters(int times) {
  const std::lock_guard lock(mutex_);
  clusters_to_fail_ = times;
}

void FakeEngine::SetDiscovery(std::vector<engine::v1::Discovery> parts) {
  const std::lock_guard lock(mutex_);
  discovered_ = std::move(parts);
}

void FakeEngine::TellWatched(const std::vector<engine::v1::Discovery>& parts) {
  const std::lock_guard lock(mutex_);
  SendParts(watched_, parts, /*whole=*/true);
}

void FakeEngine::EndWatched(const std::string& code, const std::string& message) {
  engine::v1::Reply end;
  end.set_ok(false);
  end.set_code(code);
  end.set_message(message);
  const std::lock_guard lock(mutex_);
  SendReply(watched_, end);
}

engine::v1::Discover FakeEngine::LastDiscover() {
  const std::lock_guard lock(mutex_);
  return last_discover_;
}

void FakeEngine::FailDiscoveries(std::string code, std::string message) {
  const std::lock_guard lock(mutex_);
  discovered_.clear();
  fail_code_ = std::move(code);
  fail_message_ = std::move(message);
}

void FakeEngine::GrowDisk(const std::string& controller, uint32_t target, uint64_t size_bytes) {
  const std::lock_guard lock(mutex_);
  engine::v1::AttachmentStatus& status = attachments_.at({controller, target});
  status.mutable_attachment()->mutable_disk()->set_size_bytes(size_bytes);
  engine::v1::Envelope event;
  *event.mutable_status_event()->mutable_attachment() = status;
  Send(event);
}

void FakeEngine::FenceAttachment(const std::string& controller, uint32_t target, const std::string& message) {
  const std::lock_guard lock(mutex_);
  engine::v1::AttachmentStatus& status = attachments_.at({controller, target});
  status.set_state(engine::v1::ATTACHMENT_STATE_FENCED);
  status.set_message(message);
  engine::v1::Envelope event;
  *event.mutable_status_event()->mutable_attachment() = status;
  Send(event);
}

void FakeEngine::SetStorage(const std::string& controller, uint32_t target, engine::v1::StorageState storage,
                            engine::v1::AttachmentState state) {
  const std::lock_guard lock(mutex_);
  engine::v1::AttachmentStatus& status = attachments_.at({controller, target});
  status.set_state(state);
  status.set_storage_state(storage);
  status.set_message(storage == engine::v1::STORAGE_STATE_OK ? "" : "as its storage does");
  engine::v1::Envelope event;
  *event.mutable_status_event()->mutable_attachment() = status;
  Send(event);
}

void FakeEngine::SetPaths(const std::string& controller, uint32_t target,
                          const engine::v1::PathsStatus& paths) {
  const std::lock_guard lock(mutex_);
  engine::v1::AttachmentStatus& status = attachments_.at({controller, target});
  *status.mutable_paths() = paths;
  TellAttachment(status);
}

void FakeEngine::SetIoPath(const std::string& controller, uint32_t target, const std::string& io_path) {
  const std::lock_guard lock(mutex_);
  engine::v1::AttachmentStatus& status = attachments_.at({controller, target});
  status.set_io_path(io_path);
  engine::v1::Envelope event;
  *event.mutable_status_event()->mutable_attachment() = status;
  Send(event);
}

void FakeEngine::DropController(const std::string& controller) {
  const std::lock_guard lock(mutex_);
  controllers_.erase(controller);
  std::erase_if(attachments_, [&](const auto& attachment) { return attachment.first.first == controller; });
  if (host_ != nullptr) host_->Release(controller, name_);
  engine::v1::Envelope event;
  event.mutable_status_event()->set_controller_gone(controller);
  Send(event);
}

void FakeEngine::ReportCeph(const engine::v1::CephStatus& status) {
  const std::lock_guard lock(mutex_);
  engine::v1::Envelope event;
  *event.mutable_status_event()->mutable_ceph() = status;
  Send(event);
}

void FakeEngine::FailLimits(int times) {
  const std::lock_guard lock(mutex_);
  limits_to_fail_ = times;
}

void FakeEngine::FailShareGroups(int times) {
  const std::lock_guard lock(mutex_);
  shares_to_fail_ = times;
}

std::map<std::string, engine::v1::Group> FakeEngine::Groups() {
  const std::lock_guard lock(mutex_);
  return groups_;
}

void FakeEngine::FailResizes(int times) {
  const std::lock_guard lock(mutex_);
  resizes_to_fail_ = times;
}

void FakeEngine::ForgetLastDisk(const std::string& controller) {
  const std::lock_guard lock(mutex_);
  engine::v1::ControllerStatus& status = controllers_[controller];
  status.set_next_disk(attachments_[{controller, 0}].attachment().disk().identity());
  engine::v1::Envelope event;
  *event.mutable_status_event()->mutable_controller() = status;
  Send(event);
}

void FakeEngine::SetControllerState(const std::string& controller, engine::v1::ControllerState state) {
  const std::lock_guard lock(mutex_);
  SetState(controller, state);
}

engine::v1::Controller FakeEngine::ControllerAt(const std::string& controller) {
  const std::lock_guard lock(mutex_);
  return controllers_[controller].controller();
}

engine::v1::Disk FakeEngine::DiskAt(const std::string& controller, uint32_t target) {
  const std::lock_guard lock(mutex_);
  return attachments_.at({controller, target}).attachment().disk();
}

engine::v1::ControllerType FakeEngine::TypeOf(const std::string& controller) {
  const std::lock_guard lock(mutex_);
  return controllers_.at(controller).controller().type();
}

void FakeEngine::SetState(const std::string& name, engine::v1::ControllerState state) {
  controllers_[name].set_state(state);
  engine::v1::Envelope event;
  *event.mutable_status_event()->mutable_controller() = controllers_[name];
  Send(event);
}

void FakeEngine::FailYields(int times, std::string code, std::string message) {
  const std::lock_guard lock(mutex_);
  yields_to_fail_ = times;
  fail_code_ = std::move(code);
  fail_message_ = std::move(message);
}

void FakeEngine::FailTakes(int times) {
  const std::lock_guard lock(mutex_);
  takes_to_fail_ = times;
}

engine::v1::ControllerState FakeEngine::StateOf(const std::string& controller) {
  const std::lock_guard lock(mutex_);
  const auto found = controllers_.find(controller);
  return found == controllers_.end() ? engine::v1::CONTROLLER_STATE_UNSPECIFIED : found->second.state();
}

engine::v1::AttachmentState FakeEngine::StateOf(const std::string& controller, uint32_t target) {
  const std::lock_guard lock(mutex_);
  const auto found = attachments_.find({controller, target});
  return found == attachments_.end() ? engine::v1::ATTACHMENT_STATE_UNSPECIFIED : found->second.state();
}

engine::v1::HandOver FakeEngine::TakenWith() {
  const std::lock_guard lock(mutex_);
  return taken_with_;
}

bool FakeEngine::TakenWithCounters() {
  const std::lock_guard lock(mutex_);
  return taken_with_counters_;
}

void FakeEngine::GiveWithYield(UniqueFd connections) {
  const std::lock_guard lock(mutex_);
  to_yield_ = std::move(connections);
}

UniqueFd FakeEngine::TakeConnections() {
  const std::lock_guard lock(mutex_);
  return std::move(taken_connections_);
}

void FakeEngine::Send(const engine::v1::Envelope& envelope, std::vector<UniqueFd> fds) {
  Datagram datagram;
  datagram.envelope = filter_ ? filter_(envelope) : envelope;
  datagram.fds = std::move(fds);
  // A peer that is gone is noticed when it is read from.
  for (;;) {
    const auto sent = SendDatagram(socket_.get(), datagram);
    if (!sent.ok() || *sent) return;
    pollfd state{.fd = socket_.get(), .events = POLLOUT, .revents = 0};
    poll(&state, 1, -1);
  }
}

std::vector<std::string> FakeEngine::TakeRequests() {
  const std::lock_guard lock(mutex_);
  return std::exchange(requests_, {});
}

void FakeEngine::WaitForRequest(const std::string& request) {
  std::unique_lock lock(mutex_);
  const bool came = changed_.wait_for(lock, kPatience, [&] {
    return std::find(requests_.begin(), requests_.end(), request) != requests_.end();
  });
  CLEAT_CHECK(came);
}

void FakeEngine::FailAttaches(int times, std::string code, std::string message) {
  const std::lock_guard lock(mutex_);
  attaches_to_fail_ = times;
  fail_code_ = std::move(code);
  fail_message_ = std::move(message);
}

void FakeEngine::Hold(std::string prefix) {
  const std::lock_guard lock(mutex_);
  holding_ = true;
  hold_prefix_ = std::move(prefix);
}

void FakeEngine::Release() {
  const std::lock_guard lock(mutex_);
  holding_ = false;
  for (Datagram& request : std::exchange(held_, {})) Answer(std::move(request));
}

void FakeEngine::Freeze() {
  const std::lock_guard lock(mutex_);
  frozen_ = true;
}

void FakeEngine::Thaw() {
  {
    const std::lock_guard lock(mutex_);
    frozen_ = false;
  }
  Release();
}

bool FakeEngine::IsAskedInVain() {
  const std::lock_guard lock(mutex_);
  return std::any_of(held_.begin(), held_.end(),
                     [](const Datagram& held) { return held.envelope.has_heartbeat(); });
}

void FakeEngine::HangReactor(bool hangs) {
  const std::lock_guard lock(mutex_);
  reactor_hangs_ = hangs;
}

void FakeEngine::BreakAttachment(const std::string& controller, uint32_t target, const std::string& message) {
  const std::lock_guard lock(mutex_);
  engine::v1::AttachmentStatus& status = attachments_.at({controller, target});
  status.set_state(engine::v1::ATTACHMENT_STATE_FAILED);
  status.set_message(message);
  engine::v1::Envelope event;
  *event.mutable_status_event()->mutable_attachment() = status;
  Send(event);
}

void FakeEngine::Plant(const engine::v1::Controller& controller) {
  const std::lock_guard lock(mutex_);
  *controllers_[controller.name()].mutable_controller() = controller;
}

bool FakeEngine::Has(const std::string& controller, uint32_t target) {
  const std::lock_guard lock(mutex_);
  return attachments_.contains({controller, target});
}

UniqueFd FakeEngine::MemoryOf(const std::string& disk) {
  const std::lock_guard lock(mutex_);
  const auto it = memories_.find(disk);
  return it == memories_.end() ? UniqueFd() : it->second.Duplicate();
}

void FakeEngine::SetMemory(const std::string& disk, UniqueFd memory) {
  const std::lock_guard lock(mutex_);
  memories_[disk] = std::move(memory);
}

}  // namespace cleat::control
