// SPDX-License-Identifier: Apache-2.0
#include "fake_backend.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

namespace cleat::perf {
namespace {

constexpr uint64_t kReceiveTimeoutNs = 60 * kNsPerSecond;
constexpr uint64_t kInflightBytes = 4096;

}  // namespace

std::array<UniqueFd, 2> SocketPair() {
  int pair[2];
  CLEAT_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
  return {UniqueFd(pair[0]), UniqueFd(pair[1])};
}

FakeBackend::FakeBackend(UniqueFd connected, FakeDevice& device, const FakeBackendOptions& options)
    : socket_(std::move(connected)), stop_(eventfd(0, EFD_CLOEXEC)), device_(device), options_(options) {
  CLEAT_CHECK(options_.queues <= kQueuesMax);
  thread_ = std::thread([this] { Run(); });
}

FakeBackend::~FakeBackend() {
  const uint64_t one = 1;
  CLEAT_CHECK(write(stop_.get(), &one, sizeof one) == sizeof one);
  Join();
  Unmap();
}

void FakeBackend::Join() {
  if (thread_.joinable()) thread_.join();
}

bool FakeBackend::any_ring_broken() const {
  for (const Queue& queue : queues_) {
    if (queue.ring.broken()) return true;
  }
  return false;
}

void FakeBackend::Run() {
  for (;;) {
    std::vector<pollfd> fds = {{.fd = stop_.get(), .events = POLLIN, .revents = 0},
                               {.fd = socket_.fd(), .events = POLLIN, .revents = 0}};
    for (const Queue& queue : queues_) {
      fds.push_back({.fd = queue.started ? queue.kick.get() : -1, .events = POLLIN, .revents = 0});
    }
    if (poll(fds.data(), fds.size(), -1) < 0) continue;
    if (fds[0].revents != 0) break;
    if (fds[1].revents != 0) {
      Result<Message> message = socket_.Receive(kReceiveTimeoutNs);
      if (!message) {
        // What was kicked before the end is looked at, however late this thread is.
        for (size_t i = 0; i < queues_.size(); ++i) ServeQueue(static_cast<uint16_t>(i));
        break;
      }
      requests_.push_back(message->header.request);
      if (!Handle(*message)) break;
      continue;  // a queue may be another now
    }
    bool alive = true;
    for (size_t i = 0; i < queues_.size() && alive; ++i) {
      if (fds[2 + i].revents == 0) continue;
      uint64_t count = 0;
      if (read(queues_[i].kick.get(), &count, sizeof count) != sizeof count) continue;
      alive = ServeQueue(static_cast<uint16_t>(i));
    }
    // What the requests may have given the device to say.
    for (size_t i = 0; i < queues_.size() && alive; ++i) alive = ServeQueue(static_cast<uint16_t>(i));
    if (!alive) break;
  }
  socket_.Close();
}

bool FakeBackend::ServeQueue(uint16_t index) {
  Queue& queue = queues_[index];
  if (!queue.started || !queue.enabled || !options_.serves) return true;
  const Translate translate = [this](uint64_t gpa, uint64_t size_bytes) { return Gpa(gpa, size_bytes); };
  do {
    served_ += queue.ring.Process(device_, translate, options_.dies_after_requests - served_, index);
    const uint64_t one = 1;
    if (queue.ring.WantsCall() && options_.calls)
      CLEAT_CHECK(write(queue.call.get(), &one, sizeof one) == sizeof one);
    if (served_ == options_.dies_after_requests) return false;
  } while (queue.ring.Rearm() && device_.Answers(index));
  return true;
}

uint8_t* FakeBackend::Gpa(uint64_t gpa, uint64_t size_bytes) const {
  for (const Region& region : regions_) {
    const uint64_t offset = gpa - region.where.gpa;
    if (gpa >= region.where.gpa && offset < region.where.size_bytes &&
        size_bytes <= region.where.size_bytes - offset) {
      return region.host + offset;
    }
  }
  return nullptr;
}

uint8_t* FakeBackend::User(uint64_t address, uint64_t size_bytes) const {
  for (const Region& region : regions_) {
    const uint64_t offset = address - region.where.user_addr;
    if (address >= region.where.user_addr && offset < region.where.size_bytes &&
        size_bytes <= region.where.size_bytes - offset) {
      return region.host + offset;
    }
  }
  return nullptr;
}

void FakeBackend::Unmap() {
  for (Region& region : regions_) munmap(region.host, region.where.size_bytes);
  regions_.clear();
}

bool FakeBackend::Locate(const Queue& queue, FakeRing::Layout* layout) const {
  const uint64_t size = queue.size;
  layout->size = queue.size;
  layout->desc = User(queue.address.desc_user, size * 16);
  layout->avail = User(queue.address.avail_user, 6 + size * 2);
  layout->used = User(queue.address.used_user, 6 + size * 8);
  const bool aligned = queue.address.desc_user % 16 == 0 && queue.address.used_user % 4 == 0;
  return size > 0 && (size & (size - 1)) == 0 && aligned && layout->desc != nullptr &&
         layout->avail != nullptr && layout->used != nullptr;
}

bool FakeBackend::StartRing(Queue& queue) {
  FakeRing::Layout layout;
  if (!Locate(queue, &layout)) return false;
  queue.ring.Start(layout, queue.base, (features_ & wire::kFeatureEventIdx) != 0);
  queue.started = true;
  return true;
}

bool FakeBackend::Reply(const Message& to, std::span<const uint8_t> payload, std::span<const int> fds) {
  return socket_.Send(to.header.request, wire::kVersion | wire::kFlagReply, payload, fds, kReceiveTimeoutNs)
      .ok();
}

bool FakeBackend::Handle(Message& message) {
  if ((message.header.flags & wire::kVersionMask) != wire::kVersion ||
      message.fds.size() > wire::kMessageFdsMax) {
    return false;
  }
  bool good = true;
  bool answered = false;
  switch (message.header.request) {
    case wire::kGetFeatures:
      return Reply(message, AsBytes(options_.features));
    case wire::kGetProtocolFeatures:
      return Reply(message, AsBytes(options_.protocol_features));
    case wire::kGetQueueNum:
      return Reply(message, AsBytes(uint64_t{options_.queues}));
    case wire::kGetConfig:
      return HandleConfig(message);
    case wire::kSetFeatures: {
      const Result<uint64_t> features = message.As<uint64_t>();
      good = features.ok() && (*features & ~options_.features) == 0;
      if (good) features_ = *features;
      break;
    }
    case wire::kSetBackendReqFd:
      good = message.fds.size() == 1;
      if (good) backend_channel_ = std::move(message.fds[0]);
      break;
    case wire::kSetProtocolFeatures:
    case wire::kSetOwner:
    case wire::kSetConfig:
      break;
    case wire::kSetMemTable:
      good = HandleMemTable(message);
      break;
    case wire::kGetInflightFd:
      answered = true;
      [[fallthrough]];
    case wire::kSetInflightFd:
      good = HandleInflight(message);
      break;
    case wire::kGetVringBase:
      answered = true;
      [[fallthrough]];
    case wire::kSetVringNum:
    case wire::kSetVringAddr:
    case wire::kSetVringBase:
    case wire::kSetVringEnable:
      good = HandleVring(message);
      break;
    case wire::kSetVringKick:
    case wire::kSetVringCall:
    case wire::kSetVringErr:
      good = HandleVringFd(message);
      break;
    default:
      return false;
  }
  if (answered || (message.header.flags & wire::kFlagNeedReply) == 0) return good;
  return Reply(message, AsBytes(uint64_t{good ? 0U : 1U}));
}

bool FakeBackend::HandleConfig(const Message& message) {
  wire::ConfigHeader header;
  if (message.payload.size() < sizeof header) return false;
  std::memcpy(&header, message.payload.data(), sizeof header);
  const wire::BlkConfig config = device_.Config(options_.queues);
  if (header.offset + uint64_t{header.size} > sizeof config) return Reply(message, {});
  std::vector<uint8_t> payload(sizeof header + header.size);
  std::memcpy(payload.data(), &header, sizeof header);
  std::memcpy(payload.data() + sizeof header, AsBytes(config).data() + header.offset, header.size);
  return Reply(message, payload);
}

bool FakeBackend::HandleInflight(Message& message) {
  Result<wire::Inflight> inflight = message.As<wire::Inflight>();
  if (!inflight) return false;
  if (message.header.request == wire::kSetInflightFd) {
    struct stat status {};
    if (message.fds.size() != 1 || fstat(message.fds[0].get(), &status) != 0) return false;
    return status.st_size == kInflightBytes && inflight->mmap_size_bytes == kInflightBytes;
  }
  inflight_.Reset(memfd_create("fake-inflight", MFD_CLOEXEC));
  if (ftruncate(inflight_.get(), kInflightBytes) != 0) return false;
  inflight_given_ = true;
  inflight->mmap_size_bytes = kInflightBytes;
  const int fds[] = {inflight_.get()};
  return Reply(message, AsBytes(*inflight), fds);
}

bool FakeBackend::HandleMemTable(Message& message) {
  wire::MemTableHeader header;
  if (message.payload.size() < sizeof header) return false;
  std::memcpy(&header, message.payload.data(), sizeof header);
  const uint64_t wanted = sizeof header + uint64_t{header.region_count} * sizeof(wire::MemoryRegion);
  if (header.region_count > wire::kMemoryRegionsMax || message.payload.size() != wanted ||
      message.fds.size() != header.region_count) {
    return false;
  }
  Unmap();
  for (uint32_t i = 0; i < header.region_count; ++i) {
    Region region;
    std::memcpy(&region.where, message.payload.data() + sizeof header + i * sizeof region.where,
                sizeof region.where);
    struct stat status {};
    if (fstat(message.fds[i].get(), &status) != 0) return false;
    const auto file_bytes = static_cast<uint64_t>(status.st_size);
    if (region.where.size_bytes == 0 || region.where.mmap_offset_bytes > file_bytes ||
        region.where.size_bytes > file_bytes - region.where.mmap_offset_bytes) {
      return false;
    }
    void* host = mmap(nullptr, region.where.size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                      message.fds[i].get(), static_cast<off_t>(region.where.mmap_offset_bytes));
    if (host == MAP_FAILED) return false;
    region.host = static_cast<uint8_t*>(host);
    regions_.push_back(std::move(region));
  }
  for (Queue& queue : queues_) {
    FakeRing::Layout layout;
    if (!queue.started) continue;
    if (!Locate(queue, &layout)) return false;
    queue.ring.Move(layout);
  }
  return true;
}

bool FakeBackend::HandleVring(Message& message) {
  if (message.header.request == wire::kSetVringAddr) {
    const Result<wire::VringAddr> address = message.As<wire::VringAddr>();
    if (!address || address->index >= options_.queues) return false;
    queues_[address->index].address = *address;
    return true;
  }
  const Result<wire::VringState> state = message.As<wire::VringState>();
  if (!state || state->index >= options_.queues) return false;
  Queue& queue = queues_[state->index];
  switch (message.header.request) {
    case wire::kSetVringNum:
      queue.size = static_cast<uint16_t>(state->num);
      return state->num > 0 && state->num <= DriverRing::kSizeMax;
    case wire::kSetVringBase:
      queue.base = static_cast<uint16_t>(state->num);
      bases_.push_back(state->num);
      return true;
    case wire::kSetVringEnable:
      queue.enabled = state->num != 0;
      return true;
    default:
      queue.started = false;
      return Reply(message, AsBytes(wire::VringState{state->index, queue.ring.last_avail()}));
  }
}

bool FakeBackend::HandleVringFd(Message& message) {
  const Result<uint64_t> value = message.As<uint64_t>();
  if (!value || message.fds.size() != 1) return false;
  const uint64_t index = *value & wire::kVringIndexMask;
  if (index >= options_.queues) return false;
  Queue& queue = queues_[index];
  if (message.header.request == wire::kSetVringCall) {
    queue.call = std::move(message.fds[0]);
  } else if (message.header.request == wire::kSetVringKick) {
    queue.kick = std::move(message.fds[0]);
    return StartRing(queue);
  }
  return true;
}

}  // namespace cleat::perf
