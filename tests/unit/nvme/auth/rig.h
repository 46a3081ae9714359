// SPDX-License-Identifier: Apache-2.0
// A host's Authentication and a TestController, run against each other until one of them has nothing more to do.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/random.h"
#include "nvme/auth/authentication.h"
#include "tests/unit/nvme/auth/controller.h"

namespace cleat::nvme::auth {

struct RigOptions {
  std::string_view host_secret = kTestSecrets[0].text;
  std::optional<std::string_view> controller_secret = {};  // nullopt: the subsystem need not prove itself
  Offer offer;
};

struct Rig {
  static constexpr uint64_t kTimeoutNs = 1'000'000'000;
  static constexpr uint64_t kCommandsMax = 5;

  explicit Rig(const RigOptions& options) : authentication(ConfigOf(options, random)) {
    controller.host_secret = RawSecret(32);
  }

  static AuthenticationConfig ConfigOf(const RigOptions& options, cleat::Random& random) {
    std::optional<ChapSecret> own;
    if (options.controller_secret)
      own = std::move(ChapSecret::Parse(*options.controller_secret, "it")).value();
    ChapSecrets secrets{.host = std::move(ChapSecret::Parse(options.host_secret, "it")).value(),
                        .controller = std::move(own)};
    return {.who = "subsystems/a, queue 1",
            .host_nqn = kTestHostNqn,
            .subsystem_nqn = kTestSubsystemNqn,
            .secrets = std::make_shared<const ChapSecrets>(std::move(secrets)),
            .offer = options.offer,
            .random =
                [&random](std::span<uint8_t> bytes) {
                  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.Next());
                },
            .timeout_ns = kTimeoutNs};
  }

  // Until the end, or until `answers` commands have been answered. True: the queue may be used. False: `error` says why not, or nothing is
  // decided yet.
  bool Run(uint64_t answers = UINT64_MAX) {
    if (controller.commands == 0) authentication.Start(controller, now_ns);
    while (controller.waiting() && answers-- > 0) {
      const auto [entry, data_bytes] = controller.Answer();
      const auto progress = authentication.Take(controller, entry, data_bytes, now_ns);
      if (!progress.ok()) {
        error = progress.error();
        return false;
      }
      if (*progress == Progress::kDone) return true;
      if (*progress == Progress::kCompute) {
        authentication.Compute();
        authentication.Continue(controller, now_ns);
      }
    }
    return false;
  }

  std::string message() const { return error ? error->message : std::string(); }

  uint64_t now_ns = 1000;
  cleat::Random random{7};
  TestController controller;
  Authentication authentication;
  std::optional<Error> error;
};

}  // namespace cleat::nvme::auth
