// SPDX-License-Identifier: Apache-2.0
// What the API promises, without gRPC and without an engine.
#include "control/state/host_state.h"
#include "control/model/reasons.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "requests.h"
#include "tests/support/temp_dir.h"

namespace cleat::control::host_state_test {
namespace {

class HostStateTest : public ::testing::Test {
 protected:
  HostStateTest() { Open(); }

  void Open() {
    state_.reset();
    store_.reset();
    memory_ = std::make_unique<MemfdKeeper>();
    auto store = Store::Open(dir_.path());
    CLEAT_CHECK(store.ok());
    store_ = std::move(*store);
    auto state = HostState::Load(*store_, *memory_, /*watch_queue_max=*/8);
    CLEAT_CHECK(state.ok());
    state_ = std::move(*state);
  }

  void ConnectEngine(const std::string& id, uint32_t controllers_max = 100) {
    v1::EngineStatus status;
    status.set_connected(true);
    status.set_controllers_max(controllers_max);
    state_->engines().Report(id, status);
  }

  template <typename T>
  static void ExpectError(const Result<T>& result, ErrorCode code, const std::vector<std::string>& says) {
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(ErrorCodeName(result.error().code), ErrorCodeName(code)) << result.error().message;
    for (const std::string& part : says) {
      EXPECT_NE(result.error().message.find(part), std::string::npos) << result.error().message;
    }
  }

