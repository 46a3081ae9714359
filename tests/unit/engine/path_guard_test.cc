// SPDX-License-Identifier: Apache-2.0
// What cleatd checked when it was made may lead elsewhere by the time that the engine opens it.
#include "engine/disks/path_guard.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/listed_open.h"
#include "tests/support/temp_dir.h"

namespace cleat::engine::path_guard_test {
namespace {

namespace fs = std::filesystem;

constexpr uid_t kNobody = 65534;

class PathGuardTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"state", "state/disks", "listed", "elsewhere"})
      fs::create_directory(dir_ / name);
    std::ofstream(dir_ / "elsewhere/secret") << "secret";
    std::ofstream(dir_ / "listed/a") << "a";
    Write("files " + dir_ / "listed" + "\nsockets " + dir_ / "listed" + "\nkeys " + dir_ / "listed" + "\n");
  }
  std::string Path(const std::string& name) const { return dir_ / name; }
  void Write(const std::string& lists) const { std::ofstream(dir_ / "paths.conf") << lists; }
  PathGuard& guard() {
    if (!guard_) guard_ = std::make_unique<PathGuard>(Path("paths.conf"), Path("state"), Path("run"));
    return *guard_;
  }
  // The content of what was found, or the error's code.
  std::string Find(const std::string& name, PathGuard::Links links = PathGuard::Links::kNone) {
    const auto found = guard().FindDisk(Path(name), "disks/x: " + Path(name), links);
    if (!found) return std::string(ErrorCodeName(found.error().code));
    const UniqueFd file = ReopenAs(found.value(), O_RDONLY);
    char content[16] = {};
    const ssize_t size = read(file.get(), content, sizeof content);
    return {content, size < 0 ? 0 : static_cast<size_t>(size)};
  }
  void Replace(const std::string& name, const std::string& target) const {
    fs::remove(dir_ / name);
    fs::create_symlink(dir_ / target, dir_ / name);
  }
  // A database as cleatd's.
  void MakeStore(const std::string& name) const {
    std::string header(100, '\0');
    header.replace(0, 16, std::string("SQLite format 3\0", 16));
    header.replace(68, 4, "Clea");
    std::ofstream(dir_ / name) << header;
  }

  test::TempDir dir_;
  std::unique_ptr<PathGuard> guard_;
};

TEST_F(PathGuardTest, AFileThatBecameALinkIsNotFollowedOutOfAListedFolder) {
  EXPECT_EQ(Find("listed/a"), "a");
  Replace("listed/a", "elsewhere/secret");
  EXPECT_EQ(Find("listed/a"), "permission_denied");
  fs::create_directory_symlink(dir_ / "elsewhere", dir_ / "listed/deep");
  EXPECT_EQ(Find("listed/deep/secret"), "permission_denied");
  EXPECT_EQ(Find("listed/none"), "not_found");
}

TEST_F(PathGuardTest, WhatIsListedNoMoreIsServed) {
  EXPECT_EQ(Find("elsewhere/secret"), "secret");
}

TEST_F(PathGuardTest, ButByLinksOfRootsAndItsOwnAlone) {
  Replace("elsewhere/link", "elsewhere/secret");
  EXPECT_EQ(Find("elsewhere/link"), "secret");
  if (geteuid() != 0) GTEST_SKIP() << "only root can make another user's link";
  ASSERT_EQ(lchown(Path("elsewhere/link").c_str(), kNobody, kNobody), 0);
  EXPECT_EQ(Find("elsewhere/link"), "permission_denied");
}

// Nobody looked when it was made, and an operator may have put a link there.
TEST_F(PathGuardTest, ADiskOfBeforeIsReachedByTrustedLinksBelowAListedFolderToo) {
  constexpr auto kTrusted = PathGuard::Links::kTrusted;
  Replace("listed/a", "elsewhere/secret");
  EXPECT_EQ(Find("listed/a", kTrusted), "secret");
  MakeStore("state/cleat.db");
  Replace("listed/a", "state/cleat.db");
  EXPECT_EQ(Find("listed/a", kTrusted), "permission_denied");
  if (geteuid() != 0) GTEST_SKIP() << "only root can make another user's link";
  Replace("listed/a", "elsewhere/secret");
  ASSERT_EQ(lchown(Path("listed/a").c_str(), kNobody, kNobody), 0);
  EXPECT_EQ(Find("listed/a", kTrusted), "permission_denied");
}

