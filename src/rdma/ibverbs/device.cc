// SPDX-License-Identifier: Apache-2.0
#include "rdma/ibverbs/device.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <utility>

#include "base/check.h"
#include "rdma/endpoint.h"
#include "rdma/ibverbs/completion_queue.h"
#include "rdma/ibverbs/memory.h"
#include "rdma/ibverbs/receive_queue.h"

namespace cleat::rdma {
namespace {

uint32_t LimitOf(int value) {
  return static_cast<uint32_t>(std::max(value, 0));
}

Result<ibv_device_attr> AttributesOf(const Library& library, ibv_context& context) {
  ibv_device_attr attributes{};
  const int error = library.query_device(&context, &attributes);
  if (error != 0)
    return ErrnoError(error,
                      fmt::format("RDMA: the adapter {} does not say its limits", context.device->name));
  return attributes;
}

DeviceLimits LimitsOf(const ibv_device_attr& has) {
  DeviceLimits limits;
  limits.queue_pairs = LimitOf(has.max_qp);
  limits.works = LimitOf(has.max_qp_wr);
  limits.pieces = LimitOf(has.max_sge);
  // Adapters that know no difference say 0.
  limits.read_pieces = has.max_sge_rd > 0 ? LimitOf(has.max_sge_rd) : limits.pieces;
  limits.receive_queues = LimitOf(has.max_srq);
  limits.receive_entries = LimitOf(has.max_srq_wr);
  limits.completion_entries = LimitOf(has.max_cqe);
  limits.reads_served = LimitOf(has.max_qp_rd_atom);
  limits.reads_sent = LimitOf(has.max_qp_init_rd_atom);
  limits.windows = LimitOf(has.max_mw);
  limits.windows_of_type_2b = (has.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B) != 0;
  return limits;
}

// Soft-RoCE shows programs the flags of completions as the kernel numbers them: there IB_WC_WITH_INVALIDATE is 1 << 2, which libibverbs takes for
// IBV_WC_IP_CSUM_OK, a flag of datagrams alone (Linux 6.12, include/rdma/ib_verbs.h and drivers/infiniband/sw/rxe/rxe_resp.c).
constexpr uint32_t kVendorOfSoftRoce = 0xffffff;
constexpr unsigned int kInvalidatedBySoftRoce = 1 << 2;

unsigned int InvalidatedFlagOf(const ibv_device_attr& has) {
  return has.vendor_id == kVendorOfSoftRoce ? IBV_WC_WITH_INV | kInvalidatedBySoftRoce
                                            : static_cast<unsigned int>(IBV_WC_WITH_INV);
}

Status DoNotBlock(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
    return ErrnoError(errno, "RDMA: a descriptor of the adapter");
  return {};
}

Result<UniqueFd> WatchBoth(int first_fd, int second_fd) {
  UniqueFd watch(epoll_create1(EPOLL_CLOEXEC));
  if (!watch) return ErrnoError(errno, "RDMA: a descriptor for an adapter's events");
  for (const int fd : {first_fd, second_fd}) {
    epoll_event event{};
    event.events = EPOLLIN;
    if (epoll_ctl(watch.get(), EPOLL_CTL_ADD, fd, &event) != 0)
      return ErrnoError(errno, "RDMA: a descriptor for an adapter's events");
  }
  return watch;
}

Status BindTo(const Library& library, rdma_cm_id& id, const std::string& local_address) {
  CLEAT_ASSIGN(sockaddr_storage storage, ToKernel({local_address, 0}));
  if (library.bind_addr(&id, reinterpret_cast<sockaddr*>(&storage)) != 0) {
    const int error = errno;
    if (error != ENODEV && error != EADDRNOTAVAIL)
      return ErrnoError(error, fmt::format("RDMA: the address {}", local_address));
  }
  if (id.verbs == nullptr)
    return Error(
        ErrorCode::kNotFound,
        fmt::format("RDMA: no adapter has the address {}: take one of an interface that `rdma link` shows",
                    local_address));
  return {};
}

unsigned int If(bool wanted, unsigned int flag) {
  return wanted ? flag : 0;
}

unsigned int FlagsOf(const MemoryAccess& access) {
  return If(access.local_write, IBV_ACCESS_LOCAL_WRITE) | If(access.peer_may_read, IBV_ACCESS_REMOTE_READ) |
         If(access.peer_may_write, IBV_ACCESS_REMOTE_WRITE) | If(access.windows, IBV_ACCESS_MW_BIND);
}

}  // namespace

Result<std::unique_ptr<Device>> AdapterDevice::Open(const Library& library,
                                                    const std::string& local_address) {
  CLEAT_ASSIGN(EventChannel channel, MakeEventChannel(library));
  CLEAT_ASSIGN(CmId id, MakeCmId(library, *channel, nullptr));
  CLEAT_TRY(BindTo(library, *id, local_address));
  CLEAT_ASSIGN(const ibv_device_attr attributes, AttributesOf(library, *id->verbs));
  CLEAT_TRY(DoNotBlock(id->verbs->async_fd));
  CLEAT_ASSIGN(UniqueFd events, WatchBoth(channel->fd, id->verbs->async_fd));
  ibv_pd* domain = library.alloc_pd(id->verbs);
  if (domain == nullptr)
    return ErrnoError(errno,
                      fmt::format("RDMA: {} has no room for a protection domain", id->verbs->device->name));
  return std::unique_ptr<Device>(
      new AdapterDevice(library, std::move(channel), std::move(id), *domain, attributes, std::move(events)));
}

AdapterDevice::AdapterDevice(const Library& library, EventChannel channel, CmId id, ibv_pd& domain,
                             const ibv_device_attr& attributes, UniqueFd events)
    : library_(library),
      channel_(std::move(channel)),
      id_(std::move(id)),
      domain_(&domain),
      name_(id_->verbs->device->name),
      limits_(LimitsOf(attributes)),
      invalidated_flag_(InvalidatedFlagOf(attributes)),
      events_(std::move(events)) {}

AdapterDevice::~AdapterDevice() {
  // Something that was made on it is still there.
  CLEAT_CHECK(library_.dealloc_pd(domain_) != EBUSY);
}

Result<std::unique_ptr<Registration>> AdapterDevice::Register(std::span<uint8_t> memory,
                                                              const MemoryAccess& access) {
  ibv_mr* region = library_.reg_mr(domain_, memory.data(), memory.size(), static_cast<int>(FlagsOf(access)));
  if (region == nullptr) {
    const int error = errno;
    std::string what = fmt::format("RDMA: {} cannot use {} bytes of memory", name_, memory.size());
    if (error == ENOMEM)
      what +=
          ": this process may not lock so much (RLIMIT_MEMLOCK; LimitMEMLOCK= of its unit), or the adapter "
          "is full";
    return ErrnoError(error, what);
  }
  return std::unique_ptr<Registration>(std::make_unique<AdapterRegistration>(library_, *region));
}

Result<std::unique_ptr<MemoryWindow>> AdapterDevice::MakeWindow() {
  // Type 2 is bound by work of a queue pair; 2A and 2B differ in what the adapter ties it to.
  ibv_mw* window = ibv_alloc_mw(domain_, IBV_MW_TYPE_2);
  if (window == nullptr)
    return ErrnoError(
        errno, fmt::format("RDMA: {} gives no memory window of type 2 (it has {})", name_, limits_.windows));
  return std::unique_ptr<MemoryWindow>(std::make_unique<AdapterWindow>(*window));
}

Result<std::unique_ptr<CompletionQueue>> AdapterDevice::MakeCompletionQueue(uint32_t entries,
                                                                            uint32_t vector) {
  const std::string what = fmt::format("RDMA: {} makes no completion queue of {} entries (it has up to {})",
                                       name_, entries, limits_.completion_entries);
  if (entries == 0 || entries > limits_.completion_entries) return Error(ErrorCode::kResourceExhausted, what);
  ibv_comp_channel* channel = library_.create_comp_channel(context());
  if (channel == nullptr) return ErrnoError(errno, what);
  const Status quiet = DoNotBlock(channel->fd);
  const int vectors = std::max(context()->num_comp_vectors, 1);
  ibv_cq* queue = quiet.ok() ? library_.create_cq(context(), static_cast<int>(entries), nullptr, channel,
                                                  static_cast<int>(vector % static_cast<uint32_t>(vectors)))
                             : nullptr;
  if (queue == nullptr) {
    const Error error = quiet.ok() ? ErrnoError(errno, what) : quiet.error();
    library_.destroy_comp_channel(channel);
    return error;
  }
  return std::unique_ptr<CompletionQueue>(
      std::make_unique<AdapterCompletionQueue>(library_, *channel, *queue, invalidated_flag_));
}

Result<std::unique_ptr<ReceiveQueue>> AdapterDevice::MakeReceiveQueue(uint32_t entries) {
  ibv_srq_init_attr attributes{};
  attributes.attr.max_wr = entries;
  attributes.attr.max_sge = 1;
  ibv_srq* queue = library_.create_srq(domain_, &attributes);
  if (queue == nullptr)
    return ErrnoError(
        errno,
        fmt::format("RDMA: {} makes no shared receive queue of {} entries (it has {} queues of up to {})",
                    name_, entries, limits_.receive_queues, limits_.receive_entries));
  return std::unique_ptr<ReceiveQueue>(std::make_unique<AdapterReceiveQueue>(library_, *queue));
}

Status AdapterDevice::TakeEvents() {
  TakeManagerEvents();
  TakeAdapterEvents();
  return state_;
}

void AdapterDevice::TakeManagerEvents() {
  rdma_cm_event* event = nullptr;
  while (library_.get_cm_event(channel_.get(), &event) == 0) {
    if (event->event == RDMA_CM_EVENT_DEVICE_REMOVAL) End("was removed");
    library_.ack_cm_event(event);
  }
}

void AdapterDevice::TakeAdapterEvents() {
  ibv_async_event event{};
  while (library_.get_async_event(context(), &event) == 0) {
    // Of one queue pair, port or queue: what is on it learns that by its own completions. A completion queue that overran is a fault of this program.
    if (event.event_type == IBV_EVENT_DEVICE_FATAL || event.event_type == IBV_EVENT_CQ_ERR)
      End(library_.event_type_str(event.event_type));
    library_.ack_async_event(&event);
  }
}

void AdapterDevice::End(const char* why) {
  if (state_.ok())
    state_ = Error(ErrorCode::kUnavailable,
                   fmt::format("RDMA: the adapter {}: {}; {}", name_, why, kHowToGetAnAdapter));
}

Result<std::string> DeviceNameAt(const std::string& local_address) {
  CLEAT_ASSIGN(const Library* library, GetLibrary());
  CLEAT_ASSIGN(const EventChannel channel, MakeEventChannel(*library));
  CLEAT_ASSIGN(const CmId id, MakeCmId(*library, *channel, nullptr));
  CLEAT_TRY(BindTo(*library, *id, local_address));
  return std::string(id->verbs->device->name);
}

Result<std::unique_ptr<Device>> OpenDevice(const std::string& local_address) {
  CLEAT_ASSIGN(const Library* library, GetLibrary());
  return AdapterDevice::Open(*library, local_address);
}

}  // namespace cleat::rdma
