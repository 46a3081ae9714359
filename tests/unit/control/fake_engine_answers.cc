// SPDX-License-Identifier: Apache-2.0
// What an engine that is played answers to each request, by what it has and by what it was told to fail.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>

#include "fake_engine.h"

namespace cleat::control {
namespace {

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

}  // namespace

engine::v1::Reply FakeEngine::DoHeartbeat() const {
  engine::v1::Reply reply = Good();
  engine::v1::ReactorProgress& progress = *reply.add_reactors();
  progress.set_name("reactor-0");
  progress.set_turns(7);
  progress.set_asleep(!reactor_hangs_);
  return reply;
}

engine::v1::Reply FakeEngine::Do(Datagram& request, std::vector<UniqueFd>& fds) {
  const engine::v1::Envelope& envelope = request.envelope;
  if (envelope.has_put_controller()) {
    const auto& controller = envelope.put_controller().controller();
    if (!controller.group().empty() && !groups_.contains(controller.group())) {
      return Bad("not_found", controller.group() + " is not here");
    }
    const bool there = controllers_.contains(controller.name());
    engine::v1::ControllerStatus& status = controllers_[controller.name()];
    *status.mutable_controller() = controller;
    if (status.next_disk() == controller.last_disk()) status.clear_next_disk();
    if (there) return Good();
    SetState(controller.name(), envelope.put_controller().standby() ? engine::v1::CONTROLLER_STATE_STANDBY
                                                                    : engine::v1::CONTROLLER_STATE_IDLE);
    return Good();
  }
  if (envelope.has_heartbeat()) return DoHeartbeat();
  if (envelope.has_read_path_lists()) {
    engine::v1::Envelope event;
    event.mutable_status_event()->set_path_lists(path_lists_);
    Send(event);
    return Good();
  }
  if (envelope.has_serve_controller()) {
    const std::string& name = envelope.serve_controller().name();
    controllers_[name].set_state(engine::v1::CONTROLLER_STATE_CONNECTING);
    if (host_ != nullptr) SetState(name, engine::v1::CONTROLLER_STATE_CONNECTING);
    return Good();
  }
  if (envelope.has_yield_controller()) return DoYield(envelope.yield_controller().name(), fds);
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
  if (envelope.has_discover()) return DoDiscover(envelope);
  if (envelope.has_stop_discover()) {
    std::erase_if(held_, [&](const Datagram& held) {
      return held.envelope.id() == envelope.stop_discover().discover();
    });
    SendReply(envelope.stop_discover().discover(), Bad("cancelled", "given up"));
    return Good();
  }
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

engine::v1::Reply FakeEngine::DoDiscover(const engine::v1::Envelope& envelope) {
  last_discover_ = envelope.discover();
  if (discovered_.empty()) return Bad(fail_code_, fail_message_);
  if (envelope.discover().watch()) {
    watched_ = envelope.id();
    SendParts(watched_, discovered_, /*whole=*/true);
    engine::v1::Reply none;
    none.set_more(true);
    return none;
  }
  SendParts(envelope.id(), {discovered_.begin(), std::prev(discovered_.end())}, /*whole=*/false);
  engine::v1::Reply last = Good();
  *last.mutable_discovery() = discovered_.back();
  return last;
}

// `whole`: with them the log is.
void FakeEngine::SendParts(uint64_t request, const std::vector<engine::v1::Discovery>& parts, bool whole) {
  for (const engine::v1::Discovery& part : parts) {
    engine::v1::Reply reply = Good();
    reply.set_more(true);
    if (whole && &part == &parts.back()) reply.set_whole(true);
    *reply.mutable_discovery() = part;
    SendReply(request, reply);
  }
}

void FakeEngine::SendReply(uint64_t request, const engine::v1::Reply& reply) {
  engine::v1::Envelope envelope;
  envelope.set_id(request);
  *envelope.mutable_reply() = reply;
  Send(envelope);
}

engine::v1::Reply FakeEngine::DoGroups(Datagram& request) {
  const engine::v1::Envelope& envelope = request.envelope;
  if (envelope.has_share_groups()) {
    if (shares_to_fail_ > 0) {
      --shares_to_fail_;
      return Bad("unavailable", "no memory today");
    }
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
      if (status.controller().group() == name) {
        return Bad("failed_precondition", fmt::format("{} has {}", name, controller));
      }
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
    if (disk.name() != resize.disk()) continue;
    if (disk.has_pool()) {
      uint64_t extents = 0;
      const auto& all = resize.extents().empty() ? disk.pool().extents() : resize.extents();
      for (const auto& run : all) extents += run.count();
      if (extents * disk.pool().extent_bytes() < resize.size_bytes())
        return Bad("failed_precondition", "its extents have less");
      const auto taken = all;
      *disk.mutable_pool()->mutable_extents() = taken;
    }
    disk.set_size_bytes(resize.size_bytes());
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
    if (disk.name() != limit.disk()) continue;
    *disk.mutable_limits() = limit.limits();
    const bool changes = disk.on_no_space() != limit.on_no_space() ||
                         disk.in_doubt().SerializeAsString() != limit.in_doubt().SerializeAsString();
    disk.set_on_no_space(limit.on_no_space());
    *disk.mutable_in_doubt() = limit.in_doubt();
    if (changes) TellAttachment(status);
  }
  return Good();
}

engine::v1::Reply FakeEngine::DoAttach(const engine::v1::Attachment& attachment) {
  if (attaches_to_fail_ > 0) {
    --attaches_to_fail_;
    return Bad(fail_code_, fail_message_);
  }
  if (!controllers_.contains(attachment.controller())) return Bad("not_found", "no such controller");
  const bool keeps_memory =
      attachment.disk().has_memory() || (attachment.disk().has_nvme_tcp() && !attachment.read_only());
  if (keeps_memory && !memories_.contains(attachment.disk().name())) {
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
  if (attachment.disk().has_on_no_space() || attachment.disk().has_in_doubt()) TellAttachment(status);
  return Good();
}

void FakeEngine::TellAttachment(const engine::v1::AttachmentStatus& status) {
  engine::v1::Envelope event;
  *event.mutable_status_event()->mutable_attachment() = status;
  Send(event);
}

engine::v1::Reply FakeEngine::DoYield(const std::string& name, std::vector<UniqueFd>& fds) {
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
  if (to_yield_.valid()) fds.push_back(std::move(to_yield_));
  if (host_ != nullptr) host_->Release(name, name_);
  SetState(name, engine::v1::CONTROLLER_STATE_STANDBY);
  return reply;
}

engine::v1::Reply FakeEngine::DoTake(Datagram& request) {
  const std::string& name = request.envelope.take_controller().name();
  const auto found = controllers_.find(name);
  if (found == controllers_.end()) return Bad("not_found", "no such controller");
  taken_with_ = request.envelope.take_controller().hand_over();
  const engine::v1::TakeController& take = request.envelope.take_controller();
  taken_with_counters_ = take.counters() || (!take.connections() && !request.fds.empty());
  if (request.fds.size() < size_t{taken_with_counters_} + size_t{take.connections()})
    return Bad("invalid_argument", "a descriptor is missing");
  taken_connections_.Reset();
  if (take.connections()) taken_connections_ = std::move(request.fds[taken_with_counters_ ? 1 : 0]);
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
  const bool blk = found->second.controller().type() == engine::v1::CONTROLLER_TYPE_BLK;
  SetState(name, disks || !blk ? engine::v1::CONTROLLER_STATE_CONNECTING : engine::v1::CONTROLLER_STATE_IDLE);
  return Good();
}

}  // namespace cleat::control
