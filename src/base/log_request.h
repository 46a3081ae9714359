// SPDX-License-Identifier: Apache-2.0
// Which request a thread works for just now: lines that it logs meanwhile end with ` request=ID`, the id of the API call that asked for what
// the line tells. cleatd passes the id on to engines with its orders, so that one grep finds what a call did in both programs' logs.
// Each thread has its own request, without a lock.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace cleat::log {

inline constexpr size_t kRequestBytesMax = 128;

// One word of printable ASCII, at most kRequestBytesMax long: nothing else goes into a log line or to an engine.
bool IsRequestId(std::string_view text);
// The word for an id that a caller chose: what no such word may have is '_', and what is too long is cut off.
std::string AsRequestId(std::string_view text);

// Empty: the thread works for no request.
const std::string& CurrentRequest();

// Until the end of the scope the thread works for that request, or (empty) for none. Scopes nest; a coroutine holds none over a co_await.
class [[nodiscard]] RequestScope {
 public:
  explicit RequestScope(std::string id);
  ~RequestScope();
  RequestScope(const RequestScope&) = delete;
  RequestScope& operator=(const RequestScope&) = delete;

 private:
  std::string outer_;
};

// The request of a coroutine, which has it from whoever made it, and keeps it while it is suspended: others run on the thread meanwhile, and the
// coroutine may go on on another one (reactor/task.h).
class CarriedRequest {
 public:
  CarriedRequest() : id_(CurrentRequest()) {}
  // The coroutine goes on, on this thread; then: it stops there, and the thread has its own request back.
  void Enter() { Swap(); }
  void Leave() { Swap(); }

 private:
  void Swap();

  std::string id_;  // the thread's own while the coroutine runs
};

}  // namespace cleat::log
