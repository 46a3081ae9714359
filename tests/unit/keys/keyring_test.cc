// SPDX-License-Identifier: Apache-2.0
#include "keys/keyring.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "tests/unit/keys/kek_dir.h"

namespace cleat::keys::keyring_test {
namespace {

using test::KekDir;

Secret DataKey() {
  Secret key = Secret::Zeroes(64);
  for (size_t i = 0; i < key.size(); ++i) key.mutable_bytes()[i] = static_cast<uint8_t>(i);
  return key;
}

TEST(Keyring, WrapsUnderTheCurrentKeyAndKnowsTheOlder) {
  const KekDir dir;
  Keyring older;
  ASSERT_TRUE(older.SetFiles({dir.WriteKek("old", '1')}).ok());
  const WrappedKey before = older.Wrap(DataKey()).value();

  Keyring keyring;
  ASSERT_TRUE(keyring.SetFiles({dir.WriteKek("new", '2'), dir.File("old")}).ok());
  EXPECT_EQ(keyring.ids(), (std::vector<std::string>{keyring.current_id(), older.current_id()}));
  EXPECT_TRUE(keyring.Unwrap(before.kek_id, before.bytes, "disks/a").value() == DataKey());
  const WrappedKey after = keyring.Rewrap(before.kek_id, before.bytes, "disks/a").value();
  EXPECT_EQ(after.kek_id, keyring.current_id());
  EXPECT_NE(after.bytes, before.bytes);
  EXPECT_TRUE(keyring.Unwrap(after.kek_id, after.bytes, "disks/a").value() == DataKey());

  const auto unknown = older.Unwrap(after.kek_id, after.bytes, "disks/a");
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.error().code, ErrorCode::kFailedPrecondition);
  EXPECT_NE(unknown.error().message.find("disks/a: its data key is wrapped under key-encryption key " +
                                         after.kek_id),
            std::string::npos)
      << unknown.error().message;
  EXPECT_NE(unknown.error().message.find("it has " + older.current_id()), std::string::npos);
  // The right id with another key's bytes.
  EXPECT_EQ(keyring.Unwrap(after.kek_id, before.bytes, "disks/a").error().code, ErrorCode::kDataLoss);
}

TEST(Keyring, ReadsItsFilesAgainForAKeyItDoesNotKnow) {
  const KekDir dir;
  Keyring engine;
  Keyring daemon;
  ASSERT_TRUE(engine.SetFiles({dir.WriteKek("kek", '1')}).ok());
  dir.WriteKek("kek", '2');
  ASSERT_TRUE(daemon.SetFiles({dir.File("kek")}).ok());
  const WrappedKey wrapped = daemon.Wrap(DataKey()).value();
  EXPECT_NE(engine.current_id(), wrapped.kek_id);
  EXPECT_TRUE(engine.Unwrap(wrapped.kek_id, wrapped.bytes, "disks/a").ok());
  EXPECT_EQ(engine.current_id(), wrapped.kek_id);
}

TEST(Keyring, KeepsWhatItHasWhenItsFilesGoBad) {
  const KekDir dir;
  Keyring keyring;
  ASSERT_TRUE(keyring.SetFiles({dir.WriteKek("kek", '1')}).ok());
  const WrappedKey wrapped = keyring.Wrap(DataKey()).value();
  dir.Write("kek", "nonsense");
  EXPECT_FALSE(keyring.Reload().ok());
  EXPECT_TRUE(keyring.Unwrap(wrapped.kek_id, wrapped.bytes, "disks/a").ok());
  const auto unknown = keyring.Unwrap("0123456789abcdef", wrapped.bytes, "disks/a");
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(unknown.error().message.find("64 hex digits"), std::string::npos)
      << "the cause: " << unknown.error().message;
  EXPECT_FALSE(keyring.SetFiles({dir.WriteKek("good", '3'), dir.File("kek")}).ok());
  EXPECT_EQ(keyring.current_id(), wrapped.kek_id) << "all or nothing";
}

TEST(Keyring, HasNoneUntilItIsTold) {
  Keyring keyring;
  EXPECT_EQ(keyring.current_id(), "");
  EXPECT_EQ(keyring.Wrap(DataKey()).error().code, ErrorCode::kFailedPrecondition);
  const auto unwrapped = keyring.Unwrap("0123456789abcdef", std::vector<uint8_t>(72), "disks/a");
  ASSERT_FALSE(unwrapped.ok());
  EXPECT_NE(unwrapped.error().message.find("it has none"), std::string::npos);
  EXPECT_EQ(keyring.SetFiles({"a", "b", "c"}).error().code, ErrorCode::kInvalidArgument);
}

TEST(Keyring, IsForAnyThread) {
  const KekDir dir;
  Keyring keyring;
  ASSERT_TRUE(keyring.SetFiles({dir.WriteKek("new", '1'), dir.WriteKek("old", '2')}).ok());
  const WrappedKey wrapped = keyring.Wrap(DataKey()).value();
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < 200; ++i) {
        if (thread == 0) {
          EXPECT_TRUE(
              keyring.SetFiles({dir.File(i % 2 == 0 ? "old" : "new"), dir.File(i % 2 == 0 ? "new" : "old")})
                  .ok());
        } else {
          EXPECT_TRUE(keyring.Unwrap(wrapped.kek_id, wrapped.bytes, "disks/a").ok());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace cleat::keys::keyring_test
