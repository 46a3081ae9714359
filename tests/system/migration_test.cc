// SPDX-License-Identifier: Apache-2.0
// A VM that migrates, played by one driver whose connection moves from one controller to another: its memory and rings
// are where they were, as if a perfect migration had copied them. What is tested is whose disk it is meanwhile: never
// nobody's while a guest runs, never both's.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "expect_ok.h"
#include "host.h"
#include "peer.h"
#include "perf/vhost_user/message_socket.h"

namespace cleat::system_test::migration_test {
namespace {

constexpr uint64_t kDiskBytes = uint64_t{16} << 20;
constexpr uint16_t kQueues = 2;
constexpr uint64_t kLogBytes = uint64_t{1} << 20;  // a bit a page: 32 GiB of addresses
constexpr const char* kSecondEngine = "engine-1";

std::vector<uint8_t> Pattern(uint64_t seed) {
  std::vector<uint8_t> data(64 << 10);
  Random random(seed);
  for (uint8_t& byte : data) byte = static_cast<uint8_t>(random.Next());
  return data;
}

// Controllers "a" and "b" with a socket each and one disk for both, in one engine or in two; the guest is at "a".
class MigrationTest : public testing::TestWithParam<bool> {
 protected:
  MigrationTest() : host({.reactors = 2}) {}

  void SetUp() override {
    ASSERT_TRUE(host.ok());
    if (GetParam()) host.AddEngine(kSecondEngine);
    ASSERT_OK(host.api().CreateDisk("d", FileDisk(kDiskBytes, host.Path("disk.img"))));
    MakeController("a", kEngineId);
    MakeController("b", GetParam() ? kSecondEngine : kEngineId);
    ASSERT_OK(AttachAs("a", v1::ATTACHMENT_MODE_ACTIVE));
    auto started = Peer::Start(host.SocketPath("a"), {.num_queues = kQueues});
    ASSERT_OK(started);
    guest = std::move(*started);
    ASSERT_OK(AttachAs("b", v1::ATTACHMENT_MODE_INCOMING));
    ASSERT_OK(host.api().WaitReady("controllers/b/attachments/d"));
    ASSERT_TRUE(WaitState("b", v1::ATTACHMENT_STATE_INCOMING));
  }

  void MakeController(const std::string& id, const std::string& engine) {
    v1::ControllerSpec spec = BlkController(host.SocketPath(id), kQueues);
    spec.set_engine("engines/" + engine);
    ASSERT_OK(host.api().CreateController(id, spec));
  }
  grpc::Status AttachAs(const std::string& controller, v1::AttachmentMode mode) {
    v1::AttachDiskRequest request;
    request.set_parent("controllers/" + controller);
    request.mutable_attachment()->mutable_spec()->set_disk("disks/d");
    request.mutable_attachment()->mutable_spec()->set_mode(mode);
    v1::Attachment attachment;
    grpc::ClientContext context;
    return host.api().stub().AttachDisk(&context, request, &attachment);
  }

  bool WaitFor(const Api::Condition& done) {
    Model last;
    if (host.api().WaitUntil(done, &last)) return true;
    ADD_FAILURE() << "there is:\n" << last.ToString();
    return false;
  }
  bool WaitState(const std::string& controller, v1::AttachmentState state) {
    return WaitFor([&](const Model& model) { return model.AttachmentStateOf(controller, "d") == state; });
  }
  bool WaitMode(const std::string& controller, v1::AttachmentMode mode) {
    return WaitFor([&](const Model& model) {
      const auto it = model.attachments.find("controllers/" + controller + "/attachments/d");
      return it != model.attachments.end() && it->second.spec().mode() == mode;
    });
  }
  bool WaitMessage(const std::string& controller, const std::string& text) {
    return WaitFor([&](const Model& model) {
      return model.ControllerMessage(controller).find(text) != std::string::npos;
    });
  }
  bool WaitGone(const std::string& controller) {
    return WaitState(controller, v1::ATTACHMENT_STATE_UNSPECIFIED);
  }

  // ---- What the source's QEMU does.
  void BeginLog() {
    perf::SharedArea log;
    log.fd = UniqueFd(memfd_create("dirty-log", MFD_CLOEXEC));
    log.size_bytes = kLogBytes;
    ASSERT_EQ(ftruncate(log.fd.get(), kLogBytes), 0);
    perf::Frontend& frontend = guest->frontend();
    ASSERT_OK(frontend.SetLogBase(log));
    ASSERT_OK(frontend.SetFeatures(guest->driver().features() | perf::wire::kFeatureLogAll |
                                   perf::wire::kFeatureProtocolFeatures));
  }
  void StopMigrating() {
    BeginLog();
    ASSERT_OK(guest->driver().Stop());
  }