TEST_F(PathGuardTest, ACleatdsStoreIsNever) {
  MakeStore("elsewhere/looks");
  EXPECT_NE(Find("elsewhere/looks"), "permission_denied") << "a guest may have written that to its disk";
  MakeStore("elsewhere/cleat.db");
  EXPECT_EQ(Find("elsewhere/cleat.db"), "permission_denied");
  fs::create_hard_link(dir_ / "elsewhere/looks", dir_ / "elsewhere/second");
  EXPECT_EQ(Find("elsewhere/looks"), "permission_denied");
  MakeStore("state/cleat.db");
  Write("files /\n");
  ASSERT_TRUE(guard().Reload().ok());
  EXPECT_EQ(Find("state/cleat.db"), "permission_denied");
  fs::create_hard_link(dir_ / "state/cleat.db", dir_ / "listed/b");
  EXPECT_EQ(Find("listed/b"), "permission_denied") << "by any name";
  std::ofstream(dir_ / "state/kek") << "key";
  EXPECT_EQ(Find("state/kek"), "permission_denied");
}

TEST_F(PathGuardTest, WhatItReadLastHoldsWhenTheFileIsWrong) {
  EXPECT_NE(guard().Text().find("files " + Path("listed")), std::string::npos);
  Write("nonsense\n");
  EXPECT_FALSE(guard().Reload().ok());
  EXPECT_NE(guard().Text().find("files " + Path("listed")), std::string::npos);
  Write("files /srv\n");
  EXPECT_TRUE(guard().Reload().ok());
  EXPECT_NE(guard().Text().find("files /srv"), std::string::npos);
}

TEST_F(PathGuardTest, WithoutAListThatCanBeReadNothingIsListedAndAllIsServed) {
  Write("nonsense\n");
  EXPECT_EQ(guard().Text(), PathLists().Text());
  EXPECT_EQ(Find("listed/a"), "a");
}

TEST_F(PathGuardTest, KeysByTrustedLinks) {
  const auto keys = [this](const std::string& name) {
    const auto opened = guard().OpenKeys(Path(name), "clusters/c: " + Path(name));
    return opened.ok() ? "opened" : std::string(ErrorCodeName(opened.error().code));
  };
  EXPECT_EQ(keys("listed/a"), "opened");
  EXPECT_EQ(keys("elsewhere/secret"), "opened");
  Replace("listed/a", "elsewhere/secret");
  EXPECT_EQ(keys("listed/a"), "opened");
  if (geteuid() != 0) GTEST_SKIP() << "only root can make another user's link";
  ASSERT_EQ(lchown(Path("listed/a").c_str(), kNobody, kNobody), 0);
  EXPECT_EQ(keys("listed/a"), "permission_denied");
}

TEST_F(PathGuardTest, ASocketThatBecameAnothersLinkIsNotFollowed) {
  const auto find = [this](const std::string& name) {
    const auto found = guard().FindSocket(Path(name));
    return found.ok() ? "found" : std::string(ErrorCodeName(found.error().code));
  };
  EXPECT_EQ(find("listed/none"), "not_found");
  EXPECT_EQ(find("listed/a"), "found");
  EXPECT_TRUE(guard().FindFolder(Path("listed/new.sock")).ok());
  EXPECT_TRUE(guard().FindFolder(Path("elsewhere/new.sock")).ok());
  Replace("listed/a", "elsewhere/secret");
  fs::create_directory_symlink(dir_ / "elsewhere", dir_ / "listed/deep");
  EXPECT_EQ(find("listed/deep/secret"), "found") << "an operator's";
  if (geteuid() != 0) GTEST_SKIP() << "only root can make another user's link";
  for (const char* link : {"listed/a", "listed/deep"})
    ASSERT_EQ(lchown(Path(link).c_str(), kNobody, kNobody), 0);
  EXPECT_EQ(find("listed/a"), "permission_denied");
  EXPECT_EQ(find("listed/deep/secret"), "permission_denied");
  EXPECT_FALSE(guard().FindFolder(Path("listed/deep/new.sock")).ok()) << "nor is one made behind it";
}

}  // namespace
}  // namespace cleat::engine::path_guard_test
