// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/nvme/host/doubt_model.h"

#include <algorithm>
#include <array>
#include <utility>

namespace cleat::nvme::host::model {
namespace {

constexpr uint32_t kSpoilt = 1000;
// What kWaitsForATime waits for: long enough that every table is obeyed by then in many schedules, so that only the proof is missing.
constexpr uint32_t kHeldEventsMax = 12;
constexpr DoubtLog::Shape kLogShape{.reactors = kReactors, .attempts = 4, .ghosts = 32, .lives = 4};

uint32_t BlocksOf(const BlockRange& range) {
  return ((1U << range.blocks) - 1) << range.first;
}

void Put(std::string* text, uint64_t value) {
  while (value >= 0x80) {
    text->push_back(static_cast<char>(0x80 | (value & 0x7f)));
    value >>= 7;
  }
  text->push_back(static_cast<char>(value));
}

void Put(std::string* text, const DoubtTable& table) {
  Put(text, table.version);
  Put(text, table.reports_seen);
  Put(text, table.ghosts.size());
  for (const Ghost& ghost : table.ghosts) {
    Put(text, ghost.origin);
    Put(text, ghost.range.first);
    Put(text, (ghost.is_obeyed ? 1U : 0U) + (ghost.retry_open ? 2U : 0U));
  }
}

void Put(std::string* text, const DoubtAck& ack) {
  Put(text, ack.version);
  Put(text, ack.barriers.size());
  for (const Attempt& barrier : ack.barriers) {
    Put(text, barrier.origin);
  }
}

void Put(std::string* text, const LifeReport& report) {
  Put(text, report.life);
  Put(text, report.perhaps.size());
  for (const Attempt& attempt : report.perhaps) {
    Put(text, attempt.origin);
  }
}

void Put(std::string* text, const BarrierEnded& ended) {
  Put(text, ended.origin);
}

}  // namespace

World::World(const Plan& plan)
    : plan_(&plan),
      log_memory_(DoubtLog::BytesFor(kLogShape) / sizeof(uint64_t)),
      requests_(plan.writes.size()),
      held_(plan.writes.size()),
      bytes_(plan.blocks) {
  Start();
}

DoubtLog World::Log() {
  return DoubtLog::Open(
             {reinterpret_cast<uint8_t*>(log_memory_.data()), log_memory_.size() * sizeof(uint64_t)},
             kLogShape, 1)
      .value();
}

void World::LeaveLog(uint32_t write) {
  Log().End(plan_->writes[write].reactor, write);
}

void World::Start() {
  ledger_.emplace(ProofPolicy{.controller_reset = true});
  for (uint32_t reactor = 0; reactor < kReactors; ++reactor) {
    views_[reactor].emplace(ledger_->Joined());
    Log().OpenRow(reactor);
    to_ledger_[reactor].clear();
    to_view_[reactor].clear();
    acks_[reactor] = {};
    barriers_[reactor].clear();
    tables_[reactor] = ledger_->TableFor(reactor);
    reports_sent_[reactor] = 0;
    ledger_->Take(views_[reactor]->Adopt(tables_[reactor], {}));
  }
  published_ = ledger_->version();
  known_over_ = 0;
  reported_.clear();
  since_.assign(requests_.size(), 0);
}

Attempt World::AttemptOf(uint32_t write) const {
  return {.origin = (10 * engine_) + write + 1, .range = plan_->writes[write].range};
}

bool World::MaySend(uint32_t write) const {
  if (plan_->fault == Fault::kNoWaiting) {
    return true;
  }
  return ViewLets(write) || (plan_->fault == Fault::kWaitsForATime && held_[write] >= kHeldEventsMax);
}

bool World::ViewLets(uint32_t write) const {
  const DoubtView& view = *views_[plan_->writes[write].reactor];
  return requests_[write].in_doubt && plan_->fault != Fault::kRetryAsNew ? view.MayRetry(AttemptOf(write))
                                                                         : view.MaySend(AttemptOf(write));
}

bool World::MayProve(LifeId life) const {
  DoubtLedger copy = *ledger_;
  return copy.Proved(life, Proof::kControllerReset).ok();
}

bool World::HasEnded() const {
  return std::all_of(requests_.begin(), requests_.end(), [](const Request& request) {
    return request.stage == Stage::kAnswered || request.stage == Stage::kFailed;
  });
}

std::vector<Event> World::Enabled() const {
  using Kind = Event::Kind;
  std::vector<Event> events;
  const uint32_t first = LivesOf(engine_);
  const uint32_t last = first + plan_->mortal_lives;  // never ends
  for (uint32_t write = 0; write < requests_.size(); ++write) {
    const Request& request = requests_[write];
    const GuestWrite& guest = plan_->writes[write];
    if (request.stage == Stage::kUnborn) {
      events.push_back({Kind::kSubmit, write});
    } else if (request.stage == Stage::kWaiting && request.in_doubt && guest.fails_in_doubt) {
      if (plan_->fault == Fault::kFailedAtOnce || views_[guest.reactor]->MayFail(AttemptOf(write))) {
        events.push_back({Kind::kFail, write});
      }
    } else if (request.stage == Stage::kWaiting && MaySend(write)) {
      for (uint32_t life = first; life <= last; ++life) {
        if (!IsOver(guest.reactor, life)) {
          events.push_back({Kind::kSend, write, life});
        }
      }
    }
  }
  for (uint32_t i = 0; i < sent_.size(); ++i) {
    if (!sent_[i].executed) {
      events.push_back({Kind::kExecute, i});
    } else {
      events.push_back({Kind::kAnswer, i});
    }
  }
  for (uint32_t reactor = 0; reactor < kReactors; ++reactor) {
    for (uint32_t life = first; life < last; ++life) {
      if (!IsOver(reactor, life)) {
        events.push_back({Kind::kEndLife, reactor, life});
        if (plan_->may_unsend) {
          events.push_back({Kind::kEndLifeUnsent, reactor, life});
        }
      }
    }
    if (!to_ledger_[reactor].empty()) {
      events.push_back({Kind::kToLedger, reactor});
    }
    if (!to_view_[reactor].empty()) {
      events.push_back({Kind::kToView, reactor});
    }
  }
  for (uint32_t life = first; life < last; ++life) {
    if (plan_->fault == Fault::kProofTooEarly && (proved_early_ >> life & 1) == 0 &&
        IsOver(0, life) != IsOver(1, life)) {
      events.push_back({Kind::kEarlyProof, 0, life});
    }
    if (MayProve(IdOf(life))) {
      events.push_back({Kind::kProve, 0, life});
    }
  }
  if (engine_ > 0 && MayProve(PastLife())) {
    events.push_back({Kind::kProve, 0, 0});
  }
  if (plan_->may_crash && engine_ == 0) {
    events.push_back({Kind::kCrash});
  }
  return events;
}

void World::Do(const Event& event) {
  using Kind = Event::Kind;
  switch (event.kind) {
    case Kind::kSubmit:
      requests_[event.what].stage = Stage::kWaiting;
      for (uint32_t other = 0; other < requests_.size(); ++other) {
        if (requests_[other].stage == Stage::kAnswered || requests_[other].stage == Stage::kFailed) {
          requests_[event.what].ended_before |= 1U << other;
        }
      }
      break;
    case Kind::kSend:
      Send(event.what, event.life);
      break;
    case Kind::kExecute:
      Execute(event.what);
      break;
    case Kind::kAnswer:
      Answer(event.what);
      break;
    case Kind::kEndLife:
      EndLife(event.what, event.life, false);
      break;
    case Kind::kEndLifeUnsent:
      EndLife(event.what, event.life, true);
      break;
    case Kind::kFail:
      requests_[event.what].stage = Stage::kFailed;
      break;
    case Kind::kToLedger:
      ToLedger(event.what);
      break;
    case Kind::kToView:
      ToView(event.what);
      break;
    case Kind::kEarlyProof:
      proved_early_ |= 1U << event.life;
      std::erase_if(sent_, [&](const Sent& sent) { return sent.life == event.life && sent.is_ghost; });
      break;
    case Kind::kProve:
      Prove(event.life);
      break;
    case Kind::kCrash:
      Crash();
      break;
  }
  std::sort(sent_.begin(), sent_.end());
  if (plan_->fault == Fault::kWaitsForATime) {
    CountHeld();
  }
  Check();
}

void World::CountHeld() {
  for (uint32_t write = 0; write < requests_.size(); ++write) {
    const bool is_held = requests_[write].stage == Stage::kWaiting && !ViewLets(write);
    held_[write] = is_held ? held_[write] + 1 : 0;
  }
}

void World::Send(uint32_t write, uint32_t life) {
  requests_[write].stage = Stage::kSent;
  if (plan_->fault != Fault::kNone) {
    LeaveLog(write);  // a driver that retries too early finds its slot taken
  }
  Log().Begin(plan_->writes[write].reactor, write, plan_->writes[write].range);
  sent_.push_back({.write = write, .life = life});
}

void World::Execute(uint32_t attempt) {
  const Sent sent = sent_[attempt];
  const BlockRange& range = plan_->writes[sent.write].range;
  const uint32_t value = sent.spoilt ? kSpoilt : sent.write + 1;
  for (uint64_t block = range.first; block < range.end(); ++block) {
    if (bytes_[block] != value && requests_[sent.write].stage == Stage::kAnswered) {
      Fail("an attempt of write " + std::to_string(sent.write) + " changes a byte after its answer");
    }
    bytes_[block] = value;
  }
  if (sent.is_ghost) {
    sent_.erase(sent_.begin() + attempt);
  } else {
    sent_[attempt].executed = true;
  }
}

void World::Answer(uint32_t attempt) {
  const uint32_t write = sent_[attempt].write;
  sent_.erase(sent_.begin() + attempt);
  requests_[write].stage = Stage::kAnswered;
  LeaveLog(write);
  EndBarrier(write);
  for (Sent& sent : sent_) {
    sent.spoilt = sent.spoilt || (sent.in_socket && sent.write == write);
  }
}

void World::EndBarrier(uint32_t write) {
  const uint32_t reactor = plan_->writes[write].reactor;
  const OriginId origin = AttemptOf(write).origin;
  if (views_[reactor]->EndAttempt(origin)) {
    to_ledger_[reactor].emplace_back(BarrierEnded{.reactor = reactor, .origin = origin});
  }
  std::erase(barriers_[reactor], origin);
}

void World::EndLife(uint32_t reactor, uint32_t life, bool unsent) {
  over_[reactor] |= 1U << life;
  std::vector<Attempt> perhaps;
  std::vector<uint32_t> ended;
  for (Sent& sent : sent_) {
    if (sent.life != life || plan_->writes[sent.write].reactor != reactor) {
      continue;
    }
    ended.push_back(sent.write);
    requests_[sent.write].stage = Stage::kWaiting;
    sent.is_ghost = true;
    if (!unsent || sent.executed) {
      perhaps.push_back(AttemptOf(sent.write));
      requests_[sent.write].in_doubt = true;
      sent.in_socket = plan_->fault == Fault::kAnsweredTooEarly;
      blocks_ever_in_doubt_ |= BlocksOf(plan_->writes[sent.write].range);
    } else {
      LeaveLog(sent.write);
    }
    if (plan_->fault == Fault::kUnloggedTooEarly) {
      LeaveLog(sent.write);
    }
  }
  std::erase_if(sent_, [&](const Sent& sent) {
    return sent.life == life && plan_->writes[sent.write].reactor == reactor && (sent.executed || unsent);
  });
  ++reports_sent_[reactor];
  to_ledger_[reactor].emplace_back(views_[reactor]->EndLife(IdOf(life), std::move(perhaps)));
  for (const uint32_t write : ended) {
    EndBarrier(write);
  }
}

void World::ToLedger(uint32_t reactor) {
  const Mail mail = std::move(to_ledger_[reactor].front());
  to_ledger_[reactor].erase(to_ledger_[reactor].begin());
  if (const auto* report = std::get_if<LifeReport>(&mail)) {
    const DoubtTable before = ledger_->TableFor(0);
    ledger_->Take(*report);
    const uint32_t life = 1U << (report->life - IdOf(0));
    if ((known_over_ & life) == 0) {  // the first report is how the ledger's owner hears of it
      ledger_->Over(report->life);
    }
    known_over_ |= life;
    Reported reported{.life = report->life, .reactor = reactor};
    for (const Attempt& attempt : report->perhaps) {
      const auto write = static_cast<uint32_t>(attempt.origin - 1 - (10 * engine_));
      reported.writes |= 1U << write;
      if (std::none_of(before.ghosts.begin(), before.ghosts.end(),
                       [&](const Ghost& ghost) { return ghost.origin == attempt.origin; })) {
        since_[write] = ledger_->version();
      }
    }
    reported_.push_back(reported);
    Log().Store(ledger_->ranges(), DoubtLog::Number::kNew);
  } else if (const auto* ack = std::get_if<DoubtAck>(&mail)) {
    ledger_->Take(*ack);
    acks_[reactor] = *ack;
  } else {
    const OriginId origin = std::get<BarrierEnded>(mail).origin;
    ledger_->Take(std::get<BarrierEnded>(mail));
    std::erase_if(acks_[reactor].barriers, [&](const Attempt& barrier) { return barrier.origin == origin; });
  }
  Publish();
}

void World::ToView(uint32_t reactor) {
  tables_[reactor] = std::move(to_view_[reactor].front());
  to_view_[reactor].erase(to_view_[reactor].begin());
  std::vector<Attempt> under_way;
  for (const Sent& sent : sent_) {
    if (!sent.is_ghost && plan_->writes[sent.write].reactor == reactor &&
        plan_->fault != Fault::kBarriersUntold) {
      under_way.push_back(AttemptOf(sent.write));
    }
  }
  const DoubtAck ack = views_[reactor]->Adopt(tables_[reactor], under_way);
  barriers_[reactor].clear();
  for (const Attempt& barrier : ack.barriers) {
    barriers_[reactor].push_back(barrier.origin);
  }
  to_ledger_[reactor].emplace_back(ack);
  // The ledger has recorded all that this reactor has reported.
  for (uint32_t write = 0;
       write < requests_.size() && tables_[reactor].reports_seen == reports_sent_[reactor]; ++write) {
    if (plan_->writes[write].reactor == reactor && requests_[write].stage == Stage::kWaiting) {
      LeaveLog(write);
    }
  }
}

void World::Publish() {
  if (published_ == ledger_->version()) {
    return;
  }
  published_ = ledger_->version();
  for (uint32_t reactor = 0; reactor < kReactors; ++reactor) {
    to_view_[reactor].push_back(ledger_->TableFor(reactor));
  }
}

// `life` 0 of a later engine stands for all that the engine before it left.
void World::Prove(uint32_t life) {
  const bool is_past = life < LivesOf(engine_);
  const LifeId id = is_past ? PastLife() : IdOf(life);
  if (!is_past && !(IsOver(0, life) && IsOver(1, life))) {
    Fail("the proof of a life was taken while a reactor could still send on it");
  }
  const bool is_of_another = plan_->fault == Fault::kProofOfAnotherLife;
  if ((proved_early_ >> life & 1) == 0) {
    std::erase_if(sent_, [&](const Sent& sent) {
      return is_past ? sent.life < LivesOf(engine_) : (sent.life == life) != is_of_another && sent.is_ghost;
    });
  }
  if (!ledger_->Proved(id, Proof::kControllerReset).ok()) {
    Fail("a proof that holds was refused");
  }
  std::erase_if(reported_, [&](const Reported& reported) { return reported.life == id; });
  Log().Store(ledger_->ranges(), DoubtLog::Number::kNew);
  Publish();
}

// The front end's log brings back what the guest has no answer of; it has a new origin then.
void World::Crash() {
  ++engine_;
  for (Sent& sent : sent_) {
    sent.is_ghost = true;
  }
  std::erase_if(sent_, [](const Sent& sent) { return sent.executed; });
  Start();
  for (Request& request : requests_) {
    request.in_doubt = false;
    request.stage = request.stage == Stage::kSent ? Stage::kWaiting : request.stage;
  }
  std::vector<BlockRange> past = {{.first = 0, .blocks = plan_->blocks}};
  if (plan_->has_log) {
    past = Log().Read();
  }
  if (plan_->fault != Fault::kForgetOverCrash) {
    ledger_->Doubt(std::array{PastLife()}, past);
    Log().Store(ledger_->ranges(), DoubtLog::Number::kNew);
    Log().ForgetAttempts();
    for (const BlockRange& range : past) {
      blocks_ever_in_doubt_ |= BlocksOf(range);
    }
    for (uint32_t reactor = 0; reactor < kReactors; ++reactor) {
      // Before the first request is sent.
      const DoubtAck ack = views_[reactor]->Adopt(ledger_->TableFor(reactor), {});
      tables_[reactor] = ledger_->TableFor(reactor);
      to_ledger_[reactor].emplace_back(ack);
    }
    published_ = ledger_->version();
  }
}

void World::Check() {
  uint32_t answered = 0;
  for (uint32_t write = 0; write < requests_.size(); ++write) {
    const Request& request = requests_[write];
    answered |= request.stage == Stage::kAnswered ? 1U << write : 0;
    const bool is_free = (BlocksOf(plan_->writes[write].range) & blocks_ever_in_doubt_) == 0;
    if (request.stage == Stage::kWaiting && is_free && !MaySend(write)) {
      Fail("write " + std::to_string(write) + " is held though it overlaps nothing in doubt");
    }
  }
  for (uint32_t block = 0; block < bytes_.size(); ++block) {
    const uint32_t value = bytes_[block];
    for (uint32_t write = 0; write < requests_.size(); ++write) {
      const bool is_over_block = (BlocksOf(plan_->writes[write].range) >> block & 1) != 0;
      if ((answered >> write & 1) == 0 || !is_over_block) {
        continue;
      }
      if (value == 0 || value == kSpoilt || (requests_[write].ended_before >> (value - 1) & 1) != 0) {
        Fail("write " + std::to_string(write) + " was answered, and a read of block " +
             std::to_string(block) + " returns the older value " + std::to_string(value));
      }
    }
    if (value == kSpoilt) {
      Fail("a read returns bytes of no write");
    }
  }
}

std::string World::Text() const {
  std::string text;
  Put(&text, engine_);
  for (const Request& request : requests_) {
    Put(&text, (static_cast<uint32_t>(request.stage) * 2) + (request.in_doubt ? 1U : 0U));
    Put(&text, request.ended_before);
  }
  for (const uint32_t held : held_) {
    Put(&text, held);
  }
  Put(&text, sent_.size());
  for (const Sent& sent : sent_) {
    Put(&text, (sent.write * 8) + sent.life);
    Put(&text, (sent.executed ? 1U : 0U) + (sent.is_ghost ? 2U : 0U) + (sent.in_socket ? 4U : 0U) +
                   (sent.spoilt ? 8U : 0U));
  }
  for (const uint32_t value : bytes_) {
    Put(&text, value);
  }
  Put(&text, proved_early_);
  Put(&text, blocks_ever_in_doubt_);
  for (uint32_t reactor = 0; reactor < kReactors; ++reactor) {
    Put(&text, over_[reactor]);
    Put(&text, to_ledger_[reactor].size());
    for (const Mail& mail : to_ledger_[reactor]) {
      Put(&text, mail.index());
      std::visit([&](const auto& content) { Put(&text, content); }, mail);
    }
    Put(&text, to_view_[reactor].size());
    for (const DoubtTable& table : to_view_[reactor]) {
      Put(&text, table);
    }
    Put(&text, acks_[reactor]);
    Put(&text, barriers_[reactor].size());
    for (const OriginId origin : barriers_[reactor]) {
      Put(&text, origin);
    }
    Put(&text, tables_[reactor]);
    Put(&text, reports_sent_[reactor]);
    Put(&text, ledger_->TableFor(reactor).reports_seen);
  }
  Put(&text, ledger_->TableFor(0));
  std::vector<Reported> reported = reported_;
  std::sort(reported.begin(), reported.end());
  for (const Reported& each : reported) {
    Put(&text, each.life);
    Put(&text, each.reactor);
    Put(&text, each.writes);
  }
  for (const uint64_t since : since_) {
    Put(&text, since);
  }
  return text;
}

std::string World::Describe(const Event& event) const {
  static constexpr std::array<const char*, kEventKinds> kNames = {"guest submits write",
                                                                  "send write",
                                                                  "target executes write",
                                                                  "answer write",
                                                                  "life ends on reactor",
                                                                  "life ends on reactor, nothing was sent",
                                                                  "fail write",
                                                                  "mail to the ledger from reactor",
                                                                  "table to reactor",
                                                                  "life is proved",
                                                                  "the target ends a life too early",
                                                                  "the engine crashes"};
  using Kind = Event::Kind;
  const bool is_attempt = event.kind == Kind::kExecute || event.kind == Kind::kAnswer;
  const uint32_t what = is_attempt ? sent_[event.what].write : event.what;
  const uint32_t life = is_attempt ? sent_[event.what].life : event.life;
  return std::string(kNames[static_cast<size_t>(event.kind)]) + " " + std::to_string(what) + ", life " +
         std::to_string(life);
}

}  // namespace cleat::nvme::host::model
