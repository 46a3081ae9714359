// SPDX-License-Identifier: Apache-2.0
// What can't be taken back is asked about, when somebody is at the terminal.
#pragma once

#include <string>

#include "ctl/client.h"
#include "ctl/output.h"
#include "ctl/reasons.h"

namespace cleat::ctl {

// Says `what` and asks `question` on standard error; kOk when the answer on standard input is y or yes. kUsage when one of the two is
// no terminal, so that nobody can answer: then it says that --yes is needed. Any other answer, or none: kFailed.
[[nodiscard]] ExitCode Ask(const std::string& what, const std::string& question);

// A key is destroyed only when that is meant: by --yes, or because somebody at the terminal says so.
template <typename Request, typename Response>
[[nodiscard]] ExitCode CallSparingKey(Client& client,
                                      grpc::Status (v1::Cleat::Stub::*method)(grpc::ClientContext*,
                                                                              const Request&, Response*),
                                      Request& request, Response& response, bool yes) {
  request.set_spare_key(!yes);
  const grpc::Status status = client.TryCall(method, request, response);
  if (ReasonOf(DetailsOf(status)) != "KEY_NOT_KEPT") return client.Say(status);
  if (const ExitCode code = Ask(status.error_message() + "\n", "Destroy it?"); code != kOk) return code;
  request.set_spare_key(false);
  return client.Call(method, request, response);
}

}  // namespace cleat::ctl
