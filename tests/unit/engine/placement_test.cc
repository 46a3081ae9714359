// SPDX-License-Identifier: Apache-2.0
#include "engine/attached/placement.h"

#include <gtest/gtest.h>

#include <map>

#include "tests/unit/reactor/virtual_reactors.h"

namespace cleat::engine::placement_test {
namespace {

class PlacementTest : public testing::Test {
 protected:
  test::VirtualReactors made_{3};
  std::vector<Reactor*> reactors_{&made_[0], &made_[1], &made_[2]};
  Placement placement_{reactors_};
};

TEST_F(PlacementTest, ManySmallDevicesSpreadOverAllReactors) {
  std::map<Reactor*, int> devices;
  for (int i = 0; i < 9; ++i) ++devices[placement_.Take(1).at(0)];
  for (Reactor* reactor : reactors_) EXPECT_EQ(devices[reactor], 3);
}

TEST_F(PlacementTest, AWideDeviceTakesAllAndIsGivenBack) {
  const auto narrow = placement_.Take(1);
  EXPECT_EQ(narrow, std::vector<Reactor*>{reactors_[0]});
  const auto wide = placement_.Take(4);  // two of its queues on the first of them
  EXPECT_EQ(wide, (std::vector<Reactor*>{reactors_[1], reactors_[2], reactors_[0]}));
  EXPECT_EQ(placement_.Take(1).at(0), reactors_[2]) << "the others have two queues each";
  placement_.GiveBack(wide, 4);
  placement_.GiveBack(narrow, 1);
  EXPECT_EQ(placement_.Take(2), (std::vector<Reactor*>{reactors_[0], reactors_[1]}));
}

}  // namespace
}  // namespace cleat::engine::placement_test
