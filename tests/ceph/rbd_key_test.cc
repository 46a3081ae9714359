// SPDX-License-Identifier: Apache-2.0
// The key of a Ceph user: in nothing that a core dump of engine or cleatd would hold, whether clients connect, are connected,
// prove themselves anew or have gone; in no log, answer or store. Without the memory for keys it is found. And librados
// never needs our copy of it again.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "base/check.h"
#include "base/clock.h"
#include "keys/ceph_key.h"
#include "tests/ceph/ceph_host.h"
#include "tests/ceph/rbd_host_rig.h"
#include "tests/system/io_load.h"
#include "tests/unit/keys/core_image.h"

namespace cleat::system_test::rbd_key_test {
namespace {

constexpr char kNotWiped[] =
    "SKIPPED: a sanitizer has a malloc of its own, which does not wipe what is freed";
constexpr size_t kHeaderBytes = 12;  // of a key, before the secret: the same for all keys of an age
constexpr size_t kHeaderDigits = kHeaderBytes / 3 * 4;

std::string ReadFile(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

class CephKeyTest : public testing::Test {
 protected:
  CephKeyTest() {
    const auto decoded = keys::DecodeCephKey(key_);
    CLEAT_CHECK(decoded.ok());
    const auto bytes = decoded->bytes().subspan(kHeaderBytes);
    raw_.assign(bytes.begin(), bytes.end());
    CLEAT_CHECK(raw_.size() == 16);
  }

  // Its bytes, or a part of its text.
  size_t CountIn(std::string_view bytes) const {
    return test::CountKeyParts(bytes, raw_) + test::CountKeyParts(bytes, text_);
  }
  size_t CountInCoreOf(pid_t pid) const {
    return test::CountKeyParts(pid, raw_) + test::CountKeyParts(pid, text_);
  }
  // Whoever gave the key has hung up; cleatd hears of it a little later.
  size_t CountInCleatd(Host& host) const {
    const perf::Deadline deadline(kWaitTimeoutNs);
    for (;;) {
      const size_t parts = CountInCoreOf(host.cleatd().pid());
      if (parts == 0 || deadline.passed()) return parts;
      poll(nullptr, 0, 10);
    }
  }

  // The cluster is made known, by a caller who hangs up afterwards; everything that he was answered.
  std::string MakeCluster(Host& host) {
    Api api(host.address());
    std::string answers;
    for (const std::string& key : {key_, key_, ceph_.Key("admin"), key_.substr(4)}) {
      v1::CreateClusterRequest request;
      request.set_cluster_id("ceph");
      v1::ClusterSpec& spec = *request.mutable_cluster()->mutable_spec();
      spec.set_monitors(ceph_.Monitors());
      spec.set_user("cleat");
      spec.set_plain_key(key);
      spec.set_images_per_client(2);
      grpc::ClientContext context;
      v1::Cluster cluster;
      const grpc::Status status = api.stub().CreateCluster(&context, request, &cluster);
      answers += cluster.SerializeAsString() + status.error_message() + status.error_details();
    }
    return answers;
  }

  void AttachImage(Host& host, const std::string& id) {
    ceph_.CreateImage(id, kDiskBytes);
    ASSERT_TRUE(host.AttachNew(id, Rbd(id)));
  }
  static void UseDisk(Host& host, const std::string& id) {
    auto peer = Peer::Start(host.SocketPath(id));
    ASSERT_OK(peer);
    perf::StampedBlocks blocks(kDiskBytes, 512, 1);
    IoLoad load((*peer)->driver(), blocks);
    ASSERT_OK(load.Run(300));
    ASSERT_OK(load.Verify());
    ASSERT_OK((*peer)->ShutDown());
  }
  // The engine's client with room for one more image asks the monitor, which it has to prove itself to.
  static void AskTheMonitor(Host& host) {
    v1::DiskSpec nowhere = Rbd("image");
    nowhere.mutable_rbd()->set_pool("pond");
    ASSERT_OK(host.api().CreateDisk("nowhere", nowhere));
    ASSERT_OK(host.api().CreateController("nowhere", BlkController(host.SocketPath("nowhere"))));
    ASSERT_OK(host.api().Attach("nowhere", "nowhere"));
    EXPECT_TRUE(host.api().WaitUntil([](const Model& model) {
      const auto found = model.attachments.find("controllers/nowhere/attachments/nowhere");
      return found != model.attachments.end() &&
             found->second.status().message().find("pool pond") != std::string::npos;
    }));
    ASSERT_TRUE(host.Remove("nowhere"));
  }
  static bool ClientsAre(Host& host, uint32_t count) {
    return host.api().WaitUntil([count](const Model& model) {
      return model.engines.at(kEngineName).status().ceph().clients_total() == count;
    });
  }

  // The files from which the engine's clients read the key, as they are now.
  static std::vector<std::string> KeyFiles(Host& host) {
    std::vector<std::string> contents;
    const std::string folder = fmt::format("/proc/{}/fd", host.engine().pid());
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      std::error_code gone;
      const auto target = std::filesystem::read_symlink(entry.path(), gone);
      if (target.string().find("ceph-key") != std::string::npos) contents.push_back(ReadFile(entry.path()));
    }
    return contents;
  }

  MiniCeph& ceph_ = MiniCeph::Shared();
  const std::string key_ = ceph_.Key("cleat");
  const std::string text_ = key_.substr(kHeaderDigits);
  std::string raw_;
};

TEST_F(CephKeyTest, IsNowhereWhileClientsComeAreThereAndHaveGone) {
  if (kSanitized) GTEST_SKIP() << kNotWiped;
  Host host({.with_keys = true, .log_level = "trace"});
  ASSERT_TRUE(host.ok());
  std::string answers = MakeCluster(host);
  AttachImage(host, "k0");
  UseDisk(host, "k0");
  EXPECT_EQ(CountInCoreOf(host.engine().pid()), 0U) << "connected";
  EXPECT_EQ(CountInCleatd(host), 0U);

  // A monitor that was restarted knows no client: each proves itself again.
  kill(ceph_.Pid("mon.a"), SIGKILL);
  ceph_.Restart();
  AskTheMonitor(host);
  AttachImage(host, "k1");
  ASSERT_TRUE(ClientsAre(host, 1));
  AttachImage(host, "k2");
  ASSERT_TRUE(ClientsAre(host, 2));
  for (const char* id : {"k1", "k2"}) UseDisk(host, id);
  EXPECT_EQ(CountInCoreOf(host.engine().pid()), 0U) << "connected again";
  EXPECT_EQ(KeyFiles(host), std::vector<std::string>(2)) << "one a client, empty";

  Model last;
  host.api().WaitUntil([](const Model&) { return true; }, &last);
  for (const auto& [name, engine] : last.engines) answers += engine.SerializeAsString();
  for (const auto& [name, attachment] : last.attachments) answers += attachment.SerializeAsString();
  for (const char* id : {"k0", "k1", "k2"}) ASSERT_TRUE(host.Remove(id));
  ASSERT_TRUE(ClientsAre(host, 0));
  EXPECT_EQ(CountInCoreOf(host.engine().pid()), 0U) << "gone";
  EXPECT_EQ(CountInCleatd(host), 0U);
  EXPECT_EQ(CountIn(answers), 0U);
  EXPECT_EQ(CountIn(host.cleatd_log()), 0U);
  EXPECT_EQ(CountIn(host.engine_log()), 0U);
  for (const auto& file : std::filesystem::directory_iterator(host.Path("state"))) {
    EXPECT_EQ(CountIn(ReadFile(file.path())), 0U) << file.path();
  }
}

TEST_F(CephKeyTest, IsInNoCoreWhileItWaitsToBeUsed) {
  if (kSanitized) GTEST_SKIP() << kNotWiped;
  Host host({.with_keys = true});
  ASSERT_TRUE(host.ok());
  MakeCluster(host);
  ceph_.CreateImage("late", kDiskBytes);
  {
    const Stopped stopped(ceph_, "mon.a");
    ASSERT_OK(host.api().CreateDisk("late", Rbd("late")));
    ASSERT_OK(host.api().CreateController("late", BlkController(host.SocketPath("late"))));
    ASSERT_OK(host.api().Attach("late", "late"));
    // Busy: it connects, and the file is full.
    ASSERT_TRUE(host.api().WaitUntil([](const Model& model) {
      const auto& ceph = model.engines.at(kEngineName).status().ceph();
      return ceph.clients_size() == 1 && ceph.clients(0).has_busy();
    }));
    EXPECT_EQ(KeyFiles(host), std::vector<std::string>{key_});
    EXPECT_EQ(CountInCoreOf(host.engine().pid()), 0U);
  }
  ASSERT_OK(host.api().WaitReady("controllers/late/attachments/late"));
  EXPECT_EQ(KeyFiles(host), std::vector<std::string>(1));
  ASSERT_TRUE(host.Remove("late"));
}

TEST_F(CephKeyTest, IsInTheEnginesCoreWithoutTheMemoryForKeys) {
  Host host({.with_keys = true, .engine_arguments = {"--no-secret-arena"}});
  ASSERT_TRUE(host.ok());
  MakeCluster(host);
  AttachImage(host, "open");
  EXPECT_GT(test::CountKeyParts(host.engine().pid(), raw_), 0U) << "connected";
  ASSERT_TRUE(host.Remove("open"));
  ASSERT_TRUE(ClientsAre(host, 0));
  EXPECT_GT(test::CountKeyParts(host.engine().pid(), raw_), 0U) << "gone, and not wiped";
}

// Tickets of a few seconds: librados proves itself with the key again and again, long after our file was emptied.
TEST_F(CephKeyTest, IsNotAskedForAgainWhenTicketsExpire) {
  constexpr char kSays[] = "cephx client: get auth session key: client_challenge";
  for (const char* ticket : {"auth_mon_ticket_ttl", "auth_service_ticket_ttl"}) {
    ceph_.MonCommand(
        fmt::format(R"({{"prefix": "config set", "who": "mon", "name": "{}", "value": "4"}})", ticket));
  }
  const std::string log = ceph_.folder() + "/renewing.log";
  ceph_.CreateImage("renewing", kDiskBytes);
  {
    test::CephHost host;
    const auto cluster = ceph_.Cluster("clusters/renewing");
    cluster->settings = {{"mon_client_ping_interval", "1"}, {"debug_auth", "20/20"}, {"log_file", log}};
    const auto disk = host.OpenDisk(test::CephHost::Options(cluster, "renewing", kDiskBytes));
    ASSERT_NE(disk, nullptr);
    const auto authentications = [&] {
      size_t count = 0;
      const std::string said = ReadFile(log);
      for (size_t at = said.find(kSays); at != std::string::npos; at = said.find(kSays, at + 1)) ++count;
      return count;
    };
    const size_t at_first = authentications();
    EXPECT_GT(at_first, 0U);
    const perf::Deadline deadline(2 * kWaitTimeoutNs);
    while (authentications() < at_first + 2 && !deadline.passed()) poll(nullptr, 0, 100);
    EXPECT_GE(authentications(), at_first + 2);
    test::Arena memory(4096);
    EXPECT_EQ(disk->Do(block::Op::kWrite, 0, 4096, &memory), block::IoStatus::kOk);
    EXPECT_EQ(disk->Do(block::Op::kRead, 0, 4096, &memory), block::IoStatus::kOk);
  }
  EXPECT_EQ(CountIn(ReadFile(log)), 0U) << "librados says all that it can, but not the key";
  for (const char* ticket : {"auth_mon_ticket_ttl", "auth_service_ticket_ttl"}) {
    ceph_.MonCommand(fmt::format(R"({{"prefix": "config rm", "who": "mon", "name": "{}"}})", ticket));
  }
}

}  // namespace
}  // namespace cleat::system_test::rbd_key_test
