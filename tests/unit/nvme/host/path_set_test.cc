// SPDX-License-Identifier: Apache-2.0
// Which of its paths a request takes, by the rule itself; what becomes of requests: request_queue_paths_test.cc.
#include "nvme/host/requests/path_set.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "base/random.h"
#include "tests/unit/nvme/host/request_queue_fixture.h"

namespace cleat::nvme::host::path_set_test {
namespace {

using requests_test::FakePair;

constexpr uint64_t kPauseNs = 1000;
constexpr uint32_t kDepthMax = 4;
using Refusal = PathSet::Refusal;

TEST(PathSet, WithoutAPathThereIsNone) {
  PathSet set(kPauseNs);
  EXPECT_EQ(set.Choose(), PathSet::kNone);
  EXPECT_EQ(set.PlaceOf(1), PathSet::kNone);
  EXPECT_FALSE(set.has_refused());
}

TEST(PathSet, APauseBeginsWithTheFirstTickAndIsNotMadeLonger) {
  PathSet set(kPauseNs);
  FakePair pair(1);
  set.Add(1, pair, PathState::kNonOptimized);
  EXPECT_EQ(set.Choose(), 0U);
  EXPECT_TRUE(set.Refuse(0, Refusal::kForNow));
  EXPECT_EQ(set.Choose(), PathSet::kNone);
  set.Tick(5000);
  EXPECT_FALSE(set.Refuse(0, Refusal::kForNow));
  set.SetState(0, PathState::kOptimized);
  set.Tick(5000 + kPauseNs - 1);
  EXPECT_EQ(set.Choose(), PathSet::kNone) << "a better state ends no pause";
  EXPECT_TRUE(set.has_refused());
  set.Tick(5000 + kPauseNs);
  EXPECT_EQ(set.Choose(), 0U);
  EXPECT_FALSE(set.has_refused());
  EXPECT_TRUE(set.Refuse(0, Refusal::kForNow)) << "again";
}

TEST(PathSet, APathWithoutTheNamespaceWaitsForALookBesideItsPause) {
  PathSet set(kPauseNs);
  FakePair pair(1);
  set.Add(1, pair, PathState::kOptimized);
  EXPECT_TRUE(set.Refuse(0, Refusal::kForNow));
  EXPECT_TRUE(set.Refuse(0, Refusal::kNamespaceGone)) << "somebody has to look";
  EXPECT_FALSE(set.Refuse(0, Refusal::kNamespaceGone));
  set.Tick(5000);
  set.Tick(5000 + kPauseNs);
  EXPECT_FALSE(set.has_refused());
  EXPECT_EQ(set.Choose(), PathSet::kNone) << "nobody has looked";
  set.Looked(0);
  EXPECT_EQ(set.Choose(), 0U);
  set.Looked(0);
  EXPECT_EQ(set.Choose(), 0U);

  EXPECT_TRUE(set.Refuse(0, Refusal::kNamespaceGone)) << "again";
  set.Looked(0);
  EXPECT_EQ(set.Choose(), PathSet::kNone) << "it pauses";
  set.Tick(20000);
  set.Tick(20000 + kPauseNs);
  EXPECT_EQ(set.Choose(), 0U);
}

TEST(PathSet, WhoeverComesNextHasNothingOfTheOneBefore) {
  PathSet set(kPauseNs);
  FakePair first(1);
  FakePair second(2);
  set.Add(1, first, PathState::kOptimized);
  set.Refuse(0, Refusal::kForNow);
  set.SetBreaks(0);
  set.Remove(0);
  EXPECT_FALSE(set.has_refused());
  EXPECT_EQ(set.PlaceOf(1), PathSet::kNone);
  set.Add(2, second, PathState::kOptimized);
  EXPECT_EQ(set.PlaceOf(2), 0U);
  EXPECT_EQ(set.Choose(), 0U);
  EXPECT_TRUE(set.TakesMore(0));
}

// The rule, with nothing kept between two questions.
class Model {
 public:
  struct Path {
    std::unique_ptr<FakePair> pair;
    PathState state = PathState::kUnusable;
    bool breaks = false;
    bool refused = false;
    uint32_t commands = 0;
    bool is_open() const { return pair != nullptr && state != PathState::kUnusable && !breaks && !refused; }
    bool has_room() const { return pair->room() > 0; }
  };
  std::array<Path, PathSet::kMax> paths;
  uint32_t last = PathSet::kMax - 1;

