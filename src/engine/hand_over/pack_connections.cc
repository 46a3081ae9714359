// SPDX-License-Identifier: Apache-2.0
#include <memory_resource>
#include <string>
#include <tuple>
#include <utility>

#include "engine/hand_over/host_connections.h"
#include "engine/protocol/codec_structs.h"

namespace cleat::engine {
namespace {

using nvme::fabrics::TextOfAddress;
using nvme::target::SavedController;
using nvme::tcp::SavedCommand;
using nvmf_target::SavedAssociation;
using nvmf_target::SavedQueue;

using PbAssociation = Cleat__Engine__V1__HostAssociation;
using PbQueue = Cleat__Engine__V1__HostQueue;
using PbCommand = Cleat__Engine__V1__HostCommand;
using PbResets = Cleat__Engine__V1__HostResets;
using PbReset = Cleat__Engine__V1__HostReset;
using PbFeature = Cleat__Engine__V1__HostFeature;
using PbReservations = Cleat__Engine__V1__HostReservations;
using PbNotice = Cleat__Engine__V1__HostReservationNotice;
using PbMask = Cleat__Engine__V1__HostReservationMask;
using PbNext = Cleat__Engine__V1__HostCommandNext;

// protobuf-c reads from it and never writes.
template <typename Bytes>
ProtobufCBinaryData PbBytesOf(const Bytes& bytes) {
  return {.len = bytes.size(), .data = const_cast<uint8_t*>(bytes.data())};
}

PbNext PbNextOf(SavedCommand::Next next) {
  switch (next) {
    case SavedCommand::Next::kRun:
      return CLEAT__ENGINE__V1__HOST_COMMAND_NEXT__HOST_COMMAND_NEXT_RUN;
    case SavedCommand::Next::kAwaitData:
      return CLEAT__ENGINE__V1__HOST_COMMAND_NEXT__HOST_COMMAND_NEXT_AWAIT_DATA;
    case SavedCommand::Next::kRunWithData:
      return CLEAT__ENGINE__V1__HOST_COMMAND_NEXT__HOST_COMMAND_NEXT_RUN_WITH_DATA;
    case SavedCommand::Next::kHold:
      return CLEAT__ENGINE__V1__HOST_COMMAND_NEXT__HOST_COMMAND_NEXT_HOLD;
  }
  return CLEAT__ENGINE__V1__HOST_COMMAND_NEXT__HOST_COMMAND_NEXT_UNSPECIFIED;
}

// A Packer holds what the structs point to; what hosts have sent stays where it is.
class Packer {
 public:
  PbAssociation* Add(const SavedAssociation& association) {
    const SavedController& controller = association.controller;
    PbAssociation& out = NewMessage(memory_, cleat__engine__v1__host_association__init);
    CLEAT_PB_SET(out, controller_id, controller.id);
    out.host_nqn = PbText(controller.host_nqn);
    CLEAT_PB_SET(out, host_id, PbBytesOf(controller.host_id));
    out.local = CopyOf(TextOfAddress(controller.local), memory_);
    CLEAT_PB_SET(out, kato_ms, controller.kato_ms);
    CLEAT_PB_SET(out, deadline_ns, controller.deadline_ns);
    CLEAT_PB_SET(out, not_after_ns, association.not_after_ns);
    CLEAT_PB_SET(out, configuration, controller.configuration);
    CLEAT_PB_SET(out, queues_granted, controller.queues_granted);
    CLEAT_PB_SET(out, events_enabled, controller.events_enabled);
    std::tie(out.features, out.n_features) =
        AddEach<PbFeature*>(controller.features, [this](const auto& feature) {
          PbFeature& told = NewMessage(memory_, cleat__engine__v1__host_feature__init);
          CLEAT_PB_SET(told, id, feature.first);
          CLEAT_PB_SET(told, value, feature.second);
          return &told;
        });
    uint32_t pending = 0;
    uint32_t unread = 0;
    for (size_t kind = 0; kind < SavedController::kEventKinds; ++kind) {
      if (controller.events[kind].pending) pending |= 1U << kind;
      if (controller.events[kind].unread) unread |= 1U << kind;
    }
    CLEAT_PB_SET(out, events_pending, pending);
    CLEAT_PB_SET(out, events_unread, unread);
    out.resets = AddResets(controller);
    const auto number = [](uint32_t value) { return value; };
    std::tie(out.changed_namespaces, out.n_changed_namespaces) =
        AddEach<uint32_t>(controller.changed_namespaces, number);
    std::tie(out.event_requests, out.n_event_requests) = AddEach<uint32_t>(controller.event_requests, number);
    out.reservations = AddReservations(controller);
    std::tie(out.queues, out.n_queues) =
        AddEach<PbQueue*>(association.queues, [this](const SavedQueue& queue) { return Add(queue); });
    return &out;
  }

