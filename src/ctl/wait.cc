// SPDX-License-Identifier: Apache-2.0
#include "ctl/wait.h"

namespace cleat::ctl {
namespace {

// cleatd ends the wait; the call's own deadline is for a cleatd that doesn't.
constexpr std::chrono::seconds kGraceTime{10};

}  // namespace

ExitCode WaitFor(Client& client, const std::string& name, const WaitOptions& options,
                 v1::WaitResponse& response) {
  v1::WaitRequest request;
  request.set_name(name);
  request.set_condition(options.condition);
  request.mutable_timeout()->set_seconds(options.time.count());
  request.set_fail_fast(options.fail_fast);
  return client.Call(&v1::Cleat::Stub::Wait, request, response, options.time + kGraceTime);
}

ExitCode WaitUntilGone(Client& client, const std::string& name, int seconds) {
  v1::WaitResponse response;
  const WaitOptions options{.condition = v1::WAIT_CONDITION_GONE, .time = std::chrono::seconds(seconds)};
  return WaitFor(client, name, options, response);
}

}  // namespace cleat::ctl
