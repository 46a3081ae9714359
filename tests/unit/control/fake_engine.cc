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
  if (envelope.has_put_group()) {
    return fmt::format("PutGroup {} {}", envelope.put_group().group().name(),
                       envelope.put_group().group().limits().iops().per_second());
  }
  if (envelope.has_drop_group()) return "DropGroup " + envelope.drop_group().name();
  if (envelope.has_limit_disk()) {
    return fmt::format("LimitDisk {} {}", envelope.limit_disk().disk(),
                       envelope.limit_disk().limits().iops().per_second());
  }
  if (envelope.has_put_cluster()) return "PutCluster " + envelope.put_cluster().cluster().name();
  if (envelope.has_drop_cluster()) return "DropCluster " + envelope.drop_cluster().name();
  return fmt::format("? {}", static_cast<int>(envelope.body_case()));
}

engine::v1::Reply Good() {
  engine::v1::Reply reply;
  reply.set_ok(true);
  return reply;
}

engine::v1::Reply Bad(const std::string& code, const std::string& message) {
  engine::v1::Reply reply;
  reply.set_ok(false);
  reply.set_code(code);
  reply.set_message(message);
  return reply;
}

// Of the process that is connecting: one at a time, for Connect() waits for its answer.
std::mutex connecting_mutex;
UniqueFd connecting_process;

}  // namespace

// ---- The host ----

bool FakeHost::Serve(const std::string& controller, const std::string& engine, const std::string& why) {
  const std::lock_guard lock(mutex_);
  std::string& server = servers_[controller];
  if (!server.empty() && server != engine) {
    violations_.push_back(fmt::format("{} on {}, while {} serves it", why, engine, server));
    return false;
  }
  server = engine;
  return true;
}

void FakeHost::Release(const std::string& controller, const std::string& engine) {
  const std::lock_guard lock(mutex_);
  if (servers_[controller] == engine) servers_[controller].clear();
}

void FakeHost::ReleaseAll(const std::string& engine) {
  const std::lock_guard lock(mutex_);
  for (auto& [controller, server] : servers_) {
    if (server == engine) server.clear();
  }
}

std::string FakeHost::ServerOf(const std::string& controller) {
  const std::lock_guard lock(mutex_);
  return servers_[controller];
}

std::vector<std::string> FakeHost::Violations() {
  const std::lock_guard lock(mutex_);
  return violations_;
}

// ---- The engine ----

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

