// SPDX-License-Identifier: Apache-2.0
// A guest that changes things under the device's hands: descriptors while they are read, memory while it is
// used, rings while they are served. Its own data is its own affair; its device says what is wrong, takes the
// next guest, and nobody else notices.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
#include "hostile_rig.h"
#include "perf/hostile/hostile.h"
#include "perf/vhost_user/deadline.h"

namespace cleat::system_test::hostile_guest_test {
namespace {

constexpr const char* kSlow = "slow";
constexpr uint64_t kSlowNs = 20 * kNsPerMs;
constexpr uint32_t kInFlight = 32;
constexpr uint32_t kIoBytes = 16 * 1024;

class HostileGuest : public Hostile {
 protected:
  // A second controller to be hostile on: its disk answers late, so that there is always something in flight.
  void AttachSlow() {
    v1::DiskSpec spec = MemoryDisk(kDiskBytes);
    spec.mutable_fault()->set_seed(1);
    spec.mutable_fault()->set_delay_ns_max(kSlowNs);
    ASSERT_TRUE(host_.AttachNew(kSlow, spec));
  }

  // A guest on `id` with kInFlight requests that are on their way.
  std::unique_ptr<Peer> StartBusy(const std::string& id) {
    auto peer = Peer::Start(host_.SocketPath(id));
    EXPECT_OK(peer);
    if (!peer) return nullptr;
    perf::BlkDriver& driver = (*peer)->driver();
    const auto buffer = driver.AllocateBuffer(uint64_t{kInFlight} * kIoBytes);
    EXPECT_OK(buffer);
    for (uint32_t i = 0; i < kInFlight; ++i) {
      perf::BlkIo io;
      io.op = i % 2 == 0 ? perf::BlkOp::kWrite : perf::BlkOp::kRead;
      io.offset_bytes = uint64_t{i} * kIoBytes;
      io.length_bytes = kIoBytes;
      io.data_gpa = *buffer + uint64_t{i} * kIoBytes;
      io.token = i;
      EXPECT_TRUE(driver.Submit(0, io));
    }
    driver.Kick(0);
    return std::move(*peer);
  }

  // ... and takes its memory away, all or most of it, until the engine has said so: when everything had been answered
  // before, there was nothing to notice, and a new guest tries again. nullptr: never.
  std::unique_ptr<Peer> StartAndTruncate(const std::string& id, bool all) {
    for (uint32_t i = 0; i < kTruncationsMax; ++i) {
      auto peer = StartBusy(id);
      if (peer == nullptr) return nullptr;
      for (const int fd : peer->memory().Fds()) {
        EXPECT_EQ(ftruncate(fd, all ? 0 : 4096), 0);
        if (!all) break;
      }
      peer->driver().ring(0).Kick();
      const auto noticed = [&](const Model& model) {
        return model.ControllerMessage(id).find("lost pages") != std::string::npos;
      };
      if (host_.api().WaitUntil(noticed, nullptr, kNoticeNs)) return peer;
    }
    return nullptr;
  }

  static constexpr uint32_t kTruncationsMax = 12;
  static constexpr uint64_t kNoticeNs = 5 * kNsPerSecond;
};

// ---- Descriptors that change while they are read.

// Writes nonsense over whatever descriptors there are, as fast as it can, as another processor of the guest.
class Flipper {
 public:
  Flipper(perf::BlkDriver& driver, uint64_t seed) : driver_(driver), random_(seed) {
    thread_ = std::thread([this] {
      while (!stop_.load(std::memory_order_relaxed)) Flip();
    });
  }
  ~Flipper() {
    stop_ = true;
    thread_.join();
  }

