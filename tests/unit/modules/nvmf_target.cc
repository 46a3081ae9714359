// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/modules/nvmf_target.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "base/check.h"
#include "tests/unit/modules/nvmf_target_session.h"

namespace cleat::test {

NvmfTarget::NvmfTarget(const Options& options, const NvmfTarget* beside)
    : options_(options), store_(beside != nullptr ? beside->store_ : std::make_shared<Store>()) {
  if (beside == nullptr) {
    store_->bytes.resize(options.size_bytes);
    store_->size_bytes = options.size_bytes;
  }
  Start();
}

NvmfTarget::~NvmfTarget() {
  Stop();
}

void NvmfTarget::Start() {
  const int socket_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  CLEAT_CHECK(setsockopt(socket_fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port_);
  CLEAT_CHECK(bind(socket_fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  CLEAT_CHECK(listen(socket_fd, 128) == 0);
  socklen_t bytes = sizeof(address);
  CLEAT_CHECK(getsockname(socket_fd, reinterpret_cast<sockaddr*>(&address), &bytes) == 0);
  port_ = ntohs(address.sin_port);
  {
    const std::lock_guard lock(mutex_);
    stopping_ = false;
  }
  listener_ = socket_fd;
  acceptor_ = std::thread([this] { Accept(); });
}

void NvmfTarget::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  shutdown(listener_, SHUT_RDWR);
  if (acceptor_.joinable()) acceptor_.join();
  close(listener_.exchange(-1));
  JoinAll();
}

void NvmfTarget::CutAll() {
  const std::lock_guard lock(mutex_);
  for (auto& session : sessions_) shutdown(session->socket, SHUT_RDWR);
}

void NvmfTarget::Grow(uint64_t size_bytes) {
  const std::lock_guard lock(store_->mutex);
  CLEAT_CHECK(size_bytes >= store_->bytes.size());
  store_->bytes.resize(size_bytes);
  store_->size_bytes = size_bytes;
}

void NvmfTarget::ChangeLog(uint64_t records) {
  faults.log_records = records;
  {
    const std::lock_guard lock(mutex_);
    ++log_generation_;
  }
  Notify(0x0070f002);
}

// An event is told on each connection whose host has asked for events.
void NvmfTarget::Notify(uint32_t event) {
  const std::lock_guard lock(mutex_);
  ++ana_changes_;
  for (auto& session : sessions_) {
    if (session->event_requests.empty()) continue;
    const std::vector<uint8_t> request = session->event_requests.back();
    session->event_requests.pop_back();
    session->Respond(request, event);
  }
}

// Under mutex_: sessions that have ended leave nothing behind, however many there were.
void NvmfTarget::Reap() {
  sessions_.remove_if([](const std::unique_ptr<Session>& session) {
    if (!session->over) return false;
    session->thread.join();
    close(session->socket);
    return true;
  });
}

void NvmfTarget::JoinAll() {
  std::list<std::unique_ptr<Session>> ended;
  {
    const std::lock_guard lock(mutex_);
    ended.swap(sessions_);
  }
  for (auto& session : ended) {
    shutdown(session->socket, SHUT_RDWR);
    session->thread.join();
    close(session->socket);
  }
}

void NvmfTarget::Accept() {
  for (;;) {
    const int accepted = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    const std::lock_guard lock(mutex_);
    if (accepted < 0 || stopping_) {
      if (accepted >= 0) close(accepted);
      return;
    }
    ++counts.accepted;
    Reap();
    const int on = 1;
    CLEAT_CHECK(setsockopt(accepted, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0);
    sessions_.push_back(std::make_unique<Session>(*this, accepted));
  }
}

std::vector<uint8_t> NvmfTarget::Read(uint64_t offset, uint64_t bytes) {
  const std::lock_guard lock(store_->mutex);
  const auto from = store_->bytes.begin() + static_cast<ptrdiff_t>(offset);
  return {from, from + static_cast<ptrdiff_t>(bytes)};
}

void NvmfTarget::Write(uint64_t offset, std::span<const uint8_t> data) {
  const std::lock_guard lock(store_->mutex);
  std::copy(data.begin(), data.end(), store_->bytes.begin() + static_cast<ptrdiff_t>(offset));
}

}  // namespace cleat::test
