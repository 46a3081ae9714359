// SPDX-License-Identifier: Apache-2.0
// A logical unit on a disk in memory, for tests: CDBs in, outcomes out; a reactor in virtual time; storage that
// answers at once, or when it is told to, or with an error.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "reactor/reactor.h"
#include "scsi/bytes.h"
#include "scsi/unit_channel.h"
#include "tests/unit/scsi/test_disk.h"

namespace cleat::scsi {

inline Identity TestIdentity() {
  Identity identity;
  identity.product = "CLOUD DISK";
  identity.serial = "vol-0123456789";
  identity.wwn = 0x3123456789abcdef;
  return identity;
}

// A command with its data, in two segments each when there is enough of it.
class TestCommand : public Command {
 public:
  TestCommand(std::vector<uint8_t> cdb_bytes, std::vector<uint8_t> out = {}, size_t in_bytes = 0)
      : out_(std::move(out)), in_(in_bytes, 0xee) {
    std::ranges::copy(cdb_bytes, cdb.begin());
    data_out = Split(out_, out_region_, out_segments_);
    data_in = Split(in_, in_region_, in_segments_);
    data_out_bytes = out_.size();
    data_in_bytes = in_.size();
    on_done = [](Command& command) { static_cast<TestCommand&>(command).done = true; };
  }
  const std::vector<uint8_t>& in() const { return in_; }
  std::vector<uint8_t>& out() { return out_; }
  bool good() const { return done && delivery == Delivery::kComplete && scsi_status == ScsiStatus::kGood; }
  // "5/24/00": key, code and qualifier; "good"; or what else became of it.
  std::string Outcome() const {
    if (!done) return "running";
    if (delivery == Delivery::kOverrun) return "overrun";
    if (delivery == Delivery::kAborted) return "aborted";
    if (scsi_status == ScsiStatus::kGood) return "good";
    if (scsi_status == ScsiStatus::kBusy) return "busy";
    if (scsi_status == ScsiStatus::kReservationConflict) return "conflict";
    char text[16];
    std::snprintf(text, sizeof(text), "%x/%02x/%02x", static_cast<unsigned>(sense.key),
                  static_cast<unsigned>(sense.code) >> 8, static_cast<unsigned>(sense.code) & 0xff);
    return text;
  }
  bool done = false;

 private:
  static std::span<block::Segment> Split(std::vector<uint8_t>& bytes,
                                         std::shared_ptr<block::MemoryRegion>& region,
                                         std::array<block::Segment, 2>& segments) {
    if (bytes.empty()) return {};
    region = block::MemoryRegion::Borrow(bytes.data(), bytes.size());
    const auto first = static_cast<uint32_t>(std::min<size_t>(bytes.size(), 100));
    segments[0] = {region.get(), 0, first};
    segments[1] = {region.get(), first, static_cast<uint32_t>(bytes.size() - first)};
    return {segments.data(), bytes.size() > first ? 2U : 1U};
  }
  std::vector<uint8_t> out_, in_;
  std::shared_ptr<block::MemoryRegion> out_region_, in_region_;
  std::array<block::Segment, 2> out_segments_, in_segments_;
};

class UnitRig {
 public:
  explicit UnitRig(const block::Geometry& shape = TestGeometry(),
                   block::AccessMode mode = block::AccessMode::kReadWrite)
      : geometry(shape) {
    disk.bytes.resize(shape.size_bytes);
    reactor = Reactor::Make(clock, {}).value();
    pipeline = block::Pipeline::Make(std::make_unique<TestDevice>(disk, shape), mode).value();
    channel = pipeline->OpenChannel(*reactor).value();
    logical_unit = std::make_shared<LogicalUnit>("disks/test", TestIdentity(), mode);
    unit = std::make_unique<UnitChannel>(*reactor, logical_unit, *channel, shape, memory);
  }
  ~UnitRig() {
    disk.hold = false;
    while (disk.CompleteOne()) Turn(1);
    Turn(100);
  }
  UnitRig(const UnitRig&) = delete;
  UnitRig& operator=(const UnitRig&) = delete;

  // Executes and turns the reactor until the command is done (or nothing happens any more).
  TestCommand& Run(TestCommand& command) {
    reactor->PostCall([&] { unit->Execute(command); });
    for (int i = 0; i < 1000 && !command.done; ++i) Turn(1);
    return command;
  }
  std::string Run(std::vector<uint8_t> cdb, std::vector<uint8_t> out = {}, size_t in_bytes = 0) {
    TestCommand command(std::move(cdb), std::move(out), in_bytes);
    return Run(command).Outcome();
  }
  // The data-in of a command that ends well, as long as it is.
  std::vector<uint8_t> Read(std::vector<uint8_t> cdb, size_t in_bytes) {
    TestCommand command(std::move(cdb), {}, in_bytes);
    if (!Run(command).good()) return {};
    return {command.in().begin(),
            command.in().begin() + static_cast<std::ptrdiff_t>(command.transferred_bytes)};
  }
  void Turn(int turns = 3) {
    for (int i = 0; i < turns; ++i) {
      clock.AdvanceBy(kNsPerUs);
      reactor->RunOnce();
    }
  }
  uint8_t& At(uint64_t lba) { return disk.bytes[lba * geometry.logical_block_bytes]; }

  const block::Geometry geometry;
  ManualClock clock;
  TestDisk disk;
  std::unique_ptr<Reactor> reactor;
  TransferMemory memory;
  std::unique_ptr<block::Pipeline> pipeline;
  std::unique_ptr<block::PipelineChannel> channel;
  std::shared_ptr<LogicalUnit> logical_unit;
  std::unique_ptr<UnitChannel> unit;
};

inline std::vector<uint8_t> Filled(size_t bytes, uint8_t value) {
  return std::vector<uint8_t>(bytes, value);
}

// CDBs of 10 and 16 bytes with an LBA and a length.
inline std::vector<uint8_t> Cdb10(uint8_t opcode, uint32_t lba, uint16_t length, uint8_t byte1 = 0) {
  std::vector<uint8_t> cdb(10);
  cdb[0] = opcode;
  cdb[1] = byte1;
  StoreBig(&cdb[2], lba, 4);
  StoreBig(&cdb[7], length, 2);
  return cdb;
}
inline std::vector<uint8_t> Cdb16(uint8_t opcode, uint64_t lba, uint32_t length, uint8_t byte1 = 0) {
  std::vector<uint8_t> cdb(16);
  cdb[0] = opcode;
  cdb[1] = byte1;
  StoreBig(&cdb[2], lba, 8);
  StoreBig(&cdb[10], length, 4);
  return cdb;
}

}  // namespace cleat::scsi
