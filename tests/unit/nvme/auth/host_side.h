// SPDX-License-Identifier: Apache-2.0
// A ControllerAuthentication, and two hosts for it: our own, which keeps the rules, and messages of the tests' own, written by the
// specification's text (NVM Express Base 2.0, 8.13).
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/random.h"
#include "block/segments.h"
#include "nvme/auth/authentication.h"
#include "nvme/auth/controller/controller_authentication.h"
#include "tests/unit/nvme/auth/controller.h"

namespace cleat::nvme::auth {

inline std::shared_ptr<const ChapSecrets> SecretsOf(std::string_view host,
                                                    std::optional<std::string_view> controller = {}) {
  std::optional<ChapSecret> own;
  if (controller) own = std::move(ChapSecret::Parse(*controller, "it")).value();
  return std::make_shared<const ChapSecrets>(
      ChapSecrets{.host = std::move(ChapSecret::Parse(host, "it")).value(), .controller = std::move(own)});
}

inline ControllerAuthenticationConfig ControllerConfigOf(std::shared_ptr<const ChapSecrets> secrets,
                                                         RandomBytes random) {
  return {.host_nqn = kTestHostNqn,
          .subsystem_nqn = kTestSubsystemNqn,
          .secrets = std::move(secrets),
          .random = std::move(random)};
}

// Our own host against it, until one of them has nothing more to do.
struct Meeting final : fabrics::QueuePair {
  Meeting(std::shared_ptr<const ChapSecrets> of_host, std::shared_ptr<const ChapSecrets> of_controller,
          Offer offer = {})
      : controller(ControllerConfigOf(std::move(of_controller), Random())),
        host({.who = "it",
              .host_nqn = kTestHostNqn,
              .subsystem_nqn = kTestSubsystemNqn,
              .secrets = std::move(of_host),
              .offer = std::move(offer),
              .random = Random(),
              .timeout_ns = 1'000'000'000}) {}

  uint32_t room() const override { return command ? 0 : 1; }
  void Submit(const fabrics::QueuedCommand& submitted) override { command = submitted; }
  void Abort(const Error&) override {}

  // Whether the host may use the queue; `error` says why not.
  bool Run() {
    host.Start(*this, 1);
    while (command) {
      const fabrics::QueuedCommand now = *std::exchange(command, std::nullopt);
      uint64_t bytes = 0;
      if (!now.to_target.empty()) {
        Bytes message(block::SumBytes(now.to_target));
        block::Gather(now.to_target, 0, message.data(), message.size());
        if (tamper) tamper(message);
        due = controller.Take(message);
        if (due == Due::kCompute) {
          controller.Compute();
          due = controller.Continue();
        }
      } else {
        const ControllerAuthentication::Given given = controller.Give(now.from_target[0].length_bytes);
        due = given.due;
        bytes = given.message.size();
        std::ranges::copy(given.message, now.from_target[0].data());
      }
      const auto progress = host.Take(*this, {}, bytes, 1);
      if (!progress.ok()) {
        error = progress.error().message;
        return false;
      }
      if (*progress == Progress::kCompute) {
        host.Compute();
        host.Continue(*this, 1);
      }
    }
    return host.done();
  }

  RandomBytes Random() {
    return [this](std::span<uint8_t> bytes) {
      for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.Next());
    };
  }

  cleat::Random random{11};
  std::function<void(Bytes&)> tamper;  // with what the host sends
  ControllerAuthentication controller;
  Authentication host;
  std::optional<fabrics::QueuedCommand> command;
  Due due = Due::kHost;
  std::string error;
};

// ---- Messages

struct Descriptor {
  uint8_t protocol = 1;
  Bytes hashes = {1};
  Bytes groups = {0};
  std::optional<uint8_t> hash_count = {};  // where it is a lie
  std::optional<uint8_t> group_count = {};
};

inline constexpr uint16_t kTestTransaction = 0x1234;

inline Bytes NegotiateBytes(const std::vector<Descriptor>& descriptors = {{}}, uint8_t secure_channel = 0) {
  Bytes message = {0, 0, 0, 0, 0x34, 0x12, secure_channel, static_cast<uint8_t>(descriptors.size())};
  for (const Descriptor& descriptor : descriptors) {
    const size_t at = message.size();
    message.resize(at + 64);
    message[at] = descriptor.protocol;
    message[at + 2] = descriptor.hash_count.value_or(static_cast<uint8_t>(descriptor.hashes.size()));
    message[at + 3] = descriptor.group_count.value_or(static_cast<uint8_t>(descriptor.groups.size()));
    std::ranges::copy(descriptor.hashes, message.begin() + static_cast<ptrdiff_t>(at) + 4);
    std::ranges::copy(descriptor.groups, message.begin() + static_cast<ptrdiff_t>(at) + 34);
  }
  return message;
}

struct ReplyFields {
  Bytes response = Bytes(32);
  std::optional<Bytes> challenge = {};  // nullopt: the controller is not asked
  uint32_t sequence = 7;
  Bytes dh_value = {};
};
inline Bytes ReplyBytes(const ReplyFields& fields) {
  Bytes message(16);
  message[0] = 1;
  message[1] = 2;
  message[4] = 0x34;
  message[5] = 0x12;
  message[6] = static_cast<uint8_t>(fields.response.size());
  message[8] = fields.challenge ? 1 : 0;
  message[10] = static_cast<uint8_t>(fields.dh_value.size());
  message[11] = static_cast<uint8_t>(fields.dh_value.size() >> 8);
  for (size_t i = 0; i < 4; ++i) message[12 + i] = static_cast<uint8_t>(fields.sequence >> (8 * i));
  const auto append = [&](const Bytes& bytes) { message.insert(message.end(), bytes.begin(), bytes.end()); };
  append(fields.response);
  append(fields.challenge.value_or(Bytes(fields.response.size())));
  append(fields.dh_value);
  return message;
}

inline Bytes ChapMessage(uint8_t type, uint8_t id, size_t bytes) {
  Bytes message(bytes);
  message[0] = type;
  message[1] = id;
  message[4] = 0x34;
  message[5] = 0x12;
  return message;
}
inline Bytes Success2Bytes() {
  return ChapMessage(1, 4, 16);
}
inline Bytes Failure2Bytes(uint8_t explanation) {
  Bytes message = ChapMessage(0, 0xf0, 8);
  message[6] = 1;
  message[7] = explanation;
  return message;
}

}  // namespace cleat::nvme::auth
