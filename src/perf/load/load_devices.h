// SPDX-License-Identifier: Apache-2.0
// The devices of a load: sockets, guests' memory, drivers, and the disks that are found behind them. Back ends may come
// in any order. One thread; each device owns its memory, front end and driver, and is to be closed by Stop. A namespace behind NVMe/TCP
// is a device too, whose memory is a host's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "perf/load/load.h"

namespace cleat::perf {

inline constexpr size_t kLoadDevicesMax = 4096;
inline constexpr uint8_t kScsiTargetsScanned = 8;

struct LoadDeviceOptions {
  struct Socket {
    std::string path;
    bool listen = true;  // as QEMU does by default; otherwise the back end listens
  };
  std::vector<Socket> sockets;
  DeviceType type = DeviceType::kBlk;
  std::vector<uint8_t> targets;  // scsi; empty: all that answer
  uint16_t queues = 1;
  uint16_t queue_size = 0;  // 0: what the load needs, kDefaultQueueSize at least
  bool packed = false;
  bool reconnect = false;
  uint64_t timeout_ns = 60 * kNsPerSecond;  // for all devices to be there
  // With an address: the one device, in place of sockets; queues, depth and the time-out are those above and the load's.
  NvmeTcpOptions nvme_tcp;
};

class OpenLoadDevice {
 public:
  OpenLoadDevice() = default;
  OpenLoadDevice(OpenLoadDevice&&) = default;

  Status Stop();
  LoadDevice& device() { return device_; }

 private:
  friend class LoadDeviceOpener;
  std::unique_ptr<GuestMemory> memory_;
  std::unique_ptr<Frontend> frontend_;
  std::unique_ptr<BlkDriver> blk_;
  std::unique_ptr<ScsiDriver> scsi_;
  std::unique_ptr<NvmeTcpDriver> nvme_;
  LoadDevice device_;
};

// In the order of the sockets. `opened` is told after each device how many there are.
Result<std::vector<OpenLoadDevice>> OpenLoadDevices(const LoadDeviceOptions& options, const LoadOptions& load,
                                                    const std::function<void(size_t)>& opened = {});

}  // namespace cleat::perf
