// SPDX-License-Identifier: Apache-2.0
// Encrypted disks through the API: what is on the storage is what a plain reference of the standard makes of it, wrong keys
// are refused with what is wrong, and the key-encryption key changes under running I/O.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "expect_ok.h"
#include "host.h"
#include "io_load.h"
#include "keys/kek_file.h"
#include "peer.h"
#include "tests/unit/modules/xts_reference.h"

namespace cleat::system_test::encryption_test {
namespace {

constexpr uint64_t kDiskBytes = uint64_t{32} << 20;

std::string Key(size_t bytes, char first = 1) {
  std::string key;
  for (size_t i = 0; i < bytes; ++i) key += static_cast<char>(first + static_cast<char>(i * 3));
  return key;
}

v1::DiskSpec Encrypted(v1::DiskSpec spec, const std::string& key, uint32_t unit_bytes = 512) {
  v1::Encryption& encryption = *spec.mutable_encryption();
  encryption.set_cipher(key.size() == 32 ? v1::CIPHER_AES_128_XTS : v1::CIPHER_AES_256_XTS);
  encryption.set_data_unit_bytes(unit_bytes);
  encryption.set_plain_key(key);
  if (unit_bytes == 4096) spec.set_logical_block_bytes(4096);
  return spec;
}

std::span<const uint8_t> BytesOf(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

void ExpectNoKey(const google::protobuf::Message& message, const std::string& key) {
  EXPECT_EQ(message.SerializeAsString().find(key.substr(0, 16)), std::string::npos);
}

TEST(EncryptionTest, TheStorageHoldsWhatAPlainReferenceMakesOfTheGuestsData) {
  Host host({.with_keys = true});
  ASSERT_TRUE(host.ok());
  for (const size_t key_bytes : {64, 32}) {
    for (const uint32_t unit_bytes : {512U, 4096U}) {
      const std::string id = "d" + std::to_string(key_bytes) + "-" + std::to_string(unit_bytes);
      const std::string key = Key(key_bytes);
      ASSERT_TRUE(host.AttachNew(id, Encrypted(FileDisk(kDiskBytes, host.Path(id)), key, unit_bytes)));
      std::vector<uint8_t> plain(kDiskBytes);
      {
        auto peer = Peer::Start(host.SocketPath(id));
        ASSERT_OK(peer);
        // What nobody wrote decrypts to anything.
        perf::StampedBlocks blocks(kDiskBytes, unit_bytes, 1, false);
        IoLoad load((*peer)->driver(), blocks);
        ASSERT_OK(load.Run(kSanitized ? 500 : 3000));
        ASSERT_OK(load.Verify());
        constexpr uint64_t kStep = uint64_t{1} << 20;
        for (uint64_t at = 0; at < kDiskBytes; at += kStep) {
          ASSERT_OK((*peer)->driver().ReadSync(at, std::span(plain).subspan(at, kStep)));
        }
        ASSERT_OK((*peer)->driver().FlushSync());
        ASSERT_OK((*peer)->ShutDown());
      }
      ASSERT_TRUE(host.Remove(id));
      std::vector<uint8_t> stored(kDiskBytes);
      std::ifstream(host.Path(id), std::ios::binary)
          .read(reinterpret_cast<char*>(stored.data()), static_cast<std::streamsize>(stored.size()));
      const test::XtsReference reference(BytesOf(key), unit_bytes);
      EXPECT_EQ(reference.Encrypt(plain, 0), stored) << id;
      size_t same = 0;
      for (size_t at = 0; at < plain.size(); at += 512) {
        same += std::equal(&plain[at], &plain[at] + 512, &stored[at]) ? 1 : 0;
      }
      EXPECT_EQ(same, 0U) << "sectors that were stored as the guest wrote them";
    }
  }
}

TEST(EncryptionTest, WrongKeysAreRefusedWithWhatIsWrong) {
  Host host({.with_keys = true});
  ASSERT_TRUE(host.ok());
  const v1::DiskSpec plain = NullDisk(kDiskBytes);
  const auto refused = [&](const v1::DiskSpec& spec, grpc::StatusCode code, const std::string& says) {
    const auto made = host.api().CreateDisk("d", spec);
    EXPECT_EQ(made.code(), code) << says << ": " << made.message();
    EXPECT_NE(made.message().find(says), std::string::npos) << made.message();
    EXPECT_NE(made.message().find("disks/d"), std::string::npos) << made.message();
    EXPECT_EQ(made.status.error_details().find(Key(64).substr(0, 16)), std::string::npos);
  };
  using grpc::StatusCode;
  auto length = Encrypted(plain, Key(63));
  refused(length, StatusCode::INVALID_ARGUMENT, "64");
  length = Encrypted(plain, Key(64));
  length.mutable_encryption()->set_cipher(v1::CIPHER_AES_128_XTS);
  refused(length, StatusCode::INVALID_ARGUMENT, "32");
  refused(Encrypted(plain, Key(32) + Key(32)), StatusCode::INVALID_ARGUMENT, "halves");
  refused(Encrypted(plain, std::string(5000, 'k')), StatusCode::INVALID_ARGUMENT, "long");
  auto units = Encrypted(plain, Key(64), 4096);
  units.set_logical_block_bytes(512);
  refused(units, StatusCode::INVALID_ARGUMENT, "data_unit_bytes");
  auto missing = plain;
  missing.mutable_encryption();
  refused(missing, StatusCode::INVALID_ARGUMENT, "key");
  auto unknown = plain;
  unknown.mutable_encryption()->mutable_wrapped_key()->set_key_encryption_key("0123456789abcdef");
  unknown.mutable_encryption()->mutable_wrapped_key()->set_data(std::string(72, 'w'));
  refused(unknown, StatusCode::FAILED_PRECONDITION, "0123456789abcdef");

  // Wrapped by somebody who has the key-encryption key.
  const auto kek = keys::LoadKekFile(host.Path("state/kek"));
  ASSERT_OK(kek);
  const auto bytes = kek->Wrap(keys::Secret::Copy(BytesOf(Key(64))));
  ASSERT_OK(bytes);
  auto wrapped = plain;
  wrapped.mutable_encryption()->mutable_wrapped_key()->set_key_encryption_key(kek->id());
  wrapped.mutable_encryption()->mutable_wrapped_key()->set_data(bytes->data(), bytes->size());
  auto damaged = wrapped;
  (*damaged.mutable_encryption()->mutable_wrapped_key()->mutable_data())[20] ^= 1;
  refused(damaged, StatusCode::INVALID_ARGUMENT, "damaged");
  const auto made = host.api().CreateDisk("d", wrapped);
  ASSERT_OK(made);
  EXPECT_EQ(made.value.spec().encryption().wrapped_key().key_encryption_key(), kek->id());
  EXPECT_TRUE(made.value.spec().encryption().wrapped_key().data().empty());
  ExpectNoKey(made.value, Key(64));

  // The same key in another form is the same request, another key is another one.
  EXPECT_OK(host.api().CreateDisk("d", Encrypted(plain, Key(64))));
  EXPECT_EQ(host.api().CreateDisk("d", Encrypted(plain, Key(64, 9))).code(), StatusCode::ALREADY_EXISTS);
  EXPECT_EQ(host.api().CreateDisk("d", plain).code(), StatusCode::ALREADY_EXISTS);
}

TEST(EncryptionTest, AnEngineWithoutTheKeySaysWhichOneItLacks) {
  Host host;
  ASSERT_TRUE(host.ok());
  ASSERT_OK(host.api().CreateDisk("d", Encrypted(MemoryDisk(kDiskBytes), Key(64))));
  ASSERT_OK(host.api().CreateController("d", BlkController(host.SocketPath("d"))));
  ASSERT_OK(host.api().Attach("d", "d"));
  const auto kek = keys::LoadKekFile(host.Path("state/kek"));
  ASSERT_OK(kek);
  Model last;
  EXPECT_TRUE(host.api().WaitUntil(
      [&](const Model& model) {
        const auto found = model.attachments.find("controllers/d/attachments/d");
        return found != model.attachments.end() &&
               found->second.status().state() == v1::ATTACHMENT_STATE_FAILED &&
               found->second.status().message().find(kek->id()) != std::string::npos;
      },
      &last))
      << last.ToString();
}

// Files for key-encryption keys, beside the host's folder: they are there before its processes.
class KekFiles {
 public:
  KekFiles() {
    folder_ = testing::TempDir() + "cleat-keks-XXXXXX";
    CLEAT_CHECK(mkdtemp(folder_.data()) != nullptr);
    for (const char* name : {"current", "older", "next"})
      ids_.push_back(keys::LoadOrMakeKekFile(Path(name))->id());
  }
  ~KekFiles() { std::filesystem::remove_all(folder_); }
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  const std::string& current_id() const { return ids_[0]; }
  const std::string& next_id() const { return ids_[2]; }
  std::vector<std::string> Arguments() const {
    return {"--kek-file", Path("current"), "--kek-file", Path("older")};
  }
  void Change() const {
    std::filesystem::rename(Path("current"), Path("older"));
    std::filesystem::rename(Path("next"), Path("current"));
  }

 private:
  std::string folder_;
  std::vector<std::string> ids_;
};

TEST(EncryptionTest, TheKeyEncryptionKeyChangesUnderRunningIo) {
  const KekFiles files;
  Host host({.cleatd_arguments = files.Arguments(), .engine_arguments = files.Arguments()});
  ASSERT_TRUE(host.ok());
  ASSERT_TRUE(host.AttachNew("d", Encrypted(FileDisk(kDiskBytes, host.Path("d")), Key(64))));
  auto peer = Peer::Start(host.SocketPath("d"));
  ASSERT_OK(peer);
  perf::StampedBlocks blocks(kDiskBytes, 512, 1, false);
  IoLoad load((*peer)->driver(), blocks);
  load.Start();
  ASSERT_TRUE(load.WaitProgress(100));
  const auto before = host.api().GetDisk("d");
  ASSERT_OK(before);
  EXPECT_EQ(before.value.spec().encryption().wrapped_key().key_encryption_key(), files.current_id());

  files.Change();
  ASSERT_EQ(kill(host.cleatd().pid(), SIGHUP), 0);
  EXPECT_TRUE(host.api().WaitUntil([&](const Model& model) {
    return model.disks.at("disks/d").spec().encryption().wrapped_key().key_encryption_key() ==
           files.next_id();
  }));
  EXPECT_TRUE(host.WaitCleatdLog("disk keys: 1 wrapped anew"));
  EXPECT_EQ(host.api().GetDisk("d").value.etag(), before.value.etag()) << "the intent is the same";
  ASSERT_TRUE(load.WaitProgress(100));
  EXPECT_EQ(host.CountInEngineLog("disks/d: attached to"), 1U) << "nothing was attached anew";
  EXPECT_OK(load.Stop());
  EXPECT_OK(load.Verify());

  // With the old key gone for good: a new cleatd has nothing to wrap, a new engine reads the new one.
  std::filesystem::remove(files.Path("older"));
  std::filesystem::copy_file(files.Path("current"), files.Path("older"));
  host.RestartCleatd();
  host.RestartEngine();
  ASSERT_OK((*peer)->WaitCut());
  ASSERT_OK((*peer)->Boot());
  IoLoad again((*peer)->driver(), blocks);
  EXPECT_OK(again.Verify());
}

}  // namespace
}  // namespace cleat::system_test::encryption_test
