// SPDX-License-Identifier: Apache-2.0
// A caller of the API who draws random operations on disks in Ceph, and holds each answer and each end against a model
// (rbd_world.h); and a tally of what several of them were answered.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rbd/librbd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/random.h"
#include "ctl/reasons.h"
#include "tests/ceph/rbd_host_rig.h"
#include "tests/ceph/rbd_world.h"

namespace cleat::system_test {

inline constexpr uint64_t kMiB = uint64_t{1} << 20;
// An attempt that failed often is repeated half a minute later.
inline constexpr uint64_t kSettleTimeoutNs = 200 * kNsPerSecond;

// How often a cluster was stopped or let go on so far: odd while it stands still.
using Stops = std::atomic<uint64_t>;

// Of the calls of one kind that were made when their cluster stood still.
struct WhileStopped {
  uint64_t answered = 0;  // before it went on
  uint64_t later = 0;
};

// The longest of each kind of thing, and how often there was which answer. Any thread.
class Tally {
 public:
  void Add(std::string_view what, const std::string& answer, uint64_t took_ns) {
    const std::lock_guard lock(mutex_);
    ++answers_[fmt::format("{}: {}", what, answer)];
    uint64_t& longest = longest_ns_[std::string(what)];
    longest = std::max(longest, took_ns);
  }
  void AddStopped(std::string_view what, bool answered) {
    const std::lock_guard lock(mutex_);
    WhileStopped& calls = while_stopped_[std::string(what)];
    ++(answered ? calls.answered : calls.later);
  }
  std::map<std::string, WhileStopped> while_stopped() const {
    const std::lock_guard lock(mutex_);
    return while_stopped_;
  }
  uint64_t LongestNs(std::string_view what) const {
    const std::lock_guard lock(mutex_);
    const auto found = longest_ns_.find(std::string(what));
    return found == longest_ns_.end() ? 0 : found->second;
  }
  std::map<std::string, uint64_t> answers() const {
    const std::lock_guard lock(mutex_);
    return answers_;
  }
  std::atomic<uint64_t> visits = 0;
  std::atomic<uint64_t> requests = 0;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, uint64_t> answers_;
  std::map<std::string, uint64_t> longest_ns_;
  std::map<std::string, WhileStopped> while_stopped_;
};

inline constexpr std::string_view kSettling = "settle";
inline bool IsOfImage(Act act) {
  return act == Act::kCreateImage || act == Act::kRemoveImage || act == Act::kGrowImage;
}
inline constexpr Act kActs[] = {Act::kCreateCluster,    Act::kDeleteCluster, Act::kCreateDisk,
                                Act::kDeleteDisk,       Act::kResizeDisk,    Act::kCreateController,
                                Act::kDeleteController, Act::kAttach,        Act::kDetach,
                                Act::kCreateImage,      Act::kRemoveImage,   Act::kGrowImage};

inline std::string AnswerOf(const grpc::Status& status) {
  if (status.ok()) return "OK";
  const std::string reason = ctl::ReasonOf(ctl::DetailsOf(status));
  return reason.empty()
             ? fmt::format("code {}: {}", static_cast<int>(status.error_code()), status.error_message())
             : reason;
}

inline std::string AnswerOf(int result) {
  static const std::map<int, std::string> kNames = {
      {0, "OK"}, {-EEXIST, "EEXIST"}, {-ENOENT, "ENOENT"}, {-EBUSY, "EBUSY"}, {-EINVAL, "EINVAL"}};
  const auto found = kNames.find(std::min(result, 0));
  return found == kNames.end() ? fmt::format("error {}", result) : found->second;
}

// One caller of the API with disks, images and controllers of its own. Used by one thread.
class Caller {
 public:
  Caller(Host& host, MiniCeph& ceph, const Stops& stops, uint32_t number, uint64_t seed, Tally& tally)
      : host_(host),
        ceph_(ceph),
        stops_(stops),
        number_(number),
        random_(seed),
        tally_(tally),
        api_(host.address()) {
    EXPECT_EQ(rados_ioctx_create(ceph.admin(), "rbd", &io_), 0);
  }
  ~Caller() { rados_ioctx_destroy(io_); }
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;

  static std::string ControllerId(uint32_t number, uint32_t controller) {
    return fmt::format("v{}-{}", number, controller);
  }

