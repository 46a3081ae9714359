// SPDX-License-Identifier: Apache-2.0
// Looks for a disk's key, and for the key-encryption key, wherever they must not be: logs, answers, errors, the store, and
// what cores of the engine and of cleatd would hold - which leaves none, besides. With the locked arena switched off, and
// with freed memory not wiped, they are found, which shows that the search finds them.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "base/random.h"
#include "expect_ok.h"
#include "host.h"
#include "io_load.h"
#include "peer.h"
#include "tests/unit/keys/core_image.h"

namespace cleat::system_test::key_leak_test {
namespace {

constexpr int kDisksWithoutWiping = 32;
constexpr uint64_t kDiskBytes = uint64_t{16} << 20;

std::string RandomKey() {
  Random random(4711);
  std::string key;
  for (int i = 0; i < 64; ++i) key += static_cast<char>(random.Next());
  return key;
}

std::string Hex(const std::string& bytes) {
  std::string hex;
  for (const char c : bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    hex += kDigits[static_cast<unsigned char>(c) >> 4];
    hex += kDigits[static_cast<unsigned char>(c) & 15];
  }
  return hex;
}

// Any part of 16 bytes, as it is or in hexadecimal digits.
bool Holds(const std::string& text, const std::string& key) {
  for (size_t part = 0; part + 16 <= key.size(); part += 16) {
    const std::string bytes = key.substr(part, 16);
    if (text.find(bytes) != std::string::npos || text.find(Hex(bytes)) != std::string::npos) return true;
  }
  return false;
}

std::string ReadFile(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

std::string FromHex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

v1::DiskSpec EncryptedDisk(const Host& host, const std::string& key, const std::string& file = "disk.img") {
  v1::DiskSpec spec = FileDisk(kDiskBytes, host.Path(file));
  spec.mutable_encryption()->set_plain_key(key);
  return spec;
}

// Makes the disk, uses it; everything that anybody was answered.
std::string Use(Host& host, const std::string& key) {
  std::string answers;
  Api api(host.address());  // a caller who hangs up afterwards
  const auto add = [&](const auto& reply) {
    answers += reply.value.SerializeAsString() + reply.message() + reply.status.error_details();
  };
  add(api.CreateDisk("d", EncryptedDisk(host, key)));
  add(api.CreateDisk("d", EncryptedDisk(host, key)));
  add(api.CreateDisk("d", EncryptedDisk(host, key.substr(1) + "x")));  // another one
  add(api.CreateDisk("e", EncryptedDisk(host, key.substr(0, 63))));    // too short
  auto units = EncryptedDisk(host, key);
  units.mutable_encryption()->set_data_unit_bytes(4096);
  add(api.CreateDisk("e", units));
  add(api.CreateController("d", BlkController(host.SocketPath("d"))));
  add(api.Attach("d", "d"));
  v1::ApplyHostRequest apply;
  v1::Disk& declared = *apply.add_disks();
  declared.set_name("disks/d");
  *declared.mutable_spec() = EncryptedDisk(host, key);
  declared.mutable_spec()->set_serial("another");
  grpc::ClientContext context;
  v1::ApplyHostResponse applied;
  const grpc::Status status = api.stub().ApplyHost(&context, apply, &applied);
  answers += applied.SerializeAsString() + status.error_message() + status.error_details();
  auto peer = Peer::Start(host.SocketPath("d"));
  EXPECT_OK(peer);
  perf::StampedBlocks blocks(kDiskBytes, 512, 1, false);
  IoLoad load((*peer)->driver(), blocks);
  EXPECT_OK(load.Run(500));
  Model last;
  api.WaitUntil([](const Model&) { return true; }, &last);
  for (const auto& [name, disk] : last.disks) answers += disk.SerializeAsString();
  return answers;
}

// gRPC reads of a connection into a buffer that lives until it is full, or the connection ends: until then the last
// few messages are in there. Whoever gave the key has hung up; cleatd hears of it a little later.
size_t KeyPartsInCleatd(Host& host, const std::string& secret) {
  const perf::Deadline deadline(kWaitTimeoutNs);
  for (;;) {
    const size_t parts = test::CountKeyParts(host.cleatd().pid(), secret);
    if (parts == 0 || deadline.passed()) return parts;
    poll(nullptr, 0, 10);
  }
}

TEST(KeyLeakTest, NoKeyIsInLogsAnswersErrorsTheStoreAndCores) {
  Host host({.with_keys = true, .log_level = "trace"});
  ASSERT_TRUE(host.ok());
  const std::string key = RandomKey();
  const std::string kek = FromHex(ReadFile(host.Path("state/kek")).substr(0, 64));
  ASSERT_EQ(kek.size(), 32U);
  ASSERT_TRUE(Holds(ReadFile(host.Path("state/kek")), kek)) << "the search finds what is there";
  const std::string answers = Use(host, key);
  for (const std::string& secret : {key, kek}) {
    EXPECT_FALSE(Holds(answers, secret));
    EXPECT_FALSE(Holds(host.cleatd_log(), secret));
    EXPECT_FALSE(Holds(host.engine_log(), secret));
    for (const auto& file : std::filesystem::directory_iterator(host.Path("state"))) {
      if (file.path().filename() == "kek") continue;
      EXPECT_FALSE(Holds(ReadFile(file.path()), secret)) << file.path();
    }
    EXPECT_EQ(test::CountKeyParts(host.engine().pid(), secret), 0U);
    if (!kSanitized) {
      EXPECT_EQ(KeyPartsInCleatd(host, secret), 0U);
    }
  }
}

TEST(KeyLeakTest, WithoutTheArenaTheEnginesCoreWouldHoldTheKey) {
  Host host({.with_keys = true, .engine_arguments = {"--no-secret-arena"}});
  ASSERT_TRUE(host.ok());
  const std::string key = RandomKey();
  (void)Use(host, key);
  EXPECT_GT(test::CountKeyParts(host.engine().pid(), key), 0U);
}

TEST(KeyLeakTest, WithoutWipingWhatIsFreedCleatdsMemoryHoldsTheKey) {
  if (kSanitized) GTEST_SKIP() << "SKIPPED: a sanitizer has a malloc of its own, which is not wiped";
  Host host({.with_engine = false, .cleatd_arguments = {"--no-wiping-free"}});
  ASSERT_TRUE(host.ok());
  // What was freed may be used again at once: of the key's many ways through cleatd, one that left a trace is enough.
  const std::string key = RandomKey();
  size_t found = 0;
  for (int i = 0; i < kDisksWithoutWiping && found == 0; ++i) {
    const std::string name = "d" + std::to_string(i);
    {
      Api api(host.address());
      ASSERT_OK(api.CreateDisk(name, EncryptedDisk(host, key, name + ".img")));
    }
    found = test::CountKeyParts(host.cleatd().pid(), key);
  }
  EXPECT_GT(found, 0U);
}

TEST(KeyLeakTest, CleatdLeavesNoCore) {
  rlimit before{};
  getrlimit(RLIMIT_CORE, &before);
  const rlimit all{before.rlim_max, before.rlim_max};
  setrlimit(RLIMIT_CORE, &all);
  Host host({.with_engine = false});
  setrlimit(RLIMIT_CORE, &before);
  ASSERT_TRUE(host.ok());
  // Of a process that is not dumpable, these are root's (proc(5)), and only root may look; so is a core.
  ASSERT_OK(host.api().CreateDisk("d", EncryptedDisk(host, RandomKey())));
  ASSERT_EQ(kill(host.cleatd().pid(), SIGABRT), 0);
  siginfo_t how{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(host.cleatd().pid()), &how, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(how.si_code, CLD_KILLED) << "and not CLD_DUMPED";
  host.KillCleatd();
}

}  // namespace
}  // namespace cleat::system_test::key_leak_test
