// SPDX-License-Identifier: Apache-2.0
// A discovery service of the tests' own, and a host that reads its log.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nvme/host/discovery.h"
#include "tests/unit/nvme/host/fake_target.h"

namespace cleat::nvme::host::discovery_scene {

using fabrics::DiscoveryLog;
using fabrics::SubmissionEntry;

inline constexpr uint64_t kSecondNs = 1'000'000'000;
inline constexpr uint8_t kGetLogPage = 0x02;
inline constexpr uint8_t kFabrics = 0x7f;
inline constexpr uint8_t kSetFeatures = 0x09;
inline constexpr uint8_t kEventRequest = 0x0c;
inline constexpr uint8_t kKeepAlive = 0x18;
inline constexpr uint32_t kRetainEvent = 1U << 15;
inline constexpr uint32_t kKatoMs = 2000;
inline constexpr uint32_t kLogChanged = 0x0070f002;  // a notice, F0h, log page 70h

inline std::vector<uint8_t> LogOf(uint64_t generation, uint64_t records) {
  std::vector<uint8_t> log(1024 * (records + 1));
  std::memcpy(log.data(), &generation, sizeof(generation));
  std::memcpy(log.data() + 8, &records, sizeof(records));
  for (size_t at = 1024; at < log.size(); at += 1024) {
    log[at] = 3;
    log[at + 1] = 1;
    log[at + 2] = 2;
    std::memcpy(&log[at + 32], "4420", 4);
    std::memcpy(&log[at + 256], "nqn.2024-01.com.example:a", 25);
    std::memcpy(&log[at + 512], "10.0.0.1", 8);
  }
  return log;
}

// A reading against the fake target, which has `log` if it is asked for it.
class Scene : public DiscoveryOwner {
 public:
  virtual ~Scene() = default;
  explicit Scene(const DiscoveryConfig& config = ConfigOf()) : discovery(config, *this) {
    target.owner = &discovery;
    target.instead = [this](const SubmissionEntry& entry) { return Answer(entry); };
    discovery.Start(target, now_ns);
  }
  void Run() {
    discovery.Connected();
    target.Serve();
  }
  void Pass(uint64_t time_ns) {
    now_ns += time_ns;
    discovery.Tick(now_ns);
    target.Serve();
  }
  bool Fails(ErrorCode code, std::string_view part) const {
    return result && !*result && result->error().code == code &&
           result->error().message.starts_with("the service: ") &&
           result->error().message.find(part) != std::string::npos;
  }
  std::string text() const {
    if (!result) return "no result";
    return *result ? "a log" : result->error().message;
  }

  void Seen(const DiscoveryLog& log_read) override {
    EXPECT_FALSE(result) << "told after the end";
    logs.push_back(log_read);
  }
  void Discovered(Result<DiscoveryLog> read) override {
    EXPECT_FALSE(result) << "told twice";
    result.emplace(std::move(read));
  }

  FakeTarget target;
  std::vector<uint8_t> log = LogOf(1, 2);
  std::function<void()> before_piece = [] {};
  uint64_t now_ns = 5;
  std::vector<DiscoveryLog> logs;  // that were seen
  std::optional<Result<DiscoveryLog>> result;
  Discovery discovery;

  static DiscoveryConfig ConfigOf() {
    return {
        .who = "the service", .host = fabrics::HostIdentityOfUuid({1}), .chap = {}, .timeout_ns = kSecondNs};
  }

 private:
  std::optional<FakeAnswer> Answer(const SubmissionEntry& entry) {
    if (entry.opcode != kGetLogPage) return std::nullopt;
    EXPECT_EQ(entry.cdw10 & 0xff, 0x70U);
    before_piece();
    const uint64_t bytes = ((entry.cdw10 >> 16) + 1) * 4;
    EXPECT_LE(bytes, kDiscoveryPieceBytes);
    FakeAnswer answer{.data = std::vector<uint8_t>(bytes)};
    for (size_t i = 0; i < bytes && entry.cdw12 + i < log.size(); ++i) answer.data[i] = log[entry.cdw12 + i];
    return answer;
  }
};

}  // namespace cleat::nvme::host::discovery_scene
