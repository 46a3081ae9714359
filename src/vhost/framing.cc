// SPDX-License-Identifier: Apache-2.0
#include "vhost/framing.h"

#include <algorithm>
#include <utility>

namespace cleat::vhost {
namespace {

Error Refuse(const MessageHeader& header, const std::string& what) {
  return {ErrorCode::kInvalidArgument, RequestName(header.request) + ": " + what};
}

std::string Range(uint32_t least, uint32_t most) {
  return least == most ? std::to_string(least) : std::to_string(least) + " to " + std::to_string(most);
}

}  // namespace

Message MakeReply(const Message& request, uint32_t size_bytes) {
  CLEAT_CHECK(size_bytes <= kPayloadBytesMax);
  Message reply;
  reply.header.request = request.header.request;
  reply.header.flags = kVersion | kFlagReply;
  reply.header.size_bytes = size_bytes;
  return reply;
}

Message MakeAck(const Message& request, bool ok) {
  Message ack = MakeReply(request, sizeof(uint64_t));
  ack.Set<uint64_t>(ok ? 0 : 1);
  return ack;
}

size_t Framer::wanted() const {
  if (received_ < sizeof(MessageHeader)) return sizeof(MessageHeader) - received_;
  return sizeof(MessageHeader) + message_.header.size_bytes - received_;
}

Status Framer::Push(std::span<const uint8_t> bytes, std::vector<UniqueFd> descriptors) {
  CLEAT_CHECK(bytes.size() <= wanted());
  for (UniqueFd& descriptor : descriptors) message_.descriptors.push_back(std::move(descriptor));
  if (message_.descriptors.size() > kDescriptorsMax) {
    return Error(ErrorCode::kInvalidArgument,
                 "a message with more than " + std::to_string(kDescriptorsMax) + " file descriptors");
  }
  if (received_ < sizeof(MessageHeader)) {
    std::memcpy(reinterpret_cast<uint8_t*>(&message_.header) + received_, bytes.data(), bytes.size());
    received_ += bytes.size();
    if (received_ < sizeof(MessageHeader)) return Ok{};
    CLEAT_TRY(CheckHeader());
  } else {
    std::memcpy(message_.payload.data() + (received_ - sizeof(MessageHeader)), bytes.data(), bytes.size());
    received_ += bytes.size();
  }
  return wanted() == 0 ? CheckShape() : Status(Ok{});
}

std::optional<Message> Framer::Take() {
  if (wanted() != 0) return std::nullopt;
  received_ = 0;
  return std::exchange(message_, Message());
}

// Before a byte of the payload is read: its size is what the next read goes by.
Status Framer::CheckHeader() const {
  const MessageHeader& header = message_.header;
  if ((header.flags & kVersionMask) != kVersion) {
    return Refuse(header,
                  "version " + std::to_string(header.flags & kVersionMask) + " of the protocol, not 1");
  }
  const bool reply = (header.flags & kFlagReply) != 0;
  if (reply != (direction_ == Direction::kReplies)) {
    return Refuse(header,
                  reply ? "a reply where a request was expected" : "a request where a reply was expected");
  }
  if (header.size_bytes > kPayloadBytesMax) {
    return Refuse(header, "a payload of " + std::to_string(header.size_bytes) + " bytes; at most " +
                              std::to_string(kPayloadBytesMax));
  }
  if (direction_ == Direction::kReplies) return Ok{};
  if ((header.flags & ~kFlagsKnown) != 0) {
    return Refuse(header, "unknown flags " + std::to_string(header.flags & ~kFlagsKnown));
  }
  const RequestShape* shape = FindRequest(header.request);
  if (shape == nullptr) return Refuse(header, "not offered by this back end");
  if (header.size_bytes < shape->payload_bytes_min || header.size_bytes > shape->payload_bytes_max) {
    return Refuse(header, "a payload of " + std::to_string(header.size_bytes) + " bytes, not " +
                              Range(shape->payload_bytes_min, shape->payload_bytes_max));
  }
  return Ok{};
}

Status Framer::CheckShape() const {
  if (direction_ == Direction::kReplies) return Ok{};
  const MessageHeader& header = message_.header;
  size_t expected = 0;
  switch (FindRequest(header.request)->descriptors) {
    case Descriptors::kNone:
      break;
    case Descriptors::kOne:
      expected = 1;
      break;
    case Descriptors::kOneUnlessFlagged:
      expected = (message_.As<uint64_t>() & kVringNoDescriptor) != 0 ? 0 : 1;
      break;
    case Descriptors::kOnePerRegion: {
      const uint32_t regions = message_.As<MemoryTableHeader>().region_count;
      if (regions > kMemoryRegionsMax ||
          sizeof(MemoryTableHeader) + regions * sizeof(MemoryTableRegion) > header.size_bytes) {
        return Refuse(header, std::to_string(regions) + " regions in a payload of " +
                                  std::to_string(header.size_bytes) + " bytes; at most " +
                                  std::to_string(kMemoryRegionsMax) + " regions");
      }
      expected = regions;
      break;
    }
  }
  if (message_.descriptors.size() != expected) {
    return Refuse(header, std::to_string(message_.descriptors.size()) + " file descriptors, not " +
                              std::to_string(expected));
  }
  return Ok{};
}

}  // namespace cleat::vhost
