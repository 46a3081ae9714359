// SPDX-License-Identifier: Apache-2.0
// A SCSI controller in the real engine, driven by a guest's driver in user space: disks that come, go and grow while
// others are under load, and answers as the standards have them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "expect_ok.h"
#include "host.h"
#include "peer.h"
#include "scsi_load.h"

namespace cleat::system_test::scsi_test {
namespace {

namespace scsi = perf::scsi;
namespace wire = perf::wire;

constexpr const char* kController = "vm";
constexpr uint32_t kTargets = 8;
constexpr uint64_t kDiskBytes = uint64_t{4} << 20;
constexpr uint64_t kEventTimeoutNs = 60 * kNsPerSecond;

struct ScsiSystem : testing::Test {
  void SetUp() override { ASSERT_TRUE(host.ok()); }

  void CreateController(uint32_t queues = 1) {
    ASSERT_OK(host.api().CreateController(kController, ScsiController(host.SocketPath(kController), queues)));
  }
  // A guest that knows nothing of the controller's disks yet.
  void Boot(const perf::ScsiOptions& options = {}) {
    peer.reset();  // the last one would still have the engine's connection in its backlog
    auto started = ScsiPeer::Start(host.SocketPath(kController), options);
    ASSERT_OK(started);
    peer = std::move(*started);
  }
  perf::ScsiDriver& driver() { return peer->driver(); }

  // Made, attached and READY. The target it got.
  uint32_t Attach(const std::string& id, const v1::DiskSpec& spec, bool read_only = false,
                  std::optional<uint32_t> target = std::nullopt) {
    EXPECT_OK(host.api().CreateDisk(id, spec));
    return AttachAgain(id, read_only, target);
  }
  uint32_t AttachAgain(const std::string& id, bool read_only = false,
                       std::optional<uint32_t> target = std::nullopt) {
    const auto attached = host.api().Attach(kController, id, read_only, target);
    EXPECT_OK(attached);
    EXPECT_TRUE(WaitAttachment(id, v1::ATTACHMENT_STATE_READY));
    return attached.value.spec().target();
  }
  bool Detach(const std::string& id) {
    EXPECT_OK(host.api().Detach(kController, id));
    return WaitAttachment(id, v1::ATTACHMENT_STATE_UNSPECIFIED);
  }
  bool WaitAttachment(const std::string& id, v1::AttachmentState state) {
    Model last;
    const bool reached = host.api().WaitUntil(
        [&](const Model& model) { return model.AttachmentStateOf(kController, id) == state; }, &last);
    EXPECT_TRUE(reached) << id << ": " << last.ToString();
    return reached;
  }

  // The next event is this one, for this target.
  testing::AssertionResult NextEvent(uint32_t event, uint32_t reason, uint32_t target) {
    const auto got = driver().WaitEvent(kEventTimeoutNs);
    if (!got) return testing::AssertionFailure() << got.error().message;
    if (got->event == event && got->reason == reason && got->lun[0] == 1 && got->lun[1] == target)
      return testing::AssertionSuccess();
    return testing::AssertionFailure()
           << fmt::format("event {:#x}, reason {:#x}, target {}", got->event, got->reason, got->lun[1]);
  }
  // As a guest does when it finds a disk.
  perf::ScsiDriver::Capacity Find(uint32_t target) {
    const auto lun = scsi::LunOf(static_cast<uint8_t>(target));
    EXPECT_OK(driver().ClearUnitAttentions(lun));
    const auto capacity = driver().ReadCapacity(lun);
    EXPECT_OK(capacity);
    return capacity ? *capacity : perf::ScsiDriver::Capacity{};
  }

