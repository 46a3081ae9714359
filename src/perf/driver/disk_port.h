// SPDX-License-Identifier: Apache-2.0
// A disk as a load sees it, whatever the device in front of it: blocks are read, written, zeroed and flushed on some
// queues. Owned by the load's owner; uses a driver that outlives it. One thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"
#include "perf/driver/blk_driver.h"
#include "perf/driver/scsi_driver.h"
#include "perf/wire/virtio_scsi.h"

namespace cleat::perf {

enum class DiskOp : uint8_t { kRead, kWrite, kZero, kFlush };
const char* DiskOpName(DiskOp op);

struct DiskRequest {
  DiskOp op = DiskOp::kRead;
  uint64_t offset_bytes = 0;
  uint32_t length_bytes = 0;
  uint64_t data_gpa = 0;  // reads and writes
  uint64_t token = 0;
};

struct DiskAnswer {
  enum class Outcome : uint8_t {
    kDone,
    kAgain,  // not carried out, and the guest is to say it once more (a unit attention)
    kFailed,
  };
  uint64_t token = 0;
  Outcome outcome = Outcome::kFailed;
  uint64_t code = 0;  // for people: a status, or SCSI's response, status, key and additional sense
};

class DiskPort {
 public:
  virtual ~DiskPort() = default;

  virtual uint16_t queues() const = 0;
  virtual Result<uint64_t> AllocateBuffer(uint64_t size_bytes) = 0;
  virtual std::span<uint8_t> Buffer(uint64_t gpa, uint64_t size_bytes) = 0;
  virtual bool Submit(uint16_t queue, const DiskRequest& request) = 0;  // false: no room now
  virtual void Kick(uint16_t queue) = 0;
  // What has completed on the queue, as far as a guest would look (see RequestDriver::WaitAsGuest).
  virtual size_t Poll(uint16_t queue, std::span<DiskAnswer> answers) = 0;
  // Until there may be something to poll. Goes on over the back end's end; kDeadlineExceeded when nothing came.
  virtual Status Wait(uint64_t timeout_ns) = 0;
  // The guest stops the device: all that it had begun is answered, and lies there to be polled, also what Poll would not look at
  // otherwise. kUnavailable when no back end is there. StartAnew goes on, with empty rings: that is a reset.
  virtual Status Stop() = 0;
  virtual Status StartAnew() = 0;
  // A buffer's pages go back to the host, as a balloon's do: it reads as zeroes.
  virtual Status GiveBack(uint64_t gpa, uint64_t size_bytes) = 0;
  virtual Status Health() const = 0;
  virtual std::string Describe(uint16_t queue) const = 0;  // what keeps its requests, for people
  virtual uint64_t reconnects() const = 0;
};

class BlkPort final : public DiskPort {
 public:
  explicit BlkPort(BlkDriver& driver) : driver_(driver) {}
  uint16_t queues() const override { return driver_.num_queues(); }
  Result<uint64_t> AllocateBuffer(uint64_t size_bytes) override { return driver_.AllocateBuffer(size_bytes); }
  std::span<uint8_t> Buffer(uint64_t gpa, uint64_t size_bytes) override {
    return driver_.memory().Span(gpa, size_bytes);
  }
  bool Submit(uint16_t queue, const DiskRequest& request) override;
  void Kick(uint16_t queue) override { driver_.Kick(queue); }
  size_t Poll(uint16_t queue, std::span<DiskAnswer> answers) override;
  Status Wait(uint64_t timeout_ns) override { return driver_.WaitAsGuest(0, timeout_ns); }
  Status Stop() override { return driver_.Stop(); }
  Status StartAnew() override { return driver_.StartAnew(); }
  Status GiveBack(uint64_t gpa, uint64_t size_bytes) override {
    return driver_.memory().GiveBack(gpa, size_bytes);
  }
  Status Health() const override { return driver_.Health(); }
  std::string Describe(uint16_t queue) const override { return driver_.Describe(queue); }
  uint64_t reconnects() const override { return driver_.stats().reconnects; }

 private:
  BlkDriver& driver_;
};

class ScsiPort final : public DiskPort {
 public:
  // LUN 0 of the target, in blocks of so many bytes.
  ScsiPort(ScsiDriver& driver, uint8_t target, uint32_t block_bytes)
      : driver_(driver), lun_(scsi::LunOf(target)), block_bytes_(block_bytes) {}
  uint16_t queues() const override { return driver_.request_queues(); }
  Result<uint64_t> AllocateBuffer(uint64_t size_bytes) override { return driver_.AllocateBuffer(size_bytes); }
  std::span<uint8_t> Buffer(uint64_t gpa, uint64_t size_bytes) override {
    return driver_.memory().Span(gpa, size_bytes);
  }
  bool Submit(uint16_t queue, const DiskRequest& request) override;
  void Kick(uint16_t queue) override { driver_.Kick(queue); }
  size_t Poll(uint16_t queue, std::span<DiskAnswer> answers) override;
  Status Wait(uint64_t timeout_ns) override {
    return driver_.WaitAsGuest(wire::kScsiFirstRequestQueue, timeout_ns);
  }
  Status Stop() override { return driver_.Stop(); }
  Status StartAnew() override { return driver_.StartAnew(); }
  Status GiveBack(uint64_t gpa, uint64_t size_bytes) override {
    return driver_.memory().GiveBack(gpa, size_bytes);
  }
  Status Health() const override { return driver_.Health(); }
  std::string Describe(uint16_t queue) const override {
    return driver_.Describe(static_cast<uint16_t>(wire::kScsiFirstRequestQueue + queue));
  }
  uint64_t reconnects() const override { return driver_.stats().reconnects; }

 private:
  ScsiDriver& driver_;
  const scsi::Lun lun_;
  const uint32_t block_bytes_;
};

}  // namespace cleat::perf
