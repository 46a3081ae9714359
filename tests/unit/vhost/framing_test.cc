// SPDX-License-Identifier: Apache-2.0
#include "vhost/framing.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <string>

#include "base/random.h"

namespace cleat::vhost::framing_test {
namespace {

using Direction = Framer::Direction;

std::vector<uint8_t> Bytes(uint32_t request, uint32_t flags, uint32_t size_bytes, uint8_t fill = 0) {
  const MessageHeader header{request, flags, size_bytes};
  std::vector<uint8_t> bytes(sizeof header + size_bytes, fill);
  std::memcpy(bytes.data(), &header, sizeof header);
  return bytes;
}

std::vector<uint8_t> Bytes(Request request, uint32_t size_bytes, uint8_t fill = 0) {
  return Bytes(static_cast<uint32_t>(request), kVersion, size_bytes, fill);
}

std::vector<UniqueFd> Eventfds(size_t count) {
  std::vector<UniqueFd> descriptors;
  for (size_t i = 0; i < count; ++i) descriptors.emplace_back(eventfd(static_cast<unsigned>(i), EFD_CLOEXEC));
  return descriptors;
}

// As a socket hands it over: never more than is wanted, the descriptors with the first piece.
Result<std::optional<Message>> Feed(Framer& framer, std::span<const uint8_t> bytes,
                                    std::vector<UniqueFd> fds) {
  while (!bytes.empty() && framer.wanted() > 0) {
    const size_t count = std::min(bytes.size(), framer.wanted());
    Status pushed = framer.Push(bytes.first(count), std::exchange(fds, {}));
    if (!pushed) return std::move(pushed).error();
    bytes = bytes.subspan(count);
  }
  return framer.Take();
}

std::string Refusal(std::span<const uint8_t> bytes, size_t descriptors,
                    Direction direction = Direction::kRequests) {
  Framer framer(direction);
  auto result = Feed(framer, bytes, Eventfds(descriptors));
  return result ? "taken" : result.error().message;
}

TEST(Framer, CutsAStreamHoweverItIsSplit) {
  struct Sent {
    std::vector<uint8_t> bytes;
    size_t descriptors;
  };
  std::vector<Sent> stream;
  for (uint8_t i = 0; i < 40; ++i) {
    stream.push_back({Bytes(Request::kGetFeatures, 0), 0});
    stream.push_back({Bytes(Request::kSetVringKick, 8), 1});
    stream.push_back({Bytes(Request::kSetVringAddr, 40, i), 0});
    std::vector<uint8_t> table = Bytes(Request::kSetMemTable, sizeof(MemoryTableHeader) + 3 * 32, i);
    const MemoryTableHeader regions{3, 0};
    std::memcpy(table.data() + sizeof(MessageHeader), &regions, sizeof regions);
    stream.push_back({table, 3});
  }
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    Random random(seed);
    Framer framer(Direction::kRequests);
    for (const Sent& sent : stream) {
      std::vector<UniqueFd> descriptors = Eventfds(sent.descriptors);
      for (size_t at = 0; at < sent.bytes.size();) {
        ASSERT_GT(framer.wanted(), 0U);
        const size_t most = std::min(framer.wanted(), sent.bytes.size() - at);
        const size_t count = 1 + random.Below(most);
        // The descriptors come with any part, all or one by one, but with the message's last byte at the
        // latest.
        std::vector<UniqueFd> now;
        const bool last = at + count == sent.bytes.size();
        while (!descriptors.empty() && (last || random.Below(3) == 0)) {
          now.push_back(std::move(descriptors.front()));
          descriptors.erase(descriptors.begin());
        }
        const Status pushed = framer.Push({sent.bytes.data() + at, count}, std::move(now));
        ASSERT_TRUE(pushed.ok()) << pushed.error().message;
        at += count;
        ASSERT_EQ(framer.wanted() == 0, at == sent.bytes.size());
      }
      auto message = framer.Take();
      ASSERT_TRUE(message.has_value());
      EXPECT_FALSE(framer.in_message());
      ASSERT_EQ(message->descriptors.size(), sent.descriptors);
      for (size_t i = 0; i < sent.descriptors; ++i) {
        uint64_t number = 0;  // eventfd i was made with the value i: the order has to be kept
        if (i > 0) {
          ASSERT_EQ(read(message->descriptors[i].get(), &number, sizeof number), ssize_t{sizeof number});
        }
        EXPECT_EQ(number, i);
      }
      ASSERT_EQ(message->header.size_bytes + sizeof(MessageHeader), sent.bytes.size());
      EXPECT_EQ(std::memcmp(message->payload.data(), sent.bytes.data() + sizeof(MessageHeader),
                            message->header.size_bytes),
                0);
    }
  }
}

TEST(Framer, NeverWantsMoreThanTheMessage) {
  Framer framer(Direction::kRequests);
  EXPECT_EQ(framer.wanted(), sizeof(MessageHeader));
  const auto bytes = Bytes(Request::kSetVringNum, 8);
  ASSERT_TRUE(framer.Push({bytes.data(), 5}, {}).ok());
  EXPECT_EQ(framer.wanted(), sizeof(MessageHeader) - 5);
  EXPECT_TRUE(framer.in_message());
  ASSERT_TRUE(framer.Push({bytes.data() + 5, 7}, {}).ok());
  EXPECT_EQ(framer.wanted(), 8U);
  EXPECT_FALSE(framer.Take().has_value());
}

TEST(Framer, RefusesBadHeadersBeforeTheirPayload) {
  EXPECT_EQ(Refusal(Bytes(1, 0, 0), 0), "GET_FEATURES: version 0 of the protocol, not 1");
  EXPECT_EQ(Refusal(Bytes(1, kVersion | kFlagReply, 0), 0),
            "GET_FEATURES: a reply where a request was expected");
  EXPECT_EQ(Refusal(Bytes(1, kVersion, 8), 0, Direction::kReplies),
            "GET_FEATURES: a request where a reply was expected");
  EXPECT_EQ(Refusal(Bytes(1, kVersion | 0x100, 0), 0), "GET_FEATURES: unknown flags 256");
  EXPECT_EQ(Refusal(Bytes(9999, kVersion, 0), 0), "request 9999: not offered by this back end");
  EXPECT_EQ(Refusal(Bytes(static_cast<uint32_t>(Request::kSetVringNum), kVersion, 4), 0),
            "SET_VRING_NUM: a payload of 4 bytes, not 8");
  const MessageHeader huge{static_cast<uint32_t>(Request::kSetConfig), kVersion, 0xffffffff};
  EXPECT_EQ(Refusal({reinterpret_cast<const uint8_t*>(&huge), sizeof huge}, 0),
            "SET_CONFIG: a payload of 4294967295 bytes; at most 1024");
}

TEST(Framer, RefusesDescriptorsThatDontBelong) {
  EXPECT_EQ(Refusal(Bytes(Request::kGetFeatures, 0), 1), "GET_FEATURES: 1 file descriptors, not 0");
  EXPECT_EQ(Refusal(Bytes(Request::kSetVringKick, 8), 0), "SET_VRING_KICK: 0 file descriptors, not 1");
  EXPECT_EQ(Refusal(Bytes(Request::kSetVringKick, 8), 2), "SET_VRING_KICK: 2 file descriptors, not 1");
  EXPECT_EQ(Refusal(Bytes(Request::kSetVringKick, 8, 0x01), 0), "taken");  // the bit that says there is none
  EXPECT_EQ(Refusal(Bytes(Request::kSetMemTable, 8 + 32), 9), "a message with more than 8 file descriptors");
}

TEST(Framer, RefusesMemoryTablesThatDontFit) {
  auto table = [](uint32_t regions, uint32_t payload_regions) {
    auto bytes = Bytes(Request::kSetMemTable, 8 + payload_regions * 32);
    std::memcpy(bytes.data() + sizeof(MessageHeader), &regions, sizeof regions);
    return bytes;
  };
  EXPECT_EQ(Refusal(table(8, 8), 8), "taken");
  EXPECT_EQ(Refusal(table(9, 8), 8), "SET_MEM_TABLE: 9 regions in a payload of 264 bytes; at most 8 regions");
  EXPECT_EQ(Refusal(table(3, 2), 3), "SET_MEM_TABLE: 3 regions in a payload of 72 bytes; at most 8 regions");
  EXPECT_EQ(Refusal(table(2, 2), 1), "SET_MEM_TABLE: 1 file descriptors, not 2");
  EXPECT_EQ(Refusal(table(0x10000002, 2), 2),
            "SET_MEM_TABLE: 268435458 regions in a payload of 72 bytes; at most 8 regions");
}

}  // namespace
}  // namespace cleat::vhost::framing_test
