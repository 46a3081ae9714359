// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/random.h"
#include "perf/hostile/hostile.h"
#include "perf/wire/vhost_user.h"

namespace cleat::perf {
namespace {

using wire::Request;

constexpr SocketAbuseCase kSocketCases[] = {
    {SocketAbuse::kSilence, "Silence", true},
    {SocketAbuse::kHalfHeader, "HalfHeader", true},
    {SocketAbuse::kHalfPayload, "HalfPayload", true},
    {SocketAbuse::kByteByByte, "ByteByByte", false},
    {SocketAbuse::kOversizePayload, "OversizePayload", false},
    {SocketAbuse::kHugePayload, "HugePayload", false},
    {SocketAbuse::kUnknownRequest, "UnknownRequest", false},
    {SocketAbuse::kBadVersion, "BadVersion", false},
    {SocketAbuse::kReplyNobodyWanted, "ReplyNobodyWanted", false},
    {SocketAbuse::kTooManyFds, "TooManyFds", false},
    {SocketAbuse::kFdsOnHalfHeader, "FdsOnHalfHeader", true},
    {SocketAbuse::kMemTableWithoutFds, "MemTableWithoutFds", false},
    {SocketAbuse::kMemTableWithFewFds, "MemTableWithFewFds", false},
    {SocketAbuse::kKickWithoutFd, "KickWithoutFd", false},
    {SocketAbuse::kBadRingIndex, "BadRingIndex", false},
    {SocketAbuse::kWrongPayloadSize, "WrongPayloadSize", false},
    {SocketAbuse::kFlood, "Flood", false},
    {SocketAbuse::kGarbage, "Garbage", false},
};

constexpr SetupAbuseCase kSetupCases[] = {
    {SetupAbuse::kDescOutsideMemory, "DescOutsideMemory"},
    {SetupAbuse::kAvailOutsideMemory, "AvailOutsideMemory"},
    {SetupAbuse::kUsedOutsideMemory, "UsedOutsideMemory"},
    {SetupAbuse::kRingCrossesRegionEnd, "RingCrossesRegionEnd"},
    {SetupAbuse::kRingMisaligned, "RingMisaligned"},
    {SetupAbuse::kRingSizeZero, "RingSizeZero"},
    {SetupAbuse::kRingSizeNotPowerOfTwo, "RingSizeNotPowerOfTwo"},
    {SetupAbuse::kRingSizeHuge, "RingSizeHuge"},
    {SetupAbuse::kKickIsNoEventfd, "KickIsNoEventfd"},
    {SetupAbuse::kRegionSizeZero, "RegionSizeZero"},
    {SetupAbuse::kRegionWraps, "RegionWraps"},
    {SetupAbuse::kRegionSizeHuge, "RegionSizeHuge"},
    {SetupAbuse::kRegionsOverlap, "RegionsOverlap"},
    {SetupAbuse::kRegionOffsetBehindFile, "RegionOffsetBehindFile"},
    {SetupAbuse::kFileShorterThanRegion, "FileShorterThanRegion"},
    {SetupAbuse::kTooManyRegions, "TooManyRegions"},
    {SetupAbuse::kInflightTooSmall, "InflightTooSmall"},
};

constexpr size_t kFloodMessages = 20'000;
constexpr size_t kGarbageBytes = 4096;
constexpr uint64_t kGarbageSeed = 20260131;
constexpr uint64_t kHalfMessageBytes = 6;
constexpr size_t kTooManyFdsCount = 32;
constexpr uint32_t kHugeRing = 1U << 20;
constexpr uint16_t kRingSize = 128;
constexpr uint64_t kRingAreaBytes = 8192;
constexpr uint64_t kHugeRegionBytes = 1ULL << 62;

std::vector<uint8_t> Bytes(uint32_t request, uint32_t flags, uint32_t size,
                           std::span<const uint8_t> payload) {
  const wire::Header header{.request = request, .flags = flags, .size = size};
  std::vector<uint8_t> bytes(sizeof header + payload.size());
  std::memcpy(bytes.data(), &header, sizeof header);
  if (!payload.empty()) std::memcpy(bytes.data() + sizeof header, payload.data(), payload.size());
  return bytes;
}

UniqueFd EventFd() {
  return UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
}

Status SendRaw(Frontend& frontend, std::span<const uint8_t> bytes, std::span<const int> fds = {}) {
  return frontend.socket().SendBytes(bytes, fds, frontend.options().message_timeout_ns);
}

Status ByteByByte(Frontend& frontend) {
  const std::vector<uint8_t> message = Bytes(Request::kGetFeatures, wire::kVersion, 0, {});
  for (const uint8_t& byte : message) {
    CLEAT_TRY(SendRaw(frontend, {&byte, 1}));
  }
  CLEAT_TRY(frontend.Receive());
  return Ok{};
}

// As much as the socket takes: a back end that throttles stops reading, which is not an error.
Status Flood(Frontend& frontend) {
  const std::vector<uint8_t> message = Bytes(Request::kGetFeatures, wire::kVersion, 0, {});
  for (size_t i = 0; i < kFloodMessages; ++i) {
    CLEAT_ASSIGN(auto sent, frontend.socket().TrySendBytes(message, {}));
    if (sent < message.size()) return Ok{};
  }
  return Ok{};
}

Status Garbage(Frontend& frontend) {
  Random random(kGarbageSeed);
  std::vector<uint8_t> bytes(kGarbageBytes);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.Next());
  return SendRaw(frontend, bytes);
}

Status TooManyFds(Frontend& frontend, std::span<const uint8_t> bytes) {
  const UniqueFd event = EventFd();
  std::array<int, kTooManyFdsCount> fds{};
  fds.fill(event.get());
  return SendRaw(frontend, bytes, fds);
}

// Two regions that are announced, with `fd_count` descriptors.
Status MemTable(Frontend& frontend, size_t fd_count) {
  const wire::MemoryRegion regions[] = {{0, GuestMemory::kPageBytes, 0x10000, 0},
                                        {GuestMemory::kPageBytes, GuestMemory::kPageBytes, 0x20000, 0}};
  const UniqueFd memory(memfd_create("cleat-perf-abuse", MFD_CLOEXEC));
  if (!memory || ftruncate(memory.get(), GuestMemory::kPageBytes) != 0) return ErrnoError(errno, "memfd");
  const int fds[] = {memory.get(), memory.get()};
  return frontend.SetMemTable(regions, std::span<const int>(fds).first(fd_count));
}

RingSetup GoodRing(const GuestMemory& memory, uint64_t gpa) {
  RingSetup ring;
  ring.size = kRingSize;
  ring.desc_user = memory.UserAddress(gpa);
  ring.avail_user = memory.UserAddress(gpa + kRingAreaBytes / 4);
  ring.used_user = memory.UserAddress(gpa + kRingAreaBytes / 2);
  return ring;
}

Status StartRing(Frontend& frontend, const RingSetup& ring, uint32_t size, int kick_fd) {
  CLEAT_TRY(frontend.SetVringNum(0, size));
  CLEAT_TRY(frontend.SetVringBase(0, 0));
  CLEAT_TRY(frontend.SetVringAddr(0, ring));
  const UniqueFd call = EventFd();
  CLEAT_TRY(frontend.SetVringCall(0, call.get()));
  CLEAT_TRY(frontend.SetVringKick(0, kick_fd));
  return frontend.SetVringEnable(0, true);
}

Status AbuseRing(SetupAbuse abuse, Frontend& frontend, GuestMemory& memory) {
  // Not given back: the back end may still look at it.
  CLEAT_ASSIGN(auto gpa, memory.Allocate(kRingAreaBytes, GuestMemory::kPageBytes));
  RingSetup ring = GoodRing(memory, gpa);
  uint32_t size = kRingSize;
  const uint64_t nowhere = 0x1000;  // never mapped in our own address space, so never a user address
  const UniqueFd event = EventFd();
  const UniqueFd unreadable(open("/dev/null", O_WRONLY | O_CLOEXEC));
  int kick_fd = event.get();
  switch (abuse) {
    case SetupAbuse::kDescOutsideMemory:
      ring.desc_user = nowhere;
      break;
    case SetupAbuse::kAvailOutsideMemory:
      ring.avail_user = nowhere;
      break;
    case SetupAbuse::kUsedOutsideMemory:
      ring.used_user = nowhere;
      break;
    case SetupAbuse::kRingCrossesRegionEnd:
      ring.used_user = memory.UserAddress(memory.EndGpa() - 64);
      break;
    case SetupAbuse::kRingMisaligned:
      ring.desc_user += 1;
      ring.avail_user += 1;
      ring.used_user += 1;
      break;
    case SetupAbuse::kRingSizeZero:
      size = 0;
      break;
    case SetupAbuse::kRingSizeNotPowerOfTwo:
      size = 100;
      break;
    case SetupAbuse::kRingSizeHuge:
      size = kHugeRing;
      break;
    case SetupAbuse::kKickIsNoEventfd:
      kick_fd = unreadable.get();
      break;
    default:
      break;
  }
  return StartRing(frontend, ring, size, kick_fd);
}

// Replaces the memory table by a spoiled copy of it, and then starts a ring in what was good.
Status AbuseRegions(SetupAbuse abuse, Frontend& frontend, GuestMemory& memory) {
  std::vector<wire::MemoryRegion> regions = memory.Table();
  std::vector<int> fds = memory.Fds();
  const UniqueFd empty(memfd_create("cleat-perf-abuse", MFD_CLOEXEC));
  if (!empty) return ErrnoError(errno, "memfd");
  wire::MemoryRegion spoiled{.gpa = memory.EndGpa() + (1ULL << 30),
                             .size_bytes = GuestMemory::kPageBytes,
                             .user_addr = 0x10000,
                             .mmap_offset_bytes = 0};
  int fd = fds.front();
  switch (abuse) {
    case SetupAbuse::kRegionSizeZero:
      spoiled.size_bytes = 0;
      break;
    case SetupAbuse::kRegionWraps:
      spoiled.gpa = UINT64_MAX - GuestMemory::kPageBytes + 1;
      spoiled.size_bytes = 2 * GuestMemory::kPageBytes;
      break;
    case SetupAbuse::kRegionSizeHuge:
      spoiled.size_bytes = kHugeRegionBytes;
      break;
    case SetupAbuse::kRegionsOverlap:
      spoiled.gpa = regions.front().gpa;
      spoiled.user_addr = regions.front().user_addr;
      break;
    case SetupAbuse::kRegionOffsetBehindFile:
      spoiled.mmap_offset_bytes = UINT64_MAX - GuestMemory::kPageBytes + 1;
      break;
    case SetupAbuse::kFileShorterThanRegion:
      fd = empty.get();
      break;
    default:
      break;
  }
  if (abuse == SetupAbuse::kTooManyRegions) {
    std::vector<uint8_t> payload(sizeof(wire::MemTableHeader) + wire::kMemoryRegionsMax * sizeof spoiled);
    const wire::MemTableHeader header{.region_count = wire::kMemoryRegionsMax + 1, .padding = 0};
    std::memcpy(payload.data(), &header, sizeof header);
    return frontend.Send(Request::kSetMemTable, payload, fds);
  }
  if (regions.size() == wire::kMemoryRegionsMax) {
    regions.pop_back();
    fds.pop_back();
  }
  regions.push_back(spoiled);
  fds.push_back(fd);
  CLEAT_TRY(frontend.SetMemTable(regions, fds));
  return AbuseRing(abuse, frontend, memory);
}

Status AbuseInflight(Frontend& frontend, GuestMemory& memory) {
  if ((frontend.protocol_features() & wire::kProtocolInflightShmfd) == 0) return Ok{};
  SharedArea area;
  area.fd.Reset(memfd_create("cleat-perf-abuse", MFD_CLOEXEC));
  if (!area.fd || ftruncate(area.fd.get(), 16) != 0) return ErrnoError(errno, "memfd");
  area.size_bytes = 16;
  area.num_queues = 1;
  area.queue_size = kRingSize;
  CLEAT_TRY(frontend.SetInflightFd(area));
  return AbuseRing(SetupAbuse::kInflightTooSmall, frontend, memory);
}

}  // namespace

