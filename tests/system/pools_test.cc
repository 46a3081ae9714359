// SPDX-License-Identifier: Apache-2.0
// A pool on a regular file, whose disks have guests with verified loads, while the engine and cleatd are killed at random moments. Beside
// them disks come and go: made, written, grown - under their guest, or without one -, deleted, undeleted and purged, by calls that kills may meet
// and that are then said again. Nobody's data is lost, and nobody sees another one's: a new disk reads as zeroes, wherever it lies. Costs 7 s.
//
//   CLEAT_CRASH_KILLS=200 system_pools_test    more kills
//   CLEAT_TEST_SEED=N                          the same choices once more
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/random.h"
#include "crash_rig.h"
#include "expect_ok.h"
#include "host.h"
#include "perf/vhost_user/deadline.h"
#include "pool/layout.h"
#include "tests/environment.h"
#include "upgrade_rig.h"

namespace cleat::system_test::pools_test {
namespace {

constexpr char kPool[] = "p";
constexpr char kPoolName[] = "pools/p";
constexpr char kOtherId[] = "green";
constexpr uint64_t kExtentBytes = pool::kExtentBytesMin;
constexpr uint64_t kExtents = 14;
constexpr uint64_t kBlockBytes = 4096;
// So much at either end of each extent of a disk that comes and goes is written.
constexpr uint64_t kMarkBytes = uint64_t{64} << 10;
constexpr size_t kReadBytes = size_t{256} << 10;
constexpr uint64_t kTenantExtentsMax = 2;
// Between two events up to so many calls are made for disks that come and go.
constexpr uint64_t kCallsBetweenMax = 60;
constexpr uint64_t kKills = kSanitized ? 5 : 15;
constexpr int kAgainMs = 5;  // no event tells that a call may be said again

uint64_t Seed() {
  static const uint64_t seed = test::FromEnvironment("CLEAT_TEST_SEED", 1);
  return seed;
}

uint64_t ExtentsOf(uint64_t bytes) {
  return (bytes + kExtentBytes - 1) / kExtentBytes;
}

bool IsZero(const std::vector<uint8_t>& data) {
  return data.front() == 0 && std::memcmp(data.data(), data.data() + 1, data.size() - 1) == 0;
}

// Until all that was to be erased is.
v1::PoolStatus AwaitErased(Api& api) {
  Model last;
  EXPECT_TRUE(api.WaitUntil(
      [](const Model& model) {
        const auto pool = model.pools.find(kPoolName);
        return pool != model.pools.end() && pool->second.status().state() == v1::POOL_STATE_READY &&
               pool->second.status().to_erase_bytes() == 0;
      },
      &last))
      << last.ToString();
  return last.pools[kPoolName].status();
}

void MakePool(Host& host) {
  const std::string drive = host.MakeFile("drive.img", pool::kDataOffset + kExtents * kExtentBytes);
  ASSERT_OK(host.api().CreatePool(kPool, drive, kExtentBytes));
  EXPECT_EQ(AwaitErased(host.api()).free_bytes(), kExtents * kExtentBytes);
}

CrashCase PoolCase(bool scsi, const std::string& name) {
  CrashCase what{.scsi = scsi, .packed = scsi, .queues = 2, .spec = PoolDisk(CrashRig::kDiskBytes, kPool)};
  what.storage = name;
  return what;
}

Status AddGuests(CrashRig& rig) {
  CrashCase encrypted = PoolCase(false, "encrypted");
  encrypted.spec = WithEncryption(*encrypted.spec);
  CrashCase slow = PoolCase(false, "late");
  slow.delay_ns_max = 2 * kNsPerMs;
  for (const CrashCase& what : {PoolCase(true, "pool"), encrypted, slow}) {
    if (Status added = rig.Add(what); !added.ok()) return added;
  }
  return Ok{};
}

// Until the disk's guest knows of that size.
void AwaitSize(Api& api, const std::string& id, uint64_t bytes) {
  Model last;
  EXPECT_TRUE(api.WaitUntil(
      [&](const Model& model) {
        const auto attachment = model.attachments.find(fmt::format("controllers/{0}/attachments/{0}", id));
        return attachment != model.attachments.end() &&
               attachment->second.status().state() == v1::ATTACHMENT_STATE_READY &&
               attachment->second.status().size_bytes() == bytes;
      },
      &last))
      << id << " has not " << bytes << " bytes: " << last.ToString();
}

// ---- Disks that come and go

// Disks that come and go, and what each is to hold: blocks that were written, and zeroes. They have a thread of their own until Stop; what
// kills has another one.
class Tenants {
 public:
  struct Counts {
    uint64_t made = 0;
    uint64_t grown = 0;
    uint64_t grown_attached = 0;  // of these
    uint64_t deleted = 0;
    uint64_t undeleted = 0;
    uint64_t purged = 0;
    uint64_t repeated = 0;  // calls and I/O that a kill had met
  };