  test::TempDir dir_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<MemfdKeeper> memory_;
  std::unique_ptr<HostState> state_;
};

// ---- Disks ----

TEST_F(HostStateTest, ADiskGetsDefaultsAndSurvivesARestart) {
  const auto made = state_->disks().Create(NullDisk("a-disk-with-quite-a-long-name"));
  ASSERT_TRUE(made.ok()) << made.error().message;
  EXPECT_EQ(made->spec().logical_block_bytes(), 512u);
  EXPECT_EQ(made->spec().physical_block_bytes(), 4096u);
  EXPECT_EQ(made->spec().access_mode(), v1::ACCESS_MODE_ONE_WRITER);
  EXPECT_EQ(made->spec().serial().size(), 20u);
  EXPECT_EQ(made->status().state(), v1::DISK_STATE_READY);
  Open();
  const auto found = state_->disks().Get(GetDisk("a-disk-with-quite-a-long-name"));
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->spec().serial(), made->spec().serial());
  EXPECT_GT(found->revision(), made->revision());
}

TEST_F(HostStateTest, AStoredDiskWithoutItsClusterIsDamage) {
  ASSERT_TRUE(state_->disks().Create(NullDisk("a")).ok());
  state_.reset();
  for (const std::string cluster : {"", "clusters/none"}) {
    SCOPED_TRACE(cluster);
    auto rows = store_->Load();
    ASSERT_TRUE(rows.ok());
    DiskRow& row = rows->disks.front();
    row.spec.mutable_rbd()->set_cluster(cluster);
    ASSERT_TRUE(store_->Apply({row}).ok());
    const auto loaded = HostState::Load(*store_, *memory_);
    ASSERT_FALSE(loaded.ok());
    EXPECT_EQ(ReasonOf(loaded.error()), v1::REASON_STORE_DAMAGED) << loaded.error().message;
  }
}

TEST_F(HostStateTest, TheSameDiskAgainIsOkAnotherOneIsNot) {
  ASSERT_TRUE(state_->disks().Create(NullDisk("a")).ok());
  auto same = NullDisk("a");
  same.mutable_disk()->mutable_spec()->set_logical_block_bytes(512);  // the default, said aloud
  EXPECT_TRUE(state_->disks().Create(same).ok());
  ExpectError(state_->disks().Create(NullDisk("a", 2 * kMiB)), ErrorCode::kAlreadyExists,
              {"disks/a", "size_bytes"});
}

TEST_F(HostStateTest, WrongDisksAreRefusedWithTheFieldAndItsRange) {
  const auto refused = [&](auto change, const std::string& says) {
    auto request = NullDisk("a");
    change(request, *request.mutable_disk()->mutable_spec());
    ExpectError(state_->disks().Create(request), ErrorCode::kInvalidArgument, {says});
  };
  for (const char* id : {"", "A", "1a", "a-", "a_b", "a/b"}) {
    refused([&](auto& request, auto&) { request.set_disk_id(id); }, "disk_id");
  }
  refused([](auto& request, auto&) { request.set_disk_id(std::string(64, 'a')); }, "disk_id");
  refused([](auto&, auto& spec) { spec.set_size_bytes(0); }, "size_bytes");
  refused([](auto&, auto& spec) { spec.set_size_bytes(1000); }, "size_bytes");
  refused([](auto&, auto& spec) { spec.set_size_bytes(kDiskBytesMax + 512); }, "size_bytes");
  refused([](auto&, auto& spec) { spec.set_logical_block_bytes(1024); }, "logical_block_bytes");
  refused([](auto&, auto& spec) { spec.set_physical_block_bytes(5000); }, "physical_block_bytes");
  refused([](auto&, auto& spec) { spec.set_serial("123456789012345678901"); }, "serial");
  refused([](auto&, auto& spec) { spec.clear_backend(); }, "back end");
  refused([](auto&, auto& spec) { spec.mutable_file()->set_path("relative"); }, "absolute");
  refused([](auto&, auto& spec) { spec.mutable_file(); }, "file.path");
  refused([](auto&, auto& spec) { spec.set_access_mode(static_cast<v1::AccessMode>(9)); }, "access_mode");
  refused([](auto&, auto& spec) { spec.mutable_fault()->set_fail_per_million(2'000'000); },
          "fail_per_million");
}

TEST_F(HostStateTest, AMissingFileIsNamedOrMade) {
  const std::string path = dir_ / "disk.img";
  ExpectError(state_->disks().Create(FileDisk("a", path, false)), ErrorCode::kFailedPrecondition,
              {"disks/a", path, "does not exist", "--create"});
  ASSERT_TRUE(state_->disks().Create(FileDisk("a", path, true)).ok());
  EXPECT_EQ(std::filesystem::file_size(path), kMiB);
  struct stat info {};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_blocks, 0) << "sparse";
  ASSERT_TRUE(state_->disks().Delete(DeleteDisk("a")).ok());
  EXPECT_TRUE(std::filesystem::exists(path)) << "deleting a disk keeps its file";
  ExpectError(state_->disks().Create(FileDisk("b", dir_ / "none/disk.img", true)),
              ErrorCode::kFailedPrecondition, {"none"});
}

TEST_F(HostStateTest, ATooSmallFileIsNamedWithBothSizes) {
  const std::string path = dir_ / "small.img";
  std::ofstream(path) << "tiny";
  ExpectError(state_->disks().Create(FileDisk("a", path, true)), ErrorCode::kFailedPrecondition,
              {path, "has 4 bytes", "1048576", "truncate"});
  ExpectError(state_->disks().Create(FileDisk("a", dir_.path(), false)), ErrorCode::kFailedPrecondition,
              {"neither"});
}

TEST_F(HostStateTest, AnUnwritableFileIsNamed) {
  const std::string path = dir_ / "ro.img";
  std::ofstream(path) << std::string(kMiB, 'x');
  ASSERT_EQ(chmod(path.c_str(), 0444), 0);
  ASSERT_EQ(chmod(dir_.path().c_str(), 0755), 0);
  // Root may write to everything, so it looks with another user's eyes.
  constexpr uid_t kNobody = 65534;
  const uid_t user = geteuid();
  if (user == 0) {
    ASSERT_EQ(seteuid(kNobody), 0);
  }
  const auto refused = state_->disks().Create(FileDisk("a", path, false));
  if (user == 0) {
    ASSERT_EQ(seteuid(user), 0);
  }
  ExpectError(refused, ErrorCode::kPermissionDenied, {path, "writing", "user"});
}

