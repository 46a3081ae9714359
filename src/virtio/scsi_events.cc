// SPDX-License-Identifier: Apache-2.0
#include "virtio/scsi_events.h"

#include <array>
#include <cstring>
#include <string>

#include "base/check.h"

namespace cleat::virtio {

ScsiEvents::~ScsiEvents() {
  CLEAT_CHECK(queue_ == nullptr);
}

void ScsiEvents::Attach(ScsiEventQueue* queue) {
  CLEAT_CHECK(queue == nullptr || queue_ == nullptr);
  queue_ = queue;
}

void ScsiEvents::Post(uint32_t event, uint32_t target, uint32_t reason) {
  if (events_.size() == kPendingMax) {
    missed_ = true;
  } else {
    ScsiEvent entry{};
    entry.event = event;
    std::memcpy(entry.lun, ScsiAddress::OfTarget(target).data(), sizeof(entry.lun));
    entry.reason = reason;
    events_.push_back(entry);
  }
  if (queue_ != nullptr) queue_->Wanted();
}

// Without VIRTIO_SCSI_F_HOTPLUG a guest hears nothing of targets. VIRTIO_SCSI_F_CHANGE is not asked for: QEMU agrees
// on it with the guest without telling the back end of a vhost-user-scsi device.
ScsiEvent ScsiEvents::Take(uint64_t features) {
  const bool hotplug = (features >> VIRTIO_SCSI_F_HOTPLUG & 1) != 0;
  ScsiEvent event{};
  while (!events_.empty()) {
    const ScsiEvent next = events_.front();
    events_.pop_front();
    if (next.event == VIRTIO_SCSI_T_TRANSPORT_RESET && !hotplug) continue;
    event = next;
    break;
  }
  if (missed_) event.event |= VIRTIO_SCSI_T_EVENTS_MISSED;
  missed_ = false;
  return event;
}

void ScsiEventQueue::HandleChain(const Chain& chain, Ticket ticket) {
  if (chain.writable_bytes() < sizeof(ScsiEvent)) {
    Abandon(ticket, "virtio-scsi event buffer of " + std::to_string(chain.writable_bytes()) +
                        " bytes: an event has " + std::to_string(sizeof(ScsiEvent)));
    return;
  }
  const ScsiEvent event = events_.Take(features());
  std::array<block::Segment, sizeof(ScsiEvent)> pieces;  // of a byte each at worst
  uint32_t count = 0;
  uint64_t left = sizeof(event);
  for (const block::Segment& segment : chain.writable()) {
    if (left == 0) break;
    if (segment.length_bytes == 0) continue;
    const auto bytes = static_cast<uint32_t>(std::min<uint64_t>(left, segment.length_bytes));
    pieces[count++] = {segment.region, segment.offset_bytes, bytes};
    left -= bytes;
  }
  block::Scatter(&event, sizeof(event), {pieces.data(), count}, 0);
  MarkWritten(ticket, {pieces.data(), count});
  Complete(ticket, sizeof(event));
}

// This one was not counted down: what waits now is what may be fetched.
void ScsiEventQueue::HandleReplayed(const Chain& chain, Ticket ticket, uint32_t /*tag*/) {
  events_.Missed();
  HandleChain(chain, ticket);
  Wanted();
}

}  // namespace cleat::virtio
