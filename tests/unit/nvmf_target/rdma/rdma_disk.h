// SPDX-License-Identifier: Apache-2.0
// Tests of disks over RDMA on Cleat's target: both ends in this process, over adapters in memory, which have given all back when a test is over.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>

#include "tests/support/rdma_fabric/rdma_fabric.h"
#include "tests/unit/nvmf_target/target_rig.h"

namespace cleat::test {

struct RdmaDiskTest : testing::Test {
  static constexpr uint64_t kBytes = TargetRig::kBytes;

  ~RdmaDiskTest() override {
    rig.reset();
    for (const std::string& wrong : fabric.WhatWasWrong()) ADD_FAILURE() << wrong;
    for (const char* const adapter : {"host0", "target0", "host1", "target1"}) {
      EXPECT_EQ(fabric.queue_pairs(adapter), 0U) << adapter;
      EXPECT_EQ(fabric.registrations(adapter), 0U) << adapter;
      EXPECT_EQ(fabric.devices(adapter), 0U) << adapter;
    }
  }
  void Make(uint32_t paths = 1, const nvmf_target::PortLimits& limits = {}) {
    rig = std::make_unique<TargetRig>(limits, paths, nvmf_target::StreamTuning(), &fabric);
  }

  RdmaFabric fabric;
  std::unique_ptr<TargetRig> rig;
};

}  // namespace cleat::test