  void Run(uint64_t operations) {
    MakeAll();
    for (uint64_t i = 0; i < operations && !testing::Test::HasFailure(); ++i) {
      const Step step = Draw();
      if (step.act == Act::kRemoveImage && MayBeHeld(step.disk) && Settle(step.disk) != World::End::kReady)
        continue;
      Do(step);
      if (random_.Chance(1, 3)) Settle(static_cast<uint32_t>(random_.Below(World::kDisks)));
    }
  }

  // Everything comes to its end, then it is taken down.
  void Finish() {
    for (uint32_t disk = 0; disk < World::kDisks; ++disk) {
      if (!Settle(disk)) return;
    }
    for (uint32_t disk = 0; disk < World::kDisks; ++disk) Detach(disk);
    for (uint32_t disk = 0; disk < World::kDisks; ++disk) {
      if (!Settle(disk)) return;
      if (!Do({.act = Act::kDeleteDisk, .disk = disk})) return;
      if (worlds_.Any([&](const World& world) { return world.disks[disk].image_mib != 0; }))
        ExpectUnheld(ImageName(disk));
      if (!Do({.act = Act::kRemoveImage, .disk = disk})) return;
    }
    for (uint32_t i = 0; i < World::kControllers; ++i) {
      if (!Do({.act = Act::kDeleteController, .controller = i})) return;
    }
    Do({.act = Act::kDeleteCluster});
  }

 private:
  std::string ClusterId() const { return fmt::format("c{}", number_); }
  std::string DiskId(uint32_t disk) const { return fmt::format("d{}-{}", number_, disk); }
  std::string ImageName(uint32_t disk) const { return fmt::format("i{}-{}", number_, disk); }
  std::string ControllerId(uint32_t controller) const { return ControllerId(number_, controller); }

  // Something to begin with.
  void MakeAll() {
    Do({.act = Act::kCreateCluster});
    for (uint32_t i = 0; i < World::kControllers; ++i) Do({.act = Act::kCreateController, .controller = i});
    for (uint32_t disk = 0; disk < World::kDisks; ++disk) {
      Do({.act = Act::kCreateDisk, .disk = disk});
      Do({.act = Act::kCreateImage, .disk = disk, .mib = World::kMibNew});
    }
  }

  bool MayBeHeld(uint32_t disk) const {
    return worlds_.Any([disk](const World& world) { return world.disks[disk].held(); });
  }
  uint32_t ControllerOf(uint32_t disk) const {
    uint32_t controller = 0;
    worlds_.Any([&](const World& world) {
      if (world.disks[disk].attached()) controller = world.disks[disk].controller;
      return world.disks[disk].attached();
    });
    return controller;
  }
  void Detach(uint32_t disk) { Do({.act = Act::kDetach, .disk = disk, .controller = ControllerOf(disk)}); }

  Step Draw() {
    // What makes comes more often than what takes away, so that there is something to work with.
    static constexpr std::array<uint32_t, std::size(kActs)> kWeights = {3, 1,  8,  3, 12, 6,
                                                                        3, 28, 12, 8, 4,  6};
    uint64_t at = random_.Below(std::accumulate(kWeights.begin(), kWeights.end(), uint64_t{0}));
    size_t index = 0;
    while (at >= kWeights[index]) at -= kWeights[index++];
    Step step{.act = kActs[index],
              .disk = static_cast<uint32_t>(random_.Below(World::kDisks)),
              .controller = static_cast<uint32_t>(random_.Below(World::kControllers)),
              .mib = static_cast<uint8_t>(random_.Between(World::kMibNew, World::kMibMax))};
    const bool as_new = random_.Chance(3, 4);
    // Some are too small for their disk, or larger.
    if (step.act == Act::kCreateImage) step.mib = as_new ? World::kMibNew : step.mib - 1;
    if (step.act == Act::kDetach && as_new) step.controller = ControllerOf(step.disk);
    return step;
  }

