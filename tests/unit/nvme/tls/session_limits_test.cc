// SPDX-License-Identifier: Apache-2.0
// What a TLS session of a host's takes, whatever its target does: a key encrypts so much, and memory is that of the session's beginning. The
// file counts OpenSSL's allocations in the whole program, and refuses them on demand.
#include <gtest/gtest.h>
#include <openssl/crypto.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <vector>

#include "nvme/tls/session.h"
#include "tests/unit/nvme/tls/session_rig.h"

namespace cleat::nvme::tls::session_limits_test {
namespace {

// ---- OpenSSL's memory

struct Allocations {
  int64_t calls = 0;
  int64_t blocks = 0;  // that are not freed
};
Allocations g_allocations;
// Allocations until none succeeds any more, as when the memory for keys is used up; negative: all do.
int64_t g_allocations_left = -1;

bool IsRefused() {
  if (g_allocations_left < 0) return false;
  if (g_allocations_left == 0) return true;
  --g_allocations_left;
  return false;
}

void* Allocate(size_t bytes, const char* /*file*/, int /*line*/) {
  if (IsRefused()) return nullptr;
  ++g_allocations.calls;
  ++g_allocations.blocks;
  return std::malloc(bytes);
}
void* Reallocate(void* memory, size_t bytes, const char* file, int line) {
  if (memory == nullptr) return Allocate(bytes, file, line);
  if (IsRefused()) return nullptr;
  ++g_allocations.calls;
  return std::realloc(memory, bytes);
}
void Release(void* memory, const char* /*file*/, int /*line*/) {
  if (memory != nullptr) --g_allocations.blocks;
  std::free(memory);
}
// Before anything else here uses OpenSSL.
const bool kCounts = CRYPTO_set_mem_functions(Allocate, Reallocate, Release) == 1;

// ---- How long a key is used

TEST(TlsSessionLimits, GoesOnToAnotherKeyOfItsOwnBeforeTheFirstOneHasEncryptedTooMuch) {
  for (const char* const key : kTlsKeys) {
    constexpr uint64_t kBlocks = 3000;  // three full records
    Pair pair(key, {}, {.sealed_blocks = kBlocks});
    const Bytes data = RandomBytes(20 * kRecordDataBytesMax, 18);
    EXPECT_EQ(Send(*pair.session, pair.server, data, {100'000}), data);
    EXPECT_FALSE(pair.server.failed());
    // What the target sends goes on with the target's first key, as nothing was asked for.
    pair.server.Write(data);
    EXPECT_EQ(Receive(*pair.session, pair.server.Take()).data, data);
  }
}

TEST(TlsSessionLimits, SaysSoWithTheFirstRecordBehindTheLimitAlone) {
  Bytes data = RandomBytes(kRecordDataBytesMax, 19);
  // A block more than the data for the record's type, one for its tag.
  constexpr uint64_t kBlocksOfRecord = kRecordDataBytesMax / kBlockBytes + 2;
  constexpr size_t kRecordBytes = kRecordDataBytesMax + kRecordOverheadBytes;
  constexpr size_t kUpdateBytes = 5 + kRecordOverheadBytes;
  Pair pair(kTlsKeys[0], {}, {.sealed_blocks = 2 * kBlocksOfRecord});
  const auto pieces = Cut(data, {data.size()});
  for (const size_t bytes :
       {kRecordBytes, kRecordBytes, kUpdateBytes + kRecordBytes, kRecordBytes, kUpdateBytes + kRecordBytes}) {
    ASSERT_EQ(pair.session->Write(pieces).value(), data.size());
    EXPECT_EQ(pair.session->output().size(), bytes);
    pair.server.Give(TakeOutput(*pair.session));
    EXPECT_EQ(pair.server.Read(), data);
  }
}

// Blocks of 128 bits: the square of their number by 2^129.
TEST(TlsSessionLimits, EncryptsNoMoreWithOneKeyThanLeavesAMargin) {
  EXPECT_LE(SessionLimits().sealed_blocks, uint64_t{1} << 40);
  EXPECT_GE(SessionLimits().opened_blocks, SessionLimits().sealed_blocks);
}

TEST(TlsSessionLimits, EndsWhenATargetNeverChangesItsKey) {
  constexpr uint64_t kBlocks = 3000;
  for (const bool changes : {false, true}) {
    Pair pair(kTlsKeys[0], {}, {.opened_blocks = kBlocks});
    const Bytes data = RandomBytes(kRecordDataBytesMax, 20);
    std::optional<Error> error;
    for (int turn = 0; turn < 10 && !error; ++turn) {
      if (changes) pair.server.UpdateKey(false);
      pair.server.Write(data);
      error = Receive(*pair.session, pair.server.Take()).error;
    }
    EXPECT_EQ(error.has_value(), !changes);
    if (error) {
      EXPECT_TRUE(Mentions(*error, "than one key can protect")) << error->message;
    }
  }
}

// ---- Memory

TEST(TlsSessionLimits, AllocatesNothingForARecord) {
  ASSERT_TRUE(kCounts);
  Pair pair;
  Bytes data = RandomBytes(16'384, 16);
  constexpr int kRecords = 100;
  std::vector<Bytes> theirs;
  for (int i = 0; i < kRecords; ++i) {
    pair.server.Write(data);
    theirs.push_back(pair.server.Take());
  }
  const auto pieces = Cut(data, {16'384});
  const auto write = [&] {
    ASSERT_EQ(pair.session->Write(pieces).value(), data.size());
    pair.session->Sent(pair.session->output().size());
  };
  const auto read = [&](const Bytes& bytes) {
    const auto space = pair.session->InputSpace();
    std::copy(bytes.begin(), bytes.end(), space.begin());
    pair.session->Came(bytes.size());
    ASSERT_EQ(pair.session->Read(pieces).value(), data.size());
  };
  write();
  read(theirs[0]);
  const Allocations before = g_allocations;
  for (int i = 1; i < kRecords; ++i) write();
  const Allocations written = g_allocations;
  for (int i = 1; i < kRecords; ++i) read(theirs[static_cast<size_t>(i)]);
  EXPECT_EQ(written.calls, before.calls);
  EXPECT_EQ(g_allocations.calls, written.calls);
  EXPECT_EQ(g_allocations.blocks, before.blocks);
}

TEST(TlsSessionLimits, HoldsNoMoreMemoryHoweverManyMessagesCome) {
  ASSERT_TRUE(kCounts);
  Pair pair;
  const Bytes data = RandomBytes(10, 17);
  int64_t before = 0;
  std::vector<Bytes> theirs;
  for (int turn = 0; turn < 400; ++turn) {
    if (turn % 2 == 0) pair.server.UpdateKey(turn % 4 == 0);
    pair.server.SendTicket();
    for (uint32_t i = 0; i < Session::kRecordsPerKeyUpdate / 2; ++i) pair.server.Write(data);
    theirs.push_back(pair.server.Take());
  }
  for (size_t turn = 0; turn < theirs.size(); ++turn) {
    ASSERT_EQ(Receive(*pair.session, theirs[turn]).data.size(),
              data.size() * Session::kRecordsPerKeyUpdate / 2);
    TakeOutput(*pair.session);
    if (turn == 10) before = g_allocations.blocks;
  }
  EXPECT_LE(g_allocations.blocks, before + 8);
}

// What `step` returns, when OpenSSL is given `count` blocks and no more.
template <typename Step>
auto WithAllocations(int64_t count, const Step& step) {
  g_allocations_left = count;
  auto result = step();
  g_allocations_left = -1;
  return result;
}

// An engine serves many guests: a connection that gets no memory ends alone.
TEST(TlsSessionLimits, EndsWithoutMemoryForItsKeysAtTheEndOfTheHandshake) {
  ASSERT_TRUE(kCounts);
  constexpr int64_t kMost = 5000;
  uint32_t without_memory = 0;
  int64_t count = 0;
  for (; count < kMost; ++count) {
    auto session = MakeSession();
    TlsServer server(TlsKey(), {.tickets = 0});
    ASSERT_FALSE(session->GoOn().value());
    server.Give(TakeOutput(*session));
    server.Handshake();
    const Bytes answer = server.Take();
    const Result<bool> done = WithAllocations(count, [&] {
      Result<bool> over = false;
      Feed(*session, answer, [&] {
        if (over.ok()) over = session->GoOn();
      });
      return over;
    });
    if (done.ok()) break;
    EXPECT_FALSE(session->established());
    EXPECT_NE(done.error().code, ErrorCode::kPermissionDenied) << done.error().message;
    if (done.error().code == ErrorCode::kResourceExhausted) ++without_memory;
  }
  EXPECT_LT(count, kMost);
  EXPECT_GT(without_memory, 50U) << "two ciphers, and four keys by HKDF";
}

TEST(TlsSessionLimits, EndsWithoutMemoryForTheKeysOfAKeyUpdateOfEitherSide) {
  ASSERT_TRUE(kCounts);
  const Bytes data = RandomBytes(10, 21);
  for (const bool is_ours : {false, true}) {
    uint32_t failed = 0;
    for (int64_t count = 0;; ++count) {
      Pair pair(kTlsKeys[0], {.tickets = 0});
      pair.server.UpdateKey(true);
      pair.server.Write(data);
      const Bytes bytes = pair.server.Take();
      Bytes room(data.size());
      const auto pieces = Cut(room, {room.size()});
      std::copy(bytes.begin(), bytes.end(), pair.session->InputSpace().begin());
      pair.session->Came(bytes.size());
      const Result<size_t> done =
          is_ours ? [&] {
            EXPECT_EQ(pair.session->Read(pieces).value(), data.size());
            return WithAllocations(count, [&] { return pair.session->Write(pieces); });
          }()
                  : WithAllocations(count, [&] { return pair.session->Read(pieces); });
      if (done.ok()) break;
      ++failed;
      EXPECT_EQ(done.error().code, ErrorCode::kResourceExhausted) << done.error().message;
      EXPECT_FALSE(pair.session->Write(pieces).ok()) << "for good";
      EXPECT_TRUE(pair.session->output().empty()) << "no KeyUpdate without the keys that follow it";
    }
    EXPECT_GT(failed, 10U);
  }
}

TEST(TlsSessionLimits, TakesItsMemoryWithIt) {
  ASSERT_TRUE(kCounts);
  { const Pair warm_up; }
  const int64_t before = g_allocations.blocks;
  for (int turn = 0; turn < 20; ++turn) {
    const Pair pair;
  }
  EXPECT_LE(g_allocations.blocks, before + 8);
}

}  // namespace
}  // namespace cleat::nvme::tls::session_limits_test
