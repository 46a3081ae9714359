// SPDX-License-Identifier: Apache-2.0
// Whole conversations with a controller that keeps the rules, made of a seed: commands of any size in any segments, answered in any order
// and in any pieces. However the bytes are cut on their way, each read has its data, each write has arrived, and the owner hears the same.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "nvme/tcp_host/host_connection.h"
#include "tests/unit/nvme/tcp/peer.h"

namespace cleat::nvme::tcp {
namespace {

using test::Bytes;
using test::Controller;
using test::Host;
using test::TestMemory;
using test::operator+;

constexpr uint32_t kH2cMax = 4096;

// What the controller knows of a command.
struct Served {
  bool reads = false;
  uint32_t bytes = 0;
  uint32_t done = 0;  // sent to the host, or asked of it
  uint32_t came = 0;  // of a write
  uint64_t number = 0;
};

// Keeps the rules, and expects the host to.
class GoodController {
 public:
  GoodController(Digests digests, uint32_t seed) : pdus_{digests}, random_(seed) {}

  // The host's bytes, whole PDUs.
  void Take(const Bytes& sent) {
    for (size_t at = 0; at < sent.size();) {
      const size_t bytes = test::Get(sent, at + 4, 4);
      const Bytes pdu(sent.begin() + static_cast<ptrdiff_t>(at),
                      sent.begin() + static_cast<ptrdiff_t>(at + bytes));
      CheckDigests(pdu);
      if (pdu[0] == 4) {
        TakeCapsule(pdu);
      } else {
        ASSERT_EQ(pdu[0], 6);
        TakeData(pdu);
      }
      at += bytes;
    }
  }

  // Some of what it has to say now.
  Bytes Speak() {
    Bytes out;
    std::vector<uint16_t> cids;
    for (const auto& [cid, served] : served_) cids.push_back(cid);
    std::shuffle(cids.begin(), cids.end(), random_);
    for (const uint16_t cid : cids) {
      Served& served = served_[cid];
      out = out + (served.reads ? ServeRead(cid, served) : ServeWrite(cid, served));
    }
    return out;
  }

  static uint8_t ContentOf(uint64_t number, uint32_t at) {
    return static_cast<uint8_t>(number * 31 + at * 7 + at / 251);
  }

  std::map<uint64_t, Bytes> written;  // by number
  uint64_t commands = 0;