 private:
  // nullptr: there is nothing to say.
  PbReservations* AddReservations(const SavedController& controller) {
    const SavedController::Event& event = controller.reservation_event;
    if (controller.reservation_notices.empty() && controller.reservation_notices_count == 0 &&
        controller.reservation_masks.empty() && !event.pending && !event.unread)
      return nullptr;
    PbReservations& out = NewMessage(memory_, cleat__engine__v1__host_reservations__init);
    std::tie(out.notices, out.n_notices) =
        AddEach<PbNotice*>(controller.reservation_notices, [this](const nvme::target::SavedNotice& notice) {
          PbNotice& told = NewMessage(memory_, cleat__engine__v1__host_reservation_notice__init);
          CLEAT_PB_SET(told, nsid, notice.nsid);
          CLEAT_PB_SET(told, type, notice.type);
          return &told;
        });
    CLEAT_PB_SET(out, notices_count, controller.reservation_notices_count);
    std::tie(out.masks, out.n_masks) =
        AddEach<PbMask*>(controller.reservation_masks, [this](const auto& mask) {
          PbMask& told = NewMessage(memory_, cleat__engine__v1__host_reservation_mask__init);
          CLEAT_PB_SET(told, nsid, mask.first);
          CLEAT_PB_SET(told, mask, mask.second);
          return &told;
        });
    CLEAT_PB_SET(out, event_pending, event.pending ? 1 : 0);
    CLEAT_PB_SET(out, event_unread, event.unread ? 1 : 0);
    return &out;
  }

  PbQueue* Add(const SavedQueue& queue) {
    const nvme::tcp::SavedConnection& connection = queue.connection;
    PbQueue& out = NewMessage(memory_, cleat__engine__v1__host_queue__init);
    CLEAT_PB_SET(out, id, queue.id);
    out.peer = CopyOf(TextOfAddress(queue.peer), memory_);
    CLEAT_PB_SET(out, entries, connection.entries);
    CLEAT_PB_SET(out, in_capsule_bytes, connection.in_capsule_bytes);
    CLEAT_PB_SET(out, sq_head, connection.sq_head);
    CLEAT_PB_SET(out, flow_control, connection.flow_control ? 1 : 0);
    CLEAT_PB_SET(out, header_digest, connection.header_digest ? 1 : 0);
    CLEAT_PB_SET(out, data_digest, connection.data_digest ? 1 : 0);
    CLEAT_PB_SET(out, data_align_bytes, connection.data_align_bytes);
    CLEAT_PB_SET(out, received, PbBytesOf(connection.received));
    CLEAT_PB_SET(out, unsent, PbBytesOf(connection.unsent));
    if (queue.zero_copy_next) CLEAT_PB_SET(out, zero_copy_next, *queue.zero_copy_next);
    std::tie(out.commands, out.n_commands) = AddEach<PbCommand*>(
        connection.commands, [this](const SavedCommand& command) { return Add(command); });
    return &out;
  }

  PbResets* AddResets(const SavedController& controller) {
    PbResets& out = NewMessage(memory_, cleat__engine__v1__host_resets__init);
    CLEAT_PB_SET(out, uniquifier, controller.uniquifier);
    CLEAT_PB_SET(out, random, controller.random);
    CLEAT_PB_SET(out, events_enabled, controller.reset_events_enabled ? 1 : 0);
    CLEAT_PB_SET(out, event_pending, controller.reset_event.pending ? 1 : 0);
    CLEAT_PB_SET(out, event_unread, controller.reset_event.unread ? 1 : 0);
    std::tie(out.resets, out.n_resets) =
        AddEach<PbReset*>(controller.resets, [this](const nvme::target::SavedReset& reset) {
          PbReset& told = NewMessage(memory_, cleat__engine__v1__host_reset__init);
          CLEAT_PB_SET(told, controller_id, reset.controller_id);
          CLEAT_PB_SET(told, uniquifier, reset.uniquifier);
          CLEAT_PB_SET(told, state, static_cast<uint32_t>(reset.state));
          return &told;
        });
    return &out;
  }

