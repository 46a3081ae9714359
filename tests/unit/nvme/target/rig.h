// SPDX-License-Identifier: Apache-2.0
// A target with one subsystem and one namespace, hosts that send it single commands, and what the owner of their associations hears.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/random.h"
#include "nvme/fabrics/capsule.h"
#include "nvme/fabrics/commands.h"
#include "nvme/target/target.h"

namespace cleat::nvme::target {

inline constexpr uint64_t kSecondNs = 1'000'000'000;
inline constexpr std::string_view kSubsystem = "nqn.2024-01.com.example:a";
inline constexpr std::string_view kHost = "nqn.2024-01.com.example:host";
inline constexpr std::string_view kOtherHost = "nqn.2024-01.com.example:other";
inline constexpr fabrics::Uuid kHostId = {0x11, 0x22, 0x33};
inline constexpr fabrics::Uuid kDiskUuid = {0xaa, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
inline constexpr fabrics::TransportAddress kLocal = {
    .family = fabrics::AddressFamily::kIpv4, .address = {10, 0, 0, 1}, .port = 4420};

// What the owner of associations has heard.
struct Heard final : ControllerOwner {
  void Completed(uint16_t cid, const Answer& answer) override { completed.emplace_back(cid, answer); }
  void EndQueues(QueuesEndFor why) override { queues_end.push_back(why); }
  void EndAssociation(const Error& reason) override { ended.push_back(reason.message); }

  std::vector<std::pair<uint16_t, Answer>> completed;
  std::vector<QueuesEndFor> queues_end;
  std::vector<std::string> ended;
};

NamespaceShape Shape();
SubsystemConfig ConfigOf(std::string_view nqn = kSubsystem);

// Descriptors as hosts of NVMe/TCP fill them in.
fabrics::SubmissionEntry ToHost(const Command& command, uint32_t room_bytes);
fabrics::SubmissionEntry Plain(const Command& command);

// A Connect with its data, in which a test changes a field.
struct ConnectCapsule {
  explicit ConnectCapsule(uint16_t queue_id = 0, std::string_view subsystem = kSubsystem,
                          std::string_view host = kHost);
  std::span<const uint8_t> bytes() const { return {reinterpret_cast<const uint8_t*>(&data), sizeof(data)}; }

  fabrics::SubmissionEntry entry;
  fabrics::ConnectData data;
};

struct Rig {
  // With the subsystem kSubsystem, which lets kHost in, and namespace 3 in it.
  explicit Rig(const TargetLimits& limits = {});
  ~Rig();

  Connected Connect(const ConnectCapsule& capsule) {
    return target.Connect(capsule.entry, capsule.bytes(), local, secured, heard, now_ns);
  }
  // An association that is enabled; the test fails else.
  TargetController& Live(std::string_view subsystem = kSubsystem, std::string_view host = kHost);
  // An I/O queue of it.
  Connected ConnectQueue(const TargetController& controller, uint16_t queue_id);
  Answer Do(TargetController& controller, const fabrics::SubmissionEntry& entry) {
    return controller.Execute(entry, {}, now_ns);
  }
  Answer Do(TargetController& controller, const Command& command) { return Do(controller, Plain(command)); }
  void End(TargetController& controller);
  // What Identify or Get Log Page answers; the test fails where it is no page.
  std::vector<uint8_t> Read(TargetController& controller, const Command& command, uint32_t bytes);
  uint32_t Csts(TargetController& controller);

  fabrics::TransportAddress local = kLocal;
  const SecuredAs* secured = nullptr;  // what Connect comes by
  uint64_t now_ns = kSecondNs;
  Heard heard;
  Random random{7};  // of all that the target draws
  Target target;
  std::vector<TargetController*> live;
};

}  // namespace cleat::nvme::target