  // ---- What the destination's does: the same driver, on a connection to the other controller. Connections of before,
  // that died in the backlog, are passed over.
  void ContinueAt(int listener) {
    Status opened = Error(ErrorCode::kUnavailable, "not tried");
    while (!opened && opened.error().code == ErrorCode::kUnavailable) {
      auto accepted = perf::AcceptUnix(listener, kWaitTimeoutNs);
      ASSERT_OK(accepted);
      guest->frontend().Adopt(std::move(*accepted));
      opened = guest->frontend().Open();
    }
    ASSERT_OK(opened);
    guest->frontend().DropInflight();
    ASSERT_OK(guest->driver().Resume());
  }
  void ContinueAtB() {
    b_listener = perf::ListenUnix(host.SocketPath("b")).value();
    ContinueAt(b_listener.get());
  }
  // Another guest, with rings of its own, at "b": started by mistake, or too early.
  std::unique_ptr<Peer> StartAtB() {
    auto started = Peer::Start(host.SocketPath("b"), {.num_queues = kQueues});
    EXPECT_OK(started);
    return started ? std::move(*started) : nullptr;
  }

  void Write(uint64_t seed) {
    const auto data = Pattern(seed);
    const auto queue = static_cast<uint16_t>(seed % kQueues);
    ASSERT_OK(guest->driver().WriteSync(seed * data.size(), data, queue));
  }
  void Verify(uint64_t seed) { VerifyAt(*guest, seed); }
  static void VerifyAt(Peer& peer, uint64_t seed) {
    const auto data = Pattern(seed);
    std::vector<uint8_t> back(data.size());
    ASSERT_OK(peer.driver().ReadSync(seed * data.size(), back, static_cast<uint16_t>(seed % kQueues)));
    ASSERT_EQ(back, data);
  }

