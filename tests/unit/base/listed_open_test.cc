// SPDX-License-Identifier: Apache-2.0
// On a real file system, with the links, devices and pipes that somebody who may write below a listed folder could put there.
#include "base/listed_open.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/temp_dir.h"

namespace cleat::listed_open_test {
namespace {

namespace fs = std::filesystem;

// A number of the range that Linux leaves to local use: no driver answers to it, and none is asked.
constexpr unsigned kMajor = 240;

class ListedOpenTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"disks", "disks/deep", "outside", "dev"}) fs::create_directory(folder_ / name);
    for (const char* name : {"disks/a", "disks/deep/b", "outside/secret"})
      std::ofstream(folder_ / name) << name;
    auto lists =
        PathLists::Parse("files " + folder_ / "disks" + "\nsockets " + folder_ / "disks" + "\nkeys " +
                             folder_ / "disks" + "\ndevices " + folder_ / "dev" + "/vm-*\n",
                         "test", PathLists());
    ASSERT_TRUE(lists.ok());
    lists_ = *lists;
  }
  // What was opened, as its content; or the error's code.
  std::string Find(const std::string& name) const {
    const auto fd = FindListedDisk(lists_, Path(name), "disks/x");
    if (!fd.ok()) return std::string(ErrorCodeName(fd.error().code));
    struct stat info {};
    EXPECT_EQ(fstat(fd->get(), &info), 0);
    return S_ISBLK(info.st_mode) ? "device " + std::to_string(minor(info.st_rdev))
                                 : ContentOf(ReopenAs(*fd, O_RDONLY));
  }
  static std::string ContentOf(const UniqueFd& fd) {
    std::array<char, 100> content{};
    const ssize_t size = read(fd.get(), content.data(), content.size());
    return {content.data(), size < 0 ? 0 : static_cast<size_t>(size)};
  }
  std::string Path(const std::string& name) const { return name.starts_with('/') ? name : folder_ / name; }
  void Link(const std::string& to, const std::string& name) const {
    fs::create_symlink(Path(to), Path(name));
  }
  bool MakeDevice(const std::string& name, unsigned number) const {
    return mknod(Path(name).c_str(), S_IFBLK | 0600, makedev(kMajor, number)) == 0;
  }

  test::TempDir folder_;
  PathLists lists_;
};

TEST_F(ListedOpenTest, AFileBelowAListedFolderIsFound) {
  EXPECT_EQ(Find("disks/a"), "disks/a");
  EXPECT_EQ(Find("disks/deep/b"), "disks/deep/b");
  EXPECT_EQ(Find("disks/none"), "not_found");
  EXPECT_EQ(Find("disks/deep"), "failed_precondition");
}

TEST_F(ListedOpenTest, WhatIsOutsideIsNotAndIsNotToldOf) {
  for (const char* name : {"outside/secret", "outside/none", "outside", "/etc/shadow", "/etc/none",
                           "/proc/self/mem", "/dev/null"}) {
    EXPECT_EQ(Find(name), "invalid_argument") << name;
  }
  const auto refused = FindListedDisk(lists_, "/etc/shadow", "disks/x: file '/etc/shadow'");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(
      refused.error().message,
      "disks/x: file '/etc/shadow' is not among the paths that callers may name: this host allows " +
          folder_ / "disks" +
          ": choose one of those, or have the operator add a line 'files DIR' to /etc/cleat/paths.conf");
}

TEST_F(ListedOpenTest, NoLinkBelowAListedFolderIsFollowed) {
  Link("outside/secret", "disks/link");
  Link("outside", "disks/folder");
  Link("disks/a", "disks/inner");
  for (const char* name : {"disks/link", "disks/folder/secret", "disks/inner"})
    EXPECT_EQ(Find(name), "invalid_argument") << name;
  const auto refused = FindListedDisk(lists_, Path("disks/link"), "disks/x");
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("symbolic link"), std::string::npos) << refused.error().message;
}

TEST_F(ListedOpenTest, TheListedFolderItselfMayBeALink) {
  Link("disks", "alias");
  auto lists = PathLists::Parse("files " + Path("alias"), "test", PathLists());
  ASSERT_TRUE(lists.ok());
  lists_ = *lists;
  EXPECT_EQ(Find("alias/a"), "disks/a");
}

