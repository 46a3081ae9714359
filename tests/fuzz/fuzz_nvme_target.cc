// SPDX-License-Identifier: Apache-2.0
// A host made of random bytes against a controller's NVMe/TCP connection, and against a target's logic for what is whole. Whatever it sends: no
// byte outside of a command's memory is written, memory is in place until its command has been given back, each command is given back once,
// and an end is heard once.
//
// An input: a byte of options (bits 0 and 1: an ICReq that fits and asks for header and data digests is put in front where bit 2 is set; bit
// 3: digests are made right of the header of what comes at the beginning of a piece; bit 4: a Connect that is right is put behind the ICReq; bit 5:
// the host has to prove who it is, which no input can),
// then pieces: a byte that says what comes first (0-3 sends a part of what is queued, 4 all of it, 5 answers what runs, 6 lets what waits go
// on, 7 nothing), a byte for how it is cut, and a piece with its length.
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "block/memory.h"
#include "nvme/auth/controller/controller_authentication.h"
#include "nvme/target/target.h"
#include "nvme/tcp/crc32c.h"
#include "nvme/tcp_target/target_connection.h"
#include "tests/fuzz/input.h"

namespace cleat::nvme::tcp {
namespace {

constexpr uint32_t kCommands = 6;
constexpr uint32_t kPiecesMax = 200;
constexpr uint32_t kInCapsuleBytes = 256;
constexpr char kNqn[] = "nqn.2024-01.com.example:fuzz";
constexpr char kHostNqn[] = "nqn.2024-01.com.example:host";

// In memory of its own that is freed when it is given back: what touches it later is found by AddressSanitizer.
struct Command : TargetCommand {
  std::vector<uint8_t> bytes;
  std::shared_ptr<block::MemoryRegion> region;
  block::Segment segment;
  std::span<const uint8_t> kept;  // where it was received
  bool in_use = false;
  bool runs = false;

  void Give(uint32_t size) {
    bytes.assign(size, 0);
    region = block::MemoryRegion::Borrow(bytes.data(), size);
    segment = {region.get(), 0, size};
    data = {&segment, size > 0 ? 1U : 0U};
  }
};

target::TargetLimits Limits() {
  target::TargetLimits limits;
  limits.features.reservations = true;
  return limits;
}

class FuzzTarget final : private fabrics::TargetQueueOwner, private target::ControllerOwner {
 public:
  explicit FuzzTarget(bool asks)
      : target_(Limits(), "1.0", [drawn = uint64_t{0}]() mutable { return ++drawn; }) {
    for (uint32_t i = 0; i < kCommands; ++i) commands_[i].tag = static_cast<uint16_t>(i);
    connection_.SetLooksAhead(true);
    target::SubsystemConfig config;
    config.nqn = kNqn;
    config.serial = "1";
    config.addresses.resize(1);
    config.hosts = {target::HostAccess::Named(kHostNqn)};
    if (asks) config.hosts[0].chap = Secrets();
    CLEAT_CHECK(target_.Add(config).ok());
    target::NamespaceShape shape;
    shape.blocks = 1000;
    shape.discard = shape.write_zeroes = true;
    shape.ids.uuid.emplace()[0] = 1;
    CLEAT_CHECK(target_.PutNamespace(kNqn, 1, shape).ok());
  }

  void Send(size_t bytes_max) {
    std::array<iovec, 5> iovecs;
    while (bytes_max > 0) {
      const uint32_t count = connection_.FillSend(iovecs);
      size_t bytes = 0;
      for (uint32_t i = 0; i < count; ++i) {
        const size_t part = std::min(iovecs[i].iov_len, bytes_max - bytes);
        seen_ ^= Crc32cOf(iovecs[i].iov_base, part);
        bytes += part;
      }
      if (bytes == 0) return;
      bytes_max -= bytes;
      connection_.Sent(bytes);
    }
  }

  void Receive(std::span<const uint8_t> bytes, size_t step) {
    std::array<iovec, 3> iovecs;
    while (!bytes.empty() && !connection_.ended() && !connection_.waits()) {
      std::vector<uint8_t> buffer(700);  // freed at once
      const uint32_t count = connection_.ReceiveSpace(iovecs, buffer);
      CLEAT_CHECK(count > 0);
      size_t came = 0;
      for (uint32_t i = 0; i < count; ++i) {
        const size_t part = std::min({iovecs[i].iov_len, bytes.size(), step - came});
        if (part > 0) std::memcpy(iovecs[i].iov_base, bytes.data(), part);
        bytes = bytes.subspan(part);
        came += part;
      }
      connection_.Received(came);
    }
  }

  void AnswerAll() {
    for (Command& command : commands_) {
      if (command.runs) Answer(command);
    }
  }
  void Resume() { connection_.Resume(); }

