// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "engine/hand_over/host_connections.h"
#include "engine/protocol/codec_structs.h"
#include "nvme/target/cross_reset/reset_log.h"
#include "nvme/target/limits.h"
#include "nvme/target/reservations/reservation_notices.h"

namespace cleat::engine {
namespace {

using nvme::fabrics::TransportAddress;
using nvme::target::SavedController;
using nvme::tcp::SavedCommand;
using nvmf_target::SavedAssociation;
using nvmf_target::SavedQueue;

using PbConnections = Cleat__Engine__V1__HostConnections;
using PbAssociation = Cleat__Engine__V1__HostAssociation;
using PbReservations = Cleat__Engine__V1__HostReservations;
using PbQueue = Cleat__Engine__V1__HostQueue;
using PbCommand = Cleat__Engine__V1__HostCommand;
using PbResets = Cleat__Engine__V1__HostResets;

// Short messages can ask for far more memory than they have bytes, and so protobuf-c gets no more than this.
class LimitedMemory {
 public:
  static constexpr size_t kBytesMax = 3 * kHostConnectionsBytesMax;
  ProtobufCAllocator* allocator() { return &allocator_; }

 private:
  static void* Allocate(void* self, size_t bytes) {
    size_t& left = static_cast<LimitedMemory*>(self)->left_;
    if (bytes > left) return nullptr;
    left -= bytes;
    return std::malloc(bytes);
  }
  static void Free(void* /*self*/, void* memory) { std::free(memory); }