  static constexpr uint64_t kEnded = UINT64_MAX;

  Tenants(const Host& host, uint64_t seed) : host_(host), api_(host.address()), random_(seed) {}

  void Start() {
    thread_ = std::thread([this] {
      // Until some extent was somebody's before, at the least.
      while ((!stop_ || counts_.purged == 0) && !testing::Test::HasFailure()) Step();
      calls_ = kEnded;
      calls_.notify_all();
    });
  }
  // Until so many more calls were answered.
  void WaitCalls(uint64_t count) {
    const uint64_t before = calls_;
    const uint64_t goal = before == kEnded ? kEnded : before + count;
    for (uint64_t seen = calls_; seen < goal; seen = calls_) calls_.wait(seen);
  }
  void Stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  ~Tenants() { Stop(); }

  const Counts& counts() const { return counts_; }
  // All that are left have what they were written, and nothing of it goes before they do.
  void CheckAndPurgeAll() {
    for (auto& [id, tenant] : present_) {
      Visit(id, tenant, tenant.bytes);
      Insist("purge", [&] { return api_.DeleteDisk(id, true); });
    }
    for (const auto& [id, tenant] : kept_) Insist("purge", [&] { return api_.PurgeDisk(id); });
    present_.clear();
    kept_.clear();
  }
  // A new disk of that size is nothing but zeroes.
  void CheckNew(uint64_t bytes) {
    EXPECT_TRUE(MakeOf(bytes)) << "there is no room";
    CheckAndPurgeAll();
  }

 private:
  struct Tenant {
    uint64_t number = 0;
    uint64_t bytes = 0;
    std::set<uint64_t> written;  // blocks
  };
  using Present = std::map<std::string, Tenant>;

  // Says it again as long as cleatd is away or the pool is not ready. False when it is refused for want of extents; else it is done.
  template <typename Call>
  bool Insist(const char* what, Call call) {
    const perf::Deadline deadline(kWaitTimeoutNs);
    for (;;) {
      const grpc::Status status = call();
      ++calls_;
      calls_.notify_all();
      if (status.ok()) return true;
      if (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED) return false;
      const bool again = status.error_code() == grpc::StatusCode::UNAVAILABLE ||
                         status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED ||
                         status.error_code() == grpc::StatusCode::ABORTED;
      if (!again || deadline.passed()) {
        ADD_FAILURE() << what << ": code " << status.error_code() << ": " << status.error_message();
        return false;
      }
      ++counts_.repeated;
      poll(nullptr, 0, kAgainMs);
    }
  }

  void Step() {
    const uint64_t dice = random_.Below(100);
    if (present_.empty() || dice < 45) return Make();
    const auto one = std::next(present_.begin(), static_cast<ptrdiff_t>(random_.Below(present_.size())));
    if (dice < 60) return Grow(one->first, one->second);
    if (dice < 80) return Purge(one);
    if (dice < 90) return Delete(one);
    if (!kept_.empty()) BringBackOrPurge();
  }

