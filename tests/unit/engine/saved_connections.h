// SPDX-License-Identifier: Apache-2.0
// Hosts' connections as one engine gives them to the next, with something in every field, for the tests of their bytes and of their sockets.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "engine/hand_over/host_connections.h"

namespace cleat::engine::saved_connections {

using nvme::tcp::SavedCommand;
using nvmf_target::SavedAssociation;
using nvmf_target::SavedQueue;

using Associations = std::vector<SavedAssociation>;
using Next = SavedCommand::Next;

inline nvme::fabrics::TransportAddress Address(const std::string& text) {
  return nvme::fabrics::ParseTransportAddress(text).value();
}

inline SavedCommand Command(uint16_t cid, Next next, size_t data_bytes = 0) {
  SavedCommand command;
  command.entry.opcode = 1;
  command.entry.cid = cid;
  command.entry.cdw15 = 0xfeedbeef;
  command.next = next;
  command.in_capsule = data_bytes > 0;
  command.tag = static_cast<uint16_t>(cid + 1);
  command.data.assign(data_bytes, static_cast<uint8_t>(cid));
  command.digest_is_wrong = data_bytes > 0;
  return command;
}

inline SavedQueue Queue(uint16_t id) {
  SavedQueue queue;
  queue.id = id;
  queue.peer = Address("[fd00::2]:40000");
  queue.connection = {.entries = 128,
                      .in_capsule_bytes = 16384,
                      .sq_head = 65535,
                      .flow_control = false,
                      .header_digest = true,
                      .data_digest = true,
                      .data_align_bytes = 8,
                      .received = {1, 2, 3},
                      .unsent = std::vector<uint8_t>(100, 4),
                      .commands = {Command(7, Next::kRun, 512), Command(8, Next::kAwaitData),
                                   Command(9, Next::kRunWithData, 4096), Command(10, Next::kHold)}};
  if (id != 1) queue.zero_copy_next = id == 0 ? 0 : UINT32_MAX;
  return queue;
}

inline SavedAssociation Association(uint16_t controller_id, uint16_t io_queues) {
  SavedAssociation association;
  nvme::target::SavedController& controller = association.controller;
  controller.id = controller_id;
  controller.host_nqn = "nqn.2014-08.org.example:host" + std::to_string(controller_id);
  controller.host_id.fill(static_cast<uint8_t>(controller_id));
  controller.local = Address("10.0.0.1:4420");
  controller.kato_ms = 5000;
  controller.deadline_ns = uint64_t{1} << 60;
  controller.configuration = 0x460001;
  controller.queues_granted = io_queues;
  controller.events_enabled = 0x900;
  controller.features = {{0x0b, 0x900}, {0x0f, 5000}};
  controller.events[0] = {.pending = true, .unread = false};
  controller.events[2] = {.pending = false, .unread = true};
  controller.changed_namespaces = {1, 64};
  controller.event_requests = {0, 65535};
  using State = nvme::target::SavedReset::State;
  controller.uniquifier = 255;
  controller.random = UINT64_MAX - controller_id;
  controller.reset_events_enabled = true;
  controller.reset_event = {.pending = false, .unread = true};
  controller.resets = {{.controller_id = 0xffef, .uniquifier = 1, .state = State::kSuccess},
                       {.controller_id = 1, .uniquifier = 255, .state = State::kFailed}};
  controller.reservation_event = {.pending = true, .unread = true};
  controller.reservation_notices = {{.nsid = 1, .type = 1}, {.nsid = 64, .type = 3}};
  controller.reservation_notices_count = uint64_t{1} << 40;
  controller.reservation_masks = {{1, 2}, {64, 0xe}};
  for (uint16_t id = 0; id <= io_queues; ++id) association.queues.push_back(Queue(id));
  return association;
}

inline void ExpectSame(const SavedCommand& out, const SavedCommand& in) {
  EXPECT_EQ(std::memcmp(&out.entry, &in.entry, sizeof(in.entry)), 0);
  EXPECT_EQ(out.next, in.next);
  EXPECT_EQ(out.in_capsule, in.in_capsule);
  EXPECT_EQ(out.tag, in.tag);
  EXPECT_EQ(out.data, in.data);
  EXPECT_EQ(out.digest_is_wrong, in.digest_is_wrong);
}

inline void ExpectSame(const SavedQueue& out, const SavedQueue& in) {
  EXPECT_EQ(out.id, in.id);
  EXPECT_EQ(out.peer, in.peer);
  const nvme::tcp::SavedConnection& a = out.connection;
  const nvme::tcp::SavedConnection& b = in.connection;
  EXPECT_EQ(
      std::tie(a.entries, a.in_capsule_bytes, a.sq_head, a.flow_control, a.header_digest, a.data_digest),
      std::tie(b.entries, b.in_capsule_bytes, b.sq_head, b.flow_control, b.header_digest, b.data_digest));
  EXPECT_EQ(out.zero_copy_next, in.zero_copy_next);
  EXPECT_EQ(std::tie(a.data_align_bytes, a.received, a.unsent),
            std::tie(b.data_align_bytes, b.received, b.unsent));
  ASSERT_EQ(a.commands.size(), b.commands.size());
  for (size_t i = 0; i < a.commands.size(); ++i) ExpectSame(a.commands[i], b.commands[i]);
}

inline void ExpectSame(const SavedAssociation& out, const SavedAssociation& in) {
  const nvme::target::SavedController& a = out.controller;
  const nvme::target::SavedController& b = in.controller;
  EXPECT_EQ(std::tie(a.id, a.host_nqn, a.host_id, a.kato_ms, a.deadline_ns, a.configuration),
            std::tie(b.id, b.host_nqn, b.host_id, b.kato_ms, b.deadline_ns, b.configuration));
  EXPECT_EQ(a.local, b.local);
  EXPECT_EQ(std::tie(a.queues_granted, a.events_enabled, a.features, a.changed_namespaces, a.event_requests),
            std::tie(b.queues_granted, b.events_enabled, b.features, b.changed_namespaces, b.event_requests));
  for (size_t kind = 0; kind < a.events.size(); ++kind) {
    EXPECT_EQ(a.events[kind].pending, b.events[kind].pending);
    EXPECT_EQ(a.events[kind].unread, b.events[kind].unread);
  }
  EXPECT_EQ(
      std::tie(a.uniquifier, a.random, a.reset_events_enabled, a.reset_event.pending, a.reset_event.unread),
      std::tie(b.uniquifier, b.random, b.reset_events_enabled, b.reset_event.pending, b.reset_event.unread));
  ASSERT_EQ(a.resets.size(), b.resets.size());
  for (size_t i = 0; i < b.resets.size(); ++i) {
    EXPECT_EQ(a.resets[i].controller_id, b.resets[i].controller_id);
    EXPECT_EQ(a.resets[i].uniquifier, b.resets[i].uniquifier);
    EXPECT_EQ(a.resets[i].state, b.resets[i].state);
  }
  EXPECT_EQ(a.reservation_event.pending, b.reservation_event.pending);
  EXPECT_EQ(a.reservation_event.unread, b.reservation_event.unread);
  EXPECT_EQ(std::tie(a.reservation_notices_count, a.reservation_masks),
            std::tie(b.reservation_notices_count, b.reservation_masks));
  ASSERT_EQ(a.reservation_notices.size(), b.reservation_notices.size());
  for (size_t i = 0; i < a.reservation_notices.size(); ++i) {
    EXPECT_EQ(a.reservation_notices[i].nsid, b.reservation_notices[i].nsid);
    EXPECT_EQ(a.reservation_notices[i].type, b.reservation_notices[i].type);
  }
  ASSERT_EQ(out.queues.size(), in.queues.size());
  for (size_t i = 0; i < in.queues.size(); ++i) ExpectSame(out.queues[i], in.queues[i]);
}

inline std::vector<uint8_t> Packed(const Associations& associations) {
  std::vector<uint8_t> bytes;
  const Status packed = PackConnections(associations, [&bytes](std::span<const uint8_t> piece) -> Status {
    bytes.insert(bytes.end(), piece.begin(), piece.end());
    return Ok{};
  });
  EXPECT_TRUE(packed.ok()) << packed.error().message;
  return bytes;
}

}  // namespace cleat::engine::saved_connections
