// SPDX-License-Identifier: Apache-2.0
// Hosts' connections as bytes on their way from one engine to the next: they come out as they went in, or not at all.
#include "engine/hand_over/host_connections.h"

#include <cleat/engine/v1/engine.pb-c.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "nvme/target/reservations/reservation_notices.h"
#include "tests/unit/engine/saved_connections.h"

namespace cleat::engine::host_connections_test {
namespace {

using nvme::tcp::SavedCommand;
using nvmf_target::SavedAssociation;
using nvmf_target::SavedQueue;
using saved_connections::Association;
using saved_connections::Associations;
using saved_connections::Command;
using saved_connections::ExpectSame;
using saved_connections::Next;
using saved_connections::Packed;
using saved_connections::Queue;
using ::testing::HasSubstr;

TEST(HostConnections, ComeThroughWhole) {
  Associations in;
  in.push_back(Association(1, 3));
  in.push_back(Association(0xffef, 0));
  in.back().queues[0].connection.unsent.assign(200'000, 9);  // more than is written at a time
  const auto out = UnpackConnections(Packed(in));
  ASSERT_TRUE(out.ok()) << out.error().message;
  ASSERT_EQ(out->size(), in.size());
  for (size_t i = 0; i < in.size(); ++i) ExpectSame((*out)[i], in[i]);
  EXPECT_TRUE(UnpackConnections({})->empty());
}

TEST(HostConnections, OfReservationsEachPartComesThroughAloneAndNothingIsSaidOfNone) {
  using nvme::target::SavedController;
  const auto none = [] {
    Associations associations;
    associations.push_back(Association(1, 0));
    SavedController& controller = associations[0].controller;
    controller.reservation_event = {};
    controller.reservation_notices.clear();
    controller.reservation_notices_count = 0;
    controller.reservation_masks.clear();
    return associations;
  };
  const std::vector<std::function<void(SavedController&)>> parts = {
      [](SavedController& c) { c.reservation_event.pending = true; },
      [](SavedController& c) { c.reservation_event.unread = true; },
      [](SavedController& c) { c.reservation_notices_count = 1; },
      [](SavedController& c) {
        c.reservation_masks = {{7, 4}};
      },
      [](SavedController& c) {
        c.reservation_notices.assign(nvme::target::kReservationNoticesMax, {.nsid = 2, .type = 255});
      }};
  const size_t bytes = Packed(none()).size();
  for (const auto& set : parts) {
    Associations in = none();
    set(in[0].controller);
    EXPECT_GT(Packed(in).size(), bytes);
    const auto out = UnpackConnections(Packed(in));
    ASSERT_TRUE(out.ok()) << out.error().message;
    ExpectSame((*out)[0], in[0]);
  }
  const auto out = UnpackConnections(Packed(none()));
  ASSERT_TRUE(out.ok());
  ExpectSame((*out)[0], none()[0]);
}

TEST(HostConnections, BytesThatAreCutOrWrongAreAnErrorOrTheSameAsFewer) {
  Associations in;
  in.push_back(Association(1, 1));
  const std::vector<uint8_t> bytes = Packed(in);
  for (size_t length = 1; length < bytes.size(); ++length)
    EXPECT_FALSE(UnpackConnections(std::span(bytes).first(length)).ok()) << length;
  std::vector<uint8_t> spoilt = bytes;
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (const uint8_t value : {0x00, 0x7f, 0xff}) {
      spoilt[at] = value;
      (void)UnpackConnections(spoilt);  // whatever it says of it
    }
    spoilt[at] = bytes[at];
  }
}

TEST(HostConnections, WhatNoEngineKnowsIsRefusedByName) {
  struct Case {
    std::string says;
    std::function<void(SavedAssociation&)> spoil;
  };
  const std::vector<Case> cases = {
      {"host_nqn", [](auto& a) { a.controller.host_nqn = "me"; }},
      {"queues has 0", [](auto& a) { a.queues.clear(); }},
      {"queues has 66",
       [](auto& a) {
         for (uint16_t id = 2; id <= kAssociationQueuesMax; ++id) a.queues.push_back(Queue(id));
       }},
      {"notices has 65",
       [](auto& a) { a.controller.reservation_notices.resize(nvme::target::kReservationNoticesMax + 1); }},
      {"masks has 65",
       [](auto& a) {
         for (uint32_t nsid = 1; nsid <= 65; ++nsid) a.controller.reservation_masks[nsid] = 2;
       }},
      {"queue 1 at place 0", [](auto& a) { a.queues.erase(a.queues.begin()); }},
      {"queue 0 at place 1", [](auto& a) { a.queues[1].id = 0; }},
      {"queue 1 twice", [](auto& a) { a.queues.push_back(Queue(1)); }},
      {"host_command.next is 0",
       [](auto& a) { a.queues[0].connection.commands[0].next = static_cast<Next>(99); }},
  };
  for (const Case& wrong : cases) {
    Associations in;
    in.push_back(Association(1, 1));
    wrong.spoil(in[0]);
    const auto refused = UnpackConnections(Packed(in));
    ASSERT_FALSE(refused.ok()) << wrong.says;
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(refused.error().message, HasSubstr(wrong.says));
  }
  Associations many;
  for (size_t i = 0; i <= kAssociationsMax; ++i) many.push_back(Association(static_cast<uint16_t>(i + 1), 0));
  const Status too_many = PackConnections(many, [](auto) { return Ok{}; });
  ASSERT_FALSE(too_many.ok());
  EXPECT_EQ(too_many.error().code, ErrorCode::kResourceExhausted);
  many.pop_back();
  EXPECT_EQ(UnpackConnections(Packed(many))->size(), kAssociationsMax);
}

// As an engine of a later version might say it.
TEST(HostConnections, NumbersThatDoNotFitAreRefused) {
  struct Message {
    Message() {
      queue.id = 0;
      queue.peer = peer.data();
      queue.n_commands = 1;
      queue.commands = commands;
      command.has_entry = command.has_next = 1;
      command.entry = {.len = entry.size(), .data = entry.data()};
      command.next = CLEAT__ENGINE__V1__HOST_COMMAND_NEXT__HOST_COMMAND_NEXT_RUN;
      association.host_nqn = nqn.data();
      association.local = peer.data();
      association.has_host_id = 1;
      association.host_id = {.len = 16, .data = entry.data()};
      reservations.n_notices = reservations.n_masks = 1;
      reservations.notices = notices;
      reservations.masks = masks;
      association.reservations = &reservations;
      association.n_queues = 1;
      association.queues = queues;
      association.resets = &resets;
      resets.n_resets = 1;
      resets.resets = list_of_resets.data();
    }
    Result<Associations> Unpacked() {
      Cleat__Engine__V1__HostConnections all = CLEAT__ENGINE__V1__HOST_CONNECTIONS__INIT;
      Cleat__Engine__V1__HostAssociation* associations[] = {&association};
      all.n_associations = 1;
      all.associations = associations;
      std::vector<uint8_t> bytes(cleat__engine__v1__host_connections__get_packed_size(&all));
      cleat__engine__v1__host_connections__pack(&all, bytes.data());
      return UnpackConnections(bytes);
    }
    std::string nqn = "nqn.2014-08.org.example:host";
    std::string peer = "10.0.0.2:40000";
    std::vector<uint8_t> entry = std::vector<uint8_t>(64, 1);
    std::vector<uint32_t> requests = {65536};
    Cleat__Engine__V1__HostReservationNotice notice = CLEAT__ENGINE__V1__HOST_RESERVATION_NOTICE__INIT;
    Cleat__Engine__V1__HostReservationNotice* notices[1] = {&notice};
    Cleat__Engine__V1__HostReservationMask mask = CLEAT__ENGINE__V1__HOST_RESERVATION_MASK__INIT;
    Cleat__Engine__V1__HostReservationMask* masks[2] = {&mask, &mask};
    Cleat__Engine__V1__HostReservations reservations = CLEAT__ENGINE__V1__HOST_RESERVATIONS__INIT;
    Cleat__Engine__V1__HostCommand command = CLEAT__ENGINE__V1__HOST_COMMAND__INIT;
    Cleat__Engine__V1__HostCommand* commands[1] = {&command};
    Cleat__Engine__V1__HostQueue queue = CLEAT__ENGINE__V1__HOST_QUEUE__INIT;
    Cleat__Engine__V1__HostQueue* queues[1] = {&queue};
    Cleat__Engine__V1__HostReset reset = CLEAT__ENGINE__V1__HOST_RESET__INIT;
    std::vector<Cleat__Engine__V1__HostReset*> list_of_resets = {&reset};
    Cleat__Engine__V1__HostResets resets = CLEAT__ENGINE__V1__HOST_RESETS__INIT;
    Cleat__Engine__V1__HostAssociation association = CLEAT__ENGINE__V1__HOST_ASSOCIATION__INIT;
  };
  EXPECT_TRUE(Message().Unpacked().ok()) << Message().Unpacked().error().message;
  struct Case {
    std::string says;
    std::function<void(Message&)> spoil;
  };
  const auto huge = [](auto& has, auto& field) {
    has = 1;
    field = 65536;
  };
  const std::vector<Case> cases = {
      {"controller_id is 65536",
       [&](Message& m) { huge(m.association.has_controller_id, m.association.controller_id); }},
      {"host_id has 15", [](Message& m) { m.association.host_id.len = 15; }},
      {"host_id has 0", [](Message& m) { m.association.has_host_id = 0; }},
      {"host_nqn is missing", [](Message& m) { m.association.host_nqn = nullptr; }},
      {"host_association.local", [](Message& m) { m.association.local = nullptr; }},
      {"kinds of events",
       [&](Message& m) { huge(m.association.has_events_unread, m.association.events_unread); }},
      {"event_requests is 65536",
       [](Message& m) {
         m.association.n_event_requests = 1;
         m.association.event_requests = m.requests.data();
       }},
      {"host_resets.uniquifier is 65536",
       [&](Message& m) { huge(m.resets.has_uniquifier, m.resets.uniquifier); }},
      {"resets has 65",
       [](Message& m) {
         m.list_of_resets.resize(65, &m.reset);
         m.resets.n_resets = m.list_of_resets.size();
         m.resets.resets = m.list_of_resets.data();
       }},
      {"host_reset.controller_id is 65536",
       [&](Message& m) { huge(m.reset.has_controller_id, m.reset.controller_id); }},
      {"host_reset.uniquifier is 65536",
       [&](Message& m) { huge(m.reset.has_uniquifier, m.reset.uniquifier); }},
      {"host_reset.state is 65536", [&](Message& m) { huge(m.reset.has_state, m.reset.state); }},
      {"notice.type is 65536", [&](Message& m) { huge(m.notice.has_type, m.notice.type); }},
      {"masks has namespace 0 twice", [](Message& m) { m.reservations.n_masks = 2; }},
      {"host_queue.id is 65536", [&](Message& m) { huge(m.queue.has_id, m.queue.id); }},
      {"host_queue.peer", [](Message& m) { m.queue.peer = m.nqn.data(); }},
      {"sq_head is 65536", [&](Message& m) { huge(m.queue.has_sq_head, m.queue.sq_head); }},
      {"entry has 63", [](Message& m) { m.command.entry.len = 63; }},
      {"entry has 0", [](Message& m) { m.command.has_entry = 0; }},
      {"tag is 65536", [&](Message& m) { huge(m.command.has_tag, m.command.tag); }},
      {"next is 0", [](Message& m) { m.command.has_next = 0; }},
      {"next is 77",
       [](Message& m) {
         const int next = 77;
         std::memcpy(&m.command.next, &next, sizeof(next));
       }},
  };
  for (const Case& wrong : cases) {
    Message message;
    wrong.spoil(message);
    const auto refused = message.Unpacked();
    ASSERT_FALSE(refused.ok()) << wrong.says;
    EXPECT_THAT(refused.error().message, HasSubstr(wrong.says));
  }
}

// Two bytes a message are a structure of its own each, when they are read.
TEST(HostConnections, ShortBytesTakeNoMoreMemoryThanTheLongest) {
  std::vector<uint8_t> bytes(kHostConnectionsBytesMax);
  for (size_t at = 0; at < bytes.size(); at += 2) bytes[at] = 0x0a;
  const auto refused = UnpackConnections(bytes);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, HasSubstr("can't be read"));
  bytes.push_back(0);
  EXPECT_THAT(UnpackConnections(bytes).error().message, HasSubstr("at most"));
}

}  // namespace
}  // namespace cleat::engine::host_connections_test