 private:
  void CheckDigests(const Bytes& pdu) const {
    const size_t header = pdu[2];
    if (pdus_.digests.header) {
      ASSERT_EQ(test::Get(pdu, header, 4), test::SlowCrc(pdu.data(), header));
    }
    if (pdu[3] == 0 || !pdus_.digests.data) return;
    const size_t end = pdu.size() - 4;
    ASSERT_EQ(test::Get(pdu, end, 4), test::SlowCrc(pdu.data() + pdu[3], end - pdu[3]));
  }
  Bytes DataOf(const Bytes& pdu) const {
    return {pdu.begin() + pdu[3], pdu.end() - (pdus_.digests.data ? 4 : 0)};
  }
  void TakeCapsule(const Bytes& pdu) {
    Served served{
        .reads = pdu[8] == 2, .bytes = static_cast<uint32_t>(test::Get(pdu, 40, 4)), .number = commands++};
    const auto cid = static_cast<uint16_t>(test::Get(pdu, 10, 2));
    ASSERT_FALSE(served_.contains(cid));
    if (!served.reads) written[served.number] = Bytes(served.bytes);
    if (pdu[3] != 0) {
      written[served.number] = DataOf(pdu);
      served.done = served.came = served.bytes;
    }
    served_[cid] = served;
  }
  void TakeData(const Bytes& pdu) {
    Served& served = served_.at(static_cast<uint16_t>(test::Get(pdu, 8, 2)));
    const Bytes data = DataOf(pdu);
    ASSERT_EQ(test::Get(pdu, 10, 2), served.number % 65'521);
    ASSERT_EQ(test::Get(pdu, 12, 4), served.came);
    ASSERT_LE(data.size(), kH2cMax);
    ASSERT_LE(served.came + data.size(), served.done);
    std::copy(data.begin(), data.end(), written[served.number].begin() + served.came);
    served.came += static_cast<uint32_t>(data.size());
  }
  Bytes ServeRead(uint16_t cid, Served& served) {
    const uint32_t rest = served.bytes - served.done;
    const uint32_t bytes =
        rest == 0 || random_() % 3 == 0 ? rest : 1 + static_cast<uint32_t>(random_() % rest);
    Bytes data(bytes);
    for (uint32_t i = 0; i < bytes; ++i) data[i] = ContentOf(served.number, served.done + i);
    const bool last = bytes == rest;
    const bool success = last && random_() % 2 == 0;
    const Bytes pdu =
        pdus_.Data(cid, served.done, data, static_cast<uint8_t>((last ? 4 : 0) | (success ? 8 : 0)),
                   static_cast<uint32_t>(random_() % 8) * 4);
    served.done += bytes;
    if (!last) return pdu;
    served_.erase(cid);
    return success ? pdu : pdu + pdus_.Resp(cid);
  }
  Bytes ServeWrite(uint16_t cid, Served& served) {
    if (served.came == served.bytes) {
      served_.erase(cid);
      return pdus_.Resp(cid);
    }
    if (served.came < served.done) return {};
    const uint32_t rest = served.bytes - served.done;
    const uint32_t bytes = random_() % 3 == 0 ? rest : 1 + static_cast<uint32_t>(random_() % rest);
    const Bytes pdu = pdus_.R2t(cid, static_cast<uint16_t>(served.number % 65'521), served.done, bytes);
    served.done += bytes;
    return pdu;
  }

  Controller pdus_;
  std::mt19937 random_;
  std::map<uint16_t, Served> served_;
};

struct Cut {
  size_t receive_step;
  size_t receive_pieces;
  size_t send_step;
  size_t send_pieces;
};

// The whole of it; returns what the owner heard.
std::vector<Host::Answer> Converse(uint32_t seed, Digests digests, const Cut& cut) {
  std::mt19937 random(seed);
  Host host(
      {.name = {}, .depth = 8, .in_capsule_bytes = 1024, .digests = digests, .receive_buffer_bytes = 2048});
  host.Connect(Controller::IcResp(static_cast<uint8_t>((digests.header ? 1 : 0) | (digests.data ? 2 : 0)),
                                  kH2cMax, 3));
  GoodController controller(digests, seed);
  std::vector<std::unique_ptr<TestMemory>> memories;
  std::vector<bool> reads;
  constexpr size_t kCommands = 40;
  uint32_t turns = 0;
  while (host.answers.size() < kCommands && host.ended == 0 && turns++ < 2000) {
    while (memories.size() < kCommands && host.connection.room() > 0 && random() % 4 != 0) {
      std::vector<uint32_t> lengths(1 + random() % 4);
      for (uint32_t& length : lengths)
        length = 1 + static_cast<uint32_t>(random() % (random() % 2 == 0 ? 300 : 9000));
      memories.push_back(std::make_unique<TestMemory>(lengths, static_cast<uint8_t>(random())));
      reads.push_back(random() % 2 == 0);
      if (reads.back()) {
        host.Read(memories.size() - 1, *memories.back());
      } else {
        host.Write(memories.size() - 1, *memories.back());
      }
    }
    Bytes sent;
    for (Bytes part = host.Send(cut.send_step, cut.send_pieces); !part.empty();
         part = host.Send(cut.send_step, cut.send_pieces))
      sent = sent + part;
    controller.Take(sent);
    host.Receive(controller.Speak(), cut.receive_step, cut.receive_pieces);
  }
  EXPECT_EQ(host.ended, 0) << host.why;
  EXPECT_EQ(host.answers.size(), kCommands);
  for (const Host::Answer& answer : host.answers) {
    const TestMemory& memory = *memories[answer.cookie];
    EXPECT_EQ(answer.status, 0);
    EXPECT_TRUE(memory.MarginsAreWhole());
    if (!reads[answer.cookie]) {
      EXPECT_TRUE(memory.Untouched());
      EXPECT_EQ(controller.written[answer.cookie], memory.Content());
      continue;
    }
    const Bytes content = memory.Content();
    EXPECT_EQ(answer.data_bytes, content.size());
    for (uint32_t i = 0; i < content.size(); ++i) {
      if (content[i] == GoodController::ContentOf(answer.cookie, i)) continue;
      ADD_FAILURE() << "read " << answer.cookie << " is wrong at " << i;
      break;
    }
  }
  return host.answers;
}

TEST(Conversation, IsTheSameHoweverItsBytesAreCut) {
  constexpr Cut kCuts[] = {
      {1, 1, SIZE_MAX, 64}, {SIZE_MAX, 1, 1000, 1}, {7, 3, 64, 2}, {1000, 8, 4099, 3}, {3000, 2, 33, 64}};
  for (uint32_t seed = 0; seed < 8; ++seed) {
    const Digests digests{.header = (seed & 1) != 0, .data = (seed & 2) != 0};
    SCOPED_TRACE("seed " + std::to_string(seed));
    const auto whole = Converse(seed, digests, {SIZE_MAX, 8, SIZE_MAX, 64});
    for (const Cut& cut : kCuts) ASSERT_EQ(Converse(seed, digests, cut), whole);
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace cleat::nvme::tcp