  // Where there is no room it is made.
  void Make() {
    if (MakeOf(RandomBytes(kTenantExtentsMax * kExtentBytes))) return;
    if (!kept_.empty()) return PurgeKept(kept_.begin());
    if (!present_.empty()) Purge(present_.begin());
  }
  bool MakeOf(uint64_t bytes) {
    const std::string id = fmt::format("t{}", ++number_);
    Tenant tenant{.number = number_, .bytes = bytes, .written = {}};
    if (!Insist("create", [&] { return api_.CreateDisk(id, PoolDisk(bytes, kPool)).status; })) return false;
    ++counts_.made;
    Visit(id, tenant, 0);
    present_.emplace(id, std::move(tenant));
    return true;
  }
  void Grow(const std::string& id, Tenant& tenant) {
    const uint64_t bytes = tenant.bytes + RandomBytes(kExtentBytes);
    if (random_.Chance(1, 2)) return Visit(id, tenant, tenant.bytes, bytes);
    if (!Insist("resize", [&] { return api_.ResizeDisk(id, bytes).status; })) return;
    ++counts_.grown;
    Visit(id, tenant, std::exchange(tenant.bytes, bytes));
  }
  void Purge(Present::iterator one) {
    Insist("purge", [&] { return api_.DeleteDisk(one->first, true); });
    ++counts_.purged;
    present_.erase(one);
  }
  void Delete(Present::iterator one) {
    Insist("delete", [&] { return api_.DeleteDisk(one->first); });
    ++counts_.deleted;
    kept_.insert(present_.extract(one));
  }
  void PurgeKept(Present::iterator one) {
    Insist("purge", [&] { return api_.PurgeDisk(one->first); });
    ++counts_.purged;
    kept_.erase(one);
  }
  void BringBackOrPurge() {
    const auto one = kept_.begin();
    if (random_.Chance(1, 2)) return PurgeKept(one);
    // What has been brought back is not kept any more, which a call that is said again is told.
    Insist("undelete", [&] {
      const grpc::Status status = api_.UndeleteDisk(one->first);
      return status.error_code() == grpc::StatusCode::NOT_FOUND && api_.GetDisk(one->first).ok()
                 ? grpc::Status::OK
                 : status;
    });
    ++counts_.undeleted;
    Visit(one->first, one->second, one->second.bytes);
    present_.insert(kept_.extract(one));
  }
  uint64_t RandomBytes(uint64_t max) { return random_.Between(1, max / kBlockBytes) * kBlockBytes; }

  // A guest looks at the disk: all of it from `new_from` on is zero, before that there is what was written. Then the guest writes, too.
  // `grow_to`, unless it is 0: the size that the disk gets under its guest.
  void Visit(const std::string& id, Tenant& tenant, uint64_t new_from, uint64_t grow_to = 0) {
    const std::string socket = host_.SocketPath(id);
    Insist("controller", [&] { return api_.CreateController(id, BlkController(socket)).status; });
    Insist("attach", [&] { return api_.Attach(id, id).status; });
    {
      auto peer = Peer::Listen(socket);
      ASSERT_OK(peer);
      Repeat(**peer, [&] { return Look(**peer, tenant, &new_from); });
      Repeat(**peer, [&] { return WriteMarks(**peer, tenant); });
      if (grow_to != 0) GrowUnder(**peer, id, tenant, grow_to);
    }
    Insist("detach", [&] { return api_.Detach(id, id); });
    Model last;
    EXPECT_TRUE(api_.WaitUntil(
        [&](const Model& model) {
          return model.AttachmentStateOf(id, id) == v1::ATTACHMENT_STATE_UNSPECIFIED;
        },
        &last))
        << last.ToString();
    Insist("delete controller", [&] { return api_.DeleteController(id); });
  }
  void GrowUnder(Peer& peer, const std::string& id, Tenant& tenant, uint64_t bytes) {
    if (!Insist("resize", [&] { return api_.ResizeDisk(id, bytes).status; })) return;
    ++counts_.grown;
    ++counts_.grown_attached;
    AwaitSize(api_, id, bytes);
    uint64_t new_from = std::exchange(tenant.bytes, bytes);
    Repeat(peer, [&]() -> Status {
      CLEAT_TRY(peer.driver().RefreshConfig());
      EXPECT_EQ(peer.driver().capacity_bytes(), bytes) << id;
      CLEAT_TRY(Look(peer, tenant, &new_from));
      return WriteMarks(peer, tenant);
    });
  }
  // Does the work again as often as an engine is killed meanwhile.
  template <typename Work>
  void Repeat(Peer& peer, Work work) {
    const perf::Deadline deadline(kWaitTimeoutNs);
    for (;;) {
      Status done = peer.booted() ? Status(Ok{}) : peer.Boot();
      if (done.ok()) done = work();
      if (done.ok()) return;
      peer.Cut();
      if (done.error().code != ErrorCode::kUnavailable || deadline.passed()) {
        ADD_FAILURE() << ErrorCodeName(done.error().code) << ": " << done.error().message;
        return;
      }
      ++counts_.repeated;
    }
  }
  // Goes on where a kill has met it.
  static Status Look(Peer& peer, const Tenant& tenant, uint64_t* new_from) {
    std::vector<uint8_t> data;
    for (; *new_from < tenant.bytes; *new_from += data.size()) {
      data.resize(std::min<uint64_t>(kReadBytes, tenant.bytes - *new_from));
      CLEAT_TRY(peer.driver().ReadSync(*new_from, data));
      EXPECT_TRUE(IsZero(data)) << "t" << tenant.number << " has foreign bytes after " << *new_from;
    }
    data.resize(kBlockBytes);
    for (const uint64_t at : tenant.written) {
      CLEAT_TRY(peer.driver().ReadSync(at, data));
      EXPECT_EQ(data, BlockOf(tenant, at)) << "t" << tenant.number << " at " << at;
    }
    return Ok{};
  }
  static Status WriteMarks(Peer& peer, Tenant& tenant) {
    for (uint64_t extent = 0; extent < tenant.bytes; extent += kExtentBytes) {
      const uint64_t end = std::min(tenant.bytes, extent + kExtentBytes);
      for (uint64_t at = extent; at < end; at += kBlockBytes) {
        const bool mark = at < extent + kMarkBytes || at + kMarkBytes >= end;
        if (!mark || tenant.written.contains(at)) continue;
        CLEAT_TRY(peer.driver().WriteSync(at, BlockOf(tenant, at)));
        tenant.written.insert(at);
      }
    }
    return Ok{};
  }
  static std::vector<uint8_t> BlockOf(const Tenant& tenant, uint64_t at) {
    std::vector<uint64_t> words(kBlockBytes / sizeof(uint64_t));
    std::iota(words.begin(), words.end(), tenant.number << 48U | at);
    std::vector<uint8_t> block(kBlockBytes);
    std::memcpy(block.data(), words.data(), block.size());
    return block;
  }