  PbCommand* Add(const SavedCommand& command) {
    PbCommand& out = NewMessage(memory_, cleat__engine__v1__host_command__init);
    const auto* const entry = reinterpret_cast<const uint8_t*>(&command.entry);
    CLEAT_PB_SET(out, entry, PbBytesOf(std::span(entry, sizeof(command.entry))));
    CLEAT_PB_SET(out, next, PbNextOf(command.next));
    CLEAT_PB_SET(out, in_capsule, command.in_capsule ? 1 : 0);
    CLEAT_PB_SET(out, tag, command.tag);
    CLEAT_PB_SET(out, data, PbBytesOf(command.data));
    CLEAT_PB_SET(out, digest_is_wrong, command.digest_is_wrong ? 1 : 0);
    return &out;
  }

  template <typename Out, typename From, typename Function>
  std::pair<Out*, size_t> AddEach(const From& from, const Function& function) {
    Out* const out = std::pmr::polymorphic_allocator<Out>(&memory_).allocate(from.size());
    size_t count = 0;
    for (const auto& one : from) out[count++] = function(one);
    return {out, count};
  }

  std::pmr::monotonic_buffer_resource memory_;
};

// Collects what protobuf-c gives by the byte.
class Writer : public ProtobufCBuffer {
 public:
  static constexpr size_t kPieceBytes = 64 * 1024;
  explicit Writer(const std::function<Status(std::span<const uint8_t>)>& write)
      : ProtobufCBuffer{&Append}, write_(write) {
    piece_.reserve(kPieceBytes);
  }
  Status Finish() {
    Flush();
    return status_;
  }

 private:
  static void Append(ProtobufCBuffer* buffer, size_t bytes, const uint8_t* data) {
    Writer& self = *static_cast<Writer*>(buffer);
    if (self.piece_.size() + bytes > kPieceBytes) self.Flush();
    if (bytes > kPieceBytes) return self.Write({data, bytes});
    self.piece_.insert(self.piece_.end(), data, data + bytes);
  }
  void Flush() {
    Write(piece_);
    piece_.clear();
  }
  void Write(std::span<const uint8_t> bytes) {
    if (status_.ok() && !bytes.empty()) status_ = write_(bytes);
  }

  const std::function<Status(std::span<const uint8_t>)>& write_;
  std::vector<uint8_t> piece_;
  Status status_ = Ok{};
};

}  // namespace

Status PackConnections(std::span<const SavedAssociation> associations,
                       const std::function<Status(std::span<const uint8_t>)>& write) {
  if (associations.size() > kAssociationsMax)
    return Error(ErrorCode::kResourceExhausted,
                 std::to_string(associations.size()) + " associations are more than the " +
                     std::to_string(kAssociationsMax) + " that can be told of");
  Packer packer;
  std::vector<PbAssociation*> pointers;
  for (const SavedAssociation& association : associations) pointers.push_back(packer.Add(association));
  Cleat__Engine__V1__HostConnections message = CLEAT__ENGINE__V1__HOST_CONNECTIONS__INIT;
  message.n_associations = pointers.size();
  message.associations = pointers.data();
  const size_t bytes = cleat__engine__v1__host_connections__get_packed_size(&message);
  if (bytes > kHostConnectionsBytesMax)
    return Error(ErrorCode::kResourceExhausted, "what is told of them has " + std::to_string(bytes) +
                                                    " bytes, more than " +
                                                    std::to_string(kHostConnectionsBytesMax));
  Writer writer(write);
  (void)cleat__engine__v1__host_connections__pack_to_buffer(&message, &writer);
  return writer.Finish();
}

}  // namespace cleat::engine