  Host host;
  std::unique_ptr<Peer> guest;
  UniqueFd b_listener;
};

TEST_P(MigrationTest, TheDiskGoesWithTheRingsAndBack) {
  Write(1);
  StopMigrating();
  ASSERT_TRUE(WaitState("a", v1::ATTACHMENT_STATE_RELEASED));
  ASSERT_TRUE(WaitMode("a", v1::ATTACHMENT_MODE_OUTGOING));
  ContinueAtB();
  Verify(1);
  Write(2);
  ASSERT_TRUE(WaitState("b", v1::ATTACHMENT_STATE_READY));
  ASSERT_TRUE(WaitMode("b", v1::ATTACHMENT_MODE_ACTIVE));
  EXPECT_OK(AttachAs("b", v1::ATTACHMENT_MODE_INCOMING)) << "the same call again";
  EXPECT_OK(AttachAs("a", v1::ATTACHMENT_MODE_ACTIVE)) << "this one's, too";
  ASSERT_OK(host.api().Detach("a", "d"));
  ASSERT_TRUE(WaitGone("a"));
  Verify(2);

  ASSERT_OK(AttachAs("a", v1::ATTACHMENT_MODE_INCOMING));
  ASSERT_TRUE(WaitState("a", v1::ATTACHMENT_STATE_INCOMING));
  StopMigrating();
  ContinueAt(guest->frontend().listener_fd());
  Verify(1);
  Verify(2);
  Write(3);
  ASSERT_TRUE(WaitState("a", v1::ATTACHMENT_STATE_READY));
  ASSERT_OK(host.api().Detach("b", "d"));
  ASSERT_TRUE(WaitGone("b"));
  Verify(3);
}

TEST_P(MigrationTest, WhoStartsTooEarlyWaitsUntilTheSourceHasGivenUp) {
  Write(1);
  const auto early = StartAtB();
  ASSERT_TRUE(WaitMessage("b", "locked by"));
  EXPECT_EQ(host.api().GetController("b").value.status().rings_up(), 0U);
  Verify(1);  // undisturbed
  Write(2);
  StopMigrating();
  VerifyAt(*early, 1);
  VerifyAt(*early, 2);
  ASSERT_TRUE(WaitState("b", v1::ATTACHMENT_STATE_READY));
  ASSERT_TRUE(WaitState("a", v1::ATTACHMENT_STATE_RELEASED));
  EXPECT_TRUE(host.WaitController("b", v1::CONTROLLER_STATE_READY));
}

// The negative control: rings that stop without a migration give nothing up, whatever waits for it. So does a VM that
// was paused before it migrated, whose rings stopped then: detaching it is what gives its disks up.
TEST_P(MigrationTest, WithoutAMigrationNothingIsGivenUp) {
  Write(1);
  const auto early = StartAtB();
  ASSERT_OK(guest->driver().Stop());
  ASSERT_TRUE(WaitMessage("b", "locked by"));
  EXPECT_EQ(host.api().GetController("b").value.status().rings_up(), 0U);
  EXPECT_EQ(host.api().GetAttachment("a", "d").value.status().state(), v1::ATTACHMENT_STATE_READY);
  ASSERT_OK(host.api().Detach("a", "d"));
  VerifyAt(*early, 1);
  ASSERT_TRUE(WaitState("b", v1::ATTACHMENT_STATE_READY));
}

TEST_P(MigrationTest, AnAbortedMigrationTakesTheDiskBack) {
  Write(1);
  for (uint64_t round = 2; round < 5; ++round) {
    StopMigrating();
    ASSERT_TRUE(WaitState("a", v1::ATTACHMENT_STATE_RELEASED));
    ASSERT_OK(guest->driver().Resume());  // on the source
    Verify(round - 1);
    Write(round);
    ASSERT_TRUE(WaitState("a", v1::ATTACHMENT_STATE_READY));
    ASSERT_TRUE(WaitMode("a", v1::ATTACHMENT_MODE_ACTIVE));
    ASSERT_TRUE(WaitState("b", v1::ATTACHMENT_STATE_INCOMING));
  }
  // Who waits in vain can be taken away, and comes again.
  auto early = StartAtB();
  ASSERT_TRUE(WaitMessage("b", "locked by"));
  ASSERT_OK(host.api().Detach("b", "d"));
  ASSERT_TRUE(WaitGone("b"));
  early.reset();
  Verify(4);
  ASSERT_OK(AttachAs("b", v1::ATTACHMENT_MODE_INCOMING));
  StopMigrating();
  ContinueAtB();
  Verify(4);
}

// The destination has run already: the source can't go on before that has let go, and says why.
TEST_P(MigrationTest, TheSourceDoesNotGoOnBesideTheDestination) {
  Write(1);
  StopMigrating();
  auto destination = StartAtB();
  VerifyAt(*destination, 1);
  ASSERT_OK(destination->ShutDown());  // no migration: it stays the owner
  ASSERT_OK(guest->driver().Resume());
  ASSERT_TRUE(WaitMessage("a", "locked by"));
  EXPECT_EQ(host.api().GetController("a").value.status().rings_up(), 0U);
  ASSERT_OK(host.api().Detach("b", "d"));
  Verify(1);
  ASSERT_TRUE(WaitState("a", v1::ATTACHMENT_STATE_READY));
  ASSERT_TRUE(WaitMode("a", v1::ATTACHMENT_MODE_ACTIVE));
}

TEST_P(MigrationTest, RestartsInTheMiddle) {
  Write(1);
  StopMigrating();
  ASSERT_TRUE(WaitMode("a", v1::ATTACHMENT_MODE_OUTGOING));
  // The engine of "a" comes back, and leaves alone what was given up.
  host.RestartEngine();
  ASSERT_TRUE(WaitState("a", v1::ATTACHMENT_STATE_INCOMING));
  ASSERT_TRUE(WaitState("b", v1::ATTACHMENT_STATE_INCOMING));
  // cleatd is away when the disk changes hands, and sees it afterwards.
  host.KillCleatd();
  ContinueAtB();
  Verify(1);
  host.StartCleatd();
  ASSERT_TRUE(WaitState("b", v1::ATTACHMENT_STATE_READY));
  ASSERT_TRUE(WaitMode("b", v1::ATTACHMENT_MODE_ACTIVE));
  Write(2);
  ASSERT_OK(host.api().Detach("a", "d"));
  ASSERT_TRUE(WaitGone("a"));
  if (GetParam()) return;
  // What was INCOMING is an attachment like any other: owned again before its guest is back.
  host.RestartEngine();
  ASSERT_TRUE(WaitState("b", v1::ATTACHMENT_STATE_READY));
}

INSTANTIATE_TEST_SUITE_P(Engines, MigrationTest, testing::Bool(),
                         [](const auto& engines) { return engines.param ? "Two" : "One"; });

// A SCSI guest that comes back to the controller it left hears nothing of its disk having been detached there.
TEST(MigrationScsi, TheWayBackNeedsNoOtherController) {
  Host host;
  ASSERT_TRUE(host.ok());
  ASSERT_OK(host.api().CreateDisk("d", FileDisk(kDiskBytes, host.Path("disk.img"))));
  ASSERT_OK(host.api().CreateController("a", ScsiController(host.SocketPath("a"))));
  ASSERT_OK(host.api().Attach("a", "d"));
  ASSERT_OK(host.api().WaitReady("controllers/a/attachments/d"));
  auto guest = ScsiPeer::Start(host.SocketPath("a"));
  ASSERT_OK(guest);
  const auto events_until = [&](uint32_t last_reason) {
    std::vector<uint32_t> reasons;
    while (reasons.empty() || reasons.back() != last_reason) {
      const auto event = (*guest)->driver().WaitEvent(kWaitTimeoutNs);
      EXPECT_OK(event);
      if (!event) break;
      reasons.push_back(event->reason);
    }
    return reasons;
  };
  const std::vector<uint32_t> added{perf::wire::kScsiReasonRescan};
  EXPECT_EQ(events_until(perf::wire::kScsiReasonRescan), added);  // from before it booted

  perf::SharedArea log;
  log.fd = UniqueFd(memfd_create("dirty-log", MFD_CLOEXEC));
  log.size_bytes = kLogBytes;
  ASSERT_EQ(ftruncate(log.fd.get(), kLogBytes), 0);
  ASSERT_OK((*guest)->frontend().SetLogBase(log));
  ASSERT_OK((*guest)->frontend().SetFeatures((*guest)->driver().features() | perf::wire::kFeatureLogAll |
                                             perf::wire::kFeatureProtocolFeatures));
  ASSERT_OK((*guest)->driver().Stop());
  const auto wait_state = [&](v1::AttachmentState state) {
    return host.api().WaitUntil(
        [&](const Model& model) { return model.AttachmentStateOf("a", "d") == state; });
  };
  ASSERT_TRUE(wait_state(v1::ATTACHMENT_STATE_RELEASED));
  ASSERT_OK(host.api().Detach("a", "d"));
  ASSERT_TRUE(wait_state(v1::ATTACHMENT_STATE_UNSPECIFIED));
  ASSERT_OK(host.api().Attach("a", "d"));
  ASSERT_OK(host.api().WaitReady("controllers/a/attachments/d"));
  ASSERT_OK((*guest)->driver().Resume());
  EXPECT_EQ(events_until(perf::wire::kScsiReasonRescan), added) << "and no word of its removal";
  EXPECT_OK((*guest)->driver().ClearUnitAttentions(perf::scsi::LunOf(0)));
}

TEST(MigrationRules, OneThatOwnsAndOneThatComes) {
  Host host;
  ASSERT_TRUE(host.ok());
  const auto attach = [&](const std::string& controller, const std::string& disk, v1::AttachmentMode mode) {
    v1::AttachDiskRequest request;
    request.set_parent("controllers/" + controller);
    request.mutable_attachment()->mutable_spec()->set_disk("disks/" + disk);
    request.mutable_attachment()->mutable_spec()->set_mode(mode);
    v1::Attachment attachment;
    grpc::ClientContext context;
    return host.api().stub().AttachDisk(&context, request, &attachment);
  };
  ASSERT_OK(host.api().CreateDisk("d", FileDisk(kDiskBytes, host.Path("disk.img"))));
  ASSERT_OK(host.api().CreateDisk("m", MemoryDisk(kDiskBytes)));
  for (const char* id : {"a", "b", "c"})
    ASSERT_OK(host.api().CreateController(id, ScsiController(host.SocketPath(id))));
  ASSERT_OK(attach("a", "d", v1::ATTACHMENT_MODE_ACTIVE));
  ASSERT_OK(attach("b", "d", v1::ATTACHMENT_MODE_INCOMING));
  EXPECT_FALSE(attach("c", "d", v1::ATTACHMENT_MODE_INCOMING).ok()) << "one incoming at most";
  EXPECT_FALSE(attach("c", "d", v1::ATTACHMENT_MODE_ACTIVE).ok()) << "one writer";
  EXPECT_FALSE(attach("b", "d", v1::ATTACHMENT_MODE_ACTIVE).ok()) << "not what was asked for before";
  EXPECT_FALSE(attach("c", "m", v1::ATTACHMENT_MODE_INCOMING).ok()) << "memory does not migrate";
}

}  // namespace
}  // namespace cleat::system_test::migration_test
