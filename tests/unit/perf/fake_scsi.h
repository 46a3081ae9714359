// SPDX-License-Identifier: Apache-2.0
// A virtio-scsi device with one disk at target 1, just enough commands to test the driver's side against.
// Queues as the specification has them; served by one FakeBackend, on its thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <vector>

#include "fake_device.h"
#include "perf/driver/scsi_cdb.h"

namespace cleat::perf {

class FakeScsi final : public FakeDevice {
 public:
  static constexpr uint8_t kTarget = 1;
  static constexpr uint32_t kBlockBytes = 512;

  explicit FakeScsi(uint64_t blocks) : bytes_(blocks * kBlockBytes) {}
  std::optional<uint32_t> Serve(uint16_t queue, std::span<const uint8_t> out, std::span<uint8_t> in) override;
  bool Answers(uint16_t queue) const override { return queue != wire::kScsiEventQueue || !events_.empty(); }

  // After the back end's end: what task management was asked for, and of which tag.
  const std::vector<std::pair<uint32_t, uint64_t>>& tmfs() const { return tmfs_; }

 private:
  std::optional<uint32_t> Control(std::span<const uint8_t> out, std::span<uint8_t> in);
  std::optional<uint32_t> Command(std::span<const uint8_t> out, std::span<uint8_t> in);
  void Run(const uint8_t* cdb, std::span<const uint8_t> data_out, std::span<uint8_t> data_in,
           wire::ScsiAnswer* answer, uint32_t* written);
  void Transfer(const uint8_t* cdb, std::span<const uint8_t> data_out, std::span<uint8_t> data_in,
                wire::ScsiAnswer* answer, uint32_t* written);

  std::vector<uint8_t> bytes_;
  std::deque<wire::ScsiEvent> events_;
  std::vector<std::pair<uint32_t, uint64_t>> tmfs_;
  bool unit_attention_ = true;
};

}  // namespace cleat::perf
