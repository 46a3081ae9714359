// SPDX-License-Identifier: Apache-2.0
// A pool of one drive, whose store can be taken away and whose map somebody may change: for tests of pools that are made from what their drive
// says. One thread, the test's.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "pool_rig.h"

namespace cleat::control::pool_rig {

inline v1::CreatePoolRequest FromDrive(const std::string& id, const std::string& device) {
  v1::CreatePoolRequest request = NewPool(id, device);
  request.mutable_pool()->mutable_spec()->clear_extent_bytes();
  request.set_from_drive(true);
  return request;
}

class FoundPoolsRig : public PoolRig {
 protected:
  std::string Drive() { return dir_ / "drive"; }
  void MakeFromDrive() {
    const auto made = state_->found_pools().Create(FromDrive("p", Drive()));
    ASSERT_TRUE(made.ok()) << made.error().message;
    EXPECT_EQ(v1::POOL_STATE_READY, made->status().state());
    AwaitErased();
  }

  // Changes the drive's map, as somebody else than this store's cleatd.
  void EditMap(const std::function<void(pool::Map&)>& edit) {
    PlainDrive drive(Drive());
    const pool::Label label = **pool::ReadLabel(drive);
    pool::PoolDrive pool_drive(drive, 1);
    CLEAT_CHECK(pool_drive.Open(label).ok());
    pool::Map map = pool::ReadMap(drive, label).value().value();
    ++map.generation;
    edit(map);
    const Status written = pool_drive.WriteMap(std::move(map));
    CLEAT_CHECK(written.ok());
  }
};

}  // namespace cleat::control::pool_rig