void FakeEngine::Disconnect() {
  if (socket_.valid()) shutdown(socket_.get(), SHUT_RDWR);
  if (thread_.joinable()) thread_.join();
  const std::lock_guard lock(mutex_);
  socket_.Reset();
  held_.clear();
  holding_ = false;
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
    requests_.push_back(Describe((*datagram)->envelope));
    if (holding_ && requests_.back().starts_with(hold_prefix_)) {
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
  Send(envelope, std::move(fds));
}

engine::v1::Reply FakeEngine::Do(Datagram& request, std::vector<UniqueFd>& fds) {
  const engine::v1::Envelope& envelope = request.envelope;
  if (envelope.has_put_controller()) {
    const auto& controller = envelope.put_controller().controller();
    if (!controller.group().empty() && !groups_.contains(controller.group())) {
      return Bad("not_found", controller.group() + " is not here");
    }
    *controllers_[controller.name()].mutable_controller() = controller;
    SetState(controller.name(), envelope.put_controller().standby() ? engine::v1::CONTROLLER_STATE_STANDBY
                                                                    : engine::v1::CONTROLLER_STATE_IDLE);
    return Good();
  }
  if (envelope.has_serve_controller()) {
    const std::string& name = envelope.serve_controller().name();
    controllers_[name].set_state(engine::v1::CONTROLLER_STATE_CONNECTING);
    if (host_ != nullptr) SetState(name, engine::v1::CONTROLLER_STATE_CONNECTING);
    return Good();
  }
  if (envelope.has_yield_controller()) return DoYield(envelope.yield_controller().name());
  if (envelope.has_take_controller()) return DoTake(request);
  if (envelope.has_delete_controller()) {
    const std::string& name = envelope.delete_controller().name();
    const bool used = std::any_of(attachments_.begin(), attachments_.end(),
                                  [&](const auto& attachment) { return attachment.first.first == name; });
    if (used) return Bad("failed_precondition", name + " has disks");
    controllers_.erase(name);
    if (host_ != nullptr) host_->Release(name, name_);
    return Good();
  }
  if (envelope.has_attach()) return DoAttach(envelope.attach().attachment());
  if (envelope.has_detach()) {
    const std::string& name = envelope.detach().controller();
    attachments_.erase({name, envelope.detach().target()});
    const bool blk = host_ != nullptr && controllers_.contains(name) &&
                     controllers_[name].controller().type() == engine::v1::CONTROLLER_TYPE_BLK;
    if (blk && controllers_[name].state() != engine::v1::CONTROLLER_STATE_STANDBY) {
      host_->Release(name, name_);
      SetState(name, engine::v1::CONTROLLER_STATE_IDLE);
    }
    return Good();
  }
  if (envelope.has_keep_memory()) {
    if (request.fds.size() != 1) return Bad("invalid_argument", "no descriptor");
    memories_[envelope.keep_memory().memory().disk()] = std::move(request.fds.front());
    return Good();
  }
  if (envelope.has_drop_memory()) {
    memories_.erase(envelope.drop_memory().disk());
    return Good();
  }
  if (envelope.has_fetch_memory()) {
    const auto it = memories_.find(envelope.fetch_memory().disk());
    if (it == memories_.end()) return Bad("not_found", "no such memory");
    fds.push_back(it->second.Duplicate());
    return Good();
  }
  if (envelope.has_resize_disk()) return DoResize(envelope.resize_disk());
  if (envelope.has_limit_disk()) return DoLimit(envelope.limit_disk());
  if (envelope.has_put_cluster() || envelope.has_drop_cluster()) return DoClusters(envelope);
  return DoGroups(request);
}

engine::v1::Reply FakeEngine::DoClusters(const engine::v1::Envelope& envelope) {
  if (clusters_to_fail_ > 0) {
    --clusters_to_fail_;
    return Bad("unimplemented", "this engine does not know such a message");
  }
  if (envelope.has_put_cluster())
    clusters_[envelope.put_cluster().cluster().name()] = envelope.put_cluster().cluster();
  if (envelope.has_drop_cluster()) clusters_.erase(envelope.drop_cluster().name());
  return Good();
}

std::map<std::string, engine::v1::Cluster> FakeEngine::Clusters() {
  const std::lock_guard lock(mutex_);
  return clusters_;
}

void FakeEngine::FailClusters(int times) {
  const std::lock_guard lock(mutex_);
  clusters_to_fail_ = times;
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

void FakeEngine::ReportCeph(const engine::v1::CephStatus& status) {
  const std::lock_guard lock(mutex_);
  engine::v1::Envelope event;
  *event.mutable_status_event()->mutable_ceph() = status;
  Send(event);
}

engine::v1::Reply FakeEngine::DoGroups(Datagram& request) {
  const engine::v1::Envelope& envelope = request.envelope;
  if (envelope.has_share_groups()) {
    groups_shared_ = request.fds.size() == 1;
    return groups_shared_ ? Good() : Bad("invalid_argument", "no descriptor");
  }
  if (envelope.has_put_group()) {
    if (!groups_shared_) return Bad("failed_precondition", "no memory for groups");
    const auto& group = envelope.put_group().group();
    for (const auto& [name, other] : groups_) {
      if ((name == group.name()) != (other.slot() == group.slot())) return Bad("failed_precondition", "slot");
    }
    groups_[group.name()] = group;
    return Good();
  }
  if (envelope.has_drop_group()) {
    const std::string& name = envelope.drop_group().name();
    for (const auto& [controller, status] : controllers_) {
      if (status.controller().group() == name) return Bad("failed_precondition", name + " has " + controller);
    }
    groups_.erase(name);
    return Good();
  }
  return Bad("unimplemented", "?");
}

engine::v1::Reply FakeEngine::DoResize(const engine::v1::ResizeDisk& resize) {
  if (resizes_to_fail_ > 0) {
    --resizes_to_fail_;
    return Bad("unavailable", "the guest does not listen");
  }
  for (auto& [key, status] : attachments_) {
    engine::v1::Disk& disk = *status.mutable_attachment()->mutable_disk();
    if (disk.name() == resize.disk()) disk.set_size_bytes(resize.size_bytes());
  }
  return Good();
}

engine::v1::Reply FakeEngine::DoLimit(const engine::v1::LimitDisk& limit) {
  if (limits_to_fail_ > 0) {
    --limits_to_fail_;
    return Bad("unavailable", "no limits today");
  }
  for (auto& [key, status] : attachments_) {
    engine::v1::Disk& disk = *status.mutable_attachment()->mutable_disk();
    if (disk.name() == limit.disk()) *disk.mutable_limits() = limit.limits();
  }
  return Good();
}

void FakeEngine::FailLimits(int times) {
  const std::lock_guard lock(mutex_);
  limits_to_fail_ = times;
}

std::map<std::string, engine::v1::Group> FakeEngine::Groups() {
  const std::lock_guard lock(mutex_);
  return groups_;
}

void FakeEngine::FailResizes(int times) {
  const std::lock_guard lock(mutex_);
  resizes_to_fail_ = times;
}

engine::v1::Disk FakeEngine::DiskAt(const std::string& controller, uint32_t target) {
  const std::lock_guard lock(mutex_);
  return attachments_.at({controller, target}).attachment().disk();
}

engine::v1::ControllerType FakeEngine::TypeOf(const std::string& controller) {
  const std::lock_guard lock(mutex_);
  return controllers_.at(controller).controller().type();
}

engine::v1::Reply FakeEngine::DoAttach(const engine::v1::Attachment& attachment) {
  if (attaches_to_fail_ > 0) {
    --attaches_to_fail_;
    return Bad(fail_code_, fail_message_);
  }
  if (!controllers_.contains(attachment.controller())) return Bad("not_found", "no such controller");
  if (attachment.disk().has_memory() && !memories_.contains(attachment.disk().name())) {
    return Bad("failed_precondition", "no memory");
  }
  if (attachment.disk().has_rbd() && !clusters_.contains(attachment.disk().rbd().cluster())) {
    return Bad("not_found", "no such cluster");
  }
  const std::string& name = attachment.controller();
  const bool standby = controllers_[name].state() == engine::v1::CONTROLLER_STATE_STANDBY;
  if (!standby && host_ != nullptr && !host_->Serve(name, name_, "Attach " + name)) {
    return Bad("unavailable", "another process has locked the disk");
  }
  engine::v1::AttachmentStatus& status = attachments_[{name, attachment.target()}];
  *status.mutable_attachment() = attachment;
  status.set_state(standby ? engine::v1::ATTACHMENT_STATE_STANDBY : engine::v1::ATTACHMENT_STATE_ACTIVE);
  const bool blk = controllers_[name].controller().type() == engine::v1::CONTROLLER_TYPE_BLK;
  if (!standby && host_ != nullptr && blk) SetState(name, engine::v1::CONTROLLER_STATE_CONNECTING);
  return Good();
}

void FakeEngine::SetState(const std::string& name, engine::v1::ControllerState state) {
  controllers_[name].set_state(state);
  engine::v1::Envelope event;
  *event.mutable_status_event()->mutable_controller() = controllers_[name];
  Send(event);
}

engine::v1::Reply FakeEngine::DoYield(const std::string& name) {
  const auto found = controllers_.find(name);
  if (found == controllers_.end()) return Bad("not_found", "no such controller");
  if (found->second.state() == engine::v1::CONTROLLER_STATE_STANDBY) return Good();
  if (yields_to_fail_ > 0) {
    --yields_to_fail_;
    return Bad(fail_code_, fail_message_);
  }
  engine::v1::Reply reply = Good();
  for (auto& [key, status] : attachments_) {
    if (key.first != name) continue;
    status.set_state(engine::v1::ATTACHMENT_STATE_STANDBY);
    engine::v1::DiskHandOver& disk = *reply.mutable_hand_over()->add_disks();
    disk.set_target(key.second);
    disk.add_buckets(incarnation_);
  }
  reply.mutable_hand_over();
  if (host_ != nullptr) host_->Release(name, name_);
  SetState(name, engine::v1::CONTROLLER_STATE_STANDBY);
  return reply;
}

engine::v1::Reply FakeEngine::DoTake(Datagram& request) {
  const std::string& name = request.envelope.take_controller().name();
  const auto found = controllers_.find(name);
  if (found == controllers_.end()) return Bad("not_found", "no such controller");
  taken_with_ = request.envelope.take_controller().hand_over();
  taken_with_counters_ = !request.fds.empty();
  if (found->second.state() != engine::v1::CONTROLLER_STATE_STANDBY) return Good();
  if (takes_to_fail_ > 0) {
    --takes_to_fail_;
    return Bad("unavailable", "the disk is locked");
  }
  bool disks = false;
  if (host_ != nullptr && !host_->Serve(name, name_, "TakeController " + name)) {
    return Bad("unavailable", "another process has locked the disk");
  }
  for (auto& [key, status] : attachments_) {
    if (key.first != name) continue;
    status.set_state(engine::v1::ATTACHMENT_STATE_ACTIVE);
    disks = true;
  }
  const bool scsi = found->second.controller().type() == engine::v1::CONTROLLER_TYPE_SCSI;
  SetState(name, disks || scsi ? engine::v1::CONTROLLER_STATE_CONNECTING : engine::v1::CONTROLLER_STATE_IDLE);
  return Good();
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

}  // namespace cleat::control