 private:
  void Flip() {
    const perf::DriverRing& ring = driver_.ring(0);
    uint64_t at = ring.desc_gpa() + random_.Below(ring.size()) * sizeof(perf::wire::Descriptor);
    auto* descriptor = driver_.memory().At<perf::wire::Descriptor>(at);
    // Through an indirect pointer, if that is one: its table is what the device walks.
    if ((descriptor->flags & perf::wire::kDescIndirect) != 0 && random_.Chance(7, 8)) {
      const uint64_t entries = std::min<uint64_t>(descriptor->len / sizeof(perf::wire::Descriptor), 64);
      at = descriptor->gpa + random_.Below(entries + 1) * sizeof(perf::wire::Descriptor);
      descriptor = driver_.memory().At<perf::wire::Descriptor>(at);
      if (descriptor == nullptr) return;
    }
    const perf::wire::Descriptor before = *descriptor;
    switch (random_.Below(4)) {
      case 0:
        Store(&descriptor->gpa, random_.Chance(1, 2) ? random_.Next() : before.gpa ^ 0x1000);
        break;
      case 1:
        Store(&descriptor->len, static_cast<uint32_t>(random_.Next() >> random_.Below(64)));
        break;
      case 2:
        Store(&descriptor->flags, static_cast<uint16_t>(random_.Below(8)));
        break;
      default:
        Store(&descriptor->next, static_cast<uint16_t>(random_.Next()));
    }
    // Mostly it is put right again at once: the device has to be unlucky to see it, and then sees half.
    if (random_.Chance(1, 16)) return;
    Store(&descriptor->gpa, before.gpa);
    Store(&descriptor->len, before.len);
    Store(&descriptor->flags, before.flags);
    Store(&descriptor->next, before.next);
  }
  template <typename T>
  static void Store(T* where, T value) {
    *static_cast<volatile T*>(where) = value;
  }

