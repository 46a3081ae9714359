// SPDX-License-Identifier: Apache-2.0
// One connection between a vhost-user front end (the peer) and the protocol library: whole, checked messages
// only, in one linear coroutine on the control reactor. Of each request the session takes its part first, and
// what must be held back until the reactors have let go is held back by waiting for it; then the library gets
// the message; then the peer its answer.
//
//   peer --bytes--> framer --message--> session (await) --> library
//        <-----------------answer------------+
//
// What the session has taken is acknowledged without the library's word, for which a reconnecting guest would wait behind
// the library's one thread, which looks at all its connections for each message. It checks all that changes its state, in
// order, and has a veto: what it refuses ends the connection, if a message later. Only what it alone can say is awaited
// (GET_VRING_BASE, SET_LOG_BASE).
//
// One request is on its way at a time: a peer that sends faster than it is served, or doesn't read its
// answers, fills its own socket and nothing else, and the library, whose one thread serves every device,
// never waits for a peer or for half a message. What breaks the rules ends this connection with an error that
// says which.
//
// Kept from the library, because it has no use for them, would write to what belongs to a running ring or
// would die of what a peer does to its files: kick, call and error descriptors, the in-flight log, the back
// end's channel to the front end, and the guest's memory (it maps an empty stand-in of the same size).
// Configuration space and what is offered are answered here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "reactor/reactor.h"
#include "reactor/sync.h"
#include "reactor/task.h"
#include "vhost/close_aside.h"
#include "vhost/framing.h"
#include "vhost/message_channel.h"
#include "vhost/ring_yield.h"
#include "vhost/session.h"
#include "virtio/device_model.h"

namespace cleat::vhost {

class Relay {
 public:
  // `session`, `model` and `files` outlive the relay. `files` closes what the peer has sent and nobody takes; nullptr: it is
  // closed in place.
  Relay(Reactor& control, Session& session, virtio::DeviceModel& model, PeerFiles* files = nullptr);

  ~Relay() { Close(); }

  // Runs the connection until the peer closes it (success), Stop, or an error. The rings are as they were
  // then: the caller ends the session first and closes the relay's sockets (Close, or its destructor)
  // afterwards.
  Task<Status> Run(UniqueFd peer, UniqueFd library);
  void Stop();
  // Between two calls of the session the rings are yielded (Session::YieldRings): between two messages, and while an answer
  // waits for a peer that does not read. OK: Run ends in success, with yielded(). Otherwise, or when no call came to its end
  // before the deadline, it goes on. kCancelled: the connection ended. One at a time.
  Task<Status> Yield(uint64_t deadline_ns);
  bool yielded() const { return yielded_; }
  // Run ends with this error.
  void Fail(Error why);
  void Close();

  // Asks the front end to read the configuration space again, if it gave us a way to. Never waits.
  void TellConfigChanged();

  uint64_t messages() const { return messages_; }  // from the peer
  const std::string& last_request() const { return last_request_; }

 private:
  Task<Status> Converse();
  Task<Status> Handle(Message* message);
  // The session's and the model's part. With `answer` set the message is answered here and goes no further.
  Task<Status> TakePart(Message* message, std::optional<Message>* answer);
  Task<Status> TakeRingPart(Message* message);
  Task<Status> TakeDescriptor(Message* message);
  Task<Status> TakeMemory(Message* message);
  Task<Status> TakeInflight(const Message& message, std::optional<Message>* answer);
  Status SetBackendChannel(UniqueFd& channel);
  void CloseBackendChannel();
  Message GetConfig(const Message& message) const;
  Status SetConfig(const Message& message);
  Task<Status> AwaitReply(const Message& request, Message* reply);
  Task<Status> Write(MessageChannel& channel, const Message& message);

  Reactor& control_;
  Session& session_;
  virtio::DeviceModel& model_;
  PeerFiles* const files_;
  Event progress_;
  MessageChannel peer_;
  MessageChannel library_;
  UniqueFd backend_requests_;  // our way to the front end, once it gave us one
  bool stopping_ = false;
  bool yielded_ = false;
  Status failure_;  // what Run ends with when it was told to
  uint32_t stopped_base_ = 0;
  uint64_t messages_ = 0;
  std::string last_request_;
  RingYield yield_{control_, [this] { progress_.Set(); }, [this] { return last_request_; }};
};

}  // namespace cleat::vhost
