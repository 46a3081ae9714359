// SPDX-License-Identifier: Apache-2.0
// A connected unix stream socket that carries vhost-user messages: whole ones with their descriptors, or any
// bytes at all for tests that send what no front end should. Owned by a Frontend; one thread. Every wait has
// an end.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "perf/wire/vhost_user.h"

namespace cleat::perf {

struct Message {
  wire::Header header{};
  std::vector<uint8_t> payload;
  std::vector<UniqueFd> fds;

  // The payload as a T; an error when its size differs.
  template <typename T>
  Result<T> As() const {
    if (payload.size() != sizeof(T)) return WrongSize(sizeof(T));
    T value;
    std::memcpy(&value, payload.data(), sizeof value);
    return value;
  }

 private:
  Error WrongSize(size_t expected_bytes) const;
};

template <typename T>
std::span<const uint8_t> AsBytes(const T& value) {
  return {reinterpret_cast<const uint8_t*>(&value), sizeof value};
}

class MessageSocket {
 public:
  MessageSocket() = default;
  explicit MessageSocket(UniqueFd connected);

  bool open() const { return fd_.valid(); }
  int fd() const { return fd_.get(); }
  void Close() { fd_.Reset(); }

  // True once the peer has closed its end, whatever is still unread.
  bool PeerGone() const;

  // Bytes as they are, the descriptors with the first of them (none is closed here).
  Status SendBytes(std::span<const uint8_t> bytes, std::span<const int> fds, uint64_t timeout_ns);

  // As many of the bytes as the socket takes at once; 0 when it takes none.
  Result<size_t> TrySendBytes(std::span<const uint8_t> bytes, std::span<const int> fds);

  Status Send(uint32_t request, uint32_t flags, std::span<const uint8_t> payload, std::span<const int> fds,
              uint64_t timeout_ns);

  // kUnavailable when the peer is gone, kDeadlineExceeded when nothing whole came in time.
  Result<Message> Receive(uint64_t timeout_ns);

 private:
  Status ReceiveExactly(std::span<uint8_t> bytes, std::vector<UniqueFd>* fds, uint64_t timeout_ns);

  UniqueFd fd_;
};

// A listening socket at `path`; what lay there before is removed, as QEMU does it. The backlog is QEMU's.
Result<UniqueFd> ListenUnix(const std::string& path);
Result<UniqueFd> AcceptUnix(int listener, uint64_t timeout_ns);
// Tries until somebody listens there.
Result<UniqueFd> ConnectUnix(const std::string& path, uint64_t timeout_ns);

}  // namespace cleat::perf