TEST_F(HostStateTest, TwoDisksDontShareAFileUnlessBothOnlyRead) {
  const std::string path = dir_ / "disk.img";
  ASSERT_TRUE(state_->disks().Create(FileDisk("a", path, true)).ok());
  ExpectError(state_->disks().Create(FileDisk("b", dir_ / "./disk.img", false)),
              ErrorCode::kFailedPrecondition, {path, "disks/a"});
  const auto reader = [&](const std::string& id) {
    auto request = FileDisk(id, dir_ / "dvd.img", true);
    request.mutable_disk()->mutable_spec()->set_access_mode(v1::ACCESS_MODE_MANY_READERS);
    return request;
  };
  EXPECT_TRUE(state_->disks().Create(reader("c")).ok());
  EXPECT_TRUE(state_->disks().Create(reader("d")).ok());
}

TEST_F(HostStateTest, DeletingWhatIsGoneIsOk) {
  EXPECT_TRUE(state_->disks().Delete(DeleteDisk("a")).ok());
  EXPECT_TRUE(state_->controllers().Delete(DeleteController("a")).ok());
  EXPECT_TRUE(state_->attachments().Detach(Detach("a", "b")).ok());
  ExpectError(state_->disks().Get(GetDisk("a")), ErrorCode::kNotFound, {"disks/a"});
  ExpectError(state_->disks().Delete(v1::DeleteDiskRequest()), ErrorCode::kInvalidArgument, {"disks/ID"});
}

TEST_F(HostStateTest, ListsComeInPages) {
  for (const char* id : {"c", "a", "b"}) ASSERT_TRUE(state_->disks().Create(NullDisk(id)).ok());
  v1::ListDisksRequest request;
  request.set_page_size(2);
  auto page = state_->disks().List(request);
  ASSERT_TRUE(page.ok());
  ASSERT_EQ(page->disks_size(), 2);
  EXPECT_EQ(page->disks(0).name(), "disks/a");
  request.set_page_token(page->next_page_token());
  page = state_->disks().List(request);
  ASSERT_EQ(page->disks_size(), 1);
  EXPECT_EQ(page->disks(0).name(), "disks/c");
  EXPECT_TRUE(page->next_page_token().empty());
  request.set_page_size(-1);
  EXPECT_FALSE(state_->disks().List(request).ok());
}

// ---- Controllers ----

TEST_F(HostStateTest, AControllerGetsDefaultsAndTheLeastLoadedEngine) {
  ConnectEngine("engine-a");
  ConnectEngine("engine-b");
  const auto first = state_->controllers().Create(NewController("a"));
  ASSERT_TRUE(first.ok()) << first.error().message;
  EXPECT_EQ(first->spec().queues(), 1u);
  EXPECT_EQ(first->spec().socket_mode(), v1::SOCKET_MODE_CLIENT);
  EXPECT_EQ(first->status().engine(), "engines/engine-a");
  const auto second = state_->controllers().Create(NewController("b"));
  EXPECT_EQ(second->status().engine(), "engines/engine-b");
  Open();
  EXPECT_EQ(state_->controllers().Get(GetController("b"))->status().engine(), "engines/engine-b");
  EXPECT_EQ(state_->engines().Get(GetEngine("engine-b"))->status().controllers(), 1u);
}

TEST_F(HostStateTest, AControllerKeepsWhoVouchesForItsMemory) {
  EXPECT_FALSE(state_->controllers().Create(NewController("a"))->spec().memory_pinned());
  auto vouched = NewController("b");
  vouched.mutable_controller()->mutable_spec()->set_memory_pinned(true);
  ASSERT_TRUE(state_->controllers().Create(vouched).ok());
  EXPECT_TRUE(state_->controllers().Create(vouched).ok()) << "the same again";
  ExpectError(state_->controllers().Create(NewController("b")), ErrorCode::kAlreadyExists, {"controllers/b"});
  Open();
  EXPECT_FALSE(state_->controllers().Get(GetController("a"))->spec().memory_pinned());
  EXPECT_TRUE(state_->controllers().Get(GetController("b"))->spec().memory_pinned());
}