  perf::BlkDriver& driver_;
  Random random_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

// Small requests until the ring gives nothing back any more, or there were enough.
uint64_t SubmitUntilBroken(perf::BlkDriver& driver, uint64_t requests) {
  const auto buffer = driver.AllocateBuffer(uint64_t{kInFlight} * kIoBytes);
  EXPECT_OK(buffer);
  uint64_t answered = 0;
  std::array<perf::BlkCompletion, 32> completions;
  for (uint64_t token = 0; answered < requests;) {
    perf::BlkIo io;
    io.op = token % 2 == 0 ? perf::BlkOp::kWrite : perf::BlkOp::kRead;
    io.offset_bytes = token % kInFlight * kIoBytes;
    io.length_bytes = 4096;
    io.data_gpa = *buffer + token % kInFlight * kIoBytes;
    io.token = token;
    while (driver.in_flight(0) < kInFlight && driver.Submit(0, io)) io.token = ++token;
    driver.Kick(0);
    if (!driver.ring(0).WaitUsed(100 * kNsPerMs)) break;
    answered += driver.Poll(0, completions);
    if (!driver.Health()) break;
  }
  return answered;
}

TEST_F(HostileGuest, RewritesDescriptorsWhileTheyAreRead) {
  uint64_t answered = 0;
  for (uint64_t round = 0; round < 8; ++round) {
    perf::BlkOptions options;
    options.layout = round % 2 == 0 ? perf::LayoutPolicy::kIndirect : perf::LayoutPolicy::kClassic;
    auto peer = Peer::Start(Socket(), options);
    ASSERT_OK(peer);
    {
      const Flipper flipper((*peer)->driver(), round);
      answered += SubmitUntilBroken((*peer)->driver(), 5000);
    }
    ExpectOthersServed();
    (*peer)->Cut();
  }
  EXPECT_GT(answered, 0U);
  fmt::print("{} requests were answered\n", answered);
  ExpectServed("rewritten descriptors");
}

// ---- Memory that is taken away.

TEST_F(HostileGuest, PointsARunningRingAtNoMemory) {
  auto peer = StartBusy(kVictim);
  ASSERT_NE(peer, nullptr);
  perf::RingSetup ring;
  ring.size = peer->driver().ring(0).size();
  ring.desc_user = ring.avail_user = ring.used_user = 0x1000;
  peer->frontend().set_ack(perf::AckMode::kAlways);
  EXPECT_FALSE(peer->frontend().SetVringAddr(0, ring).ok());
  ExpectMessage("ring 0: descriptor table");
  peer.reset();
  ExpectServed("a ring without memory");
}

TEST_F(HostileGuest, ShrinksItsMemoryTableUnderIo) {
  AttachSlow();
  // The memory in which the rings lie: refused, by name. Without the other half: taken, and what is in flight
  // ends where it began.
  for (const bool with_rings : {false, true}) {
    SCOPED_TRACE(with_rings);
    auto peer = StartBusy(kSlow);
    ASSERT_NE(peer, nullptr);
    const auto table = peer->memory().Table();
    const auto fds = peer->memory().Fds();
    const uint64_t ring_gpa = peer->driver().ring(0).desc_gpa();
    std::vector<perf::wire::MemoryRegion> left;
    std::vector<int> left_fds;
    for (size_t i = 0; i < table.size(); ++i) {
      const bool holds_rings = ring_gpa - table[i].gpa < table[i].size_bytes;
      if (holds_rings != with_rings) continue;
      left.push_back(table[i]);
      left_fds.push_back(fds[i]);
    }
    peer->frontend().set_ack(perf::AckMode::kAlways);
    EXPECT_EQ(peer->frontend().SetMemTable(left, left_fds).ok(), with_rings);
    ExpectOthersServed();
    if (with_rings) {
      for (size_t done = 0; done < kInFlight;) {
        ASSERT_OK(peer->driver().Wait(kWaitTimeoutNs));
        std::array<perf::BlkCompletion, 32> completions;
        done += peer->driver().Poll(0, completions);
      }
    } else {
      ExpectMessage("ring 0: descriptor table", kSlow);
    }
    peer.reset();
    ExpectServed("a smaller memory table", kSlow);
  }
}

// The one thing that can't be checked beforehand. Nobody here may look at that memory again either.
TEST_F(HostileGuest, TruncatesItsMemoryUnderIo) {
  AttachSlow();
  for (const std::string id : {kVictim, kSlow}) {
    for (const bool all : {true, false}) {
      SCOPED_TRACE(fmt::format("{} {}", id, all));
      auto peer = StartAndTruncate(id, all);
      ASSERT_NE(peer, nullptr) << "the loss was never noticed";
      ExpectOthersServed();
      EXPECT_OK(peer->WaitCut());
      peer.reset();
      ExpectServed("truncated memory", id);
    }
  }
}

// In the middle of the set-up, before there is a ring: whoever looks first must not be hurt.
TEST_F(HostileGuest, TruncatesItsMemoryDuringTheSetUp) {
  for (int round = 0; round < 4; ++round) {
    auto frontend = perf::Frontend::Listen(Socket());
    ASSERT_OK(frontend);
    ASSERT_OK((*frontend)->Accept());
    ASSERT_OK((*frontend)->Open());
    auto memory = perf::GuestMemory::CreateWithHole(kGuestBytes);
    ASSERT_OK(memory);
    (*frontend)->set_ack(perf::AckMode::kAlways);
    ASSERT_OK((*frontend)->SetMemTable(**memory));
    const perf::RingSetup ring{.size = 128,
                               .desc_user = (*memory)->UserAddress(0),
                               .avail_user = (*memory)->UserAddress(0x4000),
                               .used_user = (*memory)->UserAddress(0x8000)};
    ASSERT_OK((*frontend)->SetVringNum(0, ring.size));
    ASSERT_OK((*frontend)->SetVringBase(0, 0));
    for (const int fd : (*memory)->Fds()) ASSERT_EQ(ftruncate(fd, 0), 0);
    (void)(*frontend)->SetVringAddr(0, ring);
    const UniqueFd kick(dup((*frontend)->socket().fd()));  // no eventfd either
    (void)(*frontend)->SetVringEnable(0, true);
    (void)(*frontend)->SetVringKick(0, round % 2 == 0 ? -1 : kick.get());
    ExpectOthersServed();
  }
  ExpectServed("memory truncated during the set-up");
}

// ---- Rings that end in the middle.

TEST_F(HostileGuest, ResetsInTheMiddle) {
  AttachSlow();
  const std::vector<std::pair<const char*, std::function<void(Peer&)>>> resets{
      {"GET_VRING_BASE", [](Peer& peer) { EXPECT_OK(peer.frontend().GetVringBase(0)); }},
      {"ENABLE 0", [](Peer& peer) { EXPECT_OK(peer.frontend().SetVringEnable(0, false)); }},
      {"ENABLE 0 and 1",
       [](Peer& peer) {
         for (int i = 0; i < 20; ++i) EXPECT_OK(peer.frontend().SetVringEnable(0, i % 2 != 0));
       }},
      {"GET_VRING_BASE twice",
       [](Peer& peer) {
         EXPECT_OK(peer.frontend().GetVringBase(0));
         EXPECT_OK(peer.frontend().GetVringBase(0));
       }},
      {"RESET_OWNER", [](Peer& peer) { EXPECT_OK(peer.frontend().ResetOwner()); }},
      {"disconnected", [](Peer&) {}},
      {"disconnected in the middle of a message",
       [](Peer& peer) { (void)perf::Apply(perf::SocketAbuse::kHalfPayload, peer.frontend()); }},
  };
  for (const auto& [name, reset] : resets) {
    SCOPED_TRACE(name);
    auto peer = StartBusy(kSlow);
    ASSERT_NE(peer, nullptr);
    reset(*peer);
    ExpectOthersServed();
    peer.reset();
    ExpectServed(name, kSlow);
  }
}

TEST_F(HostileGuest, KicksWithoutEnd) {
  auto peer = Peer::Start(Socket());
  ASSERT_OK(peer);
  perf::DriverRing& ring = (*peer)->driver().ring(0);
  std::atomic<bool> stop = false;
  std::thread kicker([&] {
    while (!stop) ring.Kick();
  });
  for (const auto& load : loads_) EXPECT_TRUE(load->WaitProgress(200)) << "an honest guest stands still";
  stop = true;
  kicker.join();
  EXPECT_OK((*peer)->driver().FlushSync());
  peer->reset();
  ExpectServed("a flood of kicks");
}

// ---- Eventfds that the engine is to wait for. O_NONBLOCK is the eventfd's, so it is the front end's as well.

void MakeBlockingAndFull(int eventfd) {
  uint64_t count = 0;
  while (read(eventfd, &count, sizeof count) > 0) {
  }
  const uint64_t most = UINT64_MAX - 1;
  ASSERT_EQ(write(eventfd, &most, sizeof most), static_cast<ssize_t>(sizeof most));
  ASSERT_EQ(fcntl(eventfd, F_SETFL, fcntl(eventfd, F_GETFL) & ~O_NONBLOCK), 0);
}

// The ring's call makes its reactor wait, the error eventfd the control reactor.
TEST_F(HostileGuest, MakesAReactorWait) {
  for (const bool error : {false, true}) {
    SCOPED_TRACE(error ? "the error eventfd" : "the call eventfd");
    auto peer = Peer::Start(Socket());
    ASSERT_OK(peer);
    perf::BlkDriver& driver = (*peer)->driver();
    perf::DriverRing& ring = driver.ring(0);
    const auto scratch = driver.AllocateBuffer(perf::kAbuseScratchBytes);
    ASSERT_OK(scratch);
    MakeBlockingAndFull(error ? ring.err_fd() : ring.call_fd());
    if (error) {
      ASSERT_OK(perf::Apply(perf::RingAbuse::kAvailIndexJump, ring, driver.memory(), *scratch, 1));
    } else {
      ASSERT_TRUE(ring.EnableCalls());
      perf::BlkIo io;
      io.length_bytes = 512;
      io.data_gpa = *scratch;
      ASSERT_TRUE(driver.Submit(0, io));
      driver.Kick(0);
    }
    ExpectMessage("made an eventfd of a ring blocking");
    ExpectOthersServed();
    EXPECT_OK((*peer)->frontend().WaitPeerGone(kWaitTimeoutNs));
    peer->reset();
    // Nobody who comes at once is taken, until an operator has had a look.
    auto again = perf::Frontend::Listen(Socket(), {.accept_timeout_ns = kNsPerSecond});
    ASSERT_OK(again);
    EXPECT_FALSE((*again)->Accept().ok());
    again->reset();
    ASSERT_TRUE(host_.Remove(kVictim));
    ASSERT_TRUE(host_.AttachNew(kVictim, MemoryDisk(kDiskBytes)));
    ExpectServed("a reactor that waited");
  }
  EXPECT_TRUE(host_.engine().Running());
}

// A TCP socket whose close waits for ten minutes, unless a signal comes: what it has sent is never taken by the other end.
struct LingeringSocket {
  UniqueFd listener{socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  UniqueFd lingering{socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};

  void Fill() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    ASSERT_EQ(bind(listener.get(), generic, size), 0);
    ASSERT_EQ(listen(listener.get(), 1), 0);
    ASSERT_EQ(getsockname(listener.get(), generic, &size), 0);
    ASSERT_EQ(connect(lingering.get(), generic, size), 0);
    const std::vector<uint8_t> data(uint64_t{64} << 10);
    while (send(lingering.get(), data.data(), data.size(), MSG_DONTWAIT) > 0) {
    }
    const linger wait{.l_onoff = 1, .l_linger = 600};
    ASSERT_EQ(setsockopt(lingering.get(), SOL_SOCKET, SO_LINGER, &wait, sizeof wait), 0);
  }
};

// With the first byte of a message that takes no descriptor; the rest comes when only the engine has it, or never.
TEST_F(HostileGuest, LetsTheEngineCloseASocketThatLingers) {
  for (const bool whole : {true, false}) {
    SCOPED_TRACE(whole);
    auto frontend = perf::Frontend::Listen(Socket());
    ASSERT_OK(frontend);
    ASSERT_OK((*frontend)->Accept());
    LingeringSocket trap;
    trap.Fill();
    constexpr std::array<uint8_t, 12> kMessage{1, 0, 0, 0, 1, 0,
                                               0, 0, 0, 0, 0, 0};  // GET_FEATURES, version 1
    const std::span<const uint8_t> bytes(kMessage);
    perf::MessageSocket& socket = (*frontend)->socket();
    ASSERT_OK(socket.SendBytes(bytes.first(1), std::array{trap.lingering.get()}, kNsPerSecond));
    trap.lingering.Reset();  // in flight, or the engine's: no wait here
    if (whole) {
      ASSERT_OK(socket.SendBytes(bytes.subspan(1), {}, kNsPerSecond));
      EXPECT_OK((*frontend)->WaitPeerGone(kWaitTimeoutNs));
    }
    (*frontend)->Disconnect();
    frontend->reset();
    ExpectOthersServed();
    ExpectServed("a socket that lingers");
  }
}

// ---- The socket: numbers.

TEST_F(HostileGuest, SendsDescriptorsByTheHundred) {
  for (const int count : {9, 30, 200}) {
    SCOPED_TRACE(count);
    auto frontend = perf::Frontend::Listen(Socket());
    ASSERT_OK(frontend);
    ASSERT_OK((*frontend)->Accept());
    const std::vector<int> fds(static_cast<size_t>(count), (*frontend)->socket().fd());
    EXPECT_OK((*frontend)->Send(perf::wire::Request::kGetFeatures, {}, fds));
    EXPECT_OK((*frontend)->WaitPeerGone(kWaitTimeoutNs));
    ExpectMessage("descriptors");
    ExpectOthersServed();
  }
  ExpectServed("too many descriptors");
}

TEST_F(HostileGuest, SendsTenThousandMessages) {
  auto frontend = perf::Frontend::Listen(Socket());
  ASSERT_OK(frontend);
  ASSERT_OK((*frontend)->Accept());
  ASSERT_OK((*frontend)->Open());
  for (int i = 0; i < 10; ++i) {
    for (int message = 0; message < 1000; ++message) ASSERT_OK((*frontend)->GetFeatures());
    ExpectOthersServed();
  }
  frontend->reset();
  ExpectServed("ten thousand messages");
}

}  // namespace
}  // namespace cleat::system_test::hostile_guest_test
