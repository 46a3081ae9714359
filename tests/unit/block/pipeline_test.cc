// SPDX-License-Identifier: Apache-2.0
#include "block/pipeline.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "block/filter_device.h"
#include "tests/unit/reactor/virtual_reactors.h"

namespace cleat::block::pipeline_test {
namespace {

constexpr uint64_t kDiskBytes = 1 << 20;

// Keeps what it is given until the test completes it.
class HoldingChannel final : public Channel {
 public:
  explicit HoldingChannel(std::vector<Request*>& held) : held_(held) {}
  void Submit(Request& request) override { held_.push_back(&request); }

 private:
  std::vector<Request*>& held_;
};

class HoldingDevice final : public Device {
 public:
  HoldingDevice(const Geometry& geometry, uint32_t frames) : Device("disks/a", geometry), frames_(frames) {}
  uint32_t frames() const override { return frames_; }
  Result<std::unique_ptr<Channel>> OpenChannel(Reactor& /*reactor*/) override {
    return std::unique_ptr<Channel>(std::make_unique<HoldingChannel>(held));
  }
  Task<Status> Acquire(AccessMode mode) override {
    acquired = mode;
    co_return Ok{};
  }
  std::vector<Request*> held;
  std::optional<AccessMode> acquired;

 private:
  const uint32_t frames_;
};

Geometry TestGeometry() {
  Geometry geometry;
  geometry.size_bytes = kDiskBytes;
  geometry.logical_block_bytes = 512;
  geometry.physical_block_bytes = 4096;
  geometry.discard = true;
  geometry.discard_granularity_bytes = 4096;
  geometry.discard_max_bytes = 65536;
  geometry.write_zeroes = true;
  geometry.write_zeroes_max_bytes = 32768;
  return geometry;
}

struct Disk {
  explicit Disk(const Geometry& geometry = TestGeometry(), AccessMode mode = AccessMode::kReadWrite) {
    auto owned = std::make_unique<HoldingDevice>(geometry, 0);
    device = owned.get();
    pipeline = std::move(Pipeline::Make(std::move(owned), mode)).value();
    channel = std::move(pipeline->OpenChannel(reactors[0])).value();
  }

  // The status it was completed with at once; nothing when it went down to the device, which then completes
  // it.
  std::optional<IoStatus> Submit(Op op, uint64_t offset, uint64_t length) {
    Request request;
    std::vector<uint8_t> memory(length <= kDiskBytes ? length : 0);
    const auto region = MemoryRegion::Borrow(memory.data(), memory.size());
    const Segment segment{region.get(), 0, static_cast<uint32_t>(memory.size())};
    request.op = op;
    request.offset_bytes = offset;
    request.length_bytes = length;
    request.segments = {&segment, 1};
    std::optional<IoStatus> done;
    request.Push([](Request& r,
                    const Frame& frame) { *static_cast<std::optional<IoStatus>*>(frame.layer) = r.status; },
                 &done);
    channel->Submit(request);
    if (done) {
      EXPECT_TRUE(device->held.empty());
      return done;
    }
    EXPECT_EQ(device->held, std::vector<Request*>{&request});
    EXPECT_EQ(channel->in_flight(), 1U);
    device->held.clear();
    request.Complete(IoStatus::kNoSpace);
    EXPECT_EQ(done, IoStatus::kNoSpace) << "the device's status goes up";
    EXPECT_EQ(channel->in_flight(), 0U);
    return std::nullopt;
  }