  bool Do(const Step& step) {
    const uint64_t before_ns = clock_.NowNs();
    const uint64_t stops = stops_.load();
    const std::string answer = IsOfImage(step.act) ? AnswerOf(OnImage(step)) : AnswerOf(OnHost(step));
    if (stops % 2 == 1 && !IsOfImage(step.act)) tally_.AddStopped(NameOf(step.act), stops_.load() == stops);
    tally_.Add(NameOf(step.act), answer, clock_.NowNs() - before_ns);
    Remember(fmt::format("{}: {}", step.ToString(), answer));
    const std::string expected = worlds_.AnswersTo(step);
    const std::string were = worlds_.ToString();
    if (worlds_.Take(step, answer)) return true;
    ADD_FAILURE() << step.ToString() << " was answered '" << answer << "', expected " << expected << "\n"
                  << were << History();
    return false;
  }

  grpc::Status OnHost(const Step& step) {
    switch (step.act) {
      case Act::kCreateCluster:
        return CreateCluster();
      case Act::kDeleteCluster: {
        grpc::ClientContext context;
        v1::DeleteClusterRequest request;
        v1::DeleteClusterResponse gone;
        request.set_name("clusters/" + ClusterId());
        return api_.stub().DeleteCluster(&context, request, &gone);
      }
      case Act::kCreateDisk:
        return api_
            .CreateDisk(DiskId(step.disk),
                        Rbd(ImageName(step.disk), World::kMibNew * kMiB, "clusters/" + ClusterId()))
            .status;
      case Act::kDeleteDisk:
        return api_.DeleteDisk(DiskId(step.disk));
      case Act::kResizeDisk:
        return api_.ResizeDisk(DiskId(step.disk), step.mib * kMiB).status;
      case Act::kCreateController: {
        const std::string id = ControllerId(step.controller);
        const std::string path = host_.SocketPath(id);
        return api_
            .CreateController(
                id, World::IsBlk(step.controller) ? BlkController(path, 2) : ScsiController(path, 2))
            .status;
      }
      case Act::kDeleteController:
        return api_.DeleteController(ControllerId(step.controller));
      case Act::kAttach:
        return api_.Attach(ControllerId(step.controller), DiskId(step.disk)).status;
      default:
        return api_.Detach(ControllerId(step.controller), DiskId(step.disk));
    }
  }

  grpc::Status CreateCluster() {
    v1::CreateClusterRequest request;
    request.set_cluster_id(ClusterId());
    v1::ClusterSpec& spec = *request.mutable_cluster()->mutable_spec();
    spec.set_monitors(ceph_.Monitors());
    spec.set_user("cleat");
    spec.set_plain_key(ceph_.Key("cleat"));
    spec.set_images_per_client(1 + number_ % 3);
    grpc::ClientContext context;
    v1::Cluster cluster;
    return api_.stub().CreateCluster(&context, request, &cluster);
  }

  // Waits for the cluster, as `rbd` does.
  int OnImage(const Step& step) {
    const std::string name = ImageName(step.disk);
    if (step.act == Act::kCreateImage) {
      int order = 0;
      return rbd_create2(io_, name.c_str(), step.mib * kMiB,
                         RBD_FEATURE_LAYERING | RBD_FEATURE_EXCLUSIVE_LOCK, &order);
    }
    if (step.act == Act::kRemoveImage) return rbd_remove(io_, name.c_str());
    rbd_image_t image = nullptr;
    const int opened = rbd_open(io_, name.c_str(), &image, nullptr);
    if (opened < 0) return opened;
    const int grown = rbd_resize2(
        image, step.mib * kMiB, /*allow_shrink=*/false, [](uint64_t, uint64_t, void*) { return 0; }, nullptr);
    rbd_close(image);
    return grown;
  }

  // How the disk's attachment stands, if that may be for good.
  std::optional<World::End> EndIn(const Model& model, uint32_t disk, uint64_t* size_bytes) const {
    const v1::Attachment* found = nullptr;
    const std::string suffix = "/attachments/" + DiskId(disk);
    for (const auto& [name, attachment] : model.attachments) {
      if (name.ends_with(suffix)) found = &attachment;
    }
    const auto spec = model.disks.find("disks/" + DiskId(disk));
    *size_bytes = spec == model.disks.end() ? 0 : spec->second.spec().size_bytes();
    if (found == nullptr) return World::End::kGone;
    if (spec == model.disks.end()) return std::nullopt;
    const v1::AttachmentStatus& status = found->status();
    if (status.state() == v1::ATTACHMENT_STATE_READY) {
      const bool told = spec->second.status().size_bytes() == *size_bytes;
      return told ? std::optional(World::End::kReady) : std::nullopt;
    }
    if (status.state() != v1::ATTACHMENT_STATE_FAILED) return std::nullopt;
    if (status.message().find("No such file or directory") != std::string::npos) return World::End::kNoImage;
    const bool small = worlds_.Any([&](const World& world) {
      return status.message().find(fmt::format("has {} bytes, the disk has ",
                                               world.disks[disk].image_mib * kMiB)) != std::string::npos;
    });
    return small ? std::optional(World::End::kImageTooSmall) : std::nullopt;
  }

