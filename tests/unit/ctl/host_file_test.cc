// SPDX-License-Identifier: Apache-2.0
// YAML in both directions, and the file of `apply`.
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include "ctl/ceph_key_file.h"
#include "ctl/host_file.h"
#include "ctl/output.h"
#include "ctl/yaml.h"

namespace cleat::ctl::host_file_test {
namespace {

using google::protobuf::util::MessageDifferencer;

constexpr const char* kHost = R"(# a host
disks:
- name: disks/root
  labels: {vm: "1", note: 12}
  spec:
    size_bytes: 10G
    logical_block_bytes: 4K
    access_mode: one_writer
    file: {path: /var/lib/vms/root.img, create: true}
- name: disks/scratch
  spec:
    sizeBytes: "536870912"
    memory:
controllers:
- name: controllers/vm1
  spec: {type: SCSI, socket_path: /run/vm1.sock, queues: 4, socket_mode: SOCKET_MODE_SERVER}
- name: controllers/db
  spec:
    type: nvmf
    exported:
      addresses: ["10.0.0.1:4420", "[::]"]
      hosts:
      - nqn: nqn.2014-08.org.example:host1
      - {nqn: "nqn.2014-08.org.example:host2"}
---
attachments:
- name: controllers/vm1/attachments/root
  spec: {disk: disks/root, target: 0, read_only: false}
)";

std::string ErrorOf(const std::string& text) {
  const auto request = ParseHostFile(text, "host.yaml");
  return request.ok() ? "no error" : request.error().message;
}

TEST(HostFileTest, SaysWhatTheHostShouldHave) {
  const auto request = ParseHostFile(kHost, "host.yaml");
  ASSERT_TRUE(request.ok()) << request.error().message;
  ASSERT_EQ(request->disks_size(), 2);
  const v1::Disk& root = request->disks(0);
  EXPECT_EQ(root.name(), "disks/root");
  EXPECT_EQ(root.labels().at("vm"), "1");
  EXPECT_EQ(root.labels().at("note"), "12");
  EXPECT_EQ(root.spec().size_bytes(), 10ULL << 30);
  EXPECT_EQ(root.spec().logical_block_bytes(), 4096U);
  EXPECT_EQ(root.spec().access_mode(), v1::ACCESS_MODE_ONE_WRITER);
  EXPECT_TRUE(root.spec().file().create());
  EXPECT_EQ(request->disks(1).spec().size_bytes(), 512U << 20);
  EXPECT_TRUE(request->disks(1).spec().has_memory());
  ASSERT_EQ(request->controllers_size(), 2);
  EXPECT_EQ(request->controllers(0).spec().type(), v1::CONTROLLER_TYPE_SCSI);
  EXPECT_EQ(request->controllers(0).spec().socket_mode(), v1::SOCKET_MODE_SERVER);
  EXPECT_EQ(request->controllers(1).spec().type(), v1::CONTROLLER_TYPE_NVMF);
  const v1::ExportSpec& exported = request->controllers(1).spec().exported();
  EXPECT_EQ(exported.addresses(1), "[::]");
  ASSERT_EQ(exported.hosts_size(), 2);
  EXPECT_EQ(exported.hosts(1).nqn(), "nqn.2014-08.org.example:host2");
  ASSERT_EQ(request->attachments_size(), 1);
  EXPECT_TRUE(request->attachments(0).spec().has_target());
}

TEST(HostFileTest, WhatIsPrintedCanBeReadBack) {
  const auto request = ParseHostFile(kHost, "host.yaml");
  ASSERT_TRUE(request.ok());
  v1::ListDisksResponse list;
  *list.mutable_disks() = request->disks();
  v1::Disk& odd = *list.add_disks();
  odd.set_name("yes");
  odd.mutable_spec()->set_serial("1e5 #: \"\\\n\xc3\xbc\t{[&*!|>'%@`");
  odd.mutable_spec()->set_wwn("0x3000000000000001");
  (*odd.mutable_labels())["null"] = "";
  (*odd.mutable_labels())["a.b/c"] = "- no list: ~";
  odd.mutable_status()->set_message("true");
  odd.set_revision(UINT64_MAX);
  for (const std::string& text : {ToJson(list, true), ToJson(list, false), ToYaml(list)}) {
    v1::ListDisksResponse again;
    const auto status = MergeYaml(text, "text", "", again);
    ASSERT_TRUE(status.ok()) << status.error().message << text;
    EXPECT_TRUE(MessageDifferencer::Equals(list, again)) << text;
    EXPECT_TRUE(ParseHostFile(text, "text").ok()) << text;
  }
}

TEST(HostFileTest, LimitsAndKeys) {
  const auto request = ParseHostFile(
      "groups:\n- name: groups/vm1\n  spec:\n    limits:\n      iops: {per_second: 6000, burst_per_second: "
      "12000, "
      "burst_duration: 30s}\n      bytes: {per_second: 100M, burst_per_second: 200M, burst_duration: "
      "1500ms}\n"
      "disks:\n- name: disks/a\n  spec: {encryption: {cipher: AES_128_XTS, plain_key: AAECAw==}}\n",
      "host.yaml");
  ASSERT_TRUE(request.ok()) << request.error().message;
  const v1::Limits& limits = request->groups(0).spec().limits();
  EXPECT_EQ(limits.iops().burst_duration().seconds(), 30);
  EXPECT_EQ(limits.bytes().per_second(), 100ULL << 20);
  EXPECT_EQ(limits.bytes().burst_duration().nanos(), 500'000'000);
  EXPECT_EQ(request->disks(0).spec().encryption().plain_key(), std::string("\x00\x01\x02\x03", 4));
  v1::ListGroupsResponse list;
  *list.mutable_groups() = request->groups();
  v1::ListGroupsResponse again;
  const auto read = MergeYaml(ToYaml(list), "text", "", again);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_TRUE(MessageDifferencer::Equals(list, again)) << ToYaml(list);
  const auto bad = ParseHostFile("disks:\n- spec: {encryption: {plain_key: 'se cret'}}\n", "host.yaml");
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.error().message.find("cret"), std::string::npos) << "a key is not shown";
}

