// SPDX-License-Identifier: Apache-2.0
// What all commands share: calls to cleatd, how their answers are shown, and what is said when they fail. One thread.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "cleat/v1/cleat.grpc.pb.h"
#include "ctl/connection.h"
#include "ctl/output.h"

namespace cleat::ctl {

// What the command line says, for all commands.
struct Globals {
  ConnectionOptions connection;
  Format format = Format::kTable;
  std::function<ExitCode()> action;  // of the command that was given
};

// Calls that don't wait by design are answered at once; beyond this cleatd hangs.
inline constexpr std::chrono::seconds kCallTime{60};

class Client {
 public:
  explicit Client(const Globals& globals) : globals_(globals) {}

  // One call, by the stub's method: client.Call(&v1::Cleat::Stub::GetDisk, request, disk). When it fails, or cleatd
  // can't be reached, that has been said.
  template <typename Request, typename Response>
  [[nodiscard]] ExitCode Call(grpc::Status (v1::Cleat::Stub::*method)(grpc::ClientContext*, const Request&,
                                                                      Response*),
                              const Request& request, Response& response,
                              std::chrono::seconds time = kCallTime) {
    return Say(TryCall(method, request, response, time));
  }

  // The same, but the caller says what went wrong.
  template <typename Request, typename Response>
  grpc::Status TryCall(grpc::Status (v1::Cleat::Stub::*method)(grpc::ClientContext*, const Request&,
                                                               Response*),
                       const Request& request, Response& response, std::chrono::seconds time = kCallTime) {
    if (const ExitCode code = Dial(); code != kOk) return grpc::Status::CANCELLED;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + time);
    return (stub_.get()->*method)(&context, request, &response);
  }

  // All pages as one list.
  template <typename Request, typename Response>
  [[nodiscard]] ExitCode CallForAll(grpc::Status (v1::Cleat::Stub::*method)(grpc::ClientContext*,
                                                                            const Request&, Response*),
                                    Request request, Response& all) {
    for (;;) {
      Response page;
      if (const ExitCode code = Call(method, request, page); code != kOk) return code;
      request.set_page_token(page.next_page_token());
      page.clear_next_page_token();
      all.MergeFrom(page);
      if (request.page_token().empty()) return kOk;
    }
  }

  // Connects, unless that has been done. For streams.
  [[nodiscard]] ExitCode Dial();
  v1::Cleat::Stub& stub() { return *stub_; }

  // Says why it failed, if it did, and what the exit code is.
  [[nodiscard]] ExitCode Say(const grpc::Status& status);

  // The message for programs, or what `table` makes for people.
  void Show(const google::protobuf::Message& message, const std::function<std::string()>& table) const;
  Format format() const { return globals_.format; }

 private:
  const Globals& globals_;
  std::unique_ptr<v1::Cleat::Stub> stub_;
  ExitCode dialled_ = kOk;
};

// "disks/" and "a" or "disks/a": "disks/a".
std::string FullName(std::string_view collection, std::string_view argument);
// What follows the last slash.
std::string_view IdOf(std::string_view name);

}  // namespace cleat::ctl
