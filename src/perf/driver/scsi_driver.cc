// SPDX-License-Identifier: Apache-2.0
// Set-up and the I/O path. The synchronous helpers are in scsi_driver_sync.cc.
#include "perf/driver/scsi_driver.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace cleat::perf {
namespace {

static_assert(offsetof(ScsiArea, head_bounce) == kScsiShape.header_bytes, "the head follows the header");
static_assert(offsetof(ScsiArea, answer_bounce) == kScsiShape.answer_offset + kScsiShape.answer_bytes,
              "the bounce area follows the answer");

constexpr RequestShape kTmfShape{.header_bytes = sizeof(wire::ScsiTmfRequest),
                                 .answer_offset = offsetof(ScsiArea, answer),
                                 .answer_bytes = 1,
                                 .answer_first = true};
constexpr RequestShape kEventShape{.answer_offset = offsetof(ScsiArea, answer),
                                   .answer_bytes = sizeof(wire::ScsiEvent),
                                   .answer_first = true};

}  // namespace

Result<std::unique_ptr<ScsiDriver>> ScsiDriver::Start(Frontend& frontend, GuestMemory& memory,
                                                      const ScsiOptions& options) {
  if (options.num_queues == 0) return Error(ErrorCode::kInvalidArgument, "a driver needs a queue at least");
  CLEAT_TRY(Connect(frontend));
  std::unique_ptr<ScsiDriver> driver(new ScsiDriver(frontend, memory, options));
  CLEAT_TRY(driver->Begin(options));
  return driver;
}

Status ScsiDriver::Begin(const ScsiOptions& options) {
  CLEAT_TRY(Negotiate(options.features));
  const uint16_t rings = RingIndex(options.num_queues);
  if (rings > frontend_.queues_max()) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("{} request queues and two more wanted, the back end allows {} in all",
                             options.num_queues, frontend_.queues_max()));
  }
  CLEAT_TRY(MakeQueues(rings, Settings{.area_bytes = sizeof(ScsiArea)}));
  GiveEventBuffers();
  return StartFresh();
}

Status ScsiDriver::StartAnew() {
  CLEAT_TRY(CheckLeft(wire::kScsiFirstRequestQueue));
  Collect();
  CLEAT_TRY(RenewRings());
  GiveEventBuffers();
  Status started = StartFresh();
  return !started && started.error().code == ErrorCode::kUnavailable ? Status(Ok{}) : started;
}

bool ScsiDriver::Submit(uint16_t queue, const ScsiIo& io) {
  const uint16_t index = RingIndex(queue);
  const Slot* slot = NextSlot(index);
  if (slot == nullptr) return false;
  auto& area = Area<ScsiArea>(*slot);
  area.header = {};
  std::copy(io.lun.begin(), io.lun.end(), area.header.lun);
  std::copy(io.cdb.begin(), io.cdb.end(), area.header.cdb);
  area.header.id = io.token;
  area.answer = {};
  area.answer.response = ScsiCompletion::kNoResponse;
  return Enqueue(index, io.shape, io.out, io.in, io.token);
}

bool ScsiDriver::SubmitTmf(wire::ScsiTmfType type, const scsi::Lun& lun, uint64_t tag, uint64_t token) {
  const Slot* slot = NextSlot(wire::kScsiControlQueue);
  if (slot == nullptr) return false;
  wire::ScsiTmfRequest request{.type = wire::kScsiTmf, .subtype = type, .lun = {}, .id = tag};
  std::copy(lun.begin(), lun.end(), request.lun);
  std::memcpy(slot->area, &request, sizeof request);
  auto* response = reinterpret_cast<uint8_t*>(&Area<ScsiArea>(*slot).answer);
  *response = ScsiCompletion::kNoResponse;
  if (!Enqueue(wire::kScsiControlQueue, kTmfShape, {}, {}, token)) return false;
  VirtioDriver::Kick(wire::kScsiControlQueue);
  return true;
}

ScsiCompletion ScsiDriver::Read(uint16_t queue, const Slot& slot, uint32_t written_bytes) {
  ScsiCompletion completion;
  completion.token = slot.token;
  completion.written_bytes = written_bytes;
  const wire::ScsiAnswer& answer = Area<ScsiArea>(slot).answer;
  if (queue == wire::kScsiControlQueue) {
    std::memcpy(&completion.response, &answer, 1);
    return completion;
  }
  completion.response = answer.response;
  completion.status = answer.status;
  completion.residual = answer.residual;
  completion.sense_bytes = std::min<uint32_t>(answer.sense_bytes, wire::kScsiSenseBytes);
  std::copy_n(answer.sense, completion.sense.size(), completion.sense.begin());
  if (!completion.good()) {
    ++stats_.failed;
  } else if (written_bytes < sizeof(wire::ScsiAnswer) || written_bytes > slot.expected_written_bytes) {
    ++stats_.used_length_mismatches;
  }
  return completion;
}

void ScsiDriver::GiveEventBuffer() {
  const Slot* slot = NextSlot(wire::kScsiEventQueue);
  if (slot == nullptr) return;
  Area<ScsiArea>(*slot).answer = {};
  Enqueue(wire::kScsiEventQueue, kEventShape, {}, {}, 0);
}

void ScsiDriver::GiveEventBuffers() {
  if (!has(wire::kScsiHotplug) && !has(wire::kScsiChange)) return;
  for (uint16_t i = 0; i < std::min(kEventBuffers, queue_size_); ++i) GiveEventBuffer();
  ring(wire::kScsiEventQueue).Publish();
}

void ScsiDriver::Collect() {
  uint32_t written_bytes = 0;
  bool any = false;
  while (const Slot* slot = TakeUsed(wire::kScsiEventQueue, &written_bytes)) {
    wire::ScsiEvent event{};
    std::memcpy(&event, &Area<ScsiArea>(*slot).answer, std::min<size_t>(written_bytes, sizeof event));
    events_.push_back(event);
    GiveEventBuffer();
    any = true;
  }
  if (any) VirtioDriver::Kick(wire::kScsiEventQueue);
}

}  // namespace cleat::perf
