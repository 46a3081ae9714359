// SPDX-License-Identifier: Apache-2.0
#include "engine/link/requests.h"

#include <string>
#include <variant>

#include "base/check.h"
#include "base/clock.h"

namespace cleat::engine {
namespace {

// An overload for each kind: one that is missing does not compile.
class Visitor {
 public:
  Visitor(Engine& engine, std::vector<UniqueFd>& fds) : engine_(engine), fds_(fds) {}

  Task<Answer> operator()(PutControllerMessage& put) {
    Status done = engine_.PutController(put.controller,
                                        put.standby ? Controller::Role::kStandBy : Controller::Role::kServe);
    // cleatd has an export served next: hosts that come back to it before they can prove anything would not try again.
    if (done) co_await engine_.AwaitHosts(put.controller.name);
    co_return done;
  }
  Task<Answer> operator()(YieldControllerMessage& yield) {
    auto yielded = co_await engine_.YieldController(yield.name, yield.drain_ms * kNsPerMs);
    if (!yielded) co_return Status(std::move(yielded).error());
    Answer answer{Status(Ok{})};
    answer.hand_over = std::move(yielded->hand_over);
    answer.fd = std::move(yielded->connections);
    co_return answer;
  }
  Task<Answer> operator()(TakeControllerMessage& take) {
    // A cleatd of before version 12 says nothing of the one descriptor that it may send.
    const bool counters = take.counters || (!take.connections && !fds_.empty());
    if (fds_.size() < size_t{counters} + size_t{take.connections})
      co_return Status(Error(ErrorCode::kInvalidArgument,
                             take.name + ": to be taken with descriptors that have not come: " +
                                 std::to_string(fds_.size()) + " have"));
    Yielded yielded{std::move(take.hand_over), {}};
    UniqueFd counters_fd = counters ? TakeFd() : UniqueFd();
    if (take.connections) yielded.connections = TakeFd();
    co_return co_await engine_.TakeController(take.name, std::move(yielded), std::move(counters_fd));
  }
  Task<Answer> operator()(DeleteControllerMessage& gone) {
    co_return co_await engine_.DeleteController(gone.name);
  }
  Task<Answer> operator()(ServeControllerMessage& serve) { co_return engine_.ServeController(serve.name); }

  Task<Answer> operator()(AttachMessage& attach) {
    co_return co_await engine_.Attach(std::move(attach.attachment));
  }
  Task<Answer> operator()(DetachMessage& detach) {
    co_return co_await engine_.Detach(detach.controller, detach.target);
  }
  Task<Answer> operator()(ResizeDiskMessage& resize) { co_return co_await engine_.ResizeDisk(resize.resize); }
  Task<Answer> operator()(LimitDiskMessage& limit) { co_return engine_.LimitDisk(limit.limit); }

  Task<Answer> operator()(KeepMemoryMessage& keep) { co_return engine_.KeepMemory(keep.memory, TakeFd()); }
  Task<Answer> operator()(DropMemoryMessage& drop) { co_return engine_.DropMemory(drop.disk); }
  Task<Answer> operator()(FetchMemoryMessage& fetch) {
    auto memory = engine_.FetchMemory(fetch.disk);
    if (!memory) co_return Status(std::move(memory).error());
    Answer answer{Status(Ok{})};
    answer.fd = std::move(memory).value();
    co_return answer;
  }

  Task<Answer> operator()(ShareGroupsMessage& /*share*/) { co_return engine_.ShareGroups(TakeFd()); }
  Task<Answer> operator()(PutGroupMessage& put) { co_return engine_.PutGroup(put.group); }
  Task<Answer> operator()(DropGroupMessage& drop) { co_return engine_.DropGroup(drop.name); }
  Task<Answer> operator()(PutClusterMessage& put) { co_return engine_.PutCluster(put.cluster); }
  Task<Answer> operator()(DropClusterMessage& drop) { co_return engine_.DropCluster(drop.name); }

  Task<Answer> operator()(ReadPathListsMessage& /*read*/) { return NotOfTheEngine(); }
  Task<Answer> operator()(HeartbeatMessage& /*heartbeat*/) { return NotOfTheEngine(); }
  Task<Answer> operator()(DiscoverMessage& /*discover*/) { return NotOfTheEngine(); }
  Task<Answer> operator()(StopDiscoverMessage& /*stop*/) { return NotOfTheEngine(); }
  Task<Answer> operator()(HelloReplyMessage& /*reply*/) { return NotOfTheEngine(); }

 private:
  // The next of those that came with the request; invalid: there is none.
  UniqueFd TakeFd() {
    if (taken_ == fds_.size()) return {};
    return std::move(fds_[taken_++]);
  }
  // The link sees to it itself.
  Task<Answer> NotOfTheEngine() {
    CLEAT_CHECK(false);
    co_return Status(Ok{});
  }

  Engine& engine_;
  std::vector<UniqueFd>& fds_;
  size_t taken_ = 0;
};

}  // namespace

Task<Answer> CarryOut(Engine& engine, Incoming& request, std::vector<UniqueFd>& fds) {
  Visitor visitor(engine, fds);
  co_return co_await std::visit(visitor, request.body);
}

}  // namespace cleat::engine