  void Finish() {
    Send(SIZE_MAX);
    connection_.Abort(Error(ErrorCode::kCancelled, "the input's end"));
    AnswerAll();
    CLEAT_CHECK(ended_ && connection_.commands() == 0);
    if (controller_ != nullptr) target_.End(*controller_);
  }

 private:
  static std::shared_ptr<const auth::ChapSecrets> Secrets() {
    const auto parse = [] {
      return std::move(
                 auth::ChapSecret::Parse("DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:", "it"))
          .value();
    };
    return std::make_shared<const auth::ChapSecrets>(
        auth::ChapSecrets{.host = parse(), .controller = parse()});
  }
  // Authentication Send and Receive of a host that is to prove who it is. nullopt: it is another command.
  std::optional<target::Answer> LogIn(const Command& command) {
    const auto type = static_cast<fabrics::FabricsType>(command.entry.nsid & 0xff);
    if (login_ == nullptr || command.entry.opcode != static_cast<uint8_t>(AdminOpcode::kFabrics) ||
        (type != fabrics::FabricsType::kAuthenticationSend &&
         type != fabrics::FabricsType::kAuthenticationReceive))
      return std::nullopt;
    target::Answer answer;
    auth::Due due = auth::Due::kHost;
    if (type == fabrics::FabricsType::kAuthenticationReceive) {
      auth::ControllerAuthentication::Given given =
          login_->Give(target::TransferOf(command.entry).to_host_bytes);
      answer.data = std::move(given.message);
      due = given.due;
    } else {
      due = login_->Take(command.bytes);
      if (due == auth::Due::kCompute) {
        login_->Compute();
        due = login_->Continue();
      }
    }
    // The secret is in no input.
    CLEAT_CHECK(due != auth::Due::kProved && !login_->proved());
    return answer;
  }

  TargetCommand* Take(const fabrics::SubmissionEntry& /*entry*/, uint32_t in_capsule_bytes) override {
    for (Command& command : commands_) {
      if (command.in_use) continue;
      command.in_use = true;
      command.Give(in_capsule_bytes);
      return &command;
    }
    return nullptr;
  }
  // Some have their data where it lies, until they run.
  TargetCommand* TakeHere(const fabrics::SubmissionEntry& entry, std::span<const uint8_t> here) override {
    if (entry.cid % 3 != 0) return Take(entry, static_cast<uint32_t>(here.size()));
    auto* const command = static_cast<Command*>(Take(entry, 0));
    if (command == nullptr) return nullptr;
    command->region = block::MemoryRegion::Borrow(const_cast<uint8_t*>(here.data()), here.size());
    command->segment = {command->region.get(), 0, static_cast<uint32_t>(here.size())};
    command->data = {&command->segment, 1};
    command->kept = here;
    return command;
  }
  void Ahead(const fabrics::SubmissionEntry& entry) override { seen_ ^= entry.nsid; }
  TargetCommand* Find(uint16_t tag) override {
    return tag < kCommands && commands_[tag].in_use ? &commands_[tag] : nullptr;
  }
  void Run(TargetCommand& of_target) override {
    auto& command = static_cast<Command&>(of_target);
    if (!command.kept.empty()) {
      const std::span<const uint8_t> kept = std::exchange(command.kept, {});
      command.Give(static_cast<uint32_t>(kept.size()));
      std::ranges::copy(kept, command.bytes.begin());
    }
    const target::Transfer transfer = target::TransferOf(command.entry);
    if (transfer.to_target_bytes > 0 && !command.in_capsule && command.data_bytes > 0 &&
        command.data_bytes <= target::kAdminDataMax) {
      command.Give(command.data_bytes);
      return connection_.Ask(command);
    }
    DataCame(command);
  }
  // Some commands are answered at once, others when the input says so.
  void DataCame(TargetCommand& of_target) override {
    auto& command = static_cast<Command&>(of_target);
    command.runs = true;
    if (command.entry.cid % 2 == 0) Answer(command);
  }
  void Give(TargetCommand& of_target) override {
    auto& command = static_cast<Command&>(of_target);
    CLEAT_CHECK(command.in_use);
    command.in_use = command.runs = false;
    command.kept = {};
    command.data = {};
    command.region.reset();
    command.bytes = std::vector<uint8_t>();
  }
  void Ended(const Error& reason) override {
    CLEAT_CHECK(!ended_ && !reason.message.empty());
    ended_ = true;
  }

