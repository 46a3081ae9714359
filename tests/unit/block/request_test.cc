// SPDX-License-Identifier: Apache-2.0
#include "block/request.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "block/pipeline.h"

namespace cleat::block::request_test {
namespace {

struct Layer {
  std::string name;
  std::vector<std::string>& calls;

  void PushOn(Request& request) {
    Frame& frame = request.Push(
        [](Request& done, const Frame& f) {
          const auto& self = *static_cast<Layer*>(f.layer);
          self.calls.push_back(self.name + ":" + IoStatusName(done.status) + ":" +
                               std::to_string(f.scratch[5]));
          if (done.depth() > 0)
            done.Complete(done.status == IoStatus::kOk ? IoStatus::kNoSpace : done.status);
        },
        this);
    frame.scratch[5] = request.depth();
  }
};

TEST(Request, FramesUnwindFromTheTopAndMayChangeTheStatus) {
  std::vector<std::string> calls;
  Layer front{"front", calls};
  Layer filter{"filter", calls};
  Layer back{"back", calls};
  Request request;
  for (int i = 0; i < 3; ++i) {
    calls.clear();
    front.PushOn(request);
    filter.PushOn(request);
    back.PushOn(request);
    EXPECT_EQ(request.top().layer, &back);
    request.Complete(IoStatus::kOk);
    EXPECT_EQ(calls, (std::vector<std::string>{"back:ok:3", "filter:no_space:2", "front:no_space:1"}));
    EXPECT_EQ(request.depth(), 0U);
  }
}

TEST(Request, TheStackIsBoundedBothWays) {
  std::vector<std::string> calls;
  Layer layer{"layer", calls};
  Request request;
  EXPECT_DEATH(request.Complete(IoStatus::kOk), "check failed");
  EXPECT_DEATH(request.top(), "check failed");
  for (uint32_t i = 0; i < Request::kFramesMax; ++i) layer.PushOn(request);
  EXPECT_DEATH(layer.PushOn(request), "check failed");
  request.Complete(IoStatus::kIoError);
  EXPECT_EQ(calls.size(), Request::kFramesMax);
}

TEST(Request, MayDieInItsCompletion) {
  auto* request = new Request;
  request->Push([](Request& done, const Frame&) { delete &done; }, nullptr);
  request->Complete(IoStatus::kOk);
}

}  // namespace
}  // namespace cleat::block::request_test
