// SPDX-License-Identifier: Apache-2.0
// A load's requests in guest memory (or a host's, for NVMe), one struct for each device type: the area a request has besides its data, its
// chain, what is written when its operation changes (Form) and what is written for every request (Aim). Header and
// first bytes of the answer share a cache line, as they do in guests' drivers: one line goes to the device and back.
// Static functions on plain memory, for LoadQueue.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "perf/driver/scsi_cdb.h"
#include "perf/load/load_options.h"
#include "perf/load/load_queue.h"
#include "perf/nvme_tcp/queue.h"
#include "perf/wire/nvme.h"
#include "perf/wire/virtio_blk.h"
#include "perf/wire/virtio_scsi.h"

namespace cleat::perf {

struct BlkLoadRequest {
  static constexpr uint8_t kNoStatus = 0xff;
  struct alignas(64) Area {
    wire::BlkHeader header;
    uint8_t status;
    uint8_t padding[15];
    wire::BlkRange range;
  };
  static_assert(sizeof(Area) == 64);
  // What differs between the disks of a queue.
  struct Disk {
    Disk(const LoadDisk& /*disk*/, uint32_t block) : sectors(block / wire::kSectorBytes) {}
    uint32_t sectors;
  };

  static void Chain(LoadOp op, uint64_t area_gpa, std::span<const Segment> data,
                    std::vector<Segment>* chain) {
    chain->push_back({area_gpa, sizeof(wire::BlkHeader), false});
    if (op == LoadOp::kRead || op == LoadOp::kWrite) {
      for (Segment piece : data) {
        piece.writable = op == LoadOp::kRead;
        chain->push_back(piece);
      }
    } else if (op != LoadOp::kFlush) {
      chain->push_back({area_gpa + offsetof(Area, range), sizeof(wire::BlkRange), false});
    }
    chain->push_back({area_gpa + offsetof(Area, status), 1, true});
  }

  static void Form(Area& area, LoadOp op, const Disk& disk, uint64_t /*tag*/) {
    static constexpr uint32_t kTypes[kLoadOps] = {wire::kBlkIn, wire::kBlkOut, wire::kBlkTypeFlush,
                                                  wire::kBlkTypeDiscard, wire::kBlkTypeWriteZeroes};
    area.header = {kTypes[static_cast<size_t>(op)], 0, 0};
    area.range = {0, disk.sectors, 0};
  }

  static void Aim(Area& area, LoadOp op, const Disk& /*disk*/, uint64_t offset_bytes) {
    area.status = kNoStatus;
    if (op <= LoadOp::kWrite) [[likely]] {
      area.header.sector = offset_bytes / wire::kSectorBytes;
    } else if (op != LoadOp::kFlush) {
      area.range.sector = offset_bytes / wire::kSectorBytes;
    }
  }

  static bool Good(const Area& area) { return area.status == wire::kBlkOk; }
  static std::string Problem(const Area& area) {
    switch (area.status) {
      case wire::kBlkIoError:
        return "I/O error";
      case wire::kBlkUnsupported:
        return "not supported by the device";
      default:
        return "status " + std::to_string(area.status) + ", which means nothing";
    }
  }
};

struct ScsiLoadRequest {
  static constexpr uint8_t kNoResponse = 0xff;
  struct alignas(64) Area {
    wire::ScsiHeader header;
    uint8_t padding;
    wire::ScsiAnswer answer;
    uint8_t unmap[24];  // UNMAP's parameter list with one descriptor (SBC-4 5.32)
  };
  static_assert(offsetof(Area, answer) + offsetof(wire::ScsiAnswer, sense) == 64);
  static_assert(sizeof(Area) == 192);
  struct Disk {
    Disk(const LoadDisk& disk, uint32_t block)
        : lun(disk.lun),
          shift(static_cast<uint32_t>(std::countr_zero(disk.logical_block_bytes))),
          blocks(block >> shift) {
      // As a guest: short commands where the disk allows them.
      wide = (disk.bytes >> shift) > UINT32_MAX || blocks > UINT16_MAX;
    }
    scsi::Lun lun;
    uint32_t shift;
    uint32_t blocks;
    bool wide;
  };

  static void Chain(LoadOp op, uint64_t area_gpa, std::span<const Segment> data,
                    std::vector<Segment>* chain) {
    chain->push_back({area_gpa, sizeof(wire::ScsiHeader), false});
    if (op == LoadOp::kWrite) chain->insert(chain->end(), data.begin(), data.end());
    if (op == LoadOp::kDiscard)
      chain->push_back({area_gpa + offsetof(Area, unmap), sizeof(Area::unmap), false});
    chain->push_back({area_gpa + offsetof(Area, answer), sizeof(wire::ScsiAnswer), true});
    if (op != LoadOp::kRead) return;
    for (Segment piece : data) {
      piece.writable = true;
      chain->push_back(piece);
    }
  }

  static void Form(Area& area, LoadOp op, const Disk& disk, uint64_t tag) {
    area.header = {};
    std::memcpy(area.header.lun, disk.lun.data(), disk.lun.size());
    area.header.id = tag;
    const scsi::Cdb cdb = CdbOf(op, disk);
    std::memcpy(area.header.cdb, cdb.data(), cdb.size());
    std::memset(area.unmap, 0, sizeof area.unmap);
    area.unmap[1] = sizeof area.unmap - 2;
    area.unmap[3] = 16;
    const uint32_t blocks = __builtin_bswap32(disk.blocks);
    std::memcpy(area.unmap + 16, &blocks, sizeof blocks);
  }

