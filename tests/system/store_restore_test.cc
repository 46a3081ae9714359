// SPDX-License-Identifier: Apache-2.0
// Back to a backup under I/O: guests notice nothing, neither those that the backup knows nor those that it does not.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <memory>
#include <string>

#include "expect_ok.h"
#include "host.h"
#include "loaded_vm.h"
#include "tests/support/paths.h"

namespace cleat::system_test::store_restore_test {
namespace {

constexpr uint64_t kDiskBytes = uint64_t{32} << 20;
constexpr uint64_t kRequests = kSanitized ? 200 : 500;

// What it printed, errors too; it has to succeed.
std::string Ctl(const Host& host, const std::string& arguments) {
  const std::string command = fmt::format("CLEAT_ADDRESS={} {} {} 2>&1 </dev/null", host.address(),
                                          test::Program("cleatctl"), arguments);
  FILE* const pipe = popen(command.c_str(), "r");  // NOLINT(cert-env33-c)
  std::string said;
  char piece[4096];
  while (const size_t bytes = fread(piece, 1, sizeof(piece), pipe)) said.append(piece, bytes);
  const int status = pclose(pipe);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << arguments << ": " << said;
  return said;
}

class StoreRestore : public ::testing::Test {
 protected:
  std::unique_ptr<LoadedVm> NewVm(const std::string& id, const v1::DiskSpec& spec, uint64_t number) {
    if (!host_.AttachNew(id, spec)) return nullptr;
    auto peer = Peer::Start(host_.SocketPath(id));
    EXPECT_OK(peer);
    if (!peer.ok() || !host_.WaitController(id, v1::CONTROLLER_STATE_READY)) return nullptr;
    auto vm = std::make_unique<LoadedVm>(std::move(*peer), kDiskBytes, number);
    vm->StartLoad(number);
    return vm;
  }
  Host host_;
};

TEST_F(StoreRestore, UnderIoNoGuestNoticesIt) {
  ASSERT_TRUE(host_.ok());
  const auto known = NewVm("known", FileDisk(kDiskBytes, host_.Path("known.img")), 1);
  ASSERT_NE(known, nullptr);
  const std::string backup = host_.Path("backup.db");
  Ctl(host_, "store backup " + backup);
  const auto later = NewVm("later", FileDisk(kDiskBytes, host_.Path("later.img")), 2);
  const auto memory = NewVm("memory", MemoryDisk(kDiskBytes), 3);
  ASSERT_TRUE(later != nullptr && memory != nullptr);
  for (LoadedVm* vm : {known.get(), later.get(), memory.get()})
    ASSERT_TRUE(vm->load->WaitProgress(kRequests));

  const std::string said = Ctl(host_, "store restore --yes " + backup);
  EXPECT_NE(said.find("left alone in engines/engine-0: controllers/later, controllers/memory"),
            std::string::npos)
      << said;
  EXPECT_TRUE(host_.cleatd().Running());
  EXPECT_FALSE(host_.api().GetController("later").ok()) << "the restored store does not know it";
  EXPECT_TRUE(host_.WaitController("known", v1::CONTROLLER_STATE_READY));
  for (LoadedVm* vm : {known.get(), later.get(), memory.get()})
    EXPECT_TRUE(vm->load->WaitProgress(kRequests));
  // Changes are taken, also while that goes on.
  ASSERT_TRUE(host_.AttachNew("new", MemoryDisk(kDiskBytes)));
  for (LoadedVm* vm : {known.get(), later.get(), memory.get()}) {
    EXPECT_TRUE(vm->load->WaitProgress(kRequests));
    EXPECT_OK(vm->load->Stop());
    EXPECT_OK(vm->load->Verify());
    EXPECT_FALSE(vm->peer->frontend().PeerGone());
  }
  EXPECT_EQ(host_.CountInEngineLog(": detached from"), 0U);

  // What was left alone goes by its name.
  Ctl(host_, "controller delete later");
  EXPECT_TRUE(host_.WaitEngineLog("disks/later: detached from"));
  EXPECT_EQ(host_.CountInEngineLog("disks/memory: detached from"), 0U);
  // Or is the store's again, with what the guest has written.
  EXPECT_OK(host_.api().CreateDisk("memory", MemoryDisk(kDiskBytes)));
  EXPECT_OK(host_.api().CreateController("memory", BlkController(host_.SocketPath("memory"))));
  EXPECT_OK(host_.api().Attach("memory", "memory"));
  EXPECT_OK(host_.api().WaitReady("controllers/memory/attachments/memory"));
  EXPECT_TRUE(host_.api().WaitUntil([](const Model& model) {
    const auto engine = model.engines.find(kEngineName);
    return engine != model.engines.end() && engine->second.status().left_alone_total() == 0;
  }));
}

}  // namespace
}  // namespace cleat::system_test::store_restore_test
