// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/nvme/target/rig.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace cleat::nvme::target {

NamespaceShape Shape() {
  NamespaceShape shape;
  shape.blocks = 1U << 20;
  shape.block_bytes = 4096;
  shape.physical_block_bytes = 16384;
  shape.optimal_io_bytes = 65536;
  shape.discard = true;
  shape.discard_granularity_bytes = 65536;
  shape.discard_bytes_max = 1U << 30;
  shape.write_zeroes = true;
  shape.write_zeroes_bytes_max = 1U << 21;
  shape.ids.uuid = kDiskUuid;
  shape.ids.nguid = std::array<uint8_t, 16>{9, 8, 7};
  return shape;
}

SubsystemConfig ConfigOf(std::string_view nqn) {
  SubsystemConfig config;
  config.nqn = nqn;
  config.serial = "SERIAL-1";
  config.addresses = {kLocal};
  config.hosts = {HostAccess::Named(kHost)};
  return config;
}

fabrics::SubmissionEntry ToHost(const Command& command, uint32_t room_bytes) {
  fabrics::SubmissionEntry entry = fabrics::EntryOf(command);
  entry.data.type = fabrics::kSglByTransport;
  entry.data.length_bytes = room_bytes;
  return entry;
}

fabrics::SubmissionEntry Plain(const Command& command) {
  return ToHost(command, 0);
}

ConnectCapsule::ConnectCapsule(uint16_t queue_id, std::string_view subsystem, std::string_view host)
    : entry(fabrics::EntryOf(
          fabrics::Connect({.queue_id = queue_id, .entries = 32, .kato_ms = queue_id == 0 ? 5000U : 0U}))),
      data(fabrics::ConnectDataOf({.nqn = std::string(host), .id = kHostId}, subsystem,
                                  fabrics::kAnyController)) {
  entry.data.type = fabrics::kSglInCapsule;
  entry.data.length_bytes = sizeof(data);
}

Rig::Rig(const TargetLimits& limits) : target(limits, "1.2.3", [this] { return random.Next(); }) {
  EXPECT_TRUE(target.Add(ConfigOf()));
  EXPECT_TRUE(target.PutNamespace(kSubsystem, 3, Shape()));
}

Rig::~Rig() {
  for (TargetController* const controller : live) target.End(*controller);
}

TargetController& Rig::Live(std::string_view subsystem, std::string_view host) {
  const Connected connected = Connect(ConnectCapsule(0, subsystem, host));
  EXPECT_EQ(connected.answer.status, 0);
  TargetController& controller = *connected.controller;
  live.push_back(&controller);
  constexpr uint32_t kEnabled = 0x00460001;
  EXPECT_TRUE(Do(controller, fabrics::PropertySet(fabrics::Property::kConfiguration, kEnabled)).ok());
  return controller;
}

Connected Rig::ConnectQueue(const TargetController& controller, uint16_t queue_id) {
  ConnectCapsule capsule(queue_id);
  capsule.data.controller_id = controller.id();
  return Connect(capsule);
}

void Rig::End(TargetController& controller) {
  std::erase(live, &controller);
  target.End(controller);
}

std::vector<uint8_t> Rig::Read(TargetController& controller, const Command& command, uint32_t bytes) {
  Answer answer = Do(controller, ToHost(command, bytes));
  EXPECT_EQ(answer.status, 0);
  EXPECT_EQ(answer.data.size(), bytes);
  answer.data.resize(bytes);
  return std::move(answer.data);
}

uint32_t Rig::Csts(TargetController& controller) {
  return static_cast<uint32_t>(Do(controller, fabrics::PropertyGet(fabrics::Property::kStatus)).result);
}

}  // namespace cleat::nvme::target
