// SPDX-License-Identifier: Apache-2.0
// Reservations in files: what comes back is what was stored, or nothing that could let the wrong host write.
#include "engine/stores/reservation_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/temp_dir.h"
#include "tests/unit/reactor/virtual_reactors.h"

namespace cleat::engine::reservation_files_test {
namespace {

using nvme::fabrics::Uuid;
using nvme::target::Registrant;
using nvme::target::Reservation;
using nvme::target::ReservationType;
using ::testing::HasSubstr;

constexpr char kBoot[] = "0e6bfa6c-54c4-4c0f-8a21-4a0e5b1d6f11";
constexpr char kNextBoot[] = "91b3a9f2-0000-4c0f-8a21-4a0e5b1d6f22";

Uuid Id(uint8_t number) {
  Uuid id{};
  id.fill(number);
  return id;
}

Reservation Held(bool persists) {
  Reservation held;
  held.generation = 7;
  held.type = ReservationType::kWriteExclusiveRegistrants;
  held.persists = persists;
  held.registrants = {{Id(1), 0xfeed'beef'feed'beef}, {Id(2), 1}};
  held.holder = Id(2);
  return held;
}

// Nobody is registered any more.
Reservation Empty(uint32_t generation) {
  Reservation empty;
  empty.generation = generation;
  return empty;
}

Reservation Full() {
  Reservation full;
  full.generation = UINT32_MAX;
  full.type = ReservationType::kExclusiveAccessAll;
  full.persists = true;
  for (size_t i = 0; i < nvme::target::kRegistrantsMax; ++i)
    full.registrants.push_back({Id(static_cast<uint8_t>(i)), UINT64_MAX - i});
  return full;
}

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void WriteFile(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
}

using Names = std::set<std::string>;

Names NamesIn(const std::string& folder) {
  Names names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.insert(entry.path().filename().string());
  return names;
}

// As on a full file system, for as long as this lives: no file can grow.
class NoSpace {
 public:
  NoSpace() {
    before_ = signal(SIGXFSZ, SIG_IGN);
    CLEAT_CHECK(getrlimit(RLIMIT_FSIZE, &limit_) == 0);
    const rlimit none{.rlim_cur = 0, .rlim_max = limit_.rlim_max};
    CLEAT_CHECK(setrlimit(RLIMIT_FSIZE, &none) == 0);
  }
  ~NoSpace() {
    CLEAT_CHECK(setrlimit(RLIMIT_FSIZE, &limit_) == 0);
    signal(SIGXFSZ, before_);
  }
  NoSpace(const NoSpace&) = delete;
  NoSpace& operator=(const NoSpace&) = delete;

 private:
  rlimit limit_{};
  sighandler_t before_ = nullptr;
};

// Root may write everywhere: for as long as this lives it is somebody else.
class NotRoot {
 public:
  NotRoot() { CLEAT_CHECK(!root_ || seteuid(kNobody) == 0); }
  ~NotRoot() { CLEAT_CHECK(!root_ || seteuid(0) == 0); }
  NotRoot(const NotRoot&) = delete;
  NotRoot& operator=(const NotRoot&) = delete;

 private:
  static constexpr uid_t kNobody = 65534;
  const bool root_ = geteuid() == 0;
};

class ReservationFilesTest : public testing::Test {
 protected:
  std::string folder() const { return dir_ / "reservations"; }
  static std::string Name(uint8_t number) { return nvme::fabrics::TextOfUuid(Id(number)); }
  std::string File(uint8_t number = 9) const { return folder() + "/" + Name(number); }

  // Each time by another engine.
  Status Store(const Reservation& reservation, uint8_t number = 9, const std::string& boot = kBoot) {
    ReservationFiles files(folder(), pool_, pool_, boot);
    return reactors_.Await(files.Store(Id(number), reservation));
  }
  Result<Reservation> Load(uint8_t number = 9, const std::string& boot = kBoot) {
    ReservationFiles files(folder(), pool_, pool_, boot);
    return reactors_.Await(files.Load(Id(number)));
  }
  void ExpectLost(const std::string& cause) {
    const auto loaded = Load();
    ASSERT_FALSE(loaded.ok());
    EXPECT_EQ(loaded.error().code, ErrorCode::kDataLoss);
    EXPECT_THAT(loaded.error().message, HasSubstr("reservation file '" + File() + "' "));
    EXPECT_THAT(loaded.error().message, HasSubstr(cause));
    EXPECT_THAT(loaded.error().message, HasSubstr("remove the file"));
  }

  test::TempDir dir_{test::FolderInMemory()};
  test::VirtualReactors reactors_;
  BlockingPool pool_{0};
};

TEST_F(ReservationFilesTest, WhatWasStoredIsThereForTheNextEngine) {
  EXPECT_EQ(Load().value(), Reservation{}) << "nothing was stored";
  EXPECT_FALSE(std::filesystem::exists(folder())) << "reading makes nothing";
  for (const Reservation& reservation : {Held(false), Held(true), Full(), Empty(3)}) {
    ASSERT_TRUE(Store(reservation).ok());
    EXPECT_EQ(Load().value(), reservation);
  }
  EXPECT_EQ(Load(8).value(), Reservation{}) << "another namespace";
  ASSERT_TRUE(Store(Held(true), 8).ok());
  EXPECT_EQ(Load().value(), Empty(3)) << "the first one is as it was";
  EXPECT_EQ(NamesIn(folder()), (Names{Name(8), Name(9)}));
}

TEST_F(ReservationFilesTest, OnTheThreadsOfAPoolToo) {
  BlockingPool threads(2);
  ReservationFiles files(folder(), threads, threads, kBoot);
  std::optional<Result<Reservation>> loaded;
  const auto store_and_load = [&]() -> Task<void> {
    const Status stored = co_await files.Store(Id(9), Held(true));
    EXPECT_TRUE(stored.ok());
    loaded = co_await files.Load(Id(9));
  };
  reactors_[0].PostCall([&] { Spawn(store_and_load()); });
  while (!loaded) reactors_.RunUntilIdle();  // of threads, whose time is not virtual
  EXPECT_EQ(loaded->value(), Held(true));
}

TEST_F(ReservationFilesTest, NobodyElseReadsThem) {
  ASSERT_TRUE(Store(Held(true)).ok());
  struct stat info {};
  ASSERT_EQ(stat(File().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600U);
  ASSERT_EQ(stat(folder().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0700U);
}

TEST_F(ReservationFilesTest, AfterTheMachinesRestartWhatPersistsIsThereAndNothingElse) {
  ASSERT_TRUE(Store(Held(false), 1).ok());
  ASSERT_TRUE(Store(Held(true), 2).ok());
  EXPECT_EQ(Load(1, kNextBoot).value(), Reservation{});
  EXPECT_EQ(Load(2, kNextBoot).value(), Held(true));
  EXPECT_EQ(Load(1, kBoot).value(), Held(false)) << "an engine of the same start has it still";
}

TEST_F(ReservationFilesTest, WhereTheStartOfTheMachineIsNotKnownNothingIsForgotten) {
  ASSERT_TRUE(Store(Held(false), 1, "").ok());
  EXPECT_EQ(Load(1, kNextBoot).value(), Held(false));
  ASSERT_TRUE(Store(Held(false), 1).ok());
  EXPECT_EQ(Load(1, "").value(), Held(false));
}

TEST_F(ReservationFilesTest, TheKernelSaysWhichStartItIs) {
  const auto id = ReservationFiles::BootId();
  ASSERT_TRUE(id.ok()) << id.error().message;
  EXPECT_EQ(*id, ReservationFiles::BootId().value());
}

TEST_F(ReservationFilesTest, DamageAtAnyByteIsFound) {
  ASSERT_TRUE(Store(Held(true)).ok());
  const std::string good = ReadFile(File());
  for (size_t at = 0; at < good.size(); ++at) {
    for (const int flipped : {0x01, 0x80, 0xff}) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ flipped);
      WriteFile(File(), bad);
      const auto loaded = Load();
      ASSERT_FALSE(loaded.ok()) << "byte " << at << " by " << flipped;
      ASSERT_EQ(loaded.error().code, ErrorCode::kDataLoss);
    }
  }
  for (size_t size = 0; size < good.size(); ++size) {
    WriteFile(File(), good.substr(0, size));
    ASSERT_EQ(Load().error().code, ErrorCode::kDataLoss) << size << " bytes";
  }
  WriteFile(File(), good + '\0');
  ExpectLost("its checksum is wrong");
  WriteFile(File(), std::string(ReservationFiles::kFileBytesMax + 1, 'x'));
  ExpectLost("has more than 65536 bytes");
  WriteFile(File(), good);
  EXPECT_EQ(Load().value(), Held(true));
}

TEST_F(ReservationFilesTest, AVersionThatIsNotKnownIsNotRead) {
  ASSERT_TRUE(Store(Held(true)).ok());
  std::string later = ReadFile(File());
  later[8] = 2;
  WriteFile(File(), later);
  ExpectLost("is of version 2, and this engine reads version 1");
}

TEST_F(ReservationFilesTest, WhatNoNamespaceCanHaveIsNotStored) {
  const auto with = [](auto change) {
    Reservation reservation = Held(true);
    change(reservation);
    return reservation;
  };
  const std::vector<std::pair<Reservation, std::string>> cases = {
      {with([](Reservation& r) { r.registrants.resize(nvme::target::kRegistrantsMax + 1); }),
       "65 registrants"},
      {with([](Reservation& r) {
         r.registrants.push_back({Id(1), 3});
       }),
       "one of them twice"},
      {with([](Reservation& r) { std::swap(r.registrants[0], r.registrants[1]); }), "out of order"},
      {with([](Reservation& r) { r.registrants[1].key = 0; }), "key 0"},
      {with([](Reservation& r) { r.holder = Id(3); }), "a holder that is no registrant"},
      {with([](Reservation& r) { r.type = ReservationType::kNone; }), "a holder of nothing"},
      {with([](Reservation& r) { r.holder.reset(); }), "held by nobody"},
      {with([](Reservation& r) { r.type = static_cast<ReservationType>(7); }), "an unknown type"}};
  ASSERT_TRUE(Store(Held(false)).ok());
  for (const auto& [reservation, why] : cases) {
    const Status stored = Store(reservation);
    ASSERT_FALSE(stored.ok()) << why;
    EXPECT_EQ(stored.error().code, ErrorCode::kInternal);
    EXPECT_THAT(stored.error().message, HasSubstr(why));
  }
  EXPECT_EQ(Load().value(), Held(false)) << "the one before is in force";
}

TEST_F(ReservationFilesTest, WhatAKilledEngineHasLeftIsNotReadAndGoes) {
  ASSERT_TRUE(Store(Held(true)).ok());
  ASSERT_TRUE(Store(Held(true), 8).ok());
  // Killed while it wrote, and before the new one had the name.
  WriteFile(File() + ".new", ReadFile(File()).substr(0, 20));
  WriteFile(File(8) + ".new", "");
  EXPECT_EQ(Load().value(), Held(true));
  ASSERT_TRUE(Store(Held(false)).ok());
  EXPECT_EQ(Load().value(), Held(false));
  EXPECT_EQ(NamesIn(folder()), (Names{Name(8), Name(9), Name(8) + ".new"}))
      << "another namespace's is its engine's";
}

TEST_F(ReservationFilesTest, WithoutSpaceTheOneBeforeIsInForce) {
  ASSERT_TRUE(Store(Held(true)).ok());
  Status stored = Ok{};
  {
    const NoSpace full;
    stored = Store(Full());
  }
  ASSERT_FALSE(stored.ok());
  EXPECT_THAT(stored.error().message, HasSubstr("reservation file '" + File() + "' can't be written"));
  EXPECT_EQ(Load().value(), Held(true));
  EXPECT_EQ(NamesIn(folder()), Names{Name(9)}) << "nothing is left of it";
}

TEST_F(ReservationFilesTest, AFolderThatCanNotBeHadIsAnErrorThatNamesIt) {
  WriteFile(folder(), "a file");
  const Status stored = Store(Held(true));
  ASSERT_FALSE(stored.ok());
  EXPECT_THAT(stored.error().message, HasSubstr(folder()));
  const auto loaded = Load();
  ASSERT_FALSE(loaded.ok()) << "what was stored is not known";
  EXPECT_THAT(loaded.error().message, HasSubstr(File()));
}

TEST_F(ReservationFilesTest, AFolderThatTakesNoFilesIsAnErrorAndWhatIsThereStays) {
  ASSERT_TRUE(Store(Held(true)).ok());
  ASSERT_EQ(chmod(dir_.path().c_str(), 0755), 0);
  ASSERT_EQ(chmod(folder().c_str(), 0555), 0);
  Status stored = Ok{};
  {
    const NotRoot user;
    stored = Store(Full());
  }
  ASSERT_FALSE(stored.ok());
  EXPECT_EQ(stored.error().code, ErrorCode::kPermissionDenied);
  EXPECT_THAT(stored.error().message, HasSubstr(File()));
  EXPECT_EQ(Load().value(), Held(true));
  ASSERT_EQ(chmod(folder().c_str(), 0700), 0);
}

TEST_F(ReservationFilesTest, ALinkIsNeitherReadNorFollowed) {
  ASSERT_TRUE(Store(Held(true), 8).ok());
  const std::string before = ReadFile(File(8));
  std::filesystem::create_symlink(File(8), File());
  ExpectLost("is a symbolic link");
  ASSERT_TRUE(Store(Held(false)).ok()) << "the file takes its place";
  EXPECT_EQ(Load().value(), Held(false));
  EXPECT_EQ(ReadFile(File(8)), before) << "where it led to, nothing has changed";
}

TEST_F(ReservationFilesTest, WhatIsNoFileIsNotRead) {
  ASSERT_TRUE(Store(Held(true), 8).ok());
  ASSERT_EQ(mkfifo(File().c_str(), 0600), 0);
  ExpectLost("is no regular file");
  std::filesystem::remove(File());
  std::filesystem::create_directory(File());
  ExpectLost("is no regular file");
  const Status stored = Store(Held(true));
  ASSERT_FALSE(stored.ok());
  EXPECT_THAT(stored.error().message, HasSubstr("can't be replaced"));
  EXPECT_EQ(NamesIn(folder()).size(), 2U) << "nothing is left of it";
}

}  // namespace
}  // namespace cleat::engine::reservation_files_test
