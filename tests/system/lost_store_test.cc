// SPDX-License-Identifier: Apache-2.0
// cleatd's store is lost, and a pool of its host is made anew from its drive, with what a guest has written. Costs 3 s.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "expect_ok.h"
#include "host.h"
#include "peer.h"
#include "pool/layout.h"
#include "tests/support/paths.h"

namespace cleat::system_test::lost_store_test {
namespace {

constexpr uint64_t kExtents = 6;
constexpr uint64_t kDiskBytes = 2 * pool::kExtentBytesMin;
constexpr uint64_t kBlockBytes = 4096;
constexpr uint64_t kStrideBytes = uint64_t{16} << 20;

struct Said {
  int status;
  std::string text;
};

Said Ctl(const Host& host, const std::string& arguments) {
  const std::string command = fmt::format("CLEAT_ADDRESS={} {} {} 2>&1 </dev/null", host.address(),
                                          test::Program("cleatctl"), arguments);
  FILE* const pipe = popen(command.c_str(), "r");  // NOLINT(cert-env33-c)
  Said said{};
  char piece[4096];
  while (const size_t bytes = fread(piece, 1, sizeof(piece), pipe)) said.text.append(piece, bytes);
  const int status = pclose(pipe);
  said.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return said;
}

std::vector<uint8_t> BlockOf(uint64_t at) {
  return std::vector<uint8_t>(kBlockBytes, static_cast<uint8_t>(1 + at / kStrideBytes));
}

// Blocks at both ends of the disk, and between.
Status WriteAll(Peer& peer) {
  for (uint64_t at = 0; at < kDiskBytes; at += kStrideBytes)
    CLEAT_TRY(peer.driver().WriteSync(at, BlockOf(at)));
  return Ok{};
}

Status ReadAll(Peer& peer) {
  std::vector<uint8_t> data(kBlockBytes);
  for (uint64_t at = 0; at < kDiskBytes; at += kStrideBytes) {
    CLEAT_TRY(peer.driver().ReadSync(at, data));
    EXPECT_EQ(data, BlockOf(at)) << "at " << at;
  }
  return Ok{};
}

void LoseStore(Host& host) {
  host.KillCleatd();
  std::filesystem::remove_all(host.Path("state"));
  std::filesystem::create_directory(host.Path("state"));
  host.GiveAway(host.Path("state"));
  host.StartCleatd();
  ASSERT_TRUE(host.WaitEngine());
}

TEST(LostStore, APoolIsMadeAnewFromItsDriveWithItsGuestsData) {
  Host host;
  ASSERT_TRUE(host.ok());
  const std::string drive = host.MakeFile("drive.img", pool::kDataOffset + kExtents * pool::kExtentBytesMin);
  ASSERT_OK(host.api().CreatePool("p", drive, pool::kExtentBytesMin));
  ASSERT_TRUE(host.api().WaitUntil([](const Model& model) {
    const auto pool = model.pools.find("pools/p");
    return pool != model.pools.end() && pool->second.status().to_erase_bytes() == 0;
  }));
  ASSERT_TRUE(host.AttachNew("root", PoolDisk(kDiskBytes, "p")));
  {
    auto peer = Peer::Start(host.SocketPath("root"));
    ASSERT_OK(peer);
    ASSERT_OK(WriteAll(**peer));
    ASSERT_NO_FATAL_FAILURE(LoseStore(host));

    // The guest goes on, and as long as it does, its disk is nobody else's.
    EXPECT_OK(ReadAll(**peer));
    const Said scanned = Ctl(host, "pool scan --device " + drive);
    EXPECT_EQ(scanned.status, 0) << scanned.text;
    EXPECT_NE(scanned.text.find("pool create p --device " + drive + " --from-drive"), std::string::npos)
        << scanned.text;
    const Said refused = Ctl(host, "pool create p --from-drive --device " + drive);
    EXPECT_NE(refused.status, 0);
    EXPECT_NE(refused.text.find("restart that engine"), std::string::npos) << refused.text;
    EXPECT_OK(WriteAll(**peer));
    EXPECT_OK((*peer)->ShutDown());
  }
  host.RestartEngine();
  const Said made = Ctl(host, "pool create p --from-drive --wait --device " + drive);
  ASSERT_EQ(made.status, 0) << made.text;
  ASSERT_OK(host.api().CreateController("root", BlkController(host.SocketPath("root"))));
  ASSERT_OK(host.api().Attach("root", "root"));
  ASSERT_OK(host.api().WaitReady("controllers/root/attachments/root"));
  auto peer = Peer::Start(host.SocketPath("root"));
  ASSERT_OK(peer);
  EXPECT_OK(ReadAll(**peer));
  EXPECT_OK((*peer)->ShutDown());
}

}  // namespace
}  // namespace cleat::system_test::lost_store_test
