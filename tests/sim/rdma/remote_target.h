// SPDX-License-Identifier: Apache-2.0
// A controller at the other end of a host's queue, in virtual time: reads and writes, with data that it moves in parts, and in some of its kinds all that a
// controller may not do. Its bytes have its mark in their high half, as those of its guest have: whatever it reads of the host's memory is looked at for
// those of others.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "nvme/fabrics/capsule.h"
#include "nvme/rdma/keyed_sgl.h"
#include "tests/sim/rdma/initiator_model.h"

namespace cleat::sim::rdma {

inline constexpr uint32_t kPartBytes = 24 * 1024;  // of a disk, for one command at a time

enum class TargetKind : uint8_t {
  kGood,
  kAccessesLate,  // behind its answer
  kAnswersTwice,
  kAnswersOthers,  // a CID of no command, or of another one
  kWrongLength,    // of a message
  kWrongKey,       // is invalidated
  kAnswersEarly,   // and moves the data later, or never
  kOutOfWindow,
  kOldKeys,  // all that any controller was ever shown
  kFloods,
  kDisconnects,
  kSilent,  // from some time on
};
inline constexpr uint64_t kTargetKinds = 12;

// What some controller was shown.
struct ShownMemory {
  uint32_t key = 0;
  uint64_t address = 0;
  uint32_t bytes = 0;
};

struct RemoteTargetOptions {
  TargetKind kind = TargetKind::kGood;
  uint32_t entries = 2;
  uint8_t mark = 1;  // 1 to 15
  uint64_t invalidates_percent = 100;
  uint64_t misbehaves_percent = 15;
};

class RemoteTarget final : public TargetEnd {
 public:
  // `shown`: by all hosts of the run.
  RemoteTarget(ModelWorld& world, const RemoteTargetOptions& options, std::vector<ShownMemory>& shown);
  void Start(InitiatorPair& pair);
  // The pair goes.
  void Disconnected() { pair_ = nullptr; }
  TargetKind kind() const { return options_.kind; }

  // Whether the guest has submitted a write of these bytes there.
  std::function<bool(uint32_t offset, const std::vector<uint8_t>& bytes)> wrote;

  // A capsule has come, of the command that has that number in its CDW12.
  std::function<void(uint32_t number)> arrived;

  bool TakeReceive() override;
  void Arrived(std::vector<uint8_t> capsule) override;
  bool silent() const override { return silent_; }
  void Broken() override { broken_ = true; }

 private:
  struct Command {
    nvme::fabrics::SubmissionEntry entry;
    nvme::rdma::CommandData data;
    std::vector<uint8_t> bytes;
    uint32_t reads = 0;
  };
  using CommandPtr = std::shared_ptr<Command>;

  bool Misbehaves() {
    return options_.kind != TargetKind::kGood && world_.Chance(options_.misbehaves_percent);
  }
  void Begin(const CommandPtr& command);
  void Serve(const CommandPtr& command);
  void ReadData(const CommandPtr& command, std::function<void()> then);
  void Execute(const CommandPtr& command);
  void WriteData(const CommandPtr& command);
  void Answer(const CommandPtr& command, uint16_t status);
  void Misbehave(const CommandPtr& command);
  void AccessLater(const ShownMemory& memory, bool is_shown = true);
  void Send(uint16_t cid, uint16_t status, bool invalidates, uint32_t key, size_t bytes);
  void CheckMarks(const std::vector<uint8_t>& bytes);
  ShownMemory MemoryOf(const Command& command) const;
  std::vector<uint8_t> Marked(size_t bytes);

  ModelWorld& world_;
  const RemoteTargetOptions options_;
  std::vector<ShownMemory>& shown_;
  InitiatorPair* pair_ = nullptr;
  std::vector<uint8_t> disk_;
  std::map<uint16_t, CommandPtr> active_;
  uint32_t receives_;
  bool silent_ = false;
  bool broken_ = false;
};

}  // namespace cleat::sim::rdma