TEST_F(HostStateTest, AControllerWaitsForAnEngineWithRoom) {
  ConnectEngine("engine-a", 1);
  ASSERT_TRUE(state_->controllers().Create(NewController("a")).ok());
  const auto waiting = state_->controllers().Create(NewController("b"));
  ASSERT_TRUE(waiting.ok());
  EXPECT_EQ(waiting->status().state(), v1::CONTROLLER_STATE_PENDING);
  EXPECT_EQ(waiting->status().engine(), "");
  ConnectEngine("engine-b");
  state_->controllers().Place();
  EXPECT_EQ(state_->controllers().Get(GetController("b"))->status().engine(), "engines/engine-b");
}

TEST_F(HostStateTest, AControllerIsPlacedWhenAnotherOneMakesRoom) {
  ConnectEngine("engine-a", 1);
  ASSERT_TRUE(state_->controllers().Create(NewController("a")).ok());
  ASSERT_TRUE(state_->controllers().Create(NewController("b")).ok());
  ASSERT_TRUE(state_->controllers().Delete(DeleteController("a")).ok());
  EXPECT_EQ(state_->controllers().Get(GetController("b"))->status().engine(), "") << "a is still there";
  ASSERT_TRUE(state_->controllers().Forget("a").ok());
  EXPECT_EQ(state_->controllers().Get(GetController("b"))->status().engine(), "engines/engine-a");
}

TEST_F(HostStateTest, WrongControllersAreRefused) {
  const auto refused = [&](auto change, const std::string& says) {
    auto request = NewController("a");
    change(*request.mutable_controller()->mutable_spec());
    ExpectError(state_->controllers().Create(request), ErrorCode::kInvalidArgument, {says});
  };
  refused([](auto& spec) { spec.set_queues(65); }, "1 to 64");
  refused([](auto& spec) { spec.set_socket_path(""); }, "socket_path");
  refused([](auto& spec) { spec.set_socket_path("vm.sock"); }, "absolute");
  refused([](auto& spec) { spec.set_socket_path("/" + std::string(107, 'a')); }, "107");
  refused([](auto& spec) { spec.set_engine("engine-0"); }, "engines/NAME");
  refused([](auto& spec) { spec.set_type(static_cast<v1::ControllerType>(9)); }, "type");
}

TEST_F(HostStateTest, TwoControllersDontShareASocket) {
  ASSERT_TRUE(state_->controllers().Create(NewController("a", "/run/vm")).ok());
  EXPECT_TRUE(state_->controllers().Create(NewController("a", "/run//vm")).ok()) << "the same again";
  ExpectError(state_->controllers().Create(NewController("b", "/run/vm")), ErrorCode::kFailedPrecondition,
              {"/run/vm", "controllers/a", "cleatctl controller delete a"});
  ExpectError(state_->controllers().Create(NewController("a", "/run/other")), ErrorCode::kAlreadyExists,
              {"socket_path"});
}

TEST_F(HostStateTest, TheNumberOfControllersIsLimited) {
  for (size_t i = 0; i + 1 < kControllersMax; ++i) {
    // Straight into the store: the placement of each would be a commit more.
    ControllerRow row;
    row.id = "c" + std::to_string(i);
    row.spec.set_socket_path("/run/" + row.id);
    ASSERT_TRUE(store_->Apply({row}).ok());
  }
  Open();
  ASSERT_TRUE(state_->controllers().Create(NewController("x")).ok());
  ExpectError(state_->controllers().Create(NewController("y")), ErrorCode::kResourceExhausted, {"1024"});
}

