// SPDX-License-Identifier: Apache-2.0
#include "engine/link/requests.h"

#include <variant>

#include "base/check.h"
#include "base/clock.h"

namespace cleat::engine {
namespace {

// An overload for each kind: one that is missing does not compile.
class Visitor {
 public:
  Visitor(Engine& engine, UniqueFd& fd) : engine_(engine), fd_(fd) {}

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
    answer.hand_over = std::move(yielded).value();
    co_return answer;
  }
  Task<Answer> operator()(TakeControllerMessage& take) {
    co_return co_await engine_.TakeController(take.name, std::move(take.hand_over), std::move(fd_));
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

  Task<Answer> operator()(KeepMemoryMessage& keep) {
    co_return engine_.KeepMemory(keep.memory, std::move(fd_));
  }
  Task<Answer> operator()(DropMemoryMessage& drop) { co_return engine_.DropMemory(drop.disk); }
  Task<Answer> operator()(FetchMemoryMessage& fetch) {
    auto memory = engine_.FetchMemory(fetch.disk);
    if (!memory) co_return Status(std::move(memory).error());
    Answer answer{Status(Ok{})};
    answer.fd = std::move(memory).value();
    co_return answer;
  }

  Task<Answer> operator()(ShareGroupsMessage& /*share*/) { co_return engine_.ShareGroups(std::move(fd_)); }
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
  // The link sees to it itself.
  Task<Answer> NotOfTheEngine() {
    CLEAT_CHECK(false);
    co_return Status(Ok{});
  }

  Engine& engine_;
  UniqueFd& fd_;
};

}  // namespace

Task<Answer> CarryOut(Engine& engine, Incoming& request, UniqueFd& fd) {
  Visitor visitor(engine, fd);
  co_return co_await std::visit(visitor, request.body);
}

}  // namespace cleat::engine
