// SPDX-License-Identifier: Apache-2.0
// Whatever a target does while a queue logs in. Behind the queue is an honest controller; the input says what becomes of its answers on their
// way (they come as they are, changed in places, cut, or as anything at all, with any status), how long they take, and when the queue ends.
// The login ends once; a queue of a subsystem that has to prove itself is used only after its proof has come unchanged, of the secret that is
// configured; one that asked for the host's proof, not before the host has sent it.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "block/segments.h"
#include "nvme/host/queue_login.h"
#include "tests/fuzz/input.h"
#include "tests/unit/nvme/auth/controller.h"

namespace cleat::nvme::host {
namespace {

constexpr uint64_t kTimeoutNs = 1'000'000'000;
constexpr uint64_t kTickNs = 100'000'000;
constexpr uint16_t kController = 7;
constexpr uint32_t kEventsMax = 256;
constexpr uint8_t kChangesMax = 8;
constexpr uint8_t kLateTicks = 4;
constexpr uint8_t kReceive = 6, kSuccess1 = 3;
constexpr ptrdiff_t kProofAt = 16;  // in it

// What the first byte of an input says.
enum Setting : uint8_t {
  kHasSecrets = 1,
  kHasControllersSecret = 2,
  kTargetHasAnotherOne = 4,
  kTargetAsks = 8,
  kGroup = 16,
  kAdminQueue = 32,
};

std::shared_ptr<const auth::ChapSecrets> SecretsOf(uint8_t settings) {
  static const auto make = [](bool both) {
    const auto secret = [] {
      return std::move(auth::ChapSecret::Parse(auth::kTestSecrets[0].text, "it")).value();
    };
    std::optional<auth::ChapSecret> own;
    if (both) own = secret();
    return std::make_shared<const auth::ChapSecrets>(
        auth::ChapSecrets{.host = secret(), .controller = std::move(own)});
  };
  static const auto hosts = make(false), both = make(true);
  if ((settings & kHasSecrets) == 0) return nullptr;
  return (settings & kHasControllersSecret) != 0 ? both : hosts;
}

class FuzzQueue final : public fabrics::QueuePair {
 public:
  explicit FuzzQueue(uint8_t settings) : settings_(settings), login_(ConfigOf(settings)) {
    controller_.host_nqn = fabrics::HostIdentityOfUuid({1}).nqn;
    controller_.group = (settings & kGroup) != 0 ? 1 : 0;
    controller_.host_secret = controller_.own_secret.emplace(auth::RawSecret(32));
    if ((settings & kTargetHasAnotherOne) != 0) (*controller_.own_secret)[3] ^= 1;
    login_.Begin(*this, now_ns_);
  }

  uint32_t room() const override { return command_ ? 0 : 1; }
  void Submit(const fabrics::QueuedCommand& command) override {
    CLEAT_CHECK(!command_ && QueueLogin::IsOf(command.cookie) && !ended_ && !login_.ready());
    command_ = command;
  }
  void Abort(const Error& /*reason*/) override {}

  bool ended() const { return ended_; }
  // The command that waits is answered: `how` says with which status, and what becomes of the honest answer's data.
  void Answer(FuzzInput& input) {
    if (!command_) return Go(input.Byte());
    const uint8_t how = input.Byte();
    if ((how & 0x10) != 0) Go(kLateTicks);
    if (ended_) return;
    const fabrics::QueuedCommand command = *std::exchange(command_, std::nullopt);
    fabrics::CompletionEntry entry;
    if ((how & 0x80) != 0) entry.status_field = input.Word();
    const bool is_connect = command.entry.nsid == 1;
    if (is_connect) entry.result = (how & 0x40) != 0 ? input.Word() * uint64_t{0x10001} : HonestConnect();
    const uint64_t data_bytes = is_connect ? 0 : Message(command, how, input);
    const auto ready = login_.Take(*this, command.cookie, entry, data_bytes, now_ns_);
    CLEAT_CHECK(ready.ok() ? *ready == login_.ready() : !command_);
    ended_ = !ready.ok() || *ready;
    if (login_.ready()) CheckReady();
  }
  // Time goes on, and the arithmetic comes to an end if any has begun.
  void Go(uint8_t ticks) {
    now_ns_ += ticks * kTickNs;
    if (login_.Overdue(now_ns_)) {
      ended_ = true;
    } else if (const auto authentication = std::exchange(computing_, nullptr)) {
      authentication->Compute();
      login_.Computed(*this, now_ns_);
      CLEAT_CHECK(command_.has_value());
    }
  }