  test::VirtualReactors reactors;
  HoldingDevice* device;
  std::unique_ptr<Pipeline> pipeline;
  std::unique_ptr<PipelineChannel> channel;
};

TEST(Pipeline, LetsGoodRequestsThrough) {
  Disk disk;
  EXPECT_EQ(disk.Submit(Op::kRead, 0, kDiskBytes), std::nullopt);
  EXPECT_EQ(disk.Submit(Op::kWrite, kDiskBytes - 512, 512), std::nullopt);
  EXPECT_EQ(disk.Submit(Op::kFlush, 0, 0), std::nullopt);
  EXPECT_EQ(disk.Submit(Op::kDiscard, 512, 65536), std::nullopt);
  EXPECT_EQ(disk.Submit(Op::kWriteZeroes, kDiskBytes - 32768, 32768), std::nullopt);
}

TEST(Pipeline, StopsBadOnesAtTheEntrance) {
  Disk disk;
  for (const Op op : {Op::kRead, Op::kWrite, Op::kDiscard, Op::kWriteZeroes}) {
    SCOPED_TRACE(static_cast<int>(op));
    EXPECT_EQ(disk.Submit(op, 256, 512), IoStatus::kInvalid) << "offset not a multiple of the block";
    EXPECT_EQ(disk.Submit(op, 0, 100), IoStatus::kInvalid) << "nor the length";
    EXPECT_EQ(disk.Submit(op, kDiskBytes, 512), IoStatus::kInvalid) << "beyond the end";
    EXPECT_EQ(disk.Submit(op, kDiskBytes - 512, 1024), IoStatus::kInvalid) << "half beyond the end";
    EXPECT_EQ(disk.Submit(op, 512, UINT64_MAX - 511), IoStatus::kInvalid) << "sum wraps to 0";
    EXPECT_EQ(disk.Submit(op, UINT64_MAX - 511, 512), IoStatus::kInvalid);
    EXPECT_EQ(disk.Submit(op, UINT64_MAX - 511, 1024), IoStatus::kInvalid);
    EXPECT_EQ(disk.Submit(op, 0, 0), IoStatus::kOk) << "nothing to do";
    EXPECT_EQ(disk.Submit(op, kDiskBytes, 0), IoStatus::kOk);
  }
  EXPECT_EQ(disk.Submit(Op::kDiscard, 0, 65536 + 512), IoStatus::kInvalid);
  EXPECT_EQ(disk.Submit(Op::kWriteZeroes, 0, 32768 + 512), IoStatus::kInvalid);
}

// However large the disk: a guest may have thousands of them under way.
TEST(Pipeline, StopsTransfersThatAreTooLong) {
  Geometry geometry = TestGeometry();
  geometry.size_bytes = 4 * kTransferBytesMax;
  geometry.discard_max_bytes = geometry.write_zeroes_max_bytes = geometry.size_bytes;
  Disk disk(geometry);
  for (const Op op : {Op::kRead, Op::kWrite}) {
    EXPECT_EQ(disk.Submit(op, 0, kTransferBytesMax + 512), IoStatus::kInvalid);
    EXPECT_EQ(disk.Submit(op, 0, geometry.size_bytes), IoStatus::kInvalid);
  }
  EXPECT_EQ(disk.Submit(Op::kDiscard, 0, geometry.size_bytes), std::nullopt) << "has no data";
}

TEST(Pipeline, KeepsToAccessModeAndAbilities) {
  Disk read_only(TestGeometry(), AccessMode::kReadOnly);
  EXPECT_EQ(read_only.Submit(Op::kRead, 0, 512), std::nullopt);
  EXPECT_EQ(read_only.Submit(Op::kFlush, 0, 0), std::nullopt);
  for (const Op op : {Op::kWrite, Op::kDiscard, Op::kWriteZeroes}) {
    EXPECT_EQ(read_only.Submit(op, 0, 512), IoStatus::kReadOnly);
  }
  Geometry plain = TestGeometry();
  plain.discard = plain.write_zeroes = false;
  plain.logical_block_bytes = 4096;
  Disk simple(plain);
  EXPECT_EQ(simple.Submit(Op::kDiscard, 0, 4096), IoStatus::kUnsupported);
  EXPECT_EQ(simple.Submit(Op::kWriteZeroes, 0, 4096), IoStatus::kUnsupported);
  EXPECT_EQ(simple.Submit(Op::kRead, 512, 4096), IoStatus::kInvalid);
  const Status acquired = read_only.reactors.Await(read_only.pipeline->Acquire());
  EXPECT_TRUE(acquired.ok());
  EXPECT_EQ(read_only.device->acquired, AccessMode::kReadOnly);
}

TEST(Pipeline, RefusesStacksThatDoNotFit) {
  constexpr uint32_t kRoom = Request::kFramesMax - 2;  // the front end's and the entrance's are taken
  EXPECT_TRUE(
      Pipeline::Make(std::make_unique<HoldingDevice>(TestGeometry(), kRoom), AccessMode::kReadWrite).ok());
  std::unique_ptr<Device> device = std::make_unique<HoldingDevice>(TestGeometry(), kRoom + 1);
  const auto deep = Pipeline::Make(std::move(device), AccessMode::kReadWrite);
  ASSERT_FALSE(deep.ok());
  EXPECT_NE(device, nullptr) << "whoever opened it has to close it";
  EXPECT_NE(deep.error().message.find("disks/a"), std::string::npos);
}

TEST(Geometry, IsChecked) {
  const auto check = [](auto change) {
    Geometry geometry = TestGeometry();
    change(geometry);
    const Status status = CheckGeometry(geometry, "disks/a");
    if (!status) {
      EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
      EXPECT_EQ(status.error().message.rfind("disks/a: ", 0), 0U) << status.error().message;
    }
    return status.ok();
  };
  EXPECT_TRUE(check([](Geometry&) {}));
  EXPECT_TRUE(check([](Geometry& g) { g.logical_block_bytes = 4096; }));
  EXPECT_FALSE(check([](Geometry& g) { g.logical_block_bytes = 1024; }));
  EXPECT_FALSE(check([](Geometry& g) { g.logical_block_bytes = 0; }));
  EXPECT_FALSE(check([](Geometry& g) { g.physical_block_bytes = 256; }));
  EXPECT_FALSE(check([](Geometry& g) { g.physical_block_bytes = 5000; }));
  EXPECT_FALSE(check([](Geometry& g) { g.physical_block_bytes = 1U << 21; }));
  EXPECT_FALSE(check([](Geometry& g) { g.size_bytes = 0; }));
  EXPECT_FALSE(check([](Geometry& g) { g.size_bytes = 1000; }));
  EXPECT_FALSE(check([](Geometry& g) { g.size_bytes = uint64_t{1} << 63; }));
  EXPECT_FALSE(check([](Geometry& g) { g.discard_granularity_bytes = 0; }));
  EXPECT_FALSE(check([](Geometry& g) { g.discard_granularity_bytes = 700; }));
  EXPECT_FALSE(check([](Geometry& g) { g.discard_max_bytes = 0; }));
  EXPECT_FALSE(check([](Geometry& g) { g.write_zeroes_max_bytes = 511; }));
  EXPECT_TRUE(check([](Geometry& g) {
    g.discard = g.write_zeroes = false;
    g.discard_max_bytes = g.write_zeroes_max_bytes = 0;
  }));
}

// A limited channel, and a filter over it that knows nothing of limits.
class ThrottledChannel final : public Channel, private ThrottleControl {
 public:
  explicit ThrottledChannel(std::vector<bool>& told) : told_(told) {}
  void Submit(Request& request) override { request.Complete(IoStatus::kOk); }
  ThrottleControl* throttle() override { return this; }

