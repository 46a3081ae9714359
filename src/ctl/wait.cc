// SPDX-License-Identifier: Apache-2.0
#include "ctl/wait.h"

#include <fmt/format.h>

#include <chrono>

#include "ctl/show.h"

namespace cleat::ctl {
namespace {

// What is known of the one resource that is waited for.
struct Seen {
  bool exists = false;
  bool ready = false;
  std::string state;
  std::string message;
};

template <typename Resource>
void Look(const Resource& resource, const std::string& name, bool ready, Seen& seen) {
  if (resource.name() != name) return;
  seen = {.exists = true, .ready = ready, .state = StateOf(resource), .message = resource.status().message()};
}

bool IsReady(const v1::Controller& controller) {
  switch (controller.status().state()) {
    case v1::CONTROLLER_STATE_IDLE:
    case v1::CONTROLLER_STATE_CONNECTING:
    case v1::CONTROLLER_STATE_HANDSHAKE:
    case v1::CONTROLLER_STATE_READY:
      return true;
    default:
      return false;
  }
}

void Take(const v1::WatchResponse& event, const std::string& name, Seen& seen) {
  Look(event.disk(), name, event.disk().status().state() == v1::DISK_STATE_READY, seen);
  Look(event.controller(), name, IsReady(event.controller()), seen);
  Look(event.attachment(), name, event.attachment().status().state() == v1::ATTACHMENT_STATE_READY, seen);
  if (event.gone() == name) seen = {};
}

}  // namespace

bool WaitFor(Client& client, const std::string& name, Goal goal, int seconds) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(seconds));
  const auto reader = client.stub().Watch(&context, {});
  Seen seen;
  bool synced = false;
  v1::WatchResponse event;
  while (reader->Read(&event)) {
    Take(event, name, seen);
    synced = synced || event.has_synced();
    if (synced && (goal == Goal::kReady ? seen.ready : !seen.exists)) {
      context.TryCancel();
      return true;
    }
    if (synced && !seen.exists) {
      context.TryCancel();
      client.Fail(kFailed, fmt::format("{} was deleted while it was waited for", name));
      return false;
    }
  }
  const grpc::Status status = reader->Finish();
  if (status.error_code() != grpc::StatusCode::DEADLINE_EXCEEDED) return client.Check(status);
  client.Fail(kFailed, fmt::format("{} is still not {} after {} s. The request stands; its state is {}{}{}",
                                   name, goal == Goal::kReady ? "ready" : "gone", seconds, seen.state,
                                   seen.message.empty() ? "" : ": ", seen.message));
  return false;
}

}  // namespace cleat::ctl