TEST_F(ListedOpenTest, ADeviceGoesByAListedNameAlone) {
  if (!MakeDevice("dev/vm-1", 1)) GTEST_SKIP() << "mknod is not permitted here";
  ASSERT_TRUE(MakeDevice("dev/host", 2) && MakeDevice("outside/same", 1) && MakeDevice("disks/planted", 2));
  Link("dev/vm-1", "outside/link");
  Link("dev/host", "dev/vm-2");  // the operator's folder, the operator's word
  Link("dev/vm-1", "disks/link");
  EXPECT_EQ(Find("dev/vm-1"), "device 1");
  EXPECT_EQ(Find("dev/vm-2"), "device 2");
  for (const char* name : {"outside/same", "outside/link", "disks/link"}) {
    EXPECT_EQ(Find(name), "invalid_argument") << name;
    const auto fd = FindListedDisk(lists_, Path(name), "disks/x");
    EXPECT_NE(fd.error().message.find(Path("dev/vm-1")), std::string::npos) << fd.error().message;
  }
  fs::remove(Path("dev/vm-2"));
  EXPECT_EQ(Find("dev/host"), "invalid_argument");
  EXPECT_EQ(Find("disks/planted"), "invalid_argument") << "a node below a folder of files is no file";
}

TEST_F(ListedOpenTest, WhatIsFoundStaysTheSameWhateverBecomesOfThePath) {
  const auto fd = FindListedDisk(lists_, Path("disks/a"), "disks/x");
  ASSERT_TRUE(fd.ok());
  fs::remove(Path("disks/a"));
  Link("outside/secret", "disks/a");
  EXPECT_EQ(ContentOf(ReopenAs(*fd, O_RDONLY)), "disks/a");
}

TEST_F(ListedOpenTest, KeysAreARegularFileOfTheirList) {
  const auto keys = OpenListedKeys(lists_, Path("disks/a"), "clusters/x");
  ASSERT_TRUE(keys.ok());
  EXPECT_EQ(ContentOf(*keys), "disks/a");
  ASSERT_EQ(mkfifo(Path("disks/pipe").c_str(), 0600), 0);
  Link("outside/secret", "disks/link");
  EXPECT_EQ(OpenListedKeys(lists_, Path("disks/pipe"), "clusters/x").error().code,
            ErrorCode::kFailedPrecondition);
  EXPECT_EQ(OpenListedKeys(lists_, Path("disks/link"), "clusters/x").error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(OpenListedKeys(lists_, "/etc/shadow", "clusters/x").error().code, ErrorCode::kInvalidArgument);
}

TEST_F(ListedOpenTest, AFolderIsReachedWithoutLinksToo) {
  Link("outside", "disks/folder");
  for (const char* name : {"disks/new", "disks/deep/new"}) {
    const auto fd = OpenListedFolder(lists_, PathKind::kSocket, Path(name), "controllers/x");
    ASSERT_TRUE(fd.ok()) << fd.error().message;
    std::ofstream(PathOf(*fd) + "/new") << "made";
    EXPECT_TRUE(fs::exists(Path(name)));
  }
  for (const char* name : {"disks/folder/new", "outside/new", "disks", "disks/../outside/new"}) {
    const auto fd = OpenListedFolder(lists_, PathKind::kSocket, Path(name), "controllers/x");
    ASSERT_FALSE(fd.ok()) << name;
    EXPECT_EQ(fd.error().code, ErrorCode::kInvalidArgument) << name;
  }
  EXPECT_EQ(OpenListedFolder(lists_, PathKind::kSocket, Path("disks/none/new"), "x").error().code,
            ErrorCode::kNotFound);
}

TEST_F(ListedOpenTest, ASlashOpensEverything) {
  auto lists = PathLists::Parse("files /\nsockets /\nkeys /\ndevices /\n", "test", PathLists());
  ASSERT_TRUE(lists.ok());
  lists_ = *lists;
  EXPECT_EQ(Find("outside/secret"), "outside/secret");
  EXPECT_TRUE(OpenListedFolder(lists_, PathKind::kSocket, Path("outside/new"), "x").ok());
  if (MakeDevice("outside/any", 3)) {
    EXPECT_EQ(Find("outside/any"), "device 3");
  }
}

}  // namespace
}  // namespace cleat::listed_open_test