 private:
  void SetBypass(bool on) override { told_.push_back(on); }
  uint64_t DebtUntilNs() const override { return 17; }
  bool HasWaiting() const override { return false; }
  std::vector<bool>& told_;
};

class PlainFilter final : public FilterChannel {
 public:
  explicit PlainFilter(std::unique_ptr<Channel> below) : FilterChannel(std::move(below)) {}
  void Submit(Request& request) override { below().Submit(request); }
};

TEST(Pipeline, LimitsBelowAFilterAreBypassedFromTheFirstWhoWantsItToTheLast) {
  std::vector<bool> told;
  PipelineChannel channel(TestGeometry(), AccessMode::kReadWrite,
                          std::make_unique<PlainFilter>(std::make_unique<ThrottledChannel>(told)));
  EXPECT_EQ(channel.throttle_debt_until_ns(), 17U);
  channel.BeginBypass();
  channel.BeginBypass();
  channel.EndBypass();
  EXPECT_EQ(told, std::vector<bool>{true});
  channel.EndBypass();
  EXPECT_EQ(told, (std::vector<bool>{true, false}));
}

TEST(Pipeline, WithoutLimitsThereIsNothingToBypassAndNoDebt) {
  std::vector<Request*> held;
  PipelineChannel channel(TestGeometry(), AccessMode::kReadWrite, std::make_unique<HoldingChannel>(held));
  channel.BeginBypass();
  channel.EndBypass();
  EXPECT_EQ(channel.throttle_debt_until_ns(), 0U);
}

}  // namespace
}  // namespace cleat::block::pipeline_test
