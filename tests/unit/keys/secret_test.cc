// SPDX-License-Identifier: Apache-2.0
#include "keys/secret.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <iostream>
#include <random>
#include <thread>
#include <type_traits>
#include <vector>

#include "keys/secret_arena.h"

namespace cleat::keys::secret_test {
namespace {

// Before OpenSSL is used by any test.
const bool installed = InstallSecretArena().ok();

template <typename T>
concept Printable = requires(std::ostream& out, const T& value) { out << value; };

static_assert(!Printable<Secret>);
static_assert(!fmt::is_formattable<Secret>::value);
static_assert(!std::is_copy_constructible_v<Secret> && !std::is_copy_assignable_v<Secret>);

std::vector<uint8_t> Pattern(size_t bytes) {
  std::vector<uint8_t> pattern(bytes);
  for (size_t i = 0; i < bytes; ++i) pattern[i] = static_cast<uint8_t>(i * 7 + 1);
  return pattern;
}

TEST(Secret, IsWipedWhenItGoes) {
  const uint8_t* at = nullptr;
  {
    const Secret secret = Secret::Copy(Pattern(64));
    at = secret.bytes().data();
    EXPECT_EQ(std::memcmp(at, Pattern(64).data(), 64), 0);
  }
  // Still mapped: the arena keeps what it has. The first bytes may be the free list's.
  for (size_t i = sizeof(void*); i < 64; ++i) EXPECT_EQ(at[i], 0) << i;
}

TEST(Secret, ComparesAndMoves) {
  Secret one = Secret::Copy(Pattern(32));
  Secret other = one.Copy();
  EXPECT_TRUE(one == other);
  other.mutable_bytes()[31] ^= 1;
  EXPECT_FALSE(one == other);
  EXPECT_FALSE(one == Secret::Copy(Pattern(31)));
  const Secret moved = std::move(one);
  EXPECT_EQ(moved.size(), 32U);
  EXPECT_TRUE(one.empty());  // NOLINT(bugprone-use-after-move): that is the promise
}

TEST(Secret, TakesAStringAndLeavesNothingOfIt) {
  std::string text(100, 'k');
  text.resize(40);  // the rest is still there, behind the end
  const char* at = text.data();
  const Secret secret = Secret::TakeFrom(text);
  EXPECT_EQ(secret.size(), 40U);
  EXPECT_TRUE(text.empty());
  for (size_t i = 1; i < 100; ++i) EXPECT_NE(at[i], 'k') << i;
}

TEST(SecretArena, ServesOpenSsl) {
  ASSERT_TRUE(installed);
  EVP_CIPHER_CTX_free(EVP_CIPHER_CTX_new());  // whatever is made once
  const size_t before = GetSecretArenaStats().used_bytes;
  EVP_CIPHER_CTX* context = EVP_CIPHER_CTX_new();
  EXPECT_GT(GetSecretArenaStats().used_bytes, before);
  EVP_CIPHER_CTX_free(context);
  EXPECT_EQ(GetSecretArenaStats().used_bytes, before);
}

TEST(SecretArena, GivesAlignedZeroedMemoryThatIsNobodyElses) {
  std::mt19937_64 random(1);
  struct Block {
    uint8_t* at;
    size_t bytes;
    uint8_t mark;
  };
  std::vector<Block> blocks;
  for (int i = 0; i < 20'000; ++i) {
    if (blocks.size() < 300 && random() % 3 != 0) {
      const size_t bytes = 1 + random() % (random() % 20 == 0 ? kSecretBlockBytesMax : 500);
      auto* at = static_cast<uint8_t*>(AllocateSecret(bytes));
      ASSERT_EQ(reinterpret_cast<uintptr_t>(at) % 16, 0U);
      for (size_t byte = 0; byte < bytes; ++byte) ASSERT_EQ(at[byte], 0);
      blocks.push_back({at, bytes, static_cast<uint8_t>(random())});
      std::memset(at, blocks.back().mark, bytes);
    } else if (!blocks.empty()) {
      const size_t index = random() % blocks.size();
      const Block block = blocks[index];
      for (size_t byte = 0; byte < block.bytes; ++byte) ASSERT_EQ(block.at[byte], block.mark);
      FreeSecret(block.at);
      blocks[index] = blocks.back();
      blocks.pop_back();
    }
  }
  for (const Block& block : blocks) FreeSecret(block.at);
}

TEST(SecretArena, IsForAnyThread) {
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([thread] {
      for (int i = 0; i < 5000; ++i) {
        Secret secret = Secret::Zeroes(static_cast<size_t>(1 + (i * 37 + thread) % 2000));
        std::memset(secret.mutable_bytes().data(), thread + 1, secret.size());
        for (const uint8_t byte : secret.bytes()) ASSERT_EQ(byte, thread + 1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// How a child that runs `what` ends: the signal.
template <typename What>
int SignalOf(What what) {
  const pid_t child = fork();
  if (child == 0) {
    for (const int fatal : {SIGSEGV, SIGABRT}) signal(fatal, SIG_DFL);
    if (freopen("/dev/null", "w", stderr) == nullptr) _exit(1);
    what();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

TEST(SecretArena, IsNotThereInAChild) {
  const Secret secret = Secret::Copy(Pattern(32));
  const volatile uint8_t* at = secret.bytes().data();
  EXPECT_EQ(SignalOf([at] { (void)*at; }), SIGSEGV);
  EXPECT_EQ(SignalOf([] {}), 0);
}

TEST(SecretArenaDeathTest, StopsAtASecondFreeAndAtAnOverrun) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(
      {
        void* memory = AllocateSecret(32);
        FreeSecret(memory);
        FreeSecret(memory);
      },
      "check_value");
  EXPECT_DEATH(
      {
        auto* first = static_cast<uint8_t*>(AllocateSecret(48));
        auto* second = static_cast<uint8_t*>(AllocateSecret(48));
        if (second < first) std::swap(first, second);
        std::memset(first, 1, static_cast<size_t>(second - first));
        FreeSecret(second);
      },
      "check_value");
}

}  // namespace
}  // namespace cleat::keys::secret_test
