// SPDX-License-Identifier: Apache-2.0
// A virtio-scsi device on two reactors in two threads, with guests that write and read all the time, while a target
// comes and goes and is reset. For ThreadSanitizer above all; and nothing may be lost or hang.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "scsi_rig.h"

namespace cleat::virtio::scsi_two_reactors_test {
namespace {

constexpr int kRounds = 20;

struct Io {
  const MonotonicClock clock{};
  std::unique_ptr<Reactor> reactor = Reactor::Make(clock, {}).value();
  scsi::TestDisk storage;
  std::unique_ptr<block::Pipeline> pipeline;
  std::unique_ptr<block::PipelineChannel> channel;
  std::thread thread;
};

// Runs `task` on the control reactor, which is this thread's, to its end.
void RunOn(Reactor& control, Task<void> task) {
  bool done = false;
  const auto run = [](Task<void> what, bool& over) -> Task<void> {
    co_await std::move(what);
    over = true;
  };
  Spawn(run(std::move(task), done));
  while (!done) control.RunOnce();  // NOLINT(bugprone-infinite-loop): the task sets it
}

TEST(ScsiTwoReactorsTest, ATargetComesAndGoesUnderLoad) {
  const MonotonicClock clock{};
  const auto control = Reactor::Make(clock, {}).value();
  std::array<Io, 2> io;
  for (Io& one : io) {
    one.storage.bytes.resize(scsi::TestGeometry().size_bytes);
    one.pipeline =
        block::Pipeline::Make(std::make_unique<scsi::TestDevice>(one.storage, scsi::TestGeometry()),
                              block::AccessMode::kReadWrite)
            .value();
  }
  ScsiModel model("controllers/test", *control, {io[0].reactor.get(), io[1].reactor.get()}, 2);
  std::array<ScsiSide, 4> sides;
  std::atomic<int> started{0};
  for (uint32_t i = 0; i < 2; ++i) {
    io[i].reactor->PostCall([&, i] {
      io[i].channel = io[i].pipeline->OpenChannel(*io[i].reactor).value();
      for (uint32_t q = i; q < 4; q += 2) {
        sides[q].queue = model.OpenQueue(*io[i].reactor, q).value();
        sides[q].Start(model.features() & ~(uint64_t{1} << kFeatureRingPacked));
      }
      ++started;
    });
    io[i].thread = std::thread([&one = io[i]] { one.reactor->Run(); });
  }
  while (started < 2) std::this_thread::yield();

  std::atomic<bool> stop{false};
  std::array<std::atomic<uint64_t>, 2> good{};
  const auto kick = [&](uint32_t q) {
    Reactor& reactor = *io[q % 2].reactor;
    reactor.PostCall([&reactor, &side = sides[q]] { reactor.Activate(*side.queue); });
  };
  const auto play = [&](uint32_t index) {
    ScsiSide& side = sides[2 + index];
    for (uint8_t value = 1; !stop; ++value) {
      const auto run = [&](const Bytes& cdb, const Bytes& out, uint32_t in) {
        side.Command(0, LunOf(0), cdb, out, in);
        kick(2 + index);
        while (!side.guest.TakeUsed()) std::this_thread::yield();
        return ScsiRig::Outcome(side.Response(0));
      };
      const std::string wrote = run(WriteCdb(5, 1), Bytes(512, value), 0);
      const std::string read = run(ReadCdb(5, 1), {}, 512);
      for (const std::string& outcome : {wrote, read}) {
        ASSERT_TRUE(outcome == "good" || outcome == "response 3" || outcome == "6/29/03" ||
                    outcome == "6/2a/09")
            << outcome;
      }
      if (wrote == "good" && read == "good") {
        ASSERT_EQ(side.Data(0, 512), Bytes(512, value));
        ++good[index];
      }
    }
  };
  std::thread guests[2] = {std::thread(play, 0), std::thread(play, 1)};

  const auto attach = [&](ScsiModel& scsi, ScsiDisk disk) -> Task<void> {
    auto add = scsi.Add(0, std::move(disk));
    const Status added = co_await std::move(add);
    EXPECT_TRUE(added);
  };
  for (int round = 0; round < kRounds; ++round) {
    ScsiDisk disk;
    disk.name = "disks/0";
    disk.geometry = scsi::TestGeometry();
    disk.channel_on = [&io](Reactor& reactor) {
      return io[&reactor == io[0].reactor.get() ? 0 : 1].channel.get();
    };
    RunOn(*control, attach(model, std::move(disk)));
    const std::array<uint64_t, 2> before = {good[0], good[1]};
    while (!HasFailure() && (good[0] < before[0] + 5 || good[1] < before[1] + 5)) control->RunOnce();
    sides[0].Manage(0, VIRTIO_SCSI_T_TMF_LOGICAL_UNIT_RESET, LunOf(0));
    kick(0);
    while (!sides[0].guest.TakeUsed()) control->RunOnce();
    EXPECT_EQ(sides[0].Result(0), kScsiFunctionComplete);
    RunOn(*control, model.SetGeometry(0, scsi::TestGeometry()));
    RunOn(*control, model.Remove(0));
  }
  stop = true;
  for (std::thread& guest : guests) guest.join();
  for (uint32_t i = 0; i < 2; ++i) {
    io[i].reactor->PostCall([&, i] {
      for (uint32_t q = i; q < 4; q += 2) {
        sides[q].queue->Stop([&side = sides[q]] { side.queue.reset(); });
      }
      io[i].channel.reset();
      io[i].reactor->Stop();
    });
    io[i].thread.join();
  }
  for (const ScsiSide& side : sides) EXPECT_TRUE(side.broken.empty());
}

}  // namespace
}  // namespace cleat::virtio::scsi_two_reactors_test