// ---- Attachments ----

TEST_F(HostStateTest, ADiskInUseCantBeDeletedAndSaysHowToFreeIt) {
  ASSERT_TRUE(state_->disks().Create(NullDisk("d")).ok());
  ASSERT_TRUE(state_->controllers().Create(NewController("c")).ok());
  const auto attached = state_->attachments().Attach(Attach("d", "c"));
  ASSERT_TRUE(attached.ok()) << attached.error().message;
  EXPECT_EQ(attached->name(), "controllers/c/attachments/d");
  EXPECT_EQ(attached->status().state(), v1::ATTACHMENT_STATE_PENDING);
  EXPECT_EQ(state_->disks().Get(GetDisk("d"))->status().attachments(0), "controllers/c/attachments/d");
  EXPECT_TRUE(state_->attachments().Attach(Attach("d", "c")).ok()) << "the same again";
  ExpectError(state_->attachments().Attach(Attach("d", "c", true)), ErrorCode::kAlreadyExists, {"read_only"});
  ExpectError(state_->disks().Delete(DeleteDisk("d")), ErrorCode::kFailedPrecondition,
              {"controllers/c/attachments/d", "cleatctl detach c d"});
  ExpectError(state_->controllers().Delete(DeleteController("c")), ErrorCode::kFailedPrecondition,
              {"controllers/c/attachments/d", "cleatctl detach c d"});
  Open();
  ExpectError(state_->disks().Delete(DeleteDisk("d")), ErrorCode::kFailedPrecondition,
              {"cleatctl detach c d"});
  // No engine ever had it: it is gone at once.
  ASSERT_TRUE(state_->attachments().Detach(Detach("c", "d")).ok());
  EXPECT_TRUE(state_->controllers().Delete(DeleteController("c")).ok());
  EXPECT_TRUE(state_->disks().Delete(DeleteDisk("d")).ok());
  ExpectError(state_->controllers().Get(GetController("c")), ErrorCode::kNotFound, {"controllers/c"});
}

TEST_F(HostStateTest, ADiskHasOneWriterOrManyReaders) {
  ASSERT_TRUE(state_->disks().Create(NullDisk("d")).ok());
  auto dvd = NullDisk("dvd");
  dvd.mutable_disk()->mutable_spec()->set_access_mode(v1::ACCESS_MODE_MANY_READERS);
  ASSERT_TRUE(state_->disks().Create(dvd).ok());
  for (const char* id : {"a", "b", "c"}) ASSERT_TRUE(state_->controllers().Create(NewController(id)).ok());
  ASSERT_TRUE(state_->attachments().Attach(Attach("d", "a")).ok());
  ExpectError(state_->attachments().Attach(Attach("d", "b")), ErrorCode::kFailedPrecondition,
              {"has a writer, controllers/a/attachments/d", "cleatctl detach a d"});
  ExpectError(state_->attachments().Attach(Attach("dvd", "b")), ErrorCode::kFailedPrecondition,
              {"read-only"});
  ExpectError(state_->attachments().Attach(Attach("dvd", "a", true)), ErrorCode::kFailedPrecondition,
              {"target 0 is taken by controllers/a/attachments/d"});
  EXPECT_TRUE(state_->attachments().Attach(Attach("dvd", "b", true)).ok());
  EXPECT_TRUE(state_->attachments().Attach(Attach("dvd", "c", true)).ok());
  ExpectError(state_->attachments().Attach(Attach("none", "c")), ErrorCode::kFailedPrecondition,
              {"target 0"});
  ExpectError(state_->attachments().Attach(Attach("d", "none")), ErrorCode::kNotFound, {"controllers/none"});
  v1::ListAttachmentsRequest list;
  list.set_parent("controllers/-");
  list.set_page_size(2);
  auto page = state_->attachments().List(list);
  ASSERT_EQ(page->attachments_size(), 2);
  list.set_page_token(page->next_page_token());
  page = state_->attachments().List(list);
  ASSERT_EQ(page->attachments_size(), 1);
  EXPECT_EQ(page->attachments(0).name(), "controllers/c/attachments/dvd");
}