std::span<const SocketAbuseCase> SocketAbuseCases() {
  return kSocketCases;
}
std::span<const SetupAbuseCase> SetupAbuseCases() {
  return kSetupCases;
}

Status Apply(SetupAbuse abuse, Frontend& frontend, GuestMemory& memory) {
  if (abuse == SetupAbuse::kInflightTooSmall) return AbuseInflight(frontend, memory);
  if (abuse < SetupAbuse::kRegionSizeZero) return AbuseRing(abuse, frontend, memory);
  return AbuseRegions(abuse, frontend, memory);
}

Status Apply(SocketAbuse abuse, Frontend& frontend) {
  const uint64_t zero = 0;
  switch (abuse) {
    case SocketAbuse::kSilence:
      return Ok{};
    case SocketAbuse::kHalfHeader:
      return SendRaw(frontend, std::span<const uint8_t>(Bytes(Request::kGetFeatures, wire::kVersion, 0, {}))
                                   .first(kHalfMessageBytes));
    case SocketAbuse::kHalfPayload:
      return SendRaw(frontend,
                     Bytes(Request::kSetFeatures, wire::kVersion, sizeof zero, AsBytes(zero).first(4)));
    case SocketAbuse::kByteByByte:
      return ByteByByte(frontend);
    case SocketAbuse::kOversizePayload:
      return SendRaw(frontend, Bytes(Request::kSetFeatures, wire::kVersion, 1U << 20, AsBytes(zero)));
    case SocketAbuse::kHugePayload:
      return SendRaw(frontend, Bytes(Request::kSetFeatures, wire::kVersion, UINT32_MAX, AsBytes(zero)));
    case SocketAbuse::kUnknownRequest:
      return SendRaw(frontend, Bytes(9999, wire::kVersion, sizeof zero, AsBytes(zero)));
    case SocketAbuse::kBadVersion:
      return SendRaw(frontend, Bytes(Request::kGetFeatures, 0, 0, {}));
    case SocketAbuse::kReplyNobodyWanted:
      return SendRaw(frontend, Bytes(Request::kSetFeatures, wire::kVersion | wire::kFlagReply, sizeof zero,
                                     AsBytes(zero)));
    case SocketAbuse::kTooManyFds:
      return TooManyFds(frontend, Bytes(Request::kGetFeatures, wire::kVersion, 0, {}));
    case SocketAbuse::kFdsOnHalfHeader:
      return TooManyFds(frontend,
                        std::span<const uint8_t>(Bytes(Request::kGetFeatures, wire::kVersion, 0, {}))
                            .first(kHalfMessageBytes));
    case SocketAbuse::kMemTableWithoutFds:
      return MemTable(frontend, 0);
    case SocketAbuse::kMemTableWithFewFds:
      return MemTable(frontend, 1);
    case SocketAbuse::kKickWithoutFd:
      return SendRaw(frontend, Bytes(Request::kSetVringKick, wire::kVersion, sizeof zero, AsBytes(zero)));
    case SocketAbuse::kBadRingIndex:
      return frontend.SetVringNum(0xffff, kRingSize);
    case SocketAbuse::kWrongPayloadSize:
      return SendRaw(frontend, Bytes(Request::kSetVringNum, wire::kVersion, 4, AsBytes(zero).first(4)));
    case SocketAbuse::kFlood:
      return Flood(frontend);
    case SocketAbuse::kGarbage:
      return Garbage(frontend);
  }
  return Ok{};
}

}  // namespace cleat::perf