TEST(HostFileTest, ClustersAndTheirDisks) {
  const auto request = ParseHostFile(
      "clusters:\n- name: clusters/ceph1\n  spec: {monitors: '10.0.0.1,10.0.0.2', user: cleat, plain_key: "
      "AQAAAQIDBAUGBxAAQEFCQ0RFRkdISUpLTE1OTw==, connect_timeout: 5s}\n"
      "disks:\n- name: disks/db\n  spec: {size_bytes: 100G, rbd: {cluster: clusters/ceph1, pool: vms, "
      "name_space: a, image: db, snapshot: then}}\n",
      "host.yaml");
  ASSERT_TRUE(request.ok()) << request.error().message;
  EXPECT_EQ(request->clusters(0).spec().monitors(), "10.0.0.1,10.0.0.2");
  EXPECT_EQ(request->clusters(0).spec().plain_key().size(), 40U);
  EXPECT_EQ(request->clusters(0).spec().connect_timeout().seconds(), 5);
  EXPECT_EQ(request->disks(0).spec().rbd().image(), "db");
  v1::ListClustersResponse list;
  *list.mutable_clusters() = request->clusters();
  v1::ListClustersResponse again;
  const auto read = MergeYaml(ToYaml(list), "text", "", again);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_TRUE(MessageDifferencer::Equals(list, again)) << ToYaml(list);
}

TEST(CephKeyFileTest, AKeyringOrTheKeyAlone) {
  EXPECT_EQ(FindCephKey("AQ==\n", "cleat"), "AQ==");
  const char* keyring =
      "[client.admin]\n\tkey = AA==\n[client.cleat]\n\tkey = BB==\n\tcaps mon = \"profile rbd\"\n";
  EXPECT_EQ(FindCephKey(keyring, "cleat"), "BB==");
  EXPECT_EQ(FindCephKey(keyring, "admin"), "AA==");
  EXPECT_EQ(FindCephKey(keyring, "cle"), "");
  EXPECT_EQ(FindCephKey("", "cleat"), "");
}

