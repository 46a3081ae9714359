// SPDX-License-Identifier: Apache-2.0
#include "modules/nvme/namespace_node.h"

#include <gtest/gtest.h>
#include <sys/sysmacros.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/temp_dir.h"

namespace cleat::modules::namespace_node_test {
namespace {

namespace fs = std::filesystem;

// What the kernel shows of a drive, as far as it is looked at.
class Sysfs {
 public:
  // A device in the folder `parent`, of which "device" leads to `owner`; both below "devices".
  void Add(const std::string& parent, const std::string& name, const std::string& owner) {
    const fs::path folder = root_ / "devices" / parent / name;
    fs::create_directories(folder / "queue");
    fs::create_directories(root_ / "devices" / owner);
    fs::create_directory_symlink(root_ / "devices" / owner, folder / "device");
  }
  void AddBlock(const std::string& parent, const std::string& name, const std::string& owner,
                const std::string& number) {
    Add(parent, name, owner);
    Link("dev/block/" + number, parent + "/" + name);
  }
  void AddGeneric(const std::string& parent, const std::string& name, const std::string& owner,
                  const std::string& number) {
    Add(parent, name, owner);
    std::ofstream(root_ / "devices" / parent / name / "dev") << number << "\n";
    Link("class/nvme-generic/" + name, parent + "/" + name);
  }
  void MakePartition(const std::string& device) {
    std::ofstream(root_ / "devices" / device / "partition") << "1\n";
  }
  std::string path() const { return root_; }

 private:
  void Link(const std::string& from, const std::string& device) {
    fs::create_directories((root_ / from).parent_path());
    fs::create_directory_symlink(root_ / "devices" / device, root_ / from);
  }
  test::TempDir dir_;
  const fs::path root_ = dir_.path();
};

std::string WhyNot(const Sysfs& sysfs) {
  const auto found = FindNamespace(makedev(259, 0), sysfs.path());
  if (!found) return found.error().message;
  return found.value() ? "found" : "none";
}

TEST(FindNamespace, HasTheNodeForCommandsBesideTheBlockDevice) {
  Sysfs sysfs;
  sysfs.AddBlock("pci/nvme0", "nvme0n1", "pci/nvme0", "259:0");
  sysfs.AddGeneric("pci/nvme0", "ng0n1", "pci/nvme0", "238:7");
  const auto found = FindNamespace(makedev(259, 0), sysfs.path());
  ASSERT_TRUE(found.ok() && found.value());
  EXPECT_EQ(found.value()->name, "ng0n1");
  EXPECT_EQ(found.value()->device, makedev(238, 7));
  EXPECT_TRUE(fs::exists(found.value()->queue)) << found.value()->queue;
  EXPECT_FALSE(found.value()->multipath);
  Sysfs several;
  several.AddBlock("virtual/nvme-subsys0", "nvme0n1", "virtual/nvme-subsys0", "259:0");
  several.AddGeneric("virtual/nvme-subsys0", "ng0n1", "virtual/nvme-subsys0", "238:7");
  const auto head = FindNamespace(makedev(259, 0), several.path());
  ASSERT_TRUE(head.ok() && head.value());
  EXPECT_TRUE(head.value()->multipath);
}

TEST(FindNamespace, OtherDevicesAndPartsOfNamespacesAreNone) {
  Sysfs sysfs;
  EXPECT_EQ(WhyNot(sysfs), "none") << "a device that is gone";
  sysfs.AddBlock("virtual", "loop0", "virtual", "259:0");
  EXPECT_EQ(WhyNot(sysfs), "none");
  Sysfs partition;
  partition.AddBlock("pci/nvme0/nvme0n1", "nvme0n1p1", "pci/nvme0", "259:0");
  partition.MakePartition("pci/nvme0/nvme0n1/nvme0n1p1");
  EXPECT_EQ(WhyNot(partition), "none");
}

TEST(FindNamespace, SaysWhyANamespaceIsGivenNoCommands) {
  Sysfs old;
  old.AddBlock("pci/nvme0", "nvme0n1", "pci/nvme0", "259:0");
  EXPECT_NE(WhyNot(old).find("Linux 5.19"), std::string::npos) << WhyNot(old);
  // Another drive's node of that name would get this disk's commands.
  old.AddGeneric("pci/nvme1", "ng0n1", "pci/nvme1", "238:7");
  EXPECT_NE(WhyNot(old).find("no node"), std::string::npos) << WhyNot(old);
}

}  // namespace
}  // namespace cleat::modules::namespace_node_test