  Host host;
  std::unique_ptr<ScsiPeer> peer;
};

TEST_F(ScsiSystem, EightDisksComeAndGoUnderLoad) {
  CreateController(2);
  Boot({.num_queues = 2, .layout = perf::LayoutPolicy::kAnyLayout});
  EXPECT_TRUE(driver().ScanTargets()->empty());
  ScsiLoad load(driver(), 1);
  std::vector<std::unique_ptr<perf::StampedBlocks>> blocks;
  for (uint32_t i = 0; i < kTargets; ++i) {
    const std::string id = fmt::format("d{}", i);
    const v1::DiskSpec spec =
        i % 2 == 0 ? MemoryDisk(kDiskBytes) : FileDisk(kDiskBytes, host.Path(id + ".img"));
    ASSERT_EQ(Attach(id, spec), i) << "not the lowest free target";
    ASSERT_TRUE(NextEvent(wire::kScsiTransportReset, wire::kScsiReasonRescan, i));
    ASSERT_EQ(Find(i).bytes(), kDiskBytes);
    blocks.push_back(std::make_unique<perf::StampedBlocks>(kDiskBytes, 512, i));
    ASSERT_OK(load.AddDisk(static_cast<uint8_t>(i), *blocks.back()));
    ASSERT_OK(load.Run(200));
  }
  EXPECT_EQ(driver().ScanTargets()->size(), kTargets);
  ASSERT_OK(host.api().CreateDisk("d8", MemoryDisk(kDiskBytes)));
  EXPECT_EQ(host.api().Attach(kController, "d8").code(), grpc::StatusCode::RESOURCE_EXHAUSTED);

  // Taken away under load: clean refusals there, nothing at all elsewhere.
  constexpr uint8_t kVictim = 3;
  load.ExpectGone(kVictim);
  Status loaded;
  EXPECT_TRUE(load.RunDuring([&] { return Detach("d3"); }, &loaded));
  ASSERT_OK(loaded);
  ASSERT_OK(load.Run(200));
  EXPECT_TRUE(load.gone(kVictim));
  ASSERT_TRUE(NextEvent(wire::kScsiTransportReset, wire::kScsiReasonRemoved, kVictim));
  EXPECT_EQ(driver().ScanTargets()->size(), kTargets - 1);
  EXPECT_EQ(driver().Execute(scsi::LunOf(kVictim), scsi::TestUnitReady())->response, wire::kScsiBadTarget);
  load.RemoveDisk(kVictim);

  // Its place is the lowest that is free, for a disk that comes under load.
  perf::StampedBlocks newcomer(kDiskBytes, 512, 8);
  EXPECT_EQ(load.RunDuring([&] { return AttachAgain("d8"); }, &loaded), kVictim);
  ASSERT_OK(loaded);
  ASSERT_TRUE(NextEvent(wire::kScsiTransportReset, wire::kScsiReasonRescan, kVictim));
  ASSERT_EQ(Find(kVictim).bytes(), kDiskBytes);
  ASSERT_OK(load.AddDisk(kVictim, newcomer));
  ASSERT_OK(load.Run(2000));
  for (uint8_t target = 0; target < kTargets; ++target) EXPECT_OK(load.Verify(target));
  EXPECT_EQ(driver().stats().used_length_mismatches, 0U);

  // The one that went has everything that was acknowledged, wherever it comes back.
  EXPECT_TRUE(Detach("d0"));
  EXPECT_EQ(AttachAgain("d3"), 0U);
  ScsiLoad again(driver(), 2);
  ASSERT_OK(again.AddDisk(0, *blocks[3]));
  ASSERT_OK(driver().ClearUnitAttentions(scsi::LunOf(0)));
  EXPECT_OK(again.Verify(0));
}

TEST_F(ScsiSystem, ADiskGrowsUnderLoad) {
  CreateController();
  for (const uint32_t block_bytes : {512U, 4096U}) {
    SCOPED_TRACE(block_bytes);
    const std::string id = fmt::format("grow{}", block_bytes);
    v1::DiskSpec spec = block_bytes == 512 ? FileDisk(kDiskBytes, host.Path(id)) : MemoryDisk(kDiskBytes);
    spec.set_logical_block_bytes(block_bytes);
    Boot();
    const auto target = static_cast<uint8_t>(Attach(id, spec));
    ASSERT_TRUE(NextEvent(wire::kScsiTransportReset, wire::kScsiReasonRescan, target));
    ASSERT_EQ(Find(target).block_bytes, block_bytes);
    perf::StampedBlocks blocks(kDiskBytes, block_bytes, 1);
    ScsiLoad load(driver(), block_bytes);
    ASSERT_OK(load.AddDisk(target, blocks));
    Status loaded;
    EXPECT_OK(load.RunDuring([&] { return host.api().ResizeDisk(id, 2 * kDiskBytes); }, &loaded));
    ASSERT_OK(loaded);
    ASSERT_TRUE(NextEvent(wire::kScsiParamChange, wire::kScsiCapacityChanged, target));
    const perf::ScsiDriver::Capacity capacity = Find(target);
    EXPECT_EQ(capacity.bytes(), 2 * kDiskBytes);
    // What was there still is, and what is new reads zero and can be written.
    EXPECT_OK(load.Verify(target));
    std::vector<uint8_t> last(block_bytes, 0xff);
    ASSERT_OK(driver().ReadSync(scsi::LunOf(target), capacity, capacity.blocks - 1, last));
    EXPECT_EQ(last, std::vector<uint8_t>(block_bytes));
    ASSERT_OK(driver().WriteSync(scsi::LunOf(target), capacity, capacity.blocks - 1,
                                 std::vector<uint8_t>(block_bytes, 0x5a)));
    EXPECT_TRUE(Detach(id));
    ASSERT_TRUE(NextEvent(wire::kScsiTransportReset, wire::kScsiReasonRemoved, target));
    ASSERT_OK(peer->ShutDown());
  }
}

TEST_F(ScsiSystem, TaskManagementIsAnsweredWhenNothingIsLeftBehind) {
  CreateController(2);
  v1::DiskSpec slow = MemoryDisk(kDiskBytes);
  slow.mutable_fault()->set_seed(5);
  slow.mutable_fault()->set_delay_ns_max(50 * kNsPerMs);
  Attach("slow", slow);
  Boot({.num_queues = 2});
  const scsi::Lun lun = scsi::LunOf(0);
  ASSERT_OK(driver().ClearUnitAttentions(lun));
  const auto buffer = driver().AllocateBuffer(4096);
  ASSERT_OK(buffer);
  const perf::Segment data{*buffer, 4096, false};
  for (const wire::ScsiTmfType type : {wire::kTmfAbortTaskSet, wire::kTmfLunReset, wire::kTmfNexusReset}) {
    SCOPED_TRACE(type);
    constexpr uint64_t kWrites = 20;
    for (uint64_t token = 0; token < kWrites; ++token) {
      ASSERT_TRUE(driver().Submit(
          token % 2, {.lun = lun, .cdb = scsi::Write16(8 * token, 8), .out = {&data, 1}, .token = token}));
    }
    driver().Kick(0);
    driver().Kick(1);
    EXPECT_EQ(driver().Tmf(type, lun).value(), wire::kScsiOk);
    // Every command was answered before the function was.
    std::vector<perf::ScsiCompletion> answers(kWrites);
    const size_t first = driver().Poll(0, answers);
    const size_t all = first + driver().Poll(1, std::span(answers).subspan(first));
    EXPECT_EQ(all, kWrites);
    ASSERT_OK(driver().ClearUnitAttentions(lun));
  }
  EXPECT_EQ(driver().Tmf(wire::kTmfLunReset, scsi::LunOf(6)).value(), wire::kScsiBadTarget);
  const uint8_t abort_of_nothing = driver().Tmf(wire::kTmfAbortTask, lun, 0xdead).value();
  EXPECT_TRUE(abort_of_nothing == wire::kScsiOk || abort_of_nothing == wire::kScsiFunctionSucceeded);
  EXPECT_EQ(driver().Tmf(wire::kTmfClearAca, lun).value(), wire::kScsiFunctionRejected);
}

TEST_F(ScsiSystem, AReadOnlyDiskIsReadOnly) {
  CreateController();
  const auto target = static_cast<uint8_t>(Attach("ro", MemoryDisk(kDiskBytes), /*read_only=*/true));
  Boot();
  const scsi::Lun lun = scsi::LunOf(target);
  const perf::ScsiDriver::Capacity capacity = Find(target);
  std::vector<uint8_t> data(512);
  EXPECT_OK(driver().ReadSync(lun, capacity, 0, data));
  for (const scsi::Cdb& cdb :
       {scsi::Write10(0, 1), scsi::Write16(0, 1), scsi::WriteSame16(0, 1), scsi::WriteAndVerify10(0, 1)}) {
    const auto answer = driver().Execute(lun, cdb, data);
    ASSERT_OK(answer);
    EXPECT_TRUE(answer->Is(scsi::kDataProtect, scsi::kAscWriteProtected))
        << fmt::format("{:#x}: {}", cdb[0], answer->ToString());
  }
  std::array<uint8_t, 64> mode{};
  ASSERT_TRUE(driver().Execute(lun, scsi::ModeSense6(0x3f, mode.size()), {}, mode)->good());
  EXPECT_NE(mode[2] & 0x80, 0) << "not write-protected in the mode parameter header";
}

TEST_F(ScsiSystem, DisksOf4096ByteBlocks) {
  CreateController();
  v1::DiskSpec spec = FileDisk(kDiskBytes, host.Path("big"));
  spec.set_logical_block_bytes(4096);
  const auto target = static_cast<uint8_t>(Attach("big", spec));
  Boot({.layout = perf::LayoutPolicy::kAnyLayout});
  const perf::ScsiDriver::Capacity capacity = Find(target);
  EXPECT_EQ(capacity.block_bytes, 4096U);
  EXPECT_EQ(capacity.blocks, kDiskBytes / 4096);
  perf::StampedBlocks blocks(kDiskBytes, 4096, 9);
  ScsiLoad load(driver(), 9);
  ASSERT_OK(load.AddDisk(target, blocks));
  EXPECT_OK(load.Run(2000));
  EXPECT_OK(load.Verify(target));
}

TEST_F(ScsiSystem, IdentityComesFromTheSpec) {
  CreateController();
  v1::DiskSpec spec = MemoryDisk(kDiskBytes);
  spec.set_serial("serial-1");
  spec.set_wwn("0x5000c500a1b2c3d4");
  Attach("named", spec);
  const auto again = host.api().GetDisk("named");
  ASSERT_OK(again);
  EXPECT_EQ(again.value.spec().wwn(), "0x5000c500a1b2c3d4");
  Boot();
  const scsi::Lun lun = scsi::LunOf(0);
  ASSERT_OK(driver().ClearUnitAttentions(lun));
  std::array<uint8_t, 252> page{};
  ASSERT_TRUE(driver().Execute(lun, scsi::InquiryVpd(0x80), {}, page)->good());
  EXPECT_EQ(std::string(page.begin() + 4, page.begin() + 4 + page[3]), "serial-1");
  ASSERT_TRUE(driver().Execute(lun, scsi::InquiryVpd(0x83), {}, page)->good());
  bool found = false;
  for (size_t at = 4; at + 4 <= 4U + page[3]; at += 4U + page[at + 3]) {
    const bool naa = (page[at + 1] & 0x3f) == 3 && page[at + 3] == 8;
    found = found || (naa && scsi::Big(page, at + 4, 8) == 0x5000c500a1b2c3d4);
  }
  EXPECT_TRUE(found) << "no NAA designator";
}

TEST_F(ScsiSystem, ResidualsAndMismatchesAreTold) {
  CreateController();
  Attach("d", MemoryDisk(kDiskBytes));
  Boot({.layout = perf::LayoutPolicy::kAnyLayout});
  const scsi::Lun lun = scsi::LunOf(0);
  const perf::ScsiDriver::Capacity capacity = Find(0);
  const std::vector<uint8_t> written(512, 0xa5);
  ASSERT_OK(driver().WriteSync(lun, capacity, 0, written));

  // More room than data.
  std::vector<uint8_t> room(2048, 0xee);
  auto answer = driver().Execute(lun, scsi::Read16(0, 1), {}, room);
  ASSERT_OK(answer);
  EXPECT_TRUE(answer->good()) << answer->ToString();
  EXPECT_EQ(answer->residual, room.size() - 512);
  EXPECT_TRUE(std::equal(written.begin(), written.end(), room.begin()));
  EXPECT_EQ(room[512], 0xee) << "written behind the data";
  // More data out than the command takes.
  answer = driver().Execute(lun, scsi::Write16(1, 1), std::vector<uint8_t>(1024, 0x11));
  ASSERT_OK(answer);
  EXPECT_TRUE(answer->good()) << answer->ToString();
  EXPECT_EQ(answer->residual, 512U);

  // Less room or less data than the command asks for, or the wrong kind of it: never good, nothing touched.
  std::vector<uint8_t> small(512);
  for (const auto& [cdb, out_bytes, in_bytes] :
       {std::tuple{scsi::Read16(0, 8), 0U, 512U}, std::tuple{scsi::Write16(0, 8), 512U, 0U},
        std::tuple{scsi::Read16(0, 1), 512U, 0U}, std::tuple{scsi::Write16(0, 1), 0U, 512U},
        std::tuple{scsi::Write16(0, 1), 512U, 512U}, std::tuple{scsi::Unmap(24), 8U, 0U}}) {
    SCOPED_TRACE(fmt::format("{:#x}, {} out, {} in", cdb[0], out_bytes, in_bytes));
    small.assign(in_bytes, 0);
    answer = driver().Execute(lun, cdb, std::vector<uint8_t>(out_bytes, 0x77), small);
    ASSERT_OK(answer);
    EXPECT_FALSE(answer->good()) << answer->ToString();
  }
  std::vector<uint8_t> back(512);
  ASSERT_OK(driver().ReadSync(lun, capacity, 0, back));
  EXPECT_EQ(back, written);
  ASSERT_OK(driver().ReadSync(lun, capacity, 2, back));
  EXPECT_EQ(back, std::vector<uint8_t>(512)) << "a command wrote behind its range";

  EXPECT_TRUE(driver()
                  .Execute(lun, scsi::Read16(capacity.blocks, 1), {}, room)
                  ->Is(scsi::kIllegalRequest, scsi::kAscLbaOutOfRange));
  EXPECT_TRUE(driver().Execute(lun, scsi::Cdb{0xff})->Is(scsi::kIllegalRequest, scsi::kAscInvalidOpcode));
  for (const scsi::Lun& nobody : {scsi::Lun{0, 0}, scsi::Lun{1, 200, 0x40, 0}, scsi::Lun{9, 9, 9, 9}}) {
    EXPECT_EQ(driver().Execute(nobody, scsi::Read16(0, 1), {}, room)->response, wire::kScsiBadTarget);
  }
}

TEST_F(ScsiSystem, CompareAndWriteIsOneStep) {
  CreateController();
  Attach("d", MemoryDisk(kDiskBytes));
  Boot();
  const scsi::Lun lun = scsi::LunOf(0);
  const perf::ScsiDriver::Capacity capacity = Find(0);
  std::vector<uint8_t> both(1024);
  std::fill(both.begin() + 512, both.end(), uint8_t{0x42});
  ASSERT_TRUE(driver().Execute(lun, scsi::CompareAndWrite(7, 1), both)->good());
  std::vector<uint8_t> back(512);
  ASSERT_OK(driver().ReadSync(lun, capacity, 7, back));
  EXPECT_EQ(back, std::vector<uint8_t>(512, 0x42));
  // It holds 0x42 now: different from byte 100 on.
  std::fill_n(both.begin(), 100, uint8_t{0x42});
  std::fill(both.begin() + 512, both.end(), uint8_t{0x43});
  const auto refused = driver().Execute(lun, scsi::CompareAndWrite(7, 1), both);
  ASSERT_OK(refused);
  EXPECT_TRUE(refused->Is(scsi::kMiscompare, scsi::kAscMiscompareDuringVerify)) << refused->ToString();
  EXPECT_EQ(refused->information(), 100U);
  ASSERT_OK(driver().ReadSync(lun, capacity, 7, back));
  EXPECT_EQ(back, std::vector<uint8_t>(512, 0x42));
}

TEST_F(ScsiSystem, ADriverThatDoesNotKnowHowHurtsItselfAlone) {
  CreateController();
  Attach("d", MemoryDisk(kDiskBytes));
  const auto execute = [this](uint32_t header_bytes, uint32_t answer_bytes) {
    perf::RequestShape shape = perf::kScsiShape;
    shape.header_bytes = header_bytes;
    shape.answer_bytes = answer_bytes;
    return driver().Execute({.lun = scsi::LunOf(0), .cdb = scsi::TestUnitReady(), .shape = shape});
  };
  for (const uint32_t short_header_bytes : {0U, 19U}) {
    SCOPED_TRACE(short_header_bytes);
    Boot();
    const auto answer = execute(short_header_bytes, perf::kScsiShape.answer_bytes);
    ASSERT_OK(answer);
    EXPECT_FALSE(answer->good());
    peer.reset();
  }
  // Without room for an answer there is none: the ring is broken, and the controller says so.
  for (const uint32_t short_answer_bytes : {0U, 11U}) {
    SCOPED_TRACE(short_answer_bytes);
    Boot({.io_timeout_ns = 100 * kNsPerMs});
    EXPECT_FALSE(execute(perf::kScsiShape.header_bytes, short_answer_bytes));
    EXPECT_TRUE(host.WaitController(kController, v1::CONTROLLER_STATE_BROKEN));
    peer.reset();
  }
  Boot();
  EXPECT_EQ(Find(0).bytes(), kDiskBytes);
}

TEST_F(ScsiSystem, TheEngineIsReplacedUnderLoad) {
  CreateController(2);
  std::vector<std::unique_ptr<perf::StampedBlocks>> blocks;
  for (uint32_t i = 0; i < kTargets; ++i) {
    const std::string id = fmt::format("d{}", i);
    ASSERT_EQ(Attach(id, i % 2 == 0 ? MemoryDisk(kDiskBytes) : FileDisk(kDiskBytes, host.Path(id))), i);
    blocks.push_back(std::make_unique<perf::StampedBlocks>(kDiskBytes, 512, i));
  }
  Boot({.num_queues = 2, .auto_reconnect = true});
  ScsiLoad load(driver(), 4);
  for (uint8_t target = 0; target < kTargets; ++target) {
    ASSERT_OK(load.AddDisk(target, *blocks[target]));
    Find(target);
  }
  ASSERT_OK(load.Run(1000));
  for (int round = 0; round < 3; ++round) {
    host.KillEngine();
    host.StartEngine();
    ASSERT_OK(load.Run(1000));
  }
  EXPECT_GE(driver().stats().reconnects, 3U);
  for (uint8_t target = 0; target < kTargets; ++target) EXPECT_OK(load.Verify(target));
}

}  // namespace
}  // namespace cleat::system_test::scsi_test