 private:
  QueueLoginConfig ConfigOf(uint8_t settings) {
    QueueLoginConfig config;
    config.who = "fuzz";
    config.host = fabrics::HostIdentityOfUuid({1});
    config.subsystem_nqn = auth::kTestSubsystemNqn;
    config.chap.secrets = SecretsOf(settings);
    // The larger groups would take most of the time.
    config.chap.offer.groups = {auth::DhGroup::kNull, auth::DhGroup::kFfdhe2048};
    config.chap.random = [this](std::span<uint8_t> bytes) {
      for (uint8_t& byte : bytes) byte = ++random_;
    };
    config.chap.compute = [this](const auto& authentication) { computing_ = authentication; };
    if ((settings & kAdminQueue) == 0) {
      config.queue_id = 1;
      config.controller_id = kController;
    }
    config.entries = 32;
    config.timeout_ns = kTimeoutNs;
    return config;
  }
  uint64_t HonestConnect() {
    asked_ = (settings_ & kTargetAsks) != 0;
    return kController | (asked_ ? 1U << 17 : 0U);
  }

  // What the controller says to the host's message, or gives it. An honest controller has to understand what the host sends.
  uint64_t Message(const fabrics::QueuedCommand& command, uint8_t how, FuzzInput& input) {
    if (command.entry.nsid != kReceive) {
      auth::Bytes message(block::SumBytes(command.to_target));
      block::Gather(command.to_target, 0, message.data(), message.size());
      knows_ = message.at(1) == 0 || knows_;
      // A reply to a challenge that was not the controller's own says nothing to it.
      if (message.at(0) == 0 || challenge_is_own_) controller_.TakeMessage(message);
      return 0;
    }
    const uint64_t room_bytes = block::SumBytes(command.from_target);
    auth::Bytes message;
    bool is_own = false;
    const bool can_answer = !challenge_given_ || challenge_is_own_;
    if ((how & 1) == 0 && can_answer) {
      message = controller_.GiveMessage(room_bytes);
      const auth::Bytes honest = message;
      for (uint8_t changes = how >> 1 & (kChangesMax - 1); changes > 0 && !message.empty(); --changes) {
        message[input.Word() % message.size()] ^= input.Byte();
      }
      if ((how & 0x20) != 0) message.resize(std::min<size_t>(message.size(), input.Word()));
      is_own = message == honest;
      if (honest.at(1) == kSuccess1 && honest.at(8) == 1 && message.size() == honest.size())
        proof_came_ |= std::equal(honest.begin() + kProofAt, honest.end(), message.begin() + kProofAt);
    } else {
      const auto piece = input.Piece();
      message.assign(piece.begin(),
                     piece.begin() + static_cast<ptrdiff_t>(std::min<size_t>(piece.size(), room_bytes)));
    }
    if (!std::exchange(challenge_given_, true)) challenge_is_own_ = is_own;
    block::Scatter(message.data(), message.size(), command.from_target, 0);
    return message.size();
  }

  void CheckReady() const {
    CLEAT_CHECK(login_.controller_id() != 0 || (settings_ & kAdminQueue) != 0);
    const bool proves = (settings_ & kHasSecrets) != 0 && (settings_ & kHasControllersSecret) != 0;
    CLEAT_CHECK(login_.proved() == proves);
    if (proves) CLEAT_CHECK(proof_came_ && (settings_ & kTargetHasAnotherOne) == 0);
    if (asked_) CLEAT_CHECK(challenge_given_ && knows_);
  }

  const uint8_t settings_;
  uint8_t random_ = 0;
  std::shared_ptr<auth::Authentication> computing_;
  QueueLogin login_;
  auth::TestController controller_;
  std::optional<fabrics::QueuedCommand> command_;
  uint64_t now_ns_ = 0;
  bool ended_ = false;
  bool asked_ = false;
  bool knows_ = false;  // the host has begun
  bool challenge_given_ = false;
  bool challenge_is_own_ = false;  // the controller's, unchanged
  bool proof_came_ = false;
};

void Run(FuzzInput input) {
  FuzzQueue queue(input.Byte());
  for (uint32_t events = 0; !input.empty() && !queue.ended() && events < kEventsMax; ++events)
    queue.Answer(input);
}

}  // namespace
}  // namespace cleat::nvme::host

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  cleat::nvme::host::Run(cleat::FuzzInput(data, size));
  return 0;
}