  const Host& host_;
  Api api_;
  Random random_;
  Present present_;
  Present kept_;  // deleted
  Counts counts_;
  uint64_t number_ = 0;
  std::atomic<uint64_t> calls_ = 0;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

// No extent is two disks', deleted ones included; each byte counts once.
void CheckExtents(Host& host) {
  v1::ListDisksRequest request;
  request.set_show_deleted(true);
  v1::ListDisksResponse disks;
  grpc::ClientContext context;
  ASSERT_OK(host.api().stub().ListDisks(&context, request, &disks));
  std::map<uint32_t, std::string> owners;
  uint64_t allocated = 0;
  uint64_t kept = 0;
  for (const v1::Disk& disk : disks.disks()) {
    uint64_t extents = 0;
    for (const v1::ExtentRun& run : disk.spec().pool().extents()) {
      extents += run.count();
      for (uint32_t extent = run.first(); extent < run.first() + run.count(); ++extent) {
        const auto [owner, alone] = owners.emplace(extent, disk.name());
        EXPECT_TRUE(alone) << extent << " is " << owner->second << "'s and " << disk.name() << "'s";
      }
    }
    EXPECT_EQ(extents, ExtentsOf(disk.spec().size_bytes())) << disk.name();
    (disk.has_delete_time() ? kept : allocated) += extents * kExtentBytes;
  }
  const v1::PoolStatus pool = AwaitErased(host.api());
  EXPECT_EQ(pool.allocated_bytes(), allocated);
  EXPECT_EQ(pool.reclaimable_bytes(), kept);
  EXPECT_EQ(pool.free_bytes(), pool.capacity_bytes() - allocated - kept);
}

constexpr std::array kEvents = {CrashEvent::kCleatd, CrashEvent::kEngine, CrashEvent::kCleatd,
                                CrashEvent::kCleatdAndEngine, CrashEvent::kEngineAgain};

uint64_t KillsOf(CrashEvent event) {
  return event == CrashEvent::kEngine || event == CrashEvent::kCleatd ? 1 : 2;
}

TEST(Pools, DisksKeepTheirDataAndSeeNobodyElsesWhateverIsKilled) {
  Host host({.reactors = 2, .with_keys = true});
  ASSERT_TRUE(host.ok());
  ASSERT_NO_FATAL_FAILURE(MakePool(host));
  CrashRig rig(host, Seed());
  ASSERT_OK(AddGuests(rig));
  Tenants tenants(host, Seed());
  Random random(Seed());
  ASSERT_OK(rig.Start());
  tenants.Start();
  const uint64_t goal = test::FromEnvironment("CLEAT_CRASH_KILLS", kKills);
  uint64_t kills = 0;
  for (size_t i = 0; kills < goal; ++i) {
    const CrashEvent event = kEvents[i % kEvents.size()];
    tenants.WaitCalls(random.Below(kCallsBetweenMax));
    if (!rig.Do(event)) break;
    kills += KillsOf(event);
  }
  tenants.Stop();
  rig.Stop();
  const Tenants::Counts counts = tenants.counts();
  fmt::print(
      "seed {}: {} kills of either, {} disks made, {} grown, {} of them attached, {} deleted, {} of them "
      "undeleted, {} purged; {} calls and I/O repeated; {}\n",
      Seed(), kills, counts.made, counts.grown, counts.grown_attached, counts.deleted, counts.undeleted,
      counts.purged, counts.repeated, rig.Summary());
  EXPECT_EQ(rig.findings(), 0U) << rig.FindingsText();
  EXPECT_GE(kills, goal);
  CheckExtents(host);
  tenants.CheckAndPurgeAll();
  // All that the guests have left: what was anybody's is erased.
  const v1::PoolStatus pool = AwaitErased(host.api());
  EXPECT_EQ(pool.free_bytes(), (kExtents - rig.guests().size()) * kExtentBytes);
  tenants.CheckNew(pool.free_bytes());
}

// Each growth is met by a kill but the first, which no guest is to notice.
TEST(Pools, ADiskGrowsUnderItsGuestWhateverIsKilled) {
  Host host({.reactors = 2, .with_keys = true});
  ASSERT_TRUE(host.ok());
  ASSERT_NO_FATAL_FAILURE(MakePool(host));
  CrashRig rig(host, Seed());
  ASSERT_OK(AddGuests(rig));
  ASSERT_OK(rig.Start());
  uint64_t bytes = CrashRig::kDiskBytes;
  const auto grow = [&] {
    bytes += kExtentBytes;
    for (const auto& guest : rig.guests()) EXPECT_OK(host.api().ResizeDisk(guest->id(), bytes));
  };
  const auto await_sizes = [&] {
    for (const auto& guest : rig.guests()) AwaitSize(host.api(), guest->id(), bytes);
  };
  EXPECT_TRUE(rig.DoUnnoticed("growth", [&]() -> std::string {
    grow();
    await_sizes();
    return {};
  }));
  rig.SetAroundKill(grow, [] {});
  for (const CrashEvent event : {CrashEvent::kEngine, CrashEvent::kEngineAndCleatd}) {
    EXPECT_TRUE(rig.Do(event));
    await_sizes();
  }
  EXPECT_TRUE(rig.Stop()) << rig.FindingsText();
  CheckExtents(host);
  fmt::print("growth: {}\n", rig.Summary());
}

// The extents' locks go from one engine to the other, one disk after another.
TEST(Pools, DisksGoFromEngineToEngineUnderLoad) {
  Host host({.with_keys = true});
  ASSERT_TRUE(host.ok());
  ASSERT_NO_FATAL_FAILURE(MakePool(host));
  CrashRig rig(host, Seed());
  ASSERT_OK(AddGuests(rig));
  host.AddEngine(kOtherId);
  UpgradeRig upgrades(host, kEngineId, kOtherId, Seed());
  ASSERT_OK(rig.Start());
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(rig.Do("upgrade", [&] { return upgrades.Upgrade(); }));
    for (const auto& guest : rig.guests()) {
      const auto controller = host.api().GetController(guest->id());
      ASSERT_OK(controller);
      EXPECT_EQ(controller.value.status().engine(), "engines/" + upgrades.from()) << guest->id();
    }
  }
  EXPECT_TRUE(rig.Stop()) << rig.FindingsText();
  fmt::print("upgrades: {}\n", rig.Summary());
}

}  // namespace
}  // namespace cleat::system_test::pools_test