  static void Aim(Area& area, LoadOp op, const Disk& disk, uint64_t offset_bytes) {
    area.answer.response = kNoResponse;
    const uint64_t lba = offset_bytes >> disk.shift;
    if (op <= LoadOp::kWrite && !disk.wide) [[likely]] {
      const uint32_t big = __builtin_bswap32(static_cast<uint32_t>(lba));
      std::memcpy(area.header.cdb + 2, &big, sizeof big);
    } else if (op != LoadOp::kFlush) {
      const uint64_t big = __builtin_bswap64(lba);
      std::memcpy(op == LoadOp::kDiscard ? area.unmap + 8 : area.header.cdb + 2, &big, sizeof big);
    }
  }

  static bool Good(const Area& area) {
    return area.answer.response == wire::kScsiOk && area.answer.status == scsi::kGood;
  }
  static std::string Problem(const Area& area) {
    if (area.answer.response == kNoResponse) return "no answer";
    std::string text =
        "response " + std::to_string(area.answer.response) + ", status " + std::to_string(area.answer.status);
    const uint8_t* sense = area.answer.sense;  // fixed format (SPC-5 4.4.3)
    constexpr uint32_t kSenseBytesMin = 14;
    if (area.answer.sense_bytes < kSenseBytesMin) return text;
    return text + ", sense key " + std::to_string(sense[2] & 0xf) + ", additional sense " +
           std::to_string(sense[12]) + "/" + std::to_string(sense[13]);
  }

 private:
  static scsi::Cdb CdbOf(LoadOp op, const Disk& disk) {
    const auto blocks = static_cast<uint16_t>(disk.blocks);
    switch (op) {
      case LoadOp::kRead:
        return disk.wide ? scsi::Read16(0, disk.blocks) : scsi::Read10(0, blocks);
      case LoadOp::kWrite:
        return disk.wide ? scsi::Write16(0, disk.blocks) : scsi::Write10(0, blocks);
      case LoadOp::kFlush:
        return scsi::SynchronizeCache10();
      case LoadOp::kDiscard:
        return scsi::Unmap(sizeof(Area::unmap));
      case LoadOp::kWriteZeroes:
        return scsi::WriteSame16(0, disk.blocks, scsi::kSameNdob);
    }
    return {};
  }
};

// A command, where its answer goes, and what a discard has for data.
struct NvmeLoadRequest {
  struct alignas(64) Area {
    wire::NvmeCommand command;
    NvmeAnswer answer;
    wire::NvmeRange range;
  };
  static_assert(sizeof(Area) == 128);
  struct Disk {
    Disk(const LoadDisk& disk, uint32_t block)
        : nsid(disk.nsid),
          shift(static_cast<uint32_t>(std::countr_zero(disk.logical_block_bytes))),
          blocks(block >> shift) {}
    uint32_t nsid;
    uint32_t shift;
    uint32_t blocks;
  };

  static void Chain(LoadOp op, uint64_t area_gpa, std::span<const Segment> data,
                    std::vector<Segment>* chain) {
    chain->push_back({area_gpa, sizeof(wire::NvmeCommand), false});
    if (op == LoadOp::kRead || op == LoadOp::kWrite) {
      for (Segment piece : data) {
        piece.writable = op == LoadOp::kRead;
        chain->push_back(piece);
      }
    } else if (op == LoadOp::kDiscard) {
      chain->push_back({area_gpa + offsetof(Area, range), sizeof(wire::NvmeRange), false});
    }
    chain->push_back({area_gpa + offsetof(Area, answer), sizeof(NvmeAnswer), true});
  }

  static void Form(Area& area, LoadOp op, const Disk& disk, uint64_t /*tag*/) {
    static constexpr uint8_t kOpcodes[kLoadOps] = {wire::kNvmeRead, wire::kNvmeWrite, wire::kNvmeFlush,
                                                   wire::kNvmeDatasetManagement, wire::kNvmeWriteZeroes};
    area.command = {};
    area.command.opcode = kOpcodes[static_cast<size_t>(op)];
    area.command.nsid = disk.nsid;
    area.range = {0, disk.blocks, 0};
    if (op == LoadOp::kDiscard) {
      area.command.cdw11 = wire::kNvmeDeallocate;
    } else if (op != LoadOp::kFlush) {
      area.command.cdw12 = disk.blocks - 1;
    }
  }

  static void Aim(Area& area, LoadOp op, const Disk& disk, uint64_t offset_bytes) {
    area.answer.status = NvmeAnswer::kNone;
    const uint64_t block = offset_bytes >> disk.shift;
    if (op == LoadOp::kDiscard) {
      area.range.first_block = block;
    } else if (op != LoadOp::kFlush) {
      area.command.cdw10 = static_cast<uint32_t>(block);
      area.command.cdw11 = static_cast<uint32_t>(block >> 32);
    }
  }

  static bool Good(const Area& area) { return area.answer.good(); }
  static std::string Problem(const Area& area) {
    if (area.answer.status == NvmeAnswer::kNone) return "no answer";
    if (area.answer.code() == wire::kNvmeDataTransferError)
      return "data transfer error, or a wrong digest of the data";
    return "status code type " + std::to_string(area.answer.code() >> 8) + ", status code " +
           std::to_string(area.answer.code() & 0xff);
  }
};

}  // namespace cleat::perf