TEST_F(HostStateTest, ADiskWithManyReadersNamesAFewOfThem) {
  auto dvd = NullDisk("dvd");
  dvd.mutable_disk()->mutable_spec()->set_access_mode(v1::ACCESS_MODE_MANY_READERS);
  ASSERT_TRUE(state_->disks().Create(dvd).ok());
  for (int i = 0; i < 6; ++i) {
    const std::string id = "c" + std::to_string(i);
    ASSERT_TRUE(state_->controllers().Create(NewController(id)).ok());
    ASSERT_TRUE(state_->attachments().Attach(Attach("dvd", id, true)).ok());
  }
  ExpectError(state_->disks().Delete(DeleteDisk("dvd")), ErrorCode::kFailedPrecondition,
              {"controllers/c3/attachments/dvd and 2 more", "cleatctl detach c3 dvd; ..."});
}

TEST_F(HostStateTest, WrongAttachmentsAreRefused) {
  ASSERT_TRUE(state_->disks().Create(NullDisk("d")).ok());
  ASSERT_TRUE(state_->controllers().Create(NewController("c")).ok());
  auto request = Attach("d", "c");
  request.mutable_attachment()->mutable_spec()->set_target(1);
  ExpectError(state_->attachments().Attach(request), ErrorCode::kInvalidArgument, {"target is 1"});
  ExpectError(state_->attachments().Attach(Attach("none", "c")), ErrorCode::kNotFound, {"disks/none"});
  ExpectError(state_->attachments().Attach(Attach("d", "C")), ErrorCode::kInvalidArgument, {"parent"});
}

TEST_F(HostStateTest, WhatAnEngineMayHaveStaysUntilItIsForgotten) {
  ConnectEngine("engine-0");
  ASSERT_TRUE(state_->disks().Create(NullDisk("d")).ok());
  for (const char* id : {"a", "b"}) ASSERT_TRUE(state_->controllers().Create(NewController(id)).ok());
  ASSERT_TRUE(state_->attachments().Attach(Attach("d", "a")).ok());
  ASSERT_TRUE(state_->attachments().Detach(Detach("a", "d")).ok());
  EXPECT_TRUE(state_->attachments().Detach(Detach("a", "d")).ok()) << "again";
  EXPECT_EQ(state_->attachments().Get(GetAttachment("a", "d"))->status().state(),
            v1::ATTACHMENT_STATE_DETACHING);
  ExpectError(state_->attachments().Attach(Attach("d", "a")), ErrorCode::kAborted, {"still being detached"});
  ExpectError(state_->attachments().Attach(Attach("d", "b")), ErrorCode::kAborted, {"still being detached"});
  ExpectError(state_->disks().Delete(DeleteDisk("d")), ErrorCode::kAborted, {"still being detached"});
  ASSERT_TRUE(state_->controllers().Delete(DeleteController("a")).ok());
  ExpectError(state_->controllers().Create(NewController("a")), ErrorCode::kAborted, {"still being removed"});
  ExpectError(state_->controllers().Create(NewController("c", "/run/vm/a")), ErrorCode::kAborted,
              {"being removed"});
  Open();  // tombstones are durable
  ExpectError(state_->controllers().Create(NewController("a")), ErrorCode::kAborted, {"still being removed"});
  ASSERT_TRUE(state_->attachments().Forget("a", "d").ok());
  ASSERT_TRUE(state_->controllers().Forget("a").ok());
  EXPECT_TRUE(state_->controllers().Create(NewController("a")).ok());
  EXPECT_TRUE(state_->attachments().Attach(Attach("d", "b")).ok());
}

// ---- Watch ----

