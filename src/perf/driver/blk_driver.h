// SPDX-License-Identifier: Apache-2.0
// A virtio-blk driver (virtio 1.2, 5.2) in user space: what the guest's kernel is to the disk. Asynchronous
// by default - Submit, Kick, Poll - with synchronous helpers for tests. It drives the Frontend for set-up,
// stop and reconnection; on the I/O path there are only rings. Owner, thread and life: see VirtioDriver.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"
#include "perf/driver/request_driver.h"
#include "perf/wire/virtio_blk.h"
#include "perf/wire/virtqueue.h"

namespace cleat::perf {

// What this driver can do; masked with what the device offers.
inline constexpr uint64_t kDefaultBlkFeatures =
    wire::kFeatureVersion1 | wire::kFeatureIndirectDesc | wire::kFeatureEventIdx | wire::kBlkSizeMax |
    wire::kBlkSegMax | wire::kBlkGeometry | wire::kBlkReadOnly | wire::kBlkBlkSize | wire::kBlkFlush |
    wire::kBlkTopology | wire::kBlkConfigWce | wire::kBlkMq | wire::kBlkDiscard | wire::kBlkWriteZeroes;

using BlkOptions = DriverOptions<kDefaultBlkFeatures>;

enum class BlkOp : uint8_t { kRead, kWrite, kFlush, kDiscard, kWriteZeroes, kGetId };

struct BlkIo {
  BlkOp op = BlkOp::kRead;
  uint64_t offset_bytes = 0;  // a multiple of 512
  uint32_t length_bytes = 0;  // of data, or to discard or zero
  uint64_t data_gpa = 0;      // reads, writes and GetId (20 bytes)
  uint64_t token = 0;
  bool unmap = false;  // write zeroes may deallocate
};

struct BlkCompletion {
  static constexpr uint8_t kNoStatus = 0xff;  // the device completed the request without writing one
  uint64_t token = 0;
  uint8_t status = kNoStatus;  // wire::BlkStatus
  uint32_t written_bytes = 0;  // as the used entry says
};

class BlkDriver final : public RequestDriver<BlkCompletion> {
 public:
  using Options = BlkOptions;

  // Connects (Accept, Open) if `frontend` isn't yet, reads the configuration, negotiates, brings up all
  // queues.
  static Result<std::unique_ptr<BlkDriver>> Start(Frontend& frontend, GuestMemory& memory,
                                                  const BlkOptions& options = {});

  // ---- Asynchronous. False: no room now (poll first), or the request is impossible under the device's
  // limits.
  bool Submit(uint16_t queue, const BlkIo& io);
  // Any request type with any data, all of it readable or all of it writable by the device.
  bool SubmitRaw(uint16_t queue, uint32_t type, uint64_t sector, std::span<const Segment> data,
                 uint64_t token);

  // ---- Synchronous: submit, wait, translate the status. Offsets and lengths in bytes. Completions of other
  // requests on the queue that arrive meanwhile are kept for Poll.
  Status ReadSync(uint64_t offset_bytes, std::span<uint8_t> data, uint16_t queue = 0);
  Status WriteSync(uint64_t offset_bytes, std::span<const uint8_t> data, uint16_t queue = 0);
  Status FlushSync(uint16_t queue = 0);
  Status DiscardSync(uint64_t offset_bytes, uint32_t length_bytes, uint16_t queue = 0);
  Status WriteZeroesSync(uint64_t offset_bytes, uint32_t length_bytes, bool unmap = false,
                         uint16_t queue = 0);
  Result<std::string> GetIdSync(uint16_t queue = 0);
  Result<BlkCompletion> Execute(uint16_t queue, const BlkIo& io);
  Result<BlkCompletion> ExecuteRaw(uint16_t queue, uint32_t type, uint64_t sector,
                                   std::span<const Segment> data);

  // Re-reads the configuration space (after a resize).
  Status RefreshConfig();
  const wire::BlkConfig& config() const { return config_; }
  uint64_t capacity_bytes() const { return config_.capacity_sectors * wire::kSectorBytes; }
  uint32_t block_bytes() const { return has(wire::kBlkBlkSize) ? config_.blk_size : wire::kSectorBytes; }

 private:
  using RequestDriver::RequestDriver;
  Status Begin(const BlkOptions& options);
  BlkCompletion Read(uint16_t queue, const Slot& slot, uint32_t written_bytes) override;
  Status RunSync(uint16_t queue, const BlkIo& io);

  wire::BlkConfig config_{};
};

}  // namespace cleat::perf