  void Answer(Command& command) {
    command.runs = false;
    target::Answer answer;
    if (connection_.ended()) {
      answer.status = 7;
    } else if (controller_ == nullptr) {
      const auto connected = target_.Connect(command.entry, command.bytes, {}, nullptr, *this, 1);
      answer = connected.answer;
      controller_ = connected.controller;
      if (connected.proof != nullptr) {
        login_ = std::make_unique<auth::ControllerAuthentication>(auth::ControllerAuthenticationConfig{
            .host_nqn = kHostNqn,
            .subsystem_nqn = kNqn,
            .secrets = connected.proof,
            .random = [](std::span<uint8_t> bytes) { std::ranges::fill(bytes, uint8_t{0x5a}); }});
      }
      if (controller_ != nullptr)
        connection_.BecomeQueue(connected.entries, connected.flow_control, kInCapsuleBytes);
    } else if (auto logged_in = LogIn(command)) {
      answer = std::move(*logged_in);
    } else {
      answer = controller_->Execute(command.entry, command.bytes, 1);
      CLEAT_CHECK(login_ == nullptr || !answer.ok());
    }
    if (!command.in_use) return;  // the connection ended with it
    const uint32_t room = target::TransferOf(command.entry).to_host_bytes;
    CLEAT_CHECK(answer.data.size() <= room);
    if (answer.kind == target::Answer::Kind::kHeld) answer = {};
    if (!connection_.ended()) command.Give(static_cast<uint32_t>(answer.data.size()));
    if (!answer.data.empty() && !connection_.ended())
      std::memcpy(command.bytes.data(), answer.data.data(), answer.data.size());
    const bool with_data = answer.ok() && !connection_.ended();
    connection_.Answer(command, Status(answer.status), answer.result,
                       with_data ? static_cast<uint32_t>(answer.data.size()) : 0);
  }

  void Completed(uint16_t /*cid*/, const target::Answer& /*answer*/) override {}
  void EndQueues(target::QueuesEndFor /*why*/) override {}
  void EndAssociation(const Error& reason) override { connection_.Abort(reason); }

  std::array<Command, kCommands> commands_;
  target::Target target_;
  target::TargetController* controller_ = nullptr;
  std::unique_ptr<auth::ControllerAuthentication> login_;  // nullptr: the host is believed
  TargetConnection connection_{{.name = "fuzz"}, *this};
  uint32_t seen_ = 0;
  bool ended_ = false;
};

// Else nothing behind a digest would ever be reached.
void MakeHeaderDigest(std::vector<uint8_t>& piece) {
  const size_t header = piece.size() > 2 ? piece[2] : 0;
  if (piece.size() < header + kDigestBytes || header == 0) return;
  const uint32_t digest = Crc32cOf(piece.data(), header);
  std::memcpy(piece.data() + header, &digest, sizeof(digest));
}

template <typename Pdu>
std::span<const uint8_t> BytesOf(const Pdu& pdu) {
  return {reinterpret_cast<const uint8_t*>(&pdu), sizeof(pdu)};
}

void PutConnect(FuzzTarget& target) {
  struct {
    CapsuleCmd capsule;
    fabrics::ConnectData data;
  } pdu;
  pdu.capsule.header = {PduType::kCapsuleCmd, 0, sizeof(CapsuleCmd), sizeof(CapsuleCmd), sizeof(pdu)};
  pdu.capsule.entry = fabrics::EntryOf(
      fabrics::Connect({.queue_id = 0, .entries = 32, .kato_ms = 5000, .flow_control = true}));
  pdu.capsule.entry.data.type = fabrics::kSglInCapsule;
  pdu.capsule.entry.data.length_bytes = sizeof(pdu.data);
  pdu.data = fabrics::ConnectDataOf({kHostNqn, {1}}, kNqn, fabrics::kAnyController);
  target.Receive(BytesOf(pdu), SIZE_MAX);
}

void Run(FuzzInput input) {
  const uint8_t options = input.Byte();
  FuzzTarget target((options & 32) != 0);
  if ((options & 4) != 0) {
    IcReq request;
    request.header = {PduType::kIcReq, 0, sizeof(IcReq), 0, sizeof(IcReq)};
    request.digests = options & 3;
    target.Receive(BytesOf(request), SIZE_MAX);
    if ((options & 16) != 0 && (options & 3) == 0) PutConnect(target);
  }
  for (uint32_t pieces = 0; !input.empty() && pieces < kPiecesMax; ++pieces) {
    const uint8_t what = input.Byte() & 7;
    if (what < 5) target.Send(what < 4 ? size_t{1} << (what * 4) : SIZE_MAX);
    if (what == 5) target.AnswerAll();
    if (what == 6) target.Resume();
    const size_t step = 1 + size_t{input.Byte()} * 16;
    const auto taken = input.Piece();
    std::vector<uint8_t> piece(taken.begin(), taken.end());
    if ((options & 8) != 0 && (options & 1) != 0) MakeHeaderDigest(piece);
    target.Receive(piece, step);
  }
  target.Finish();
}

}  // namespace
}  // namespace cleat::nvme::tcp

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  cleat::nvme::tcp::Run(cleat::FuzzInput(data, size));
  return 0;
}
