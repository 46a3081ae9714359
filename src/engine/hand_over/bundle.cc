// SPDX-License-Identifier: Apache-2.0
#include "engine/hand_over/bundle.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "base/unix_socket.h"
#include "engine/hand_over/host_connections.h"

namespace cleat::engine {
namespace {

using nvmf_target::SavedAssociation;
using nvmf_target::SavedQueue;

constexpr uint8_t kMark = 'c';  // a message has a byte: an empty one is taken for the end

Error Broken(const std::string& why) {
  return {ErrorCode::kInvalidArgument, "what was handed over " + why};
}

Status WriteAll(int fd, std::span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return ErrnoError(errno, "writing to a memfd");
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return Ok{};
}

Result<UniqueFd> WriteDown(std::span<const SavedAssociation> associations) {
  UniqueFd memory(memfd_create("cleat-host-connections", MFD_CLOEXEC));
  if (!memory) return ErrnoError(errno, "memfd_create");
  CLEAT_TRY(PackConnections(
      associations, [&memory](std::span<const uint8_t> bytes) { return WriteAll(memory.get(), bytes); }));
  return memory;
}

// A memfd's, of any process: its size may change while it is read.
Result<std::vector<uint8_t>> ReadDown(const UniqueFd& memory) {
  struct stat info {};
  if (fstat(memory.get(), &info) != 0) return ErrnoError(errno, "fstat");
  if (!S_ISREG(info.st_mode)) return Broken("does not begin with a memfd");
  if (info.st_size < 0 || static_cast<size_t>(info.st_size) > kHostConnectionsBytesMax)
    return Broken("has " + std::to_string(info.st_size) + " bytes: at most " +
                  std::to_string(kHostConnectionsBytesMax) + " are taken");
  std::vector<uint8_t> bytes(static_cast<size_t>(info.st_size));
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t got =
        pread(memory.get(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoError(errno, "reading a memfd");
    if (got == 0) return Broken("became shorter while it was read");
    done += static_cast<size_t>(got);
  }
  return bytes;
}

// The next message's descriptors; none: the end.
Result<std::vector<UniqueFd>> ReceiveSome(const UniqueFd& bundle) {
  std::array<uint8_t, 1> mark{};
  CLEAT_ASSIGN(auto received, ReceiveWithFds(bundle.get(), mark, kMessageFdsMax));
  if (!received) return Broken("has no end");
  if (received->bytes > 0 && received->fds.empty()) return Broken("has a message without descriptors");
  return std::move(received->fds);
}

bool IsStream(const UniqueFd& fd) {
  int type = 0;
  socklen_t bytes = sizeof(type);
  return getsockopt(fd.get(), SOL_SOCKET, SO_TYPE, &type, &bytes) == 0 && type == SOCK_STREAM;
}

// Whose sockets came, in their order.
class SocketsTaker {
 public:
  explicit SocketsTaker(std::vector<SavedAssociation>& associations) {
    for (SavedAssociation& association : associations) {
      for (SavedQueue& queue : association.queues) waiting_.push_back(&queue);
    }
  }
  size_t left() const { return waiting_.size() - taken_; }

  Status Take(std::span<UniqueFd> sockets) {
    if (sockets.size() > left()) return Broken("has more sockets than connections");
    for (UniqueFd& socket : sockets) {
      if (!IsStream(socket)) return Broken("has a descriptor that is no connection's");
      waiting_[taken_++]->socket = std::move(socket);
    }
    return Ok{};
  }

 private:
  std::vector<SavedQueue*> waiting_;
  size_t taken_ = 0;
};

}  // namespace

Result<UniqueFd> MakeBundle(std::vector<SavedAssociation> associations) {
  std::vector<UniqueFd> fds;
  CLEAT_ASSIGN(auto memory, WriteDown(associations));
  fds.push_back(std::move(memory));
  for (SavedAssociation& association : associations) {
    for (SavedQueue& queue : association.queues) fds.push_back(std::move(queue.socket));
  }
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0)
    return ErrnoError(errno, "socketpair");
  const UniqueFd writing(ends[0]);
  UniqueFd bundle(ends[1]);
  uint8_t mark = kMark;
  const iovec part{&mark, 1};
  for (std::span<const UniqueFd> left(fds); !left.empty();) {
    const std::span<const UniqueFd> some = left.first(std::min(left.size(), kMessageFdsMax));
    CLEAT_ASSIGN(const size_t sent, SendWithFds(writing.get(), {&part, 1}, some));
    if (sent == 0) return Error(ErrorCode::kResourceExhausted, "a socket has no room for all connections");
    left = left.subspan(some.size());
  }
  return bundle;
}

Result<std::vector<SavedAssociation>> OpenBundle(const UniqueFd& bundle, const ReserveDescriptors& reserve) {
  CLEAT_ASSIGN(auto fds, ReceiveSome(bundle));
  if (fds.empty()) return Broken("is empty");
  CLEAT_ASSIGN(const auto bytes, ReadDown(fds.front()));
  CLEAT_ASSIGN(auto associations, UnpackConnections(bytes));
  SocketsTaker taker(associations);
  // Held while the others come in; then each connection reserves its own.
  CLEAT_ASSIGN(const auto descriptors, reserve(taker.left()));
  CLEAT_TRY(taker.Take(std::span(fds).subspan(1)));
  for (;;) {
    CLEAT_ASSIGN(fds, ReceiveSome(bundle));
    if (fds.empty()) break;
    CLEAT_TRY(taker.Take(fds));
  }
  if (taker.left() > 0) return Broken("lacks " + std::to_string(taker.left()) + " sockets");
  return associations;
}

}  // namespace cleat::engine
