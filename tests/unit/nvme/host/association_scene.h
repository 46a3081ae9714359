// SPDX-License-Identifier: Apache-2.0
// An association with a target in memory (fake_target.h), in virtual time, and what its owner has heard.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"
#include "nvme/host/association.h"
#include "tests/unit/nvme/host/fake_target.h"

namespace cleat::nvme::host {

inline constexpr uint64_t kSecondNs = 1'000'000'000;
inline constexpr uint64_t kLife = 0x1234567890abcdef;
inline constexpr uint8_t kFabrics = 0x7f;

// What the association's owner has heard. Fails the test at once when it hears something out of order.
struct News final : AssociationOwner {
  void Live(uint64_t life, const AssociationInfo& live) override;
  void Changed(uint64_t life, uint32_t bits, const AssociationInfo& now) override;
  void Lost(uint64_t life, const Error& reason) override;
  void Gone(uint64_t life) override;

  std::optional<AssociationInfo> info;
  uint32_t changed = 0;
  uint32_t changes = 0;   // with anything that is different or was asked for
  uint32_t readings = 0;  // these, and those that found all as it was
  std::optional<Error> lost;
  bool gone = false;
};

AssociationConfig Config();

struct Scene {
  explicit Scene(AssociationConfig config = Config());

  void Begin();
  // Time passes, tick by tick, and the target answers.
  void Pass(uint64_t ns);
  // One Tick that comes so late, before the socket is read.
  void StandStill(uint64_t ns);
  std::string lost() const { return news.lost ? news.lost->message : "not lost"; }
  bool LostFor(std::string_view part) const;

  FakeTarget target;
  News news;
  Association association;
  uint64_t now_ns = kSecondNs;
};

}  // namespace cleat::nvme::host
