// SPDX-License-Identifier: Apache-2.0
// A guest with a disk and verified I/O.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "io_load.h"
#include "peer.h"

namespace cleat::system_test {

struct LoadedVm {
  LoadedVm(std::unique_ptr<Peer> p, uint64_t disk_bytes, uint64_t disk_id)
      : peer(std::move(p)), blocks(disk_bytes, 512, disk_id) {}
  void StartLoad(uint64_t seed) {
    load = std::make_unique<IoLoad>(peer->driver(), blocks, IoLoadOptions{.seed = seed});
    load->Start();
  }
  std::unique_ptr<Peer> peer;
  perf::StampedBlocks blocks;
  std::unique_ptr<IoLoad> load;
};

}  // namespace cleat::system_test
