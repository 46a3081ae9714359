// SPDX-License-Identifier: Apache-2.0
#include "engine_host.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace cleat::sim {
namespace {

constexpr uint32_t kIoReactors = 1;
// From the end of a process' connection to its end.
constexpr uint64_t kDeathToldNsMax = 20 * kNsPerMs;

// The world's time, until the process dies: what is left of it then has a time of its own.
class ProcessClock final : public Clock {
 public:
  explicit ProcessClock(const World& world) : world_(world) {}
  uint64_t NowNs() const override { return world_.now_ns() + ahead_ns_; }
  void AdvanceTo(uint64_t now_ns) { ahead_ns_ = std::max(now_ns, NowNs()) - world_.now_ns(); }

 private:
  const World& world_;
  uint64_t ahead_ns_ = 0;
};

std::unique_ptr<Reactor> MakeReactor(const Clock& clock, const std::string& name, uint64_t seed) {
  Reactor::Options options;
  options.name = name;
  options.spin_ns = 0;
  options.random_seed = seed;
  auto reactor = Reactor::Make(clock, options);
  CLEAT_CHECK(reactor.ok());
  return std::move(*reactor);
}

}  // namespace

// Members in the order in which they use each other.
class EngineHost::Process {
 public:
  Process(EngineHost& host, uint64_t number)
      : parts_(host.parts_),
        number_(number),
        handle_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        clock_(parts_.world),
        control_(MakeReactor(clock_, "control", host.random_.Next())),
        io_(MakeReactor(clock_, "io0", host.random_.Next())),
        disks_(parts_.storage, *control_, number),
        endpoints_(parts_.storage, *control_, number),
        groups_(*control_),
        engine_({*control_, io_reactors_, disks_, endpoints_, memories_, groups_, clusters_, nullptr}),
        link_(*control_, engine_, OptionsOf(host, number)) {
    parts_.storage.Begin(number);
    control_->PostCall([this] { link_.Start(); });
  }
  ~Process() { CLEAT_CHECK(ended_); }

  uint64_t number() const { return number_; }
  const engine::Engine& engine() const { return engine_; }
  bool ended() const { return ended_; }
  UniqueFd TakeHandle() { return std::move(handle_); }

  bool Turn(bool control_first) {
    bool worked = TurnOf(control_first ? *control_ : *io_);
    worked |= TurnOf(control_first ? *io_ : *control_);
    if (link_.connections() > connections_) {
      connections_ = link_.connections();
      connected_ns_ = parts_.world.now_ns();
      parts_.connecting.push_back(handle_.Duplicate());
    }
    return worked;
  }
  uint64_t connected_ns() const { return connected_ns_; }
  uint64_t NextNs() const { return std::min(control_->NextTimerNs(), io_->NextTimerNs()); }

  void Terminate() {
    if (std::exchange(terminating_, true)) return;
    control_->PostCall([this] { Spawn(ShutDown()); });
  }
  // What it does from now on has no effect, and it has to come to its end.
  void RunOut() {
    link_.HangUp();
    Terminate();
    uint64_t idle_turns = 0;
    while (!ended_) {
      if (Turn(true)) continue;
      CLEAT_CHECK(NextNs() != kNoDeadline && ++idle_turns < World::kStepsWithoutTimeMax);
      clock_.AdvanceTo(NextNs());
    }
  }

 private:
  static engine::CommandLink::Options OptionsOf(const EngineHost& host, uint64_t number) {
    engine::CommandLink::Options options;
    options.socket_path = host.parts_.socket_path;
    options.hello.engine = host.name_;
    options.hello.version = "simulated";
    options.hello.incarnation = number;
    options.hello.reactors = kIoReactors;
    options.hello.stands_by_for = host.stands_by_for_;
    return options;
  }
  static bool TurnOf(Reactor& reactor) { return reactor.RunOnce() || !reactor.CanSleep(); }

  // As the engine's main program does it.
  Task<void> ShutDown() {
    link_.HangUp();
    auto shutdown = engine_.Shutdown();
    co_await std::move(shutdown);
    auto stop = link_.Stop();
    co_await std::move(stop);
    ended_ = true;
  }

