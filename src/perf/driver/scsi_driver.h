// SPDX-License-Identifier: Apache-2.0
// A virtio-scsi driver (virtio 1.2, 5.6) in user space: what the guest's kernel is to a controller with up to
// 8 disks. Commands go to request queues, numbered from 0 here; task management and events have queues of
// their own behind calls of their own. Asynchronous by default - Submit, Kick, Poll - with synchronous
// helpers for tests. A command is any CDB with any data; what is wrong with it is up to the caller, and
// `shape` bends the request itself. Owner, thread and life: see VirtioDriver.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "perf/driver/request_driver.h"
#include "perf/driver/scsi_cdb.h"
#include "perf/wire/virtio_scsi.h"
#include "perf/wire/virtqueue.h"

namespace cleat::perf {

// What this driver can do; masked with what the device offers.
inline constexpr uint64_t kDefaultScsiFeatures = wire::kFeatureVersion1 | wire::kFeatureIndirectDesc |
                                                 wire::kFeatureEventIdx | wire::kScsiHotplug |
                                                 wire::kScsiChange;
using ScsiOptions = DriverOptions<kDefaultScsiFeatures>;

// The area of a request: header and answer, each with a bounce area behind it.
struct ScsiArea {
  wire::ScsiHeader header;
  uint8_t head_bounce[kBounceBytes];
  uint8_t padding[13];
  wire::ScsiAnswer answer;
  uint8_t answer_bounce[kBounceBytes];
};
inline constexpr RequestShape kScsiShape{.header_bytes = sizeof(wire::ScsiHeader),
                                         .answer_offset = offsetof(ScsiArea, answer),
                                         .answer_bytes = sizeof(wire::ScsiAnswer),
                                         .answer_first = true};

struct ScsiIo {
  scsi::Lun lun{};
  scsi::Cdb cdb{};
  std::span<const Segment> out{};   // the device reads it; looked at by Submit only
  std::span<const Segment> in{};    // the device writes it
  uint64_t token = 0;               // comes back; also the command's tag for task management
  RequestShape shape = kScsiShape;  // other sizes than these: a driver that doesn't know how
};

struct ScsiCompletion {
  static constexpr uint8_t kNoResponse = 0xff;  // the device completed the request without writing one
  uint64_t token = 0;
  uint8_t response = kNoResponse;  // wire::ScsiResponse
  uint8_t status = 0;              // scsi::StatusCode
  uint32_t residual = 0;
  uint32_t sense_bytes = 0;
  std::array<uint8_t, wire::kScsiSenseBytes> sense{};
  uint32_t written_bytes = 0;  // as the used entry says

  bool good() const { return response == wire::kScsiOk && status == scsi::kGood; }
  // Of fixed-format sense data (SPC-5 4.4.3); 0 when there is none.
  uint8_t sense_key() const { return sense_bytes >= 3 ? sense[2] & 0xf : 0; }
  uint16_t additional_sense() const {
    return sense_bytes >= 14 ? static_cast<uint16_t>(sense[12] << 8 | sense[13]) : uint16_t{0};
  }
  // The information field, when it is valid: where a miscompare was, for instance.
  std::optional<uint32_t> information() const;
  bool Is(uint8_t key, uint16_t additional) const {
    return response == wire::kScsiOk && status == scsi::kCheckCondition && sense_key() == key &&
           additional_sense() == additional;
  }
  std::string ToString() const;
};

class ScsiDriver final : public RequestDriver<ScsiCompletion> {
 public:
  using Options = ScsiOptions;

  // Connects (Accept, Open) if `frontend` isn't yet, negotiates, brings up all queues, gives the device
  // `kEventBuffers` event buffers if it has hot-plug or change events.
  static Result<std::unique_ptr<ScsiDriver>> Start(Frontend& frontend, GuestMemory& memory,
                                                   const ScsiOptions& options = {});
  static constexpr uint16_t kEventBuffers = 16;

  // ---- Asynchronous. `queue` is a request queue, from 0. False: no room now (poll first), or a chain longer
  // than the ring takes.
  bool Submit(uint16_t queue, const ScsiIo& io);
  void Kick(uint16_t queue) { VirtioDriver::Kick(RingIndex(queue)); }
  size_t Poll(uint16_t queue, std::span<ScsiCompletion> completions) {
    return RequestDriver::Poll(RingIndex(queue), completions);
  }
  // Task management; the answer comes by PollTmf, its response being the function's.
  bool SubmitTmf(wire::ScsiTmfType type, const scsi::Lun& lun, uint64_t tag, uint64_t token);
  size_t PollTmf(std::span<ScsiCompletion> completions) {
    return RequestDriver::Poll(wire::kScsiControlQueue, completions);
  }

  // ---- Synchronous. Completions of other requests that arrive meanwhile are kept for Poll.
  // Data-out is copied from `out`, data-in to `in`; each kSyncChunkBytes / 2 at most.
  Result<ScsiCompletion> Execute(const scsi::Lun& lun, const scsi::Cdb& cdb,
                                 std::span<const uint8_t> out = {}, std::span<uint8_t> in = {},
                                 uint16_t queue = 0);
  Result<ScsiCompletion> Execute(ScsiIo io, uint16_t queue = 0);
  // Its response: kScsiFunctionSucceeded...
  Result<uint8_t> Tmf(wire::ScsiTmfType type, const scsi::Lun& lun, uint64_t tag = 0);
  // A control request of any content and length, and the answer's bytes.
  Result<std::vector<uint8_t>> Control(std::span<const uint8_t> request, uint32_t answer_bytes);
  // The next event, in the order the device sent them. Its buffer goes back to the device.
  Result<wire::ScsiEvent> WaitEvent(uint64_t timeout_ns);

  // ---- A disk behind the controller, in its own blocks. Errors say what the device answered.
  struct Capacity {
    uint64_t blocks = 0;
    uint32_t block_bytes = 0;
    uint64_t bytes() const { return blocks * block_bytes; }
  };
  Result<Capacity> ReadCapacity(const scsi::Lun& lun);
  Status ReadSync(const scsi::Lun& lun, const Capacity& disk, uint64_t lba, std::span<uint8_t> data);
  Status WriteSync(const scsi::Lun& lun, const Capacity& disk, uint64_t lba, std::span<const uint8_t> data);
  // TEST UNIT READY until no unit attention is pending; what was, is returned (additional sense codes).
  Result<std::vector<uint16_t>> ClearUnitAttentions(const scsi::Lun& lun);
  // The targets that have a LUN 0, by INQUIRY, as a guest scans for them.
  Result<std::vector<uint8_t>> ScanTargets(uint8_t targets_max = 8);

  // As VirtioDriver::StartAnew; the device gets its event buffers again.
  Status StartAnew();

  uint16_t request_queues() const {
    return static_cast<uint16_t>(num_queues() - wire::kScsiFirstRequestQueue);
  }

 private:
  using RequestDriver::RequestDriver;
  static uint16_t RingIndex(uint16_t queue) {
    return static_cast<uint16_t>(wire::kScsiFirstRequestQueue + queue);
  }
  Status Begin(const ScsiOptions& options);
  ScsiCompletion Read(uint16_t queue, const Slot& slot, uint32_t written_bytes) override;
  void Collect() override;
  void GiveEventBuffer();
  void GiveEventBuffers();

  std::deque<wire::ScsiEvent> events_;
};

}  // namespace cleat::perf