  size_t left_ = kBytesMax;
  ProtobufCAllocator allocator_{&Allocate, &Free, this};
};

Result<uint8_t> Uint8Of(uint32_t value, const char* field) {
  if (value <= std::numeric_limits<uint8_t>::max()) return static_cast<uint8_t>(value);
  return Malformed(std::string(field) + " is " + std::to_string(value));
}

Result<uint16_t> Uint16Of(uint32_t value, const char* field) {
  if (value <= std::numeric_limits<uint16_t>::max()) return static_cast<uint16_t>(value);
  return Malformed(std::string(field) + " is " + std::to_string(value));
}

Result<TransportAddress> AddressOf(const char* text, const char* field) {
  const auto address = nvme::fabrics::ParseAddressOfAnyTransport(OptionalText(text));
  if (!address) return Malformed(std::string(field) + ": " + address.error().message);
  return *address;
}

std::vector<uint8_t> BytesOf(const ProtobufCBinaryData& data) {
  return {data.data, data.data + data.len};
}

Result<SavedCommand::Next> NextOf(const PbCommand& in) {
  uint32_t number = 0;  // which may be that of no enumerator
  static_assert(sizeof(in.next) == sizeof(number));
  std::memcpy(&number, &in.next, sizeof(number));
  switch (number) {
    case CLEAT__ENGINE__V1__HOST_COMMAND_NEXT__HOST_COMMAND_NEXT_RUN:
      return SavedCommand::Next::kRun;
    case CLEAT__ENGINE__V1__HOST_COMMAND_NEXT__HOST_COMMAND_NEXT_AWAIT_DATA:
      return SavedCommand::Next::kAwaitData;
    case CLEAT__ENGINE__V1__HOST_COMMAND_NEXT__HOST_COMMAND_NEXT_RUN_WITH_DATA:
      return SavedCommand::Next::kRunWithData;
    case CLEAT__ENGINE__V1__HOST_COMMAND_NEXT__HOST_COMMAND_NEXT_HOLD:
      return SavedCommand::Next::kHold;
    default:
      return Malformed("host_command.next is " + std::to_string(number) +
                       ", which this engine does not know");
  }
}

Result<SavedCommand> CommandOf(const PbCommand& in) {
  SavedCommand command;
  if (in.has_entry == 0 || in.entry.len != sizeof(command.entry))
    return Malformed("host_command.entry has " + std::to_string(in.entry.len) + " bytes");
  std::memcpy(&command.entry, in.entry.data, sizeof(command.entry));
  CLEAT_ASSIGN(command.next, NextOf(in));
  CLEAT_ASSIGN(command.tag, Uint16Of(in.tag, "host_command.tag"));
  command.in_capsule = in.in_capsule != 0;
  command.data = BytesOf(in.data);
  command.digest_is_wrong = in.digest_is_wrong != 0;
  return command;
}

Result<SavedQueue> QueueOf(const PbQueue& in) {
  SavedQueue queue;
  CLEAT_ASSIGN(queue.id, Uint16Of(in.id, "host_queue.id"));
  CLEAT_ASSIGN(queue.peer, AddressOf(in.peer, "host_queue.peer"));
  nvme::tcp::SavedConnection& connection = queue.connection;
  connection.entries = in.entries;
  connection.in_capsule_bytes = in.in_capsule_bytes;
  CLEAT_ASSIGN(connection.sq_head, Uint16Of(in.sq_head, "host_queue.sq_head"));
  connection.flow_control = in.flow_control != 0;
  connection.header_digest = in.header_digest != 0;
  connection.data_digest = in.data_digest != 0;
  connection.data_align_bytes = in.data_align_bytes;
  connection.received = BytesOf(in.received);
  connection.unsent = BytesOf(in.unsent);
  if (in.has_zero_copy_next != 0) queue.zero_copy_next = in.zero_copy_next;
  connection.commands.reserve(in.n_commands);
  for (const PbCommand* const command : std::span(in.commands, in.n_commands)) {
    CLEAT_ASSIGN(auto saved, CommandOf(*command));
    connection.commands.push_back(std::move(saved));
  }
  return queue;
}

Status TakeEvents(const PbAssociation& in, SavedController& controller) {
  constexpr uint32_t kKnown = (1U << SavedController::kEventKinds) - 1;
  if (((in.events_pending | in.events_unread) & ~kKnown) != 0)
    return Malformed("host_association has kinds of events that this engine does not know");
  for (size_t kind = 0; kind < SavedController::kEventKinds; ++kind) {
    controller.events[kind] = {.pending = (in.events_pending >> kind & 1U) != 0,
                               .unread = (in.events_unread >> kind & 1U) != 0};
  }
  controller.events_enabled = in.events_enabled;
  controller.changed_namespaces = {in.changed_namespaces, in.changed_namespaces + in.n_changed_namespaces};
  for (const uint32_t request : std::span(in.event_requests, in.n_event_requests)) {
    CLEAT_ASSIGN(const auto cid, Uint16Of(request, "host_association.event_requests"));
    controller.event_requests.push_back(cid);
  }
  return Ok{};
}

// Whether a controller can have these is for the target to say.
Status TakeResets(const PbResets& in, SavedController& controller) {
  CLEAT_ASSIGN(controller.uniquifier, Uint8Of(in.uniquifier, "host_resets.uniquifier"));
  controller.random = in.random;
  controller.reset_events_enabled = in.events_enabled != 0;
  controller.reset_event = {.pending = in.event_pending != 0, .unread = in.event_unread != 0};
  if (in.n_resets > nvme::target::kResetsMax)
    return Malformed("host_resets.resets has " + std::to_string(in.n_resets) + ": at most " +
                     std::to_string(nvme::target::kResetsMax) + " are taken");
  for (const auto* const told : std::span(in.resets, in.n_resets)) {
    nvme::target::SavedReset reset;
    CLEAT_ASSIGN(reset.controller_id, Uint16Of(told->controller_id, "host_reset.controller_id"));
    CLEAT_ASSIGN(reset.uniquifier, Uint8Of(told->uniquifier, "host_reset.uniquifier"));
    CLEAT_ASSIGN(const uint8_t state, Uint8Of(told->state, "host_reset.state"));
    reset.state = static_cast<nvme::target::SavedReset::State>(state);
    controller.resets.push_back(reset);
  }
  return Ok{};
}

// Whether there are such namespaces and notices is for the target to say.
Status TakeReservations(const PbReservations& in, SavedController& controller) {
  if (in.n_notices > nvme::target::kReservationNoticesMax)
    return Malformed("host_reservations.notices has " + std::to_string(in.n_notices) + ": at most " +
                     std::to_string(nvme::target::kReservationNoticesMax) + " are taken");
  for (const auto* const notice : std::span(in.notices, in.n_notices)) {
    CLEAT_ASSIGN(const uint8_t type, Uint8Of(notice->type, "host_reservation_notice.type"));
    controller.reservation_notices.push_back({.nsid = notice->nsid, .type = type});
  }
  controller.reservation_notices_count = in.notices_count;
  if (in.n_masks > nvme::target::kNamespacesMax)
    return Malformed("host_reservations.masks has " + std::to_string(in.n_masks) + ": at most " +
                     std::to_string(nvme::target::kNamespacesMax) + " are taken");
  for (const auto* const mask : std::span(in.masks, in.n_masks)) {
    if (!controller.reservation_masks.emplace(mask->nsid, mask->mask).second)
      return Malformed("host_reservations.masks has namespace " + std::to_string(mask->nsid) + " twice");
  }
  controller.reservation_event = {.pending = in.event_pending != 0, .unread = in.event_unread != 0};
  return Ok{};
}

Result<SavedController> SavedControllerOf(const PbAssociation& in) {
  SavedController controller;
  CLEAT_ASSIGN(controller.id, Uint16Of(in.controller_id, "host_association.controller_id"));
  CLEAT_ASSIGN(controller.host_nqn, TextOf(in.host_nqn, "host_association.host_nqn"));
  if (const auto checked = nvme::fabrics::CheckNqn(controller.host_nqn, "host_association.host_nqn");
      !checked)
    return Malformed(checked.error().message);
  if (in.host_id.len != controller.host_id.size())
    return Malformed("host_association.host_id has " + std::to_string(in.host_id.len) + " bytes");
  std::copy_n(in.host_id.data, in.host_id.len, controller.host_id.begin());
  CLEAT_ASSIGN(controller.local, AddressOf(in.local, "host_association.local"));
  controller.kato_ms = in.kato_ms;
  controller.deadline_ns = in.deadline_ns;
  controller.configuration = in.configuration;
  controller.queues_granted = in.queues_granted;
  for (const auto* const feature : std::span(in.features, in.n_features))
    controller.features[feature->id] = feature->value;
  CLEAT_TRY(TakeEvents(in, controller));
  if (in.resets != nullptr) CLEAT_TRY(TakeResets(*in.resets, controller));
  if (in.reservations != nullptr) CLEAT_TRY(TakeReservations(*in.reservations, controller));
  return controller;
}

Result<SavedAssociation> AssociationOf(const PbAssociation& in) {
  SavedAssociation association;
  CLEAT_ASSIGN(association.controller, SavedControllerOf(in));
  if (in.has_not_after_ns) association.not_after_ns = in.not_after_ns;
  if (in.n_queues == 0 || in.n_queues > kAssociationQueuesMax)
    return Malformed("host_association.queues has " + std::to_string(in.n_queues) + ": 1 to " +
                     std::to_string(kAssociationQueuesMax) + " are taken");
  for (const PbQueue* const told : std::span(in.queues, in.n_queues)) {
    CLEAT_ASSIGN(auto queue, QueueOf(*told));
    const bool is_admin = queue.id == 0;
    if (is_admin != association.queues.empty())
      return Malformed("host_association.queues has queue " + std::to_string(queue.id) + " at place " +
                       std::to_string(association.queues.size()));
    if (std::ranges::find(association.queues, queue.id, &SavedQueue::id) != association.queues.end())
      return Malformed("host_association.queues has queue " + std::to_string(queue.id) + " twice");
    association.queues.push_back(std::move(queue));
  }
  return association;
}

}  // namespace

Result<std::vector<SavedAssociation>> UnpackConnections(std::span<const uint8_t> bytes) {
  if (bytes.size() > kHostConnectionsBytesMax)
    return Malformed("host connections of " + std::to_string(bytes.size()) + " bytes: at most " +
                     std::to_string(kHostConnectionsBytesMax) + " are taken");
  LimitedMemory memory;
  const auto free = [&memory](PbConnections* message) {
    cleat__engine__v1__host_connections__free_unpacked(message, memory.allocator());
  };
  const std::unique_ptr<PbConnections, decltype(free)> message(
      cleat__engine__v1__host_connections__unpack(memory.allocator(), bytes.size(), bytes.data()), free);
  if (message == nullptr)
    return Malformed("host connections of " + std::to_string(bytes.size()) + " bytes can't be read");
  if (message->n_associations > kAssociationsMax)
    return Malformed("host connections of " + std::to_string(message->n_associations) +
                     " associations: at most " + std::to_string(kAssociationsMax) + " are taken");
  std::vector<SavedAssociation> associations;
  for (const PbAssociation* const told : std::span(message->associations, message->n_associations)) {
    CLEAT_ASSIGN(auto association, AssociationOf(*told));
    associations.push_back(std::move(association));
  }
  return associations;
}

}  // namespace cleat::engine
