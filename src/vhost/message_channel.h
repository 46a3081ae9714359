// SPDX-License-Identifier: Apache-2.0
// A non-blocking stream socket that carries vhost-user messages, read and written a whole message at a time. One end of
// a relay, on the control reactor.
#pragma once

#include <cstdint>
#include <optional>

#include "base/result.h"
#include "base/unique_fd.h"
#include "reactor/reactor.h"
#include "reactor/sync.h"
#include "vhost/close_aside.h"
#include "vhost/framing.h"

namespace cleat::vhost {

class MessageChannel {
 public:
  // `files`: for what the other end has sent, if closing it may hang; nullptr: it is a friend's.
  MessageChannel(Framer::Direction direction, Event& progress, PeerFiles* files = nullptr)
      : files_(files), framer_(direction), watch_(progress) {}
  ~MessageChannel() { Close(); }

  Status Start(Reactor& control, UniqueFd socket);
  void Close();

  // A message; nothing (nullopt) when there is none now; kUnavailable when the other end has closed.
  Result<std::optional<Message>> TryRead();
  // True when it is written, false when the socket is full. Never a part of it.
  Result<bool> TryWrite(const Message& message);

  bool in_message() const { return framer_.in_message(); }

 private:
  struct Watch : FdWatch {
    explicit Watch(Event& p) : FdWatch(&OnEvent), progress(p) {}
    static void OnEvent(FdWatch& watch, uint32_t epoll_events);
    Event& progress;
  };
  PeerFiles* const files_;
  Framer framer_;
  UniqueFd socket_;
  Watch watch_;
};

}  // namespace cleat::vhost
