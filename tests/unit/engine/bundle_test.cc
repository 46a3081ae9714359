// SPDX-License-Identifier: Apache-2.0
// Hosts' connections on their way from one engine to the next: they come out as they went in, or not at all. Whatever is wrong with what
// comes, all of it is closed.
#include <cleat/engine/v1/engine.pb-c.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/unix_socket.h"
#include "engine/hand_over/bundle.h"
#include "engine/hand_over/host_connections.h"
#include "nvme/target/reservations/reservation_notices.h"

namespace cleat::engine::bundle_test {
namespace {

using nvme::tcp::SavedCommand;
using nvmf_target::SavedAssociation;
using nvmf_target::SavedQueue;
using ::testing::HasSubstr;

using Associations = std::vector<SavedAssociation>;
using Next = SavedCommand::Next;

nvme::fabrics::TransportAddress Address(const std::string& text) {
  return nvme::fabrics::ParseTransportAddress(text).value();
}

SavedCommand Command(uint16_t cid, Next next, size_t data_bytes = 0) {
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

SavedQueue Queue(uint16_t id) {
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

SavedAssociation Association(uint16_t controller_id, uint16_t io_queues) {
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

void ExpectSame(const SavedCommand& out, const SavedCommand& in) {
  EXPECT_EQ(std::memcmp(&out.entry, &in.entry, sizeof(in.entry)), 0);
  EXPECT_EQ(out.next, in.next);
  EXPECT_EQ(out.in_capsule, in.in_capsule);
  EXPECT_EQ(out.tag, in.tag);
  EXPECT_EQ(out.data, in.data);
  EXPECT_EQ(out.digest_is_wrong, in.digest_is_wrong);
}

void ExpectSame(const SavedQueue& out, const SavedQueue& in) {
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

void ExpectSame(const SavedAssociation& out, const SavedAssociation& in) {
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

std::vector<uint8_t> Packed(const Associations& associations) {
  std::vector<uint8_t> bytes;
  const Status packed = PackConnections(associations, [&bytes](std::span<const uint8_t> piece) -> Status {
    bytes.insert(bytes.end(), piece.begin(), piece.end());
    return Ok{};
  });
  EXPECT_TRUE(packed.ok()) << packed.error().message;
  return bytes;
}

// ---- The bytes

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

// ---- With the sockets

// The hosts' ends of sockets, which show who is closed.
class Bundles : public ::testing::Test {
 protected:
  UniqueFd Socket() {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    hosts_.emplace_back(ends[0]);
    return UniqueFd(ends[1]);
  }
  Associations WithSockets(size_t associations, uint16_t io_queues) {
    Associations made;
    for (size_t i = 0; i < associations; ++i) {
      made.push_back(Association(static_cast<uint16_t>(i + 1), io_queues));
      for (SavedQueue& queue : made.back().queues) queue.socket = Socket();
    }
    return made;
  }
  bool IsClosed(size_t host) const {
    uint8_t byte = 0;
    return recv(hosts_[host].get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 0;
  }
  bool AllAreClosed() const {
    for (size_t host = 0; host < hosts_.size(); ++host) {
      if (!IsClosed(host)) return false;
    }
    return true;
  }
  Result<Associations> Open(const UniqueFd& bundle) {
    return OpenBundle(bundle, [this](uint64_t count) -> Result<DescriptorBudget::Reservation> {
      asked_for_ = count;
      if (refuses_) return Error(ErrorCode::kResourceExhausted, "none left");
      return DescriptorBudget::Reservation();
    });
  }
  // As another engine might have filled it: the descriptors with one message each `a_message`, and perhaps without an end.
  UniqueFd Filled(std::vector<UniqueFd> fds, size_t a_message = 1, bool ends = true) {
    int pair[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
    UniqueFd writing(pair[0]);
    uint8_t mark = 1;
    const iovec part{&mark, 1};
    for (std::span<const UniqueFd> left(fds); !left.empty();) {
      const auto some = left.first(std::min(left.size(), a_message));
      EXPECT_TRUE(SendWithFds(writing.get(), {&part, 1}, some).ok());
      left = left.subspan(some.size());
    }
    if (!ends) left_open_ = std::move(writing);
    return UniqueFd(pair[1]);
  }
  static UniqueFd Memory(std::span<const uint8_t> bytes) {
    UniqueFd memory(memfd_create("test", MFD_CLOEXEC));
    EXPECT_EQ(write(memory.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    return memory;
  }

  std::vector<UniqueFd> hosts_;
  UniqueFd left_open_;
  uint64_t asked_for_ = 0;
  bool refuses_ = false;
};

TEST_F(Bundles, EverySocketComesToItsQueue) {
  constexpr uint16_t kIoQueues = 64;
  constexpr size_t kAssociations = 8;  // 520 sockets, in three messages
  auto bundle = MakeBundle(WithSockets(kAssociations, kIoQueues));
  ASSERT_TRUE(bundle.ok()) << bundle.error().message;
  const auto opened = Open(*bundle);
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  EXPECT_EQ(asked_for_, hosts_.size());
  ASSERT_EQ(opened->size(), kAssociations);
  size_t host = 0;
  for (const SavedAssociation& association : *opened) {
    for (const SavedQueue& queue : association.queues) {
      const auto number = static_cast<uint32_t>(host);
      ASSERT_EQ(write(queue.socket.get(), &number, sizeof(number)), static_cast<ssize_t>(sizeof(number)));
      uint32_t got = 0;
      ASSERT_EQ(read(hosts_[host].get(), &got, sizeof(got)), static_cast<ssize_t>(sizeof(got)));
      EXPECT_EQ(got, host++);
    }
  }
}

TEST_F(Bundles, WhoeverClosesItClosesAllConnections) {
  auto bundle = MakeBundle(WithSockets(2, 1));
  ASSERT_TRUE(bundle.ok());
  EXPECT_FALSE(IsClosed(0));
  bundle->Reset();
  EXPECT_TRUE(AllAreClosed());
}

TEST_F(Bundles, WhatIsBrokenIsClosedWhole) {
  struct Case {
    std::string says;
    std::function<UniqueFd(std::vector<UniqueFd>)> fill;  // from a memfd and four sockets
  };
  const std::vector<Case> cases = {
      {"is empty", [this](auto) { return Filled({}); }},
      {"has no end", [this](auto fds) { return Filled(std::move(fds), 2, /*ends=*/false); }},
      {"lacks 1 sockets",
       [this](auto fds) {
         fds.pop_back();
         return Filled(std::move(fds), 3);
       }},
      {"lacks 4 sockets",
       [this](auto fds) {
         fds.resize(1);
         return Filled(std::move(fds));
       }},
      {"more sockets than connections",
       [this](auto fds) {
         fds.push_back(Socket());
         return Filled(std::move(fds));
       }},
      {"no connection's",
       [this](auto fds) {
         fds[2] = Memory({});
         return Filled(std::move(fds), 200);
       }},
      {"does not begin with a memfd",
       [this](auto fds) {
         std::swap(fds[0], fds[1]);
         return Filled(std::move(fds));
       }},
      {"can't be read",
       [this](auto fds) {
         EXPECT_EQ(ftruncate(fds[0].get(), 100), 0);
         return Filled(std::move(fds));
       }},
      {"at most",
       [this](auto fds) {
         EXPECT_EQ(ftruncate(fds[0].get(), kHostConnectionsBytesMax + 1), 0);
         return Filled(std::move(fds));
       }},
      {"receiving", [](auto fds) { return std::move(fds[1]); }},
  };
  for (const Case& wrong : cases) {
    hosts_.clear();
    Associations associations = WithSockets(2, 1);
    std::vector<UniqueFd> fds;
    fds.push_back(Memory(Packed(associations)));
    for (SavedAssociation& association : associations) {
      for (SavedQueue& queue : association.queues) fds.push_back(std::move(queue.socket));
    }
    UniqueFd bundle = wrong.fill(std::move(fds));
    const auto refused = Open(bundle);
    ASSERT_FALSE(refused.ok()) << wrong.says;
    if (wrong.says != "receiving") {
      EXPECT_THAT(refused.error().message, HasSubstr(wrong.says));
    }
    bundle.Reset();
    left_open_.Reset();
    EXPECT_TRUE(AllAreClosed()) << wrong.says;
  }
}

TEST_F(Bundles, DescriptorsAreReservedBeforeTheyAreOpened) {
  auto bundle = MakeBundle(WithSockets(5, 64));
  ASSERT_TRUE(bundle.ok());
  refuses_ = true;
  const auto refused = Open(*bundle);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(asked_for_, hosts_.size());
  bundle->Reset();
  EXPECT_TRUE(AllAreClosed());
}

// A process that may have no more descriptors.
class NoneLeft {
 public:
  NoneLeft() {
    getrlimit(RLIMIT_NOFILE, &before_);
    rlimit none = before_;
    none.rlim_cur = 0;
    setrlimit(RLIMIT_NOFILE, &none);
  }
  ~NoneLeft() { setrlimit(RLIMIT_NOFILE, &before_); }
  NoneLeft(const NoneLeft&) = delete;
  NoneLeft& operator=(const NoneLeft&) = delete;

 private:
  rlimit before_{};
};

TEST_F(Bundles, WithoutDescriptorsNoneIsMadeOrOpened) {
  auto bundle = MakeBundle(WithSockets(1, 1));
  Associations others = WithSockets(1, 1);
  ASSERT_TRUE(bundle.ok());
  {
    const NoneLeft none;
    EXPECT_FALSE(MakeBundle(std::move(others)).ok());
    const auto refused = Open(*bundle);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted) << refused.error().message;
  }
  bundle->Reset();
  EXPECT_TRUE(AllAreClosed());
}

}  // namespace
}  // namespace cleat::engine::bundle_test
