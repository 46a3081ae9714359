// SPDX-License-Identifier: Apache-2.0
// What engines of this host that were killed still have under way, looked for on threads that may block. Any reactor; outlives
// all queues.
#pragma once

#include "modules/uring/io_lifetime.h"
#include "reactor/blocking.h"
#include "reactor/task.h"
#include "virtio/earlier_io.h"

namespace cleat::engine {

class EarlierEngines final : public virtio::EarlierIo {
 public:
  // Both outlive it.
  EarlierEngines(const modules::IoLifetime& ours, BlockingPool& blocking)
      : ours_(ours), blocking_(blocking) {}

  Task<void> Ended() override;

 private:
  const modules::IoLifetime& ours_;
  BlockingPool& blocking_;
};

}  // namespace cleat::engine
