// SPDX-License-Identifier: Apache-2.0
// Every kind of back end that the protocol has, and those that it will have: what is said of it comes through whole, and it is opened
// or refused by name.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory_resource>
#include <set>
#include <string>
#include <vector>

#include "base/build_options.h"
#include "engine/protocol/codec_structs.h"
#include "keys/kek_file.h"
#include "keys/key_encryption_key.h"
#include "tests/unit/engine/disk_factory_rig.h"
#include "tests/unit/modules/pool_file.h"

namespace cleat::engine::backends_test {
namespace {

using EveryBackend = DiskFactoryRig;

// What a disk of a pool has besides texts.
void PlaceInPool(Cleat__Engine__V1__PoolBackend& pool) {
  static std::array<uint8_t, 16> uid = test::kPoolUid;
  static auto runs = [] {
    std::array<Cleat__Engine__V1__ExtentRun, 2> made;
    for (uint32_t i = 0; i < made.size(); ++i) {
      cleat__engine__v1__extent_run__init(&made[i]);
      CLEAT_PB_SET(made[i], first, 5 - 5 * i);
      CLEAT_PB_SET(made[i], count, 2);
    }
    return made;
  }();
  static std::array<Cleat__Engine__V1__ExtentRun*, 2> extents{&runs[0], &runs[1]};
  pool.has_pool_uid = 1;
  pool.pool_uid = {.len = uid.size(), .data = uid.data()};
  CLEAT_PB_SET(pool, extent_bytes, test::kPoolExtentBytes);
  pool.n_extents = extents.size();
  pool.extents = extents.data();
}

// What a namespace of a subsystem has: texts that mean something, and addresses where nobody answers.
std::map<std::string, std::string> NvmeTcpTexts() {
  return {{"subsystem", "subsystems/a"},
          {"nqn", "nqn.2014-08.org.example:array"},
          {"host_nqn", "nqn.2014-08.org.example:host"},
          {"host_id", "4c0f7d1e-8a55-4d0b-9a53-0b6b0f4d2f11"},
          {"namespace_uuid", "4c0f7d1e-8a55-4d0b-9a53-0b6b0f4d2f12"}};
}
void Reach(Cleat__Engine__V1__NvmeTcpBackend& nvme) {
  static std::array<std::string, 2> texts{"127.0.0.1:1,from=127.0.0.2", "[::1]:1"};
  static std::array<char*, 2> addresses{texts[0].data(), texts[1].data()};
  nvme.n_addresses = addresses.size();
  nvme.addresses = addresses.data();
  CLEAT_PB_SET(nvme, header_digest, 1);
  CLEAT_PB_SET(nvme, data_digest, 1);
  CLEAT_PB_SET(nvme, keep_alive_ms, 5000);
  CLEAT_PB_SET(nvme, dscp, 63);
}

// As cleatd would send it: with something in each text.
BackendMessage Sample(const std::string& kind) {
  std::map<std::string, std::string> texts;
  for (const std::string& name : BackendMessage::TextsOf(kind)) texts[name] = "a-" + name;
  if (kind == "nvme_tcp") texts = NvmeTcpTexts();
  BackendMessage sample(kind, texts);
  if (sample.disk.backend_case == CLEAT__ENGINE__V1__DISK__BACKEND_POOL) PlaceInPool(*sample.disk.pool);
  if (sample.disk.backend_case == CLEAT__ENGINE__V1__DISK__BACKEND_NVME_TCP) Reach(*sample.disk.nvme_tcp);
  return sample;
}

std::vector<uint8_t> Bytes(const PbDisk& disk) {
  std::vector<uint8_t> bytes(cleat__engine__v1__disk__get_packed_size(&disk));
  cleat__engine__v1__disk__pack(&disk, bytes.data());
  return bytes;
}

DiskSpec DiskOf(const std::string& kind) {
  DiskSpec disk;
  disk.name = "disks/a";
  disk.size_bytes = 1 << 20;
  disk.backend = UnpackBackend(disk.name, Sample(kind).disk).value();
  return disk;
}

TEST_F(EveryBackend, ComesThroughWhole) {
  ASSERT_GE(BackendMessage::Kinds().size(), 4U);
  for (const std::string& kind : BackendMessage::Kinds()) {
    SCOPED_TRACE(kind);
    const BackendMessage sample = Sample(kind);
    const auto backend = UnpackBackend("disks/a", sample.disk);
    ASSERT_TRUE(backend.ok()) << backend.error().message;
    std::pmr::monotonic_buffer_resource memory;
    PbDisk again = CLEAT__ENGINE__V1__DISK__INIT;
    PackBackend(*backend, again, memory);
    EXPECT_EQ(again.backend_case, sample.disk.backend_case);
    const auto unpacked = UnpackBackend("disks/a", again);
    ASSERT_TRUE(unpacked.ok());
    EXPECT_TRUE(*unpacked == *backend);
    // Fields that are zero may be said or left out, but none is lost: what is packed once is packed so again.
    PbDisk third = CLEAT__ENGINE__V1__DISK__INIT;
    PackBackend(*unpacked, third, memory);
    EXPECT_EQ(Bytes(again), Bytes(third));
    EXPECT_GE(Bytes(again).size(), Bytes(sample.disk).size());
  }
}

TEST_F(EveryBackend, OfAPoolHasItsExtentsInOrderAndNoneTwice) {
  const auto refused = [](auto change) {
    const BackendMessage sample = Sample("pool");
    Cleat__Engine__V1__PoolBackend pool = *sample.disk.pool;
    change(pool);
    PbDisk disk = sample.disk;
    disk.pool = &pool;
    const auto unpacked = UnpackBackend("disks/a", disk);
    return !unpacked.ok() && unpacked.error().code == ErrorCode::kInvalidArgument;
  };
  EXPECT_FALSE(refused([](auto& /*pool*/) {}));
  EXPECT_TRUE(refused([](auto& pool) { pool.pool_uid.len = 15; }));
  EXPECT_TRUE(refused([](auto& pool) { pool.extent_bytes *= 3; }));
  EXPECT_TRUE(refused([](auto& pool) { pool.extent_bytes /= 2; }));
  EXPECT_TRUE(refused([](auto& pool) { pool.n_extents = 0; }));
  std::array<Cleat__Engine__V1__ExtentRun*, 2> twice{};
  EXPECT_TRUE(refused([&twice](auto& pool) {
    twice = {pool.extents[0], pool.extents[0]};
    pool.extents = twice.data();
  }));
  const auto kept = DiskOf("pool").backend;
  const BackendMessage sample = Sample("pool");
  std::array<Cleat__Engine__V1__ExtentRun*, 2> swapped{sample.disk.pool->extents[1],
                                                       sample.disk.pool->extents[0]};
  sample.disk.pool->extents = swapped.data();
  EXPECT_FALSE(UnpackBackend("disks/a", sample.disk).value() == kept) << "another order is another disk";
}

TEST_F(EveryBackend, OfAPoolIsGivenMoreExtentsAndNoOtherOneAny) {
  const auto kept = DiskOf("pool").backend;
  EXPECT_TRUE(WithExtents(kept, {}) == kept);
  const Backend grown = WithExtents(kept, {{1, 2}, {9, 3}});
  EXPECT_FALSE(grown == kept);
  EXPECT_TRUE(WithExtents(grown, {{1, 2}, {9, 3}}) == grown);
  EXPECT_EQ(StorageOf(grown), StorageOf(kept));
  const auto file = DiskOf("file").backend;
  EXPECT_TRUE(WithExtents(file, {{1, 2}}) == file);
}

// The disk's extents of a pool's drive, when the drive has them down as that disk's.
TEST_F(EveryBackend, OfAPoolIsOpenedOnItsDrive) {
  const char* const environment = std::getenv("TMPDIR");
  std::string path = std::string(environment != nullptr ? environment : "/tmp") + "/cleat-pool-XXXXXX";
  const UniqueFd file(mkostemp(path.data(), O_CLOEXEC));
  ASSERT_TRUE(file);
  ASSERT_EQ(ftruncate(file.get(), static_cast<off_t>(test::PoolFileBytes(7))), 0);
  test::MakePool(path, 7,
                 {{.identity = 31, .deleted = false, .extents = {{5, 2}, {0, 2}}, .description = {}}});
  const BackendMessage sample = Sample("pool");
  DiskSpec disk = DiskOf("pool");
  std::string node = "/dev/nvme0n1";
  sample.disk.pool->device = node.data();
  EXPECT_EQ(FilesOf(UnpackBackend(disk.name, sample.disk).value(), 1), 3U) << "with the node for commands";
  sample.disk.pool->device = path.data();
  disk.backend = UnpackBackend(disk.name, sample.disk).value();
  EXPECT_EQ(StorageOf(disk.backend), path);
  EXPECT_EQ(FilesOf(disk.backend, 8), 2U);
  for (const uint64_t identity : {31, 0}) {
    disk.identity = DiskIdentity(identity);
    const auto opened = Open(disk);
    EXPECT_TRUE(opened.ok()) << opened.error().message;
  }
  disk.identity = DiskIdentity(32);
  const auto refused = Open(disk);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable) << refused.error().message;
  unlink(path.c_str());
}

// What cleatd would say of a secret that it wrapped under that key.
struct SaidSecret {
  SaidSecret(const keys::Kek& kek, const std::string& text) : kek_id(kek.id()) {
    const auto* const bytes = reinterpret_cast<const uint8_t*>(text.data());
    wrapped = kek.Wrap(keys::Secret::Copy({bytes, text.size()}), keys::Wrapping::kPadded).value();
    cleat__engine__v1__wrapped_secret__init(&message);
    message.key_encryption_key = kek_id.data();
    message.has_data = 1;
    message.data = {.len = wrapped.size(), .data = wrapped.data()};
  }
  std::string kek_id;
  std::vector<uint8_t> wrapped;
  Cleat__Engine__V1__WrappedSecret message{};
};
constexpr char kChapSecret[] = "DHHC-1:01:QEFCQ0RFRkdISUpLTE1OT1BRUlNUVVZXWFlaW1xdXl9YjiZe:";

// Whatever is wrong with a subsystem's secrets, nothing is connected without them.
TEST_F(EveryBackend, OfASubsystemIsOpenedWithItsSecretsOrNotAtAll) {
  const std::string folder = testing::TempDir() + "/backends-" + std::to_string(getpid());
  std::filesystem::create_directory(folder);
  const auto kek = keys::LoadOrMakeKekFile(folder + "/kek").value();
  SaidSecret good(kek, kChapSecret);
  SaidSecret nonsense(kek, "no secret at all");
  SaidSecret damaged(kek, kChapSecret);
  damaged.wrapped[9] ^= 1;
  const BackendMessage sample = Sample("nvme_tcp");
  Cleat__Engine__V1__NvmeTcpBackend& nvme = *sample.disk.nvme_tcp;
  const auto open = [&] {
    DiskSpec disk = DiskOf("nvme_tcp");
    disk.backend = UnpackBackend(disk.name, sample.disk).value();
    const auto opened = Open(disk);
    return opened.ok() ? Error(ErrorCode::kInternal, "opened") : opened.error();
  };
  nvme.dhchap_secret = &good.message;
  const Error keyless = open();
  EXPECT_EQ(keyless.code, ErrorCode::kFailedPrecondition);
  EXPECT_TRUE(keyless.message.starts_with("disks/a: subsystems/a: dhchap_secret: its key is wrapped under " +
                                          std::string("key-encryption key ") + kek.id()))
      << keyless.message;
  ASSERT_TRUE(keyring_.SetFiles({folder + "/kek"}));
  EXPECT_EQ(open().code, ErrorCode::kNotFound)
      << "past the secret, for want of kept memory: " << open().message;
  nvme.dhchap_ctrl_secret = &nonsense.message;
  const Error wrong = open();
  EXPECT_EQ(wrong.code, ErrorCode::kInvalidArgument);
  EXPECT_NE(wrong.message.find("subsystems/a: dhchap_ctrl_secret is no DH-HMAC-CHAP secret"),
            std::string::npos)
      << wrong.message;
  nvme.dhchap_ctrl_secret = &damaged.message;
  EXPECT_EQ(open().code, ErrorCode::kDataLoss);
  nvme.dhchap_ctrl_secret = nullptr;
  nvme.dhchap_secret = nullptr;
  nvme.tls_psk = &good.message;
  EXPECT_EQ(open().code, ErrorCode::kInvalidArgument) << "rather than without TLS: it is no key";
  std::filesystem::remove_all(folder);
}

TEST_F(EveryBackend, OfASubsystemGivesNoSecretBack) {
  const auto kek = keys::Kek::Random();
  SaidSecret secret(kek, kChapSecret);
  const BackendMessage sample = Sample("nvme_tcp");
  sample.disk.nvme_tcp->dhchap_secret = &secret.message;
  const auto with = UnpackBackend("disks/a", sample.disk).value();
  std::pmr::monotonic_buffer_resource memory;
  PbDisk told = CLEAT__ENGINE__V1__DISK__INIT;
  PackBackend(with, told, memory);
  EXPECT_EQ(told.nvme_tcp->dhchap_secret, nullptr);
  EXPECT_TRUE(with == DiskOf("nvme_tcp").backend) << "which namespace it is, the secret does not say";
}

TEST_F(EveryBackend, OfASubsystemIsRefusedWithTheFieldThatIsWrong) {
  const auto refused = [](const std::string& field, auto change) {
    const BackendMessage sample = Sample("nvme_tcp");
    Cleat__Engine__V1__NvmeTcpBackend nvme = *sample.disk.nvme_tcp;
    change(nvme);
    PbDisk disk = sample.disk;
    disk.nvme_tcp = &nvme;
    const auto unpacked = UnpackBackend("disks/a", disk);
    ASSERT_EQ(unpacked.ok(), field.empty()) << field;
    if (unpacked.ok()) return;
    EXPECT_EQ(unpacked.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(unpacked.error().message.find(field), std::string::npos) << unpacked.error().message;
  };
  std::string wrong = "array";
  std::string other_family = "10.0.0.1,from=fd00::9";
  std::string zero = "00000000-0000-0000-0000-000000000000";
  std::array<char*, 9> many{};
  const auto kek = keys::Kek::Random();
  SaidSecret secret(kek, kChapSecret);
  SaidSecret nameless(kek, kChapSecret);
  nameless.message.key_encryption_key = nullptr;
  SaidSecret shorter(kek, kChapSecret);
  shorter.message.data.len = keys::kPaddedWrappedBytesMin - 1;
  SaidSecret longer(kek, kChapSecret);
  longer.message.data.len = keys::kPaddedWrappedBytesMax + 1;
  SaidSecret empty(kek, kChapSecret);
  empty.message.has_data = 0;
  refused("",
          [&](auto& nvme) { nvme.dhchap_secret = nvme.dhchap_ctrl_secret = nvme.tls_psk = &secret.message; });
  for (SaidSecret* const bad : {&nameless, &shorter, &longer, &empty}) {
    refused("nvme_tcp.dhchap_secret has", [&](auto& nvme) { nvme.dhchap_secret = &bad->message; });
    refused("nvme_tcp.tls_psk has", [&](auto& nvme) { nvme.tls_psk = &bad->message; });
  }
  refused("dhchap_ctrl_secret is there without dhchap_secret",
          [&](auto& nvme) { nvme.dhchap_ctrl_secret = &secret.message; });
  refused("reservation_proves is there without reservation_family",
          [](auto& nvme) { CLEAT_PB_SET(nvme, reservation_proves, 1); });
  refused("", [](auto& /*nvme*/) {});
  refused("nvme_tcp.subsystem is missing", [](auto& nvme) { nvme.subsystem = nullptr; });
  refused("nvme_tcp.nqn is missing", [](auto& nvme) { nvme.nqn = nullptr; });
  refused("nvme_tcp.nqn", [&](auto& nvme) { nvme.nqn = wrong.data(); });
  refused("nvme_tcp.addresses has 0: 1 to 8", [](auto& nvme) { nvme.n_addresses = 0; });
  refused("'array' is no address", [&](auto& nvme) {
    many[0] = wrong.data();
    nvme.addresses = many.data();
    nvme.n_addresses = 1;
  });
  refused("nvme_tcp.addresses has 9", [&](auto& nvme) {
    many.fill(nvme.addresses[0]);
    nvme.addresses = many.data();
    nvme.n_addresses = many.size();
  });
  refused("host's NQN", [&](auto& nvme) { nvme.host_nqn = wrong.data(); });
  refused("nvme_tcp.host_id", [&](auto& nvme) { nvme.host_id = wrong.data(); });
  refused("nvme_tcp.host_id", [&](auto& nvme) { nvme.host_id = zero.data(); });
  refused("nvme_tcp.keep_alive_ms", [](auto& nvme) { nvme.keep_alive_ms = 999; });
  refused("nvme_tcp.keep_alive_ms", [](auto& nvme) { nvme.keep_alive_ms = 600'001; });
  refused("nvme_tcp.namespace_uuid", [](auto& nvme) { nvme.namespace_uuid = nullptr; });
  refused("nvme_tcp.dscp is not 0 to 63", [](auto& nvme) { nvme.dscp = 64; });
  refused("'fd00::9' is an IPv6 address", [&](auto& nvme) {
    many[0] = other_family.data();
    nvme.addresses = many.data();
    nvme.n_addresses = 1;
  });
  refused("nvme_tcp.namespace_uuid", [&](auto& nvme) { nvme.namespace_uuid = zero.data(); });
}

// Addresses over RDMA, alone or beside others: what comes through, and what they don't go with.
TEST_F(EveryBackend, OfASubsystemIsReachedOverEitherTransport) {
  std::string tcp = "10.0.0.1:4420";
  std::string rdma = "rdma://10.0.0.1:4420";
  std::string rdma6 = "rdma://[fd00::1]:4421,from=fd00::9";
  std::string nobodys = "rdma://0.0.0.0:4420";
  std::string wrong = "rdma://array:4420";
  const auto kek = keys::Kek::Random();
  SaidSecret secret(kek, kChapSecret);
  const auto unpack = [](std::vector<char*> addresses, auto change) -> Result<std::vector<std::string>> {
    const BackendMessage sample = Sample("nvme_tcp");
    Cleat__Engine__V1__NvmeTcpBackend& nvme = *sample.disk.nvme_tcp;
    nvme.header_digest = nvme.data_digest = 0;
    nvme.n_addresses = addresses.size();
    nvme.addresses = addresses.data();
    change(nvme);
    CLEAT_ASSIGN(const Backend backend, UnpackBackend("disks/a", sample.disk));
    std::pmr::monotonic_buffer_resource memory;
    PbDisk told = CLEAT__ENGINE__V1__DISK__INIT;
    PackBackend(backend, told, memory);
    return std::vector<std::string>(told.nvme_tcp->addresses,
                                    told.nvme_tcp->addresses + told.nvme_tcp->n_addresses);
  };
  const auto as_is = [](auto& /*nvme*/) {};
  const auto digests = [](auto& nvme) { nvme.data_digest = 1; };
  const auto psk = [&](auto& nvme) { nvme.tls_psk = &secret.message; };
  const auto mixed = unpack({rdma.data(), tcp.data(), rdma6.data()}, as_is);
  ASSERT_TRUE(mixed.ok()) << mixed.error().message;
  EXPECT_EQ(*mixed, (std::vector{rdma, tcp, rdma6}));
  const auto alone = unpack({rdma.data()}, as_is);
  ASSERT_TRUE(alone.ok()) << alone.error().message;
  EXPECT_EQ(*alone, std::vector{rdma});
  EXPECT_TRUE(unpack({rdma.data()}, [&](auto& nvme) { nvme.dhchap_secret = &secret.message; }).ok());
  EXPECT_TRUE(unpack({rdma.data(), tcp.data()}, digests).ok()) << "those over TCP have them";
  EXPECT_TRUE(unpack({tcp.data()}, psk).ok());
  const auto refused = [&](const Result<std::vector<std::string>>& unpacked, std::string_view says) {
    ASSERT_FALSE(unpacked.ok()) << says;
    EXPECT_EQ(unpacked.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(unpacked.error().message.find(says), std::string::npos) << unpacked.error().message;
  };
  refused(unpack({rdma.data()}, digests), "has digests, and no address over TCP");
  refused(unpack({rdma.data()}, psk), "tls_psk is there, and");
  refused(unpack({tcp.data(), rdma.data()}, psk), "over RDMA, which has no TLS");
  refused(unpack({tcp.data(), nobodys.data()}, as_is), "rdma://0.0.0.0:4420 is nobody's");
  refused(unpack({wrong.data()}, as_is), "'rdma://array:4420' is no address");
}

TEST_F(EveryBackend, OfASubsystemHasItsReservationsInAnInventoryToo) {
  const BackendMessage sample = Sample("nvme_tcp");
  Cleat__Engine__V1__NvmeTcpBackend& nvme = *sample.disk.nvme_tcp;
  constexpr uint64_t kFamily = 0xfedc'ba98'7654'3210;
  const auto told = [&] {
    std::pmr::monotonic_buffer_resource memory;
    PbDisk disk = CLEAT__ENGINE__V1__DISK__INIT;
    PackBackend(UnpackBackend("disks/a", sample.disk).value(), disk, memory);
    return std::pair(disk.nvme_tcp->reservation_family, disk.nvme_tcp->reservation_proves != 0);
  };
  EXPECT_EQ(told(), std::pair(uint64_t{0}, false));
  CLEAT_PB_SET(nvme, reservation_family, kFamily);
  EXPECT_EQ(told(), std::pair(kFamily, false));
  EXPECT_TRUE(UnpackBackend("disks/a", sample.disk).value() == DiskOf("nvme_tcp").backend)
      << "which namespace it is, reservations do not say";
  CLEAT_PB_SET(nvme, reservation_proves, 1);
  EXPECT_EQ(told(), std::pair(kFamily, true));
}

TEST_F(EveryBackend, OfASubsystemHasInAnInventoryToWhetherTimeProves) {
  const BackendMessage sample = Sample("nvme_tcp");
  const auto told = [&] {
    std::pmr::monotonic_buffer_resource memory;
    PbDisk disk = CLEAT__ENGINE__V1__DISK__INIT;
    PackBackend(UnpackBackend("disks/a", sample.disk).value(), disk, memory);
    return disk.nvme_tcp->quiesce_time_proves != 0;
  };
  EXPECT_FALSE(told());
  CLEAT_PB_SET(*sample.disk.nvme_tcp, quiesce_time_proves, 1);
  EXPECT_TRUE(told());
}

// How it is reached may change between one attachment and the next; which namespace of which subsystem it is says the storage.
TEST_F(EveryBackend, OfASubsystemIsTheSameHoweverItIsReached) {
  const Backend kept = DiskOf("nvme_tcp").backend;
  const auto same = [&](auto change) {
    const BackendMessage sample = Sample("nvme_tcp");
    change(*sample.disk.nvme_tcp);
    return UnpackBackend("disks/a", sample.disk).value() == kept;
  };
  std::string other = "4c0f7d1e-8a55-4d0b-9a53-0b6b0f4d2f13";
  EXPECT_TRUE(same([](auto& nvme) { nvme.n_addresses = 1; }));
  EXPECT_TRUE(same([](auto& nvme) { nvme.data_digest = 0; }));
  EXPECT_FALSE(same([&](auto& nvme) { nvme.namespace_uuid = other.data(); }));
  EXPECT_EQ(StorageOf(kept), "subsystems/a");
  EXPECT_EQ(FilesOf(kept, 3), 10U)
      << "of two addresses a connection for each reactor and one for the admin queue; and its log twice";
}

TEST_F(EveryBackend, OfASubsystemTakesTheLogThatIsKeptUnlessItOnlyReads) {
  const BackendMessage sample = Sample("nvme_tcp");
  sample.disk.nvme_tcp->n_addresses = 1;
  DiskSpec disk = DiskOf("nvme_tcp");
  disk.backend = UnpackBackend(disk.name, sample.disk).value();
  EXPECT_EQ(Open(disk).error().code, ErrorCode::kNotFound);
  DiskSpec odd = disk;
  odd.logical_block_bytes = 513;
  const auto reads = Open(odd, block::AccessMode::kReadOnly);
  ASSERT_FALSE(reads.ok());
  EXPECT_EQ(reads.error().code, ErrorCode::kInvalidArgument) << "its blocks, and no question of a log";
  UniqueFd small(memfd_create("test", MFD_CLOEXEC));
  ASSERT_TRUE(memories_.Keep({.disk = disk.name, .size_bytes = 0, .fixed = true}, std::move(small)).ok());
  const auto refused = Open(disk);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("log of writes in doubt"), std::string::npos)
      << refused.error().message;
}

TEST_F(EveryBackend, IsAnotherStorageThanThatOfOtherKinds) {
  for (const std::string& kind : BackendMessage::Kinds()) {
    for (const std::string& other : BackendMessage::Kinds()) {
      EXPECT_EQ(DiskOf(kind).backend == DiskOf(other).backend, kind == other) << kind << " and " << other;
    }
  }
}

// Files, clusters and kept memory are not there: these are refused by the disk's name. What needs nothing does I/O.
TEST_F(EveryBackend, IsOpenedOrRefusedByName) {
  std::set<std::string> used;
  for (const std::string& kind : BackendMessage::Kinds()) {
    SCOPED_TRACE(kind);
    const DiskSpec disk = DiskOf(kind);
    const auto opened = Open(disk);
    if (opened.ok()) {
      EXPECT_TRUE(OpenAndUse(disk));
      used.insert(kind);
    } else {
      EXPECT_TRUE(opened.error().message.starts_with(disk.name)) << opened.error().message;
    }
  }
  EXPECT_TRUE(used.contains("null"));
  EXPECT_EQ(used.contains("example"), kExampleDisks);
}

TEST_F(EveryBackend, ThatTheBuildDoesNotHaveIsUnimplemented) {
  const auto opened = Open(DiskOf("example"));
  ASSERT_EQ(opened.ok(), kExampleDisks);
  if (kExampleDisks) return;
  EXPECT_EQ(opened.error().code, ErrorCode::kUnimplemented);
  EXPECT_NE(opened.error().message.find("CLEAT_EXAMPLE=OFF"), std::string::npos) << opened.error().message;
}

TEST(BackendDefault, IsANullDisk) {
  EXPECT_TRUE(Backend() == DiskOf("null").backend);
  EXPECT_FALSE(Backend() == DiskOf("memory").backend);
}

}  // namespace
}  // namespace cleat::engine::backends_test