TEST_F(HostStateTest, AWatcherSeesWhatIsAndThenEachChange) {
  ASSERT_TRUE(state_->disks().Create(NullDisk("a")).ok());
  const auto watcher = state_->Watch();
  ASSERT_TRUE(watcher.ok());
  ASSERT_TRUE(state_->disks().Create(NullDisk("b")).ok());
  ASSERT_TRUE(state_->disks().Delete(DeleteDisk("a")).ok());
  std::vector<std::string> seen;
  uint64_t revision = 0;
  for (int i = 0; i < 4; ++i) {
    const auto event = (*watcher)->Next(std::chrono::milliseconds(0));
    ASSERT_TRUE(event.ok() && *event != nullptr) << i;
    const v1::WatchResponse& e = **event;
    seen.push_back(e.has_disk() ? e.disk().name() : e.has_synced() ? "synced" : "gone " + e.gone());
    EXPECT_GE(e.revision(), revision);
    revision = e.revision();
  }
  EXPECT_EQ(seen, (std::vector<std::string>{"disks/a", "synced", "disks/b", "gone disks/a"}));
  EXPECT_EQ(*(*watcher)->Next(std::chrono::milliseconds(0)), nullptr);
}

TEST_F(HostStateTest, ASlowWatcherIsDroppedAndToldAndOthersAreNot) {
  const auto slow = state_->Watch();
  const auto fast = state_->Watch();
  for (int i = 0; i < 9; ++i) {
    ASSERT_TRUE(state_->disks().Create(NullDisk("d" + std::to_string(i))).ok());
    ASSERT_TRUE((*fast)->Next(std::chrono::milliseconds(0)).ok());
  }
  const auto dropped = (*slow)->Next(std::chrono::milliseconds(0));
  ExpectError(dropped, ErrorCode::kResourceExhausted, {"behind"});
  EXPECT_TRUE((*fast)->Next(std::chrono::milliseconds(0)).ok());
  state_->StopWatchers();
  ExpectError((*fast)->Next(std::chrono::milliseconds(0)), ErrorCode::kUnavailable, {"stopping"});
  ExpectError(state_->Watch(), ErrorCode::kUnavailable, {"stopping"});
}

TEST_F(HostStateTest, TheNumberOfWatchersIsLimited) {
  std::vector<std::shared_ptr<Watcher>> watchers;
  for (size_t i = 0; i < WatchHub::kWatchersMax; ++i) watchers.push_back(*state_->Watch());
  ExpectError(state_->Watch(), ErrorCode::kResourceExhausted, {"64"});
  watchers.pop_back();
  EXPECT_TRUE(state_->Watch().ok());
}

// ---- Memory disks ----

TEST_F(HostStateTest, AMemoryDiskThatNeverReachedAnEngineIsMadeAnew) {
  ASSERT_TRUE(state_->disks().Create(MemoryDisk("m")).ok());
  const UniqueFd memory = memory_->Share("m");
  ASSERT_TRUE(memory.valid());
  EXPECT_EQ(fcntl(memory.get(), F_GET_SEALS), F_SEAL_SHRINK);
  EXPECT_NE(ftruncate(memory.get(), 0), 0) << "sealed";
  Open();
  EXPECT_EQ(state_->disks().Get(GetDisk("m"))->status().state(), v1::DISK_STATE_READY);
  EXPECT_TRUE(memory_->Has("m"));
}

TEST_F(HostStateTest, AMemoryDiskThatReachedAnEngineIsNotReplacedByZeroes) {
  ASSERT_TRUE(state_->disks().Create(MemoryDisk("m")).ok());
  ASSERT_TRUE(state_->disks().RecordKept("m", "engine-0", true).ok());
  Open();
  EXPECT_EQ(state_->disks().Get(GetDisk("m"))->status().state(), v1::DISK_STATE_PENDING);
  EXPECT_FALSE(memory_->Has("m"));
}

}  // namespace
}  // namespace cleat::control::host_state_test
