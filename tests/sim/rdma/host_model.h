// SPDX-License-Identifier: Apache-2.0
// A host's queue over RDMA, in virtual time: reads, writes and flushes, with data in capsules and by one descriptor or several. It compares all that it gets
// with what it may get, reuses memory and keys as soon as it has an answer, and in some of its kinds does what a host may not.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "nvme/fabrics/capsule.h"
#include "tests/sim/rdma/model_adapter.h"

namespace cleat::sim::rdma {

enum class HostKind : uint8_t {
  kGood,
  kWrongKey,
  kTooLong,   // more than its key covers
  kNoAccess,  // by a key that is not for that
  kShortCapsule,
  kLongCapsule,
  kTooMany,  // commands
  kGarbage,  // descriptors of any bytes
  kDisconnects,
  kSilent,  // from some time on
};
inline constexpr uint64_t kHostKinds = 10;

struct HostOptions {
  HostKind kind = HostKind::kGood;
  uint32_t entries = 2;
  uint32_t commands = 10;  // in all
  uint32_t in_capsule_bytes = 0;
  bool flow_control = true;
};

class HostModel final : public HostEnd {
 public:
  // `disk`: the target's, in which this host alone writes.
  HostModel(ModelWorld& world, const HostOptions& options, const std::vector<uint8_t>& disk);
  void Start(ModelQueuePair& pair);
  // The target believes that it has all of the data of the command.
  void DataCame(uint16_t cid, const std::vector<uint8_t>& bytes);
  // The pair goes.
  void Disconnected() { pair_ = nullptr; }
  bool done() const { return answered_ >= options_.commands; }
  bool broken() const { return broken_; }
  uint32_t answered() const { return answered_; }
  HostKind kind() const { return options_.kind; }

  uint8_t* Access(uint32_t key, uint64_t address, uint32_t bytes, bool write) override;
  bool TakeReceive() override;
  void Arrived(std::span<const uint8_t> message, uint32_t key) override;
  bool silent() const override { return silent_; }
  void Broken() override;

 private:
  struct Command {
    bool busy = false;
    bool bad = false;  // what it says is not to be believed
    nvme::fabrics::SubmissionEntry entry;
    uint32_t bytes = 0;
    uint32_t key_to_invalidate = 0;
    std::vector<uint8_t> memory;  // what it shows to the target
    std::vector<uint8_t> expected;
    std::vector<uint32_t> keys;
  };
  struct Key {
    uint16_t cid;
    uint64_t address;
    uint32_t offset;  // in the command's memory
    uint32_t bytes;
    bool may_write;
  };

  void Issue();
  void IssueOne(uint16_t cid);
  void Misbehave(Command& command, std::vector<uint8_t>& capsule);
  // Appends what the descriptors need to the capsule.
  void Describe(uint16_t cid, std::vector<uint8_t>& capsule);
  uint32_t ShowMemory(uint16_t cid, uint32_t offset, uint32_t bytes, uint64_t& address);
  void CheckAnswer(Command& command, const nvme::fabrics::CompletionEntry& answer, uint32_t key);

  ModelWorld& world_;
  const HostOptions options_;
  const std::vector<uint8_t>& disk_;
  ModelQueuePair* pair_ = nullptr;
  std::vector<Command> commands_;
  std::map<uint32_t, Key> keys_;
  std::vector<uint8_t> content_;  // of the disk, as this host has written it
  uint32_t issued_ = 0;
  uint32_t answered_ = 0;
  uint32_t receives_ = 0;
  uint32_t heads_ = 0;
  bool silent_ = false;
  bool broken_ = false;
};

}  // namespace cleat::sim::rdma