  const Parts& parts_;
  const uint64_t number_;
  UniqueFd handle_;
  ProcessClock clock_;
  std::unique_ptr<Reactor> control_;
  std::unique_ptr<Reactor> io_;
  const std::vector<Reactor*> io_reactors_{io_.get()};
  HostDisks disks_;
  HostEndpoints endpoints_;
  engine::MemoryStore memories_;
  engine::GroupStore groups_;
  engine::ClusterStore clusters_;
  engine::Engine engine_;
  engine::CommandLink link_;
  uint64_t connections_ = 0;
  uint64_t connected_ns_ = 0;  // the last time
  bool terminating_ = false;
  bool ended_ = false;
};

EngineHost::EngineHost(const Parts& parts, std::string name, std::string stands_by_for)
    : parts_(parts),
      name_(std::move(name)),
      stands_by_for_(std::move(stands_by_for)),
      random_(parts.world.random().Next()) {
  parts_.world.AddActor(*this);
}

EngineHost::~EngineHost() {
  CLEAT_CHECK(!running());
  parts_.world.RemoveActor(*this);
}

uint64_t EngineHost::process() const {
  return process_ == nullptr ? 0 : process_->number();
}

uint64_t EngineHost::connected_ns() const {
  return process_ == nullptr ? 0 : process_->connected_ns();
}

const engine::Engine& EngineHost::engine() const {
  CLEAT_CHECK(running());
  return process_->engine();
}

bool EngineHost::Has(const std::string& controller) const {
  return running() && process_->engine().ControllerByName(controller).has_value();
}

bool EngineHost::Serves(const std::string& controller) const {
  if (!running()) return false;
  const auto report = process_->engine().ControllerByName(controller);
  return report && report->state != engine::ControllerState::kStandby;
}

void EngineHost::Start() {
  CLEAT_CHECK(!running());
  process_ = std::make_unique<Process>(*this, ++parts_.processes);
  dies_after_ = UINT64_MAX;
  stalled_until_ns_ = 0;
  parts_.world.Note(name_ + " begins as process " + std::to_string(process_->number()));
}

void EngineHost::Die() {
  parts_.world.Note(name_ + " dies");
  parts_.storage.Die(process_->number());
  process_->RunOut();
  End();
}

void EngineHost::Terminate() {
  parts_.world.Note(name_ + " is told to end");
  process_->Terminate();
}

void EngineHost::End() {
  ++ended_processes_;
  ended_.emplace_back(parts_.world.now_ns() + random_.Below(kDeathToldNsMax), process_->TakeHandle());
  process_.reset();
}

void EngineHost::TellOfDeaths() {
  while (!ended_.empty() && ended_.front().first <= parts_.world.now_ns()) {
    const uint64_t one = 1;
    CLEAT_CHECK(write(ended_.front().second.get(), &one, sizeof(one)) == sizeof(one));
    ended_.pop_front();
  }
}

bool EngineHost::Step() {
  TellOfDeaths();
  if (!running() || parts_.world.now_ns() < stalled_until_ns_) return false;
  const bool control_first = random_.Chance(1, 2);
  if (!process_->Turn(control_first)) return false;
  if (process_->ended()) {
    parts_.storage.Die(process_->number());
    End();
  } else if (--dies_after_ == 0) {
    Die();
  }
  return true;
}

uint64_t EngineHost::NextNs() const {
  uint64_t next_ns = ended_.empty() ? kNoDeadline : ended_.front().first;
  if (running()) next_ns = std::min(next_ns, std::max(process_->NextNs(), stalled_until_ns_));
  if (running() && parts_.world.now_ns() < stalled_until_ns_) next_ns = std::min(next_ns, stalled_until_ns_);
  return next_ns;
}

std::string EngineHost::Describe() const {
  if (!running()) return name_ + ": not running";
  std::string text = name_ + ":";
  for (const auto& controller : process_->engine().Controllers())
    text += " " + controller.spec.name + " state " + std::to_string(static_cast<int>(controller.state)) + ";";
  for (const auto& attachment : process_->engine().Attachments()) {
    text += " " + attachment.spec.controller + "/" + std::to_string(attachment.spec.target) + " " +
            attachment.spec.disk.name + " state " + std::to_string(static_cast<int>(attachment.state)) + " " +
            attachment.message + ";";
  }
  return text;
}

}  // namespace cleat::sim
