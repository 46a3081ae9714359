// SPDX-License-Identifier: Apache-2.0
// All states of this program's tests check what their tables say of one another after each change (state/tables/invariants.h).
#include <gtest/gtest.h>

#include "control/state/host_state.h"

namespace cleat::control {
namespace {

class CheckedState : public testing::Environment {
 public:
  void SetUp() override { HostState::CheckAlways(); }
};

const testing::Environment* const checked_state = testing::AddGlobalTestEnvironment(new CheckedState);

}  // namespace
}  // namespace cleat::control