TEST(HostFileTest, YamlKeepsStringsStringsAndIsReadable) {
  v1::Disk disk;
  disk.set_name("disks/root");
  disk.mutable_spec()->set_size_bytes(4096);
  disk.mutable_spec()->mutable_null();
  const std::string yaml = ToYaml(disk);
  EXPECT_NE(yaml.find("name: disks/root\n"), std::string::npos) << yaml;
  EXPECT_NE(yaml.find("size_bytes: \"4096\"\n"), std::string::npos) << yaml;
  EXPECT_NE(yaml.find("logical_block_bytes: 0\n"), std::string::npos) << yaml;
  EXPECT_NE(yaml.find("  \"null\":\n    skip_reads: false\n"), std::string::npos) << yaml;
  EXPECT_NE(yaml.find("labels: {}\n"), std::string::npos) << yaml;
}

TEST(HostFileTest, JsonWithTabsIsRead) {
  const auto request = ParseHostFile("{\n\t\"disks\": [\n\t\t{\"name\": \"disks/a\"}\n\t]\n}\n", "host.json");
  ASSERT_TRUE(request.ok()) << request.error().message;
  EXPECT_EQ(request->disks_size(), 1);
}

TEST(HostFileTest, NothingIsNothing) {
  for (const char* text : {"", "# only a comment\n", "---\n", "disks:\n", "disks: []\n", "{}"}) {
    const auto request = ParseHostFile(text, "host.yaml");
    ASSERT_TRUE(request.ok()) << request.error().message;
    EXPECT_EQ(request->disks_size(), 0);
  }
}

TEST(HostFileTest, AnErrorHasTheLineTheFieldAndTheCause) {
  const std::pair<const char*, const char*> cases[] = {
      {"disks:\n- name: disks/a\n  spec:\n    size_bytes: 10Q\n",
       "host.yaml:4: disks[0].spec.size_bytes: '10Q' is not a size"},
      {"disks:\n- spec: {sise_bytes: 1}\n",
       "host.yaml:2: disks[0].spec: there is no field 'sise_bytes'. Did you mean size_bytes?"},
      {"disk: []\n", "host.yaml:1: there is no field 'disk'. Did you mean disks?"},
      {"controllers:\n- spec: {type: nvme}\n",
       "host.yaml:2: controllers[0].spec.type: 'nvme' is none of BLK, SCSI"},
      {"controllers:\n- spec: {queues: 4294967296}\n", "controllers[0].spec.queues: 4294967296 is too large"},
      {"controllers:\n- spec: {queues: four}\n", "'four' is not a whole number"},
      {"controllers:\n- spec: {queues: -1}\n", "'-1' is not a whole number"},
      {"controllers:\n- spec: {queues: [1]}\n", "queues: one value is expected here"},
      {"attachments:\n- spec: {read_only: maybe}\n", "'maybe' is neither true nor false"},
      {"disks:\n- spec: {memory: {}, null: {}}\n", "can't be together with memory"},
      {"disks:\n- name: a\n  name: b\n", "host.yaml:3: disks[0].name: is given twice"},
      {"disks: {name: a}\n", "host.yaml:1: disks: a list is expected here"},
      {"disks: [a]\n", "disks[0]: fields are expected here"},
      {"disks:\n- labels: [a]\n", "disks[0].labels: keys with values are expected here"},
      {"disks:\n- labels: {a: {b: c}}\n", "keys and values are strings"},
      {"- a\n", "host.yaml:1: fields are expected here"},
      {"disks: [\n", "not YAML"},
      {"mode: EXACT\n", "--mode"},
      {"dry_run: true\n", "--dry-run"},
      {"disks: &a [*a]\n", "host.yaml:1"},
  };
  for (const auto& [text, error] : cases)
    EXPECT_NE(ErrorOf(text).find(error), std::string::npos) << ErrorOf(text);
}

TEST(HostFileTest, DeepNestingIsAnErrorAndNoCrash) {
  EXPECT_NE(ErrorOf("disks: " + std::string(100'000, '[')), "no error");
}

TEST(HostFileTest, AFileThatCantBeReadIsNamed) {
  for (const char* path : {"/nowhere/host.yaml", "/"}) {
    const auto request = ReadHostFile(path);
    ASSERT_FALSE(request.ok());
    EXPECT_EQ(request.error().message.find(std::string(path) + ": "), 0U) << request.error().message;
  }
}

}  // namespace
}  // namespace cleat::ctl::host_file_test
