// SPDX-License-Identifier: Apache-2.0
#include "base/path_lists.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "base/listed_open.h"
#include "tests/support/temp_dir.h"

namespace cleat::path_lists_test {
namespace {

PathLists Parsed(const std::string& text) {
  auto lists = PathLists::Parse(text, "paths.conf", PathLists::Defaults("/var/lib/cleat", "/run/cleat"));
  EXPECT_TRUE(lists.ok()) << lists.error().message;
  return lists.ok() ? std::move(*lists) : PathLists();
}

std::string WhyNot(const std::string& text) {
  const auto lists = PathLists::Parse(text, "paths.conf", PathLists());
  return lists.ok() ? "" : lists.error().message;
}

TEST(PathListsTest, WithoutAFileThereAreDefaults) {
  const PathLists lists = Parsed("");
  EXPECT_EQ(lists.Text(),
            "files /var/lib/cleat/disks\n"
            "devices /dev/cleat/*\ndevices /dev/disk/by-partlabel/cleat-*\ndevices /dev/mapper/cleat-*\n"
            "sockets /run/cleat-guests\nsockets /run/libvirt/qemu\nsockets /var/lib/libvirt/qemu\n"
            "keys /etc/ceph\nkeys /var/lib/cleat/keys\n");
  EXPECT_FALSE(lists.EntryOf(PathKind::kFile, "/var/lib/cleat/cleat.db"));
  EXPECT_FALSE(lists.EntryOf(PathKind::kDevice, "/dev/sda"));
  const auto missing = PathLists::Read("/nowhere/paths.conf", lists);
  ASSERT_TRUE(missing.ok());
  EXPECT_EQ(*missing, lists);
}

TEST(PathListsTest, AKindThatIsNamedHasItsLinesAlone) {
  const PathLists lists = Parsed(
      "# who may reach what\n"
      "files /srv/vms  # of everybody\n"
      "\tfiles\t/srv/vms/old\n"
      "files /srv/vms\n"
      "\r\n"
      "devices none\n");
  EXPECT_EQ(lists.entries(PathKind::kFile), (std::vector<std::string>{"/srv/vms", "/srv/vms/old"}));
  EXPECT_TRUE(lists.entries(PathKind::kDevice).empty());
  EXPECT_EQ(lists.entries(PathKind::kSocket).size(), 3U) << "the defaults";
  EXPECT_EQ(Parsed(lists.Text()), lists);
}

TEST(PathListsTest, AnEntryCoversWhatIsBelowIt) {
  const PathLists lists = Parsed("files /srv/vms\nfiles /srv/vms/old\ndevices /dev/mapper/vm-*\nsockets /\n");
  EXPECT_EQ(lists.EntryOf(PathKind::kFile, "/srv/vms/a"), "/srv/vms");
  EXPECT_EQ(lists.EntryOf(PathKind::kFile, "/srv/vms/old/a/b"), "/srv/vms/old");
  EXPECT_EQ(lists.EntryOf(PathKind::kDevice, "/dev/mapper/vm-1"), "/dev/mapper/vm-*");
  EXPECT_EQ(lists.EntryOf(PathKind::kSocket, "/any/where"), "/");
  EXPECT_TRUE(lists.IsOpen(PathKind::kSocket));
  EXPECT_FALSE(lists.IsOpen(PathKind::kFile));
  for (const char* path : {"/srv/vms", "/srv/vmsx/a", "/srv", "srv/vms/a", "", "/",
                           "/srv/vms/../../etc/shadow", "/srv/vms//a", "/srv/vms/./a", "/srv/vms/a/"}) {
    EXPECT_FALSE(lists.EntryOf(PathKind::kFile, path)) << path;
  }
  EXPECT_FALSE(lists.EntryOf(PathKind::kFile, std::string_view("/srv/vms/a\0b", 12)));
  for (const char* path : {"/dev/mapper/vm-1/2", "/dev/mapper/other", "/dev/mapper/x/vm-1"}) {
    EXPECT_FALSE(lists.EntryOf(PathKind::kDevice, path)) << path;
  }
}

TEST(PathListsTest, AWrongLineIsNamed) {
  EXPECT_EQ(WhyNot("files /a\nfile /b\n"),
            "paths.conf, line 2: 'file' is none of files, devices, sockets and keys");
  for (const char* entry : {"", "a", "/a/../b", "/a/", "/a//b", "/a\tb/../c"}) {
    EXPECT_NE(WhyNot(std::string("files ") + entry).find("line 1: '"), std::string::npos) << entry;
  }
  std::string many;
  for (size_t i = 0; i <= PathLists::kEntriesMax; ++i) many += "keys /" + std::to_string(i) + "\n";
  EXPECT_EQ(WhyNot(many), "paths.conf, line 65: more than 64 lines of keys");
}

TEST(PathListsTest, AFileThatIsTooLargeOrNotReadableIsAnError) {
  const test::TempDir folder;
  std::ofstream(folder / "paths.conf") << std::string(PathLists::kFileBytesMax + 1, '#');
  const auto large = PathLists::Read(folder / "paths.conf", PathLists());
  ASSERT_FALSE(large.ok());
  EXPECT_NE(large.error().message.find("more than 49152 bytes"), std::string::npos);
  EXPECT_FALSE(PathLists::Read(folder.path(), PathLists()).ok());
}

}  // namespace
}  // namespace cleat::path_lists_test
