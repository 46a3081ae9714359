// SPDX-License-Identifier: Apache-2.0
// The ConnectionManager (rdma/connection_manager.h) by librdmacm.
#include "rdma/connection_manager.h"

#include <fmt/format.h>
#include <sys/epoll.h>

#include <cerrno>
#include <utility>

#include "base/unique_fd.h"
#include "rdma/rdmacm/cm_event.h"
#include "rdma/rdmacm/connection.h"
#include "rdma/rdmacm/deadlines.h"
#include "rdma/rdmacm/listener.h"

namespace cleat::rdma {
namespace {

class AdapterConnectionManager final : public ConnectionManager {
 public:
  AdapterConnectionManager(const Library& library, EventChannel channel, std::unique_ptr<Deadlines> deadlines,
                           UniqueFd events)
      : library_(library),
        channel_(std::move(channel)),
        deadlines_(std::move(deadlines)),
        events_(std::move(events)) {}

  int descriptor() const override { return events_.get(); }

  void HandleEvents() override {
    deadlines_->Expire();
    CmEvent event;
    for (uint32_t handled = 0; handled < kEventsMax; ++handled) {
      CmEventHandler* handler = TakeCmEvent(library_, *channel_, event);
      if (handler == nullptr) return;
      handler->Handle(event);
    }
  }

  Result<std::unique_ptr<Listener>> Listen(const Endpoint& at, int backlog, ListenerOwner& owner) override {
    return AdapterListener::Listen(library_, *channel_, at, backlog, owner);
  }

  Result<std::unique_ptr<Connection>> Connect(const ConnectOptions& options,
                                              ConnectionOwner& owner) override {
    return AdapterConnection::Connect(library_, *channel_, *deadlines_, options, owner);
  }

 private:
  const Library& library_;
  const EventChannel channel_;
  const std::unique_ptr<Deadlines> deadlines_;
  const UniqueFd events_;  // readable when the channel's or the timer's descriptor is
};

Status Watch(const UniqueFd& watch, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  if (!watch || epoll_ctl(watch.get(), EPOLL_CTL_ADD, fd, &event) != 0)
    return ErrnoError(errno, "RDMA: a descriptor for the connection manager's events");
  return {};
}

}  // namespace

Result<std::unique_ptr<ConnectionManager>> OpenConnectionManager() {
  CLEAT_ASSIGN(const Library* library, GetLibrary());
  CLEAT_ASSIGN(EventChannel channel, MakeEventChannel(*library));
  CLEAT_ASSIGN(std::unique_ptr<Deadlines> deadlines, Deadlines::Make());
  UniqueFd events(epoll_create1(EPOLL_CLOEXEC));
  CLEAT_TRY(Watch(events, channel->fd));
  CLEAT_TRY(Watch(events, deadlines->descriptor()));
  return std::unique_ptr<ConnectionManager>(std::make_unique<AdapterConnectionManager>(
      *library, std::move(channel), std::move(deadlines), std::move(events)));
}

}  // namespace cleat::rdma