  uint32_t Choose() const {
    PathState best = PathState::kUnusable;
    for (const Path& path : paths)
      if (path.is_open() && path.state > best) best = path.state;
    uint32_t chosen = PathSet::kNone;
    // Beginning behind the last, so that the first of equals is the next one round.
    for (uint32_t i = 1; i <= PathSet::kMax; ++i) {
      const uint32_t place = (last + i) % PathSet::kMax;
      const Path& path = paths[place];
      if (!path.is_open() || path.state != best || !path.has_room()) continue;
      if (chosen == PathSet::kNone || path.commands < paths[chosen].commands) chosen = place;
    }
    return chosen;
  }
};

class Walk {
 public:
  explicit Walk(uint64_t seed) : random_(seed) {}

  void Step() {
    const auto place = static_cast<uint32_t>(random_.Below(PathSet::kMax));
    Model::Path& path = model_.paths[place];
    if (!path.pair) {
      if (random_.Chance(1, 3)) Add();
    } else {
      Change(place, path);
    }
    Check();
  }
  uint64_t choices() const { return choices_; }

 private:
  void Add() {
    const LifeId life = ++last_life_;
    const auto free = std::find_if(model_.paths.begin(), model_.paths.end(),
                                   [](const Model::Path& path) { return !path.pair; });
    *free = {};
    free->pair = std::make_unique<FakePair>(life, 1 + static_cast<uint32_t>(life % kDepthMax));
    free->state = AnyState();
    set_.Add(life, *free->pair, free->state);
  }
  PathState AnyState() { return static_cast<PathState>(random_.Below(3)); }
  void Change(uint32_t place, Model::Path& path) {
    switch (random_.Below(8)) {
      case 0:
        path.state = AnyState();
        return set_.SetState(place, path.state);
      case 1:
        EXPECT_EQ(set_.Refuse(place, Refusal::kForNow), !path.refused);
        path.refused = true;
        return;
      case 2:
        if (!random_.Chance(1, 4)) return;
        path.breaks = true;
        return set_.SetBreaks(place);
      case 3:
        if (path.commands > 0 || !random_.Chance(1, 2)) return;
        set_.Remove(place);
        return path.pair.reset();
      case 4:
        return EndPauses();
      case 5:
        if (path.commands == 0) return;
        --path.commands;
        path.pair->Take(0);
        return set_.Over(place);
      default:
        return Send();
    }
  }
  void EndPauses() {
    now_ns_ += kPauseNs;
    set_.Tick(now_ns_);
    now_ns_ += kPauseNs;
    set_.Tick(now_ns_);
    for (Model::Path& path : model_.paths) path.refused = false;
  }
  void Send() {
    const uint32_t place = set_.Choose();
    if (place == PathSet::kNone) return;
    ++choices_;
    model_.paths[place].pair->Submit({});
    ++model_.paths[place].commands;
    model_.last = place;
    set_.Began(place, true);
  }
  void Check() {
    ASSERT_EQ(set_.Choose(), model_.Choose());
    bool refused = false;
    for (uint32_t place = 0; place < PathSet::kMax; ++place) {
      const Model::Path& path = model_.paths[place];
      refused |= path.refused && path.pair != nullptr;
      ASSERT_EQ(path.pair != nullptr && set_.TakesMore(place), path.is_open() && path.has_room());
    }
    ASSERT_EQ(set_.has_refused(), refused);
  }

  Random random_;
  Model model_;
  PathSet set_{kPauseNs};
  LifeId last_life_ = 0;
  uint64_t now_ns_ = kPauseNs;
  uint64_t choices_ = 0;
};

TEST(PathSet, ItsListAgreesWithTheRuleWhateverChanges) {
  uint64_t choices = 0;
  for (uint64_t seed = 0; seed < 50 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    Walk walk(seed);
    for (int i = 0; i < 1000 && !testing::Test::HasFailure(); ++i) walk.Step();
    choices += walk.choices();
  }
  EXPECT_GT(choices, 1000U);
}

}  // namespace
}  // namespace cleat::nvme::host::path_set_test
