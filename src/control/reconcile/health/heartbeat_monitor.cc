// SPDX-License-Identifier: Apache-2.0
#include "control/reconcile/health/heartbeat_monitor.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "base/log.h"
#include "base/process_state.h"
#include "control/model/names.h"
#include "control/model/seconds.h"

namespace cleat::control {
namespace {

// How long after SIGKILL a process may take to end before the standby is said to wait for it.
constexpr uint64_t kEndNs = kNsPerSecond;

uint64_t UnixSeconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(now).count());
}

// What an engine's guests have of it that it does not answer, for people.
std::string ConsequenceOf(const EngineView& engine, const HeartbeatTimes& times) {
  if (engine.heartbeat.HasStillReactor(times) || WhyProcessStandsStill(engine.info.pid))
    return "its guests' I/O stands still";
  return "it takes no orders, and its guests may be served all the same";
}

}  // namespace

void HeartbeatMonitor::CountOwnTime(uint64_t read_until_ns) {
  if (counted_until_ns_ != 0 && read_until_ns > counted_until_ns_) {
    const uint64_t planned_ns = planned_ns_ > counted_until_ns_ ? planned_ns_ - counted_until_ns_ : 0;
    own_ns_ += std::min(read_until_ns - counted_until_ns_, planned_ns + context_.options.heartbeat.look_ns);
  }
  counted_until_ns_ = read_until_ns;
}

uint64_t HeartbeatMonitor::OnTimer(uint64_t read_until_ns) {
  CountOwnTime(read_until_ns);
  bool any = false;
  bool waits = false;
  for (auto& [peer, engine] : context_.engines.all()) {
    if (engine.foreign || engine.info.protocol < kProtocolHeartbeats) continue;
    Look(engine);
    any = true;
    waits |= engine.heartbeat.waits();
  }
  const HeartbeatTimes& times = context_.options.heartbeat;
  planned_ns_ = read_until_ns + (waits ? times.look_ns : times.interval_ns);
  return any ? planned_ns_ : RetryQueue::kNever;
}

void HeartbeatMonitor::Look(EngineView& engine) {
  const HeartbeatTimes& times = context_.options.heartbeat;
  engine.heartbeat.Heard(own_ns_, link_.received(engine.info.peer));
  if (engine.heartbeat.IsDue(own_ns_, times)) Ask(engine);
  const std::string problem = engine.heartbeat.Problem(own_ns_, times);
  if (problem.empty() != engine.not_answering.empty()) Report(engine, problem);
  if (!problem.empty()) KillIfLate(engine);
}

void HeartbeatMonitor::Ask(EngineView& engine) {
  engine::v1::Envelope envelope;
  envelope.mutable_heartbeat();
  engine.heartbeat.Asked(own_ns_);
  context_.requests.Ask(engine, std::move(envelope), {},
                        [this](EngineView& answered, const engine::v1::Reply& reply, const UniqueFd&) {
                          answered.heartbeat.Answered(own_ns_, reply);
                        });
}

void HeartbeatMonitor::Report(EngineView& engine, const std::string& problem) {
  const std::string name = EngineName(engine.info.id);
  if (problem.empty()) {
    spdlog::info("{}: answers again: it was silent for {} s", name,
                 UnixSeconds() - engine.not_answering_since_s);
    engine.not_answering.clear();
    engine.kill = {};
  } else {
    engine.not_answering = fmt::format("{}: {}", problem, ProcessState(engine.info.pid));
    engine.not_answering_since_s = UnixSeconds();
    spdlog::error("{}: not answering: {}; {}", name, engine.not_answering,
                  ConsequenceOf(engine, context_.options.heartbeat));
  }
  reporter_.ReportEngine(engine.info, true, "");
  reconcile_.AnsweringOf(engine);
}

EngineView* HeartbeatMonitor::StandbyOf(const EngineView& engine) {
  const std::string standby = context_.state.engines().StandbyFor(engine.info.id);
  EngineView* const view = standby.empty() ? nullptr : context_.engines.FindByName(standby);
  return view != nullptr && view->not_answering.empty() ? view : nullptr;
}

void HeartbeatMonitor::KillIfLate(EngineView& engine) {
  const uint64_t limit_ns = context_.options.kill_after_ns;
  if (engine.kill.sent) return ReportNotEnded(engine);
  const uint64_t silent_ns = engine.heartbeat.SilentNs(own_ns_);
  if (limit_ns == 0 || silent_ns < limit_ns) return;
  const EngineView* const standby = StandbyOf(engine);
  if (standby == nullptr) return;
  engine.kill = {.sent = true, .own_ns = own_ns_};
  const Status killed = link_.Kill(engine.info.peer);
  const std::string name = EngineName(engine.info.id);
  if (!killed.ok()) {
    engine.kill.reported = true;  // nothing was sent that it could have outlived
    spdlog::error("{}: not killed, though it has not answered for {:.3g} s: {}; end process {} by hand", name,
                  ToSeconds(silent_ns), killed.error().message, engine.info.pid);
    return;
  }
  spdlog::error(
      "{}: killed, since it has not answered for {:.3g} s: {} takes its controllers when process {} has "
      "ended",
      name, ToSeconds(silent_ns), EngineName(standby->info.id), engine.info.pid);
}

void HeartbeatMonitor::ReportNotEnded(EngineView& engine) {
  if (engine.kill.reported || own_ns_ - engine.kill.own_ns < kEndNs) return;
  engine.kill.reported = true;
  const std::string name = EngineName(engine.info.id);
  const std::string why =
      fmt::format("it was killed and has not ended: {}; its disks stay with it until it has",
                  ProcessState(engine.info.pid));
  spdlog::error("{}: not ended by SIGKILL: {}", name, why);
  engine.not_answering = why;
  reporter_.ReportEngine(engine.info, true, "");
  EngineView* const standby = StandbyOf(engine);
  if (standby == nullptr) return;
  standby->waits_for =
      fmt::format("{} does not answer, and this engine can't take its controllers: {}", name, why);
  reporter_.ReportEngine(standby->info, true, "");
}

void HeartbeatMonitor::OnGone(const std::string& engine) {
  for (auto& [peer, view] : context_.engines.all()) {
    if (view.info.stands_by_for != engine || view.waits_for.empty()) continue;
    view.waits_for.clear();
    reporter_.ReportEngine(view.info, true, "");
  }
}

}  // namespace cleat::control