  // Waits until the disk's attachment has come to an end that the model knows; nullopt: it did not, and the test has failed.
  std::optional<World::End> Settle(uint32_t disk) {
    const uint64_t before_ns = clock_.NowNs();
    std::optional<World::End> end;
    uint64_t size_bytes = 0;
    Model last;
    const bool settled = api_.WaitUntil(
        [&](const Model& model) {
          end = EndIn(model, disk, &size_bytes);
          return end && worlds_.MayEnd(disk, *end);
        },
        &last, kSettleTimeoutNs);
    static constexpr std::array kEnds = {"gone", "ready", "no image", "image too small"};
    const std::string is = end ? kEnds[static_cast<size_t>(*end)] : "unsettled";
    tally_.Add(kSettling, is, clock_.NowNs() - before_ns);
    Remember(fmt::format("settle disk {}: {}, {} bytes", disk, is, size_bytes));
    const std::string were = worlds_.ToString();
    const bool good = settled && worlds_.Ended(disk, *end) && worlds_.Keep([&](const World& world) {
      return world.disks[disk].mib * kMiB == size_bytes;
    });
    if (good) return end;
    ADD_FAILURE() << DiskId(disk) << " is " << is << " with " << size_bytes << " bytes, which is no end of\n"
                  << were << History() << last.ToString();
    return std::nullopt;
  }

  // Nobody has it open or owns it, and nothing says that somebody does.
  void ExpectUnheld(const std::string& name) {
    rbd_image_t image = nullptr;
    ASSERT_EQ(rbd_open_read_only(io_, name.c_str(), &image, nullptr), 0) << name;
    std::array<rbd_image_watcher_t, 16> watchers{};
    size_t count = watchers.size();
    EXPECT_EQ(rbd_watchers_list(image, watchers.data(), &count), 0);
    EXPECT_EQ(count, 0U) << name << " is still open";
    rbd_watchers_list_cleanup(watchers.data(), count);
    rbd_close(image);
    EXPECT_EQ(CountLockers(ceph_.HeaderOf(name)), 0) << name << " is still locked";
    for (const std::string& key : ceph_.MetadataKeys(name))
      EXPECT_FALSE(key.starts_with("cleat.owner.")) << name << " still has an owner's record";
  }

  ssize_t CountLockers(const std::string& header) {
    int exclusive = 0;
    std::array<std::array<char, 1024>, 4> texts{};  // tag, clients, cookies, addresses
    std::array<size_t, 4> bytes{};
    bytes.fill(texts[0].size());
    const ssize_t count = rados_list_lockers(io_, header.c_str(), "rbd_lock", &exclusive, texts[0].data(),
                                             &bytes[0], texts[1].data(), &bytes[1], texts[2].data(),
                                             &bytes[2], texts[3].data(), &bytes[3]);
    return count == -ENOENT ? 0 : count;
  }

  void Remember(const std::string& what) {
    constexpr size_t kRemembered = 60;
    history_.push_back(what);
    if (history_.size() > kRemembered) history_.pop_front();
  }
  std::string History() const {
    return fmt::format("what caller {} did:\n  {}\n", number_, fmt::join(history_, "\n  "));
  }

  Host& host_;
  MiniCeph& ceph_;
  const Stops& stops_;  // of that cluster
  const uint32_t number_;
  Random random_;
  Tally& tally_;
  Api api_;
  rados_ioctx_t io_ = nullptr;
  const MonotonicClock clock_;
  Worlds worlds_;
  std::deque<std::string> history_;
};

}  // namespace cleat::system_test
