// SPDX-License-Identifier: Apache-2.0
#include "nvme/host/requests/request_queue.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/check.h"
#include "nvme/status.h"

namespace cleat::nvme::host {

using block::IoStatus;
using block::Op;
using block::Request;

namespace {

// The codes with which a host ends its own commands (base 3.3.3.2.1.2.4, 70h to 7fh).
constexpr bool IsOfTheHost(Status status) {
  return IsPathError(status) && (status.code() & 0xf0) == 0x70;
}

// Invalid Namespace or Format: it was detached or deleted there, which the association may not know yet.
constexpr bool IsGone(Status status) {
  return status.type() == 0 && status.code() == 0x0b;
}

constexpr bool IsRefusal(Status status) {
  return IsPathError(status) || IsGone(status);
}

}  // namespace

RequestQueue::RequestQueue(const Config& config, RequestQueueOwner& owner)
    : config_(config),
      owner_(owner),
      log_(config.log),
      view_(config.reactor),
      last_origin_(config.first_origin) {
  for (uint32_t i = 0; i < kCommandsMax; ++i) free_slots_[i] = static_cast<uint8_t>(kCommandsMax - 1 - i);
}

RequestQueue::~RequestQueue() {
  CLEAT_CHECK(requests_ == 0);
  // A request with a command in a kept slot is not answered before a table that frees the slot.
  CLEAT_CHECK(kept_slot_count_ == 0);
}

// ---- A request's way

void RequestQueue::Submit(Request& request) {
  ++requests_;
  block::Frame& frame = request.Push(config_.done, config_.layer);
  frame.scratch = {};
  if (request.op == Op::kFlush && !config_.write_cache) return End(request, IoStatus::kOk);
  if (Writes(request)) frame.scratch[kOrigin] = ++last_origin_;
  if (waiting_.empty()) [[likely]] {
    GoOn(request);
  } else {
    waiting_.Push(request);
  }
}

// Sends as many of the request's commands as may go at once. The request is in no line, and not spent.
RequestQueue::Stop RequestQueue::SendSome(Request& request) {
  // A discard's commands go one after the other: each does gigabytes, and may keep the target busy for long.
  const uint32_t most = request.op == Op::kDiscard ? 1 : kRequestCommandsMax;
  do {
    if (Writes(request) && !MayGo(request)) [[unlikely]]
      return Stop::kDoubt;
    const uint32_t place = FindPath(request);
    if (place == PathSet::kNone || free_slot_count_ == 0) return Stop::kRoom;
    if (!CommandMaker::CanMake(request, paths_[place].format)) return Stop::kNoCommand;
    if (!SendNext(request, place)) return Stop::kRoom;
  } while (!IsSpent(request) && WordOf(request, kUnderWay) < most);
  return Stop::kNothing;
}

bool RequestQueue::SendNext(Request& request, uint32_t place) {
  PathSet::Path& path = paths_[place];
  CommandMaker::Made made;
  if (!maker_.Make(request, WordOf(request, kBegun), path.format, made)) return false;
  const uint32_t slot = free_slots_[--free_slot_count_];
  slots_[slot] = {.request = &request,
                  .data_bytes = static_cast<uint32_t>(request.op == Op::kRead ? made.bytes : 0),
                  .path = static_cast<uint8_t>(place),
                  .list = made.list};
  if (Writes(request)) Record(request, slot, made.bytes);
  WordOf(request, kBegun) += request.op == Op::kFlush ? 1 : made.bytes;
  uint64_t& flags = WordOf(request, kFlags);
  const bool chosen = WordOf(request, kUnderWay)++ == 0;
  if (chosen) flags = (flags & kFlagsMask) | uint64_t{place} << kPathShift;
  paths_.Began(place, chosen);
  made.command.cookie = slot;
  path.queue->Submit(made.command);
  return true;
}

// Before the queue pair has the command: its connection may send from within Submit.
void RequestQueue::Record(const Request& request, uint32_t slot, uint64_t bytes) {
  if (!log_) return;
  const uint64_t offset_bytes = request.offset_bytes + WordOf(request, kBegun);
  log_->Begin(config_.reactor, slot,
              {.first = offset_bytes / kDoubtBlockBytes, .blocks = bytes / kDoubtBlockBytes});
}

// Where a request waits that could not go on. One with commands under way waits for those, in no line.
void RequestQueue::Settle(Request& request, Stop stop, uint64_t since_ns) {
  if (WordOf(request, kUnderWay) > 0) return;
  switch (stop) {
    case Stop::kRoom:
      return waiting_.Push(request);
    case Stop::kDoubt:
      return Hold(request, since_ns);
    case Stop::kNoCommand:
      WordOf(request, kFailure) = kLacking;
      return GiveUp(request, since_ns);
    case Stop::kNothing:
      return;
  }
}

// Lets those that wait go on, in order, until one finds no room.
void RequestQueue::Serve() {
  while (Request* const first = waiting_.Pop()) {
    const Stop stop = SendSome(*first);
    if (stop == Stop::kRoom && WordOf(*first, kUnderWay) == 0) return waiting_.PushFront(*first);
    Settle(*first, stop);
  }
}

bool RequestQueue::MayGo(const Request& request) const {
  const Attempt attempt = AttemptOf(request);
  return Has(request, kInDoubt) ? view_.MayRetry(attempt) : view_.MaySend(attempt);
}

uint32_t RequestQueue::FindPath(const Request& request) const {
  if (WordOf(request, kUnderWay) == 0) return paths_.Choose();
  const auto place = static_cast<uint32_t>(WordOf(request, kFlags) >> kPathShift);
  return paths_.TakesMore(place) ? place : PathSet::kNone;
}

void RequestQueue::Completed(LifeId life, uint64_t cookie, const fabrics::CompletionEntry& entry,
                             uint64_t data_bytes) {
  if (cookie < kForeignCookies) {
    const bool failed = !entry.status().ok();
    if (failed && IsOfTheHost(entry.status()) && Writes(*slots_.at(cookie).request)) [[unlikely]]
      return EndFor(life, cookie, entry.status());
    const Slot slot = TakeBack(life, cookie);
    FreeSlot(cookie, Writes(*slot.request));
    if (failed) [[unlikely]] {
      NoteStatus(slot, entry);
    } else if (data_bytes < slot.data_bytes) [[unlikely]] {
      NoteFailure(*slot.request, kShort);
    }
    AfterCommand(*slot.request);
  }
  if (!waiting_.empty()) [[unlikely]]
    Serve();
}

void RequestQueue::Unanswered(LifeId life, uint64_t cookie, fabrics::Reached reached) {
  if (cookie >= kForeignCookies) return;
  const Slot slot = TakeBack(life, cookie);
  paths_.SetBreaks(slot.path);
  uint64_t& flags = WordOf(*slot.request, kFlags);
  flags |= kLost;
  if (reached == fabrics::Reached::kPerhapsAll && Writes(*slot.request)) {
    flags |= kPerhaps;
    slots_[cookie] = {.path = slot.path, .kept = Kept::kUntilReport};
    ++kept_slot_count_;
  } else {
    FreeSlot(cookie, Writes(*slot.request));
  }
  AfterCommand(*slot.request);
}

// A command is over: its list is free again, and its slot is the caller's to free or to keep.
RequestQueue::Slot RequestQueue::TakeBack(LifeId life, uint64_t cookie) {
  CLEAT_CHECK(cookie < kCommandsMax);
  const Slot slot = std::exchange(slots_[cookie], {});
  CLEAT_CHECK(slot.request != nullptr && paths_[slot.path].life == life);
  maker_.GiveBack(slot.list);
  --WordOf(*slot.request, kUnderWay);
  paths_.Over(slot.path);
  return slot;
}

// The target will not execute the slot's command any more, or the ledger has stored its ghost.
void RequestQueue::FreeSlot(uint64_t slot, bool writes) {
  if (writes && log_) log_->End(config_.reactor, static_cast<uint32_t>(slot));
  free_slots_[free_slot_count_++] = static_cast<uint8_t>(slot);
}

// What becomes of a request one of whose commands is over.
void RequestQueue::AfterCommand(Request& request) {
  const bool none_left = WordOf(request, kUnderWay) == 0;
  if (Has(request, kLost)) [[unlikely]] {
    if (none_left) paths_[WordOf(request, kFlags) >> kPathShift].lost.PushBack(request);
    return;
  }
  if (none_left) EndAttempt(request);
  if (WordOf(request, kFailure) != 0) [[unlikely]] {
    if (none_left) Failed(request);
  } else if (IsSpent(request)) {
    if (none_left) End(request, IoStatus::kOk);
  } else if (waiting_.empty()) {
    GoOn(request);
  } else if (none_left) {
    waiting_.Push(request);
  }
}

// No command of it is under way, and its life, if that has ended, is reported.
void RequestQueue::EndAttempt(const Request& request) {
  const OriginId origin = WordOf(request, kOrigin);
  if (Writes(request) && view_.EndAttempt(origin)) [[unlikely]]
    owner_.BarrierOver({.reactor = config_.reactor, .origin = origin});
}

void RequestQueue::End(Request& request, IoStatus status) {
  --requests_;
  if (Has(request, kInDoubt)) [[unlikely]]
    --in_doubt_;
  request.Complete(status);
}

// Requests with a command under way, and those whose life has not ended yet, are in no line.
void RequestQueue::AbortQueued(const Request* only) {
  block::RequestList aborted;
  for (RequestLine* const line : {&waiting_, &held_, &looked_at_, &paused_}) {
    for (Request* request = line->front(); request != nullptr;) {
      Request* const next = line->Next(*request);
      if ((only == nullptr || request == only) && !Has(*request, kInDoubt)) {
        line->Remove(*request);
        aborted.PushBack(*request);
      }
      request = next;
    }
  }
  NoteHeld(0);
  while (Request* const request = aborted.PopFront()) End(*request, IoStatus::kAborted);
}

// ---- What failed

void RequestQueue::NoteFailure(Request& request, uint64_t failure) {
  if (WordOf(request, kFailure) == 0) WordOf(request, kFailure) = failure;
}

// An answer ends an attempt, whatever its status: a command that is completed is not processed any more, and one that came while the
// namespace could not be reached was aborted (base 8.1). So also where the path failed within the controller (0h, 60h): such a command may
// have been executed in part, before its answer and so before its retry, as after any other error.
void RequestQueue::NoteStatus(const Slot& slot, const fabrics::CompletionEntry& entry) {
  NoteFailure(*slot.request, kStatus | entry.status_field >> 1);
  PathSet::Path& path = paths_[slot.path];
  if (nvme::StatusOf(entry.status()) == IoStatus::kReservationConflict &&
      !std::exchange(path.conflict_told, true))
    owner_.Conflicted(path.life);
  if (!IsRefusal(entry.status())) return;
  const auto refusal = IsGone(entry.status()) ? PathSet::Refusal::kNamespaceGone : PathSet::Refusal::kForNow;
  if (paths_.Refuse(slot.path, refusal)) owner_.PathRefused(path.life);
}

// No controller may answer with a code of hosts. One that is a host itself, of the storage behind it, passes on what it has when a path of
// its own broke: nobody has answered the command, and the storage may execute it later. So a command that writes counts as one that was not
// answered, and its path ends, as doubt begins with the end of a path. Of a read or a flush it is a refusal as others are.
void RequestQueue::EndFor(LifeId life, uint64_t cookie, Status status) {
  CLEAT_CHECK(cookie < kCommandsMax);
  const uint32_t place = slots_[cookie].path;
  Unanswered(life, cookie, fabrics::Reached::kPerhapsAll);
  // Last, as the path may end within.
  paths_[place].queue->Abort(
      {ErrorCode::kIo, "a command was answered with " + NameOf(status) +
                           ", which only a host may say; see whether the target has lost a path of "
                           "its own, to the storage behind it"});
}

// The request has failed, has no command under way, and is in no line.
void RequestQueue::Failed(Request& request) {
  if (!MayTryAgain(request)) return GiveUp(request);
  const Status status(static_cast<uint16_t>(WordOf(request, kFailure)));
  const bool was_refused = (WordOf(request, kFailure) & kStatus) != 0 && IsRefusal(status);
  WordOf(request, kFailure) = 0;
  WordOf(request, kBegun) = 0;
  // The path pauses rather than the request.
  (was_refused ? waiting_ : paused_).Push(request);
}

bool RequestQueue::MayTryAgain(Request& request) {
  const uint64_t failure = WordOf(request, kFailure);
  if ((failure & kStatus) != 0) {
    const Status status(static_cast<uint16_t>(failure));
    if (IsPathError(status)) return true;
    if (IsGone(status)) return MayBeGone(request);
    if (!nvme::MayRetry(status)) return false;
  }
  return (++WordOf(request, kTries) & UINT32_MAX) <= kTriesMax;
}

// Each path is tried once in a pause. Counted beside the other tries, which begin anew once the namespace is there.
bool RequestQueue::MayBeGone(Request& request) {
  constexpr uint64_t kOne = uint64_t{1} << 32;
  uint64_t& tries = WordOf(request, kTries);
  tries = (tries & ~(kOne - 1)) + kOne;
  const auto paths = std::count_if(paths_.all().begin(), paths_.all().end(),
                                   [](const PathSet::Path& path) { return path.queue != nullptr; });
  return tries / kOne <= uint64_t{kGoneTriesMax} * static_cast<uint64_t>(std::max<ptrdiff_t>(paths, 1));
}

// The request is answered with its failure: at once, or when the view allows it.
void RequestQueue::GiveUp(Request& request, uint64_t since_ns) {
  if (Has(request, kInDoubt)) {
    if (!view_.MayFail(AttemptOf(request))) return Hold(request, since_ns);
    owner_.GivenUp(WordOf(request, kOrigin));
  }
  const uint64_t failure = WordOf(request, kFailure);
  if ((failure & kTooLate) != 0) {
    if (config_.waits != nullptr) config_.waits->failed.fetch_add(1, std::memory_order_relaxed);
    request.error_number = ETIME;
    return End(request, IoStatus::kIoError);
  }
  if ((failure & kLacking) != 0) {
    request.error_number = EOPNOTSUPP;
    return End(request, IoStatus::kUnsupported);
  }
  if ((failure & kShort) != 0) {
    request.error_number = EIO;
    return End(request, IoStatus::kIoError);
  }
  const Status status(static_cast<uint16_t>(failure));
  request.error_number = ErrorNumberOf(status);
  End(request, StatusOf(status));
}

// Before all that wait, as these came earlier.
void RequestQueue::BeginAnew(block::RequestList& lost) {
  RequestLine again;
  block::RequestList failed;
  while (Request* const request = lost.PopFront()) {
    EndAttempt(*request);
    WordOf(*request, kFlags) &= kInDoubt;
    if (WordOf(*request, kFailure) != 0) {
      failed.PushBack(*request);
    } else {
      WordOf(*request, kBegun) = 0;
      again.Push(*request);
    }
  }
  again.TakeAll(waiting_);
  waiting_.TakeAll(again);
  while (Request* const request = failed.PopFront()) Failed(*request);
  Serve();
}

void RequestQueue::Tick(uint64_t now_ns) {
  paths_.Tick(now_ns);
  AgeHeld(now_ns);
  for (Request* request = paused_.front(); request != nullptr; request = paused_.Next(*request)) {
    if (WordOf(*request, kResumeNs) == 0) WordOf(*request, kResumeNs) = now_ns + kPauseNs;
  }
  // A request that pauses from within this loop has no time yet.
  while (Request* const request = paused_.front()) {
    if (WordOf(*request, kResumeNs) == 0 || WordOf(*request, kResumeNs) > now_ns) break;
    paused_.Remove(*request);
    WordOf(*request, kBegun) = 0;
    waiting_.Push(*request);
  }
  Serve();
}

// ---- What waits for doubt

void RequestQueue::SetInDoubt(const block::InDoubt& rule) {
  fail_after_ns_ = rule.policy == block::InDoubt::Policy::kFailAfter ? rule.fail_after_ns : 0;
  view_.SetAccepts(rule.policy == block::InDoubt::Policy::kAccept);
  // What was too late for the rule before may not be for this one.
  for (Request* request = held_.front(); request != nullptr; request = held_.Next(*request)) {
    if (WordOf(*request, kFailure) == kTooLate) WordOf(*request, kFailure) = 0;
  }
  TryHeld();
}

// The request has no command under way and is in no line.
void RequestQueue::Hold(Request& request, uint64_t since_ns) {
  WordOf(request, kSinceNs) = since_ns;
  held_.Push(request);
  NoteHeld(0);
}

void RequestQueue::TryHeld() {
  looked_at_.TakeAll(held_);
  while (Request* const request = looked_at_.Pop()) {
    const uint64_t since_ns = std::exchange(WordOf(*request, kSinceNs), 0);
    if (WordOf(*request, kFailure) != 0) {
      GiveUp(*request, since_ns);
    } else {
      GoOn(*request, since_ns);
    }
  }
  NoteHeld(0);
}

// Requests that wait have a time from here on. What fails waits for its answer as long as the guest could overtake its ghost (GiveUp).
// Before the first table it is not doubt that a request waits for but the disk, and without a path it is that: neither counts.
void RequestQueue::AgeHeld(uint64_t now_ns) {
  const uint64_t passed_ns = now_ns - std::exchange(aged_ns_, now_ns);
  if (held_.empty()) return;
  const bool counts = view_.has_table() && paths_.leads_somewhere();
  for (Request* request = held_.front(); request != nullptr;) {
    Request* const next = held_.Next(*request);
    uint64_t& since_ns = WordOf(*request, kSinceNs);
    if (since_ns == 0) {
      since_ns = counts ? now_ns : 0;
    } else if (!counts) {
      since_ns += passed_ns;
    }
    if (IsTooLate(*request, now_ns)) {
      held_.Remove(*request);
      looked_at_.Push(*request);
      WordOf(*request, kFailure) = kTooLate;
    }
    request = next;
  }
  while (Request* const request = looked_at_.Pop())
    GiveUp(*request, std::exchange(WordOf(*request, kSinceNs), 0));
  // What has begun to wait within a completion just now is not the oldest, or has the next Tick.
  uint64_t oldest_ns = 0;
  for (Request* request = held_.front(); request != nullptr; request = held_.Next(*request)) {
    const uint64_t since_ns = WordOf(*request, kSinceNs);
    if (since_ns != 0 && (oldest_ns == 0 || since_ns < oldest_ns)) oldest_ns = since_ns;
  }
  NoteHeld(oldest_ns);
}

bool RequestQueue::IsTooLate(const Request& request, uint64_t now_ns) const {
  const uint64_t since_ns = WordOf(request, kSinceNs);
  return fail_after_ns_ != 0 && since_ns != 0 && WordOf(request, kFailure) == 0 &&
         now_ns - since_ns >= fail_after_ns_;
}

// `since_ns` 0: that of the oldest is what it was, or comes with the next Tick.
void RequestQueue::NoteHeld(uint64_t since_ns) {
  if (config_.waits == nullptr) return;
  const uint64_t count = held_.count() + looked_at_.count();
  config_.waits->requests.store(count, std::memory_order_relaxed);
  if (since_ns != 0 || count == 0) config_.waits->since_ns.store(since_ns, std::memory_order_relaxed);
}

// ---- Paths

void RequestQueue::PathReady(LifeId life, fabrics::QueuePair& queue, const PathFormat& format,
                             PathState state) {
  SetFormat(paths_.Add(life, queue, state), format);
  Serve();
}

void RequestQueue::SetState(LifeId life, PathState state) {
  const uint32_t place = paths_.PlaceOf(life);
  if (place == PathSet::kNone) return;
  paths_.SetState(place, state);
  Serve();
}

void RequestQueue::PathLooked(LifeId life) {
  const uint32_t place = paths_.PlaceOf(life);
  if (place == PathSet::kNone) return;
  paths_.Looked(place);
  Serve();
}

void RequestQueue::SetFormat(LifeId life, const PathFormat& format) {
  if (const uint32_t place = paths_.PlaceOf(life); place != PathSet::kNone) SetFormat(paths_[place], format);
}

void RequestQueue::SetFormat(PathSet::Path& path, const PathFormat& format) {
  const uint32_t block_bytes = format.limits.block_bytes();
  CLEAT_CHECK(block_bytes_ == 0 || block_bytes == block_bytes_);
  CLEAT_CHECK(block_bytes <= CommandMaker::kZeroBytes && format.limits.transfer_bytes_max() >= block_bytes);
  block_bytes_ = block_bytes;
  path.format = format;
}

// The report is mailed before the ends of barriers that it names; only then may anything of the life go on.
void RequestQueue::PathBreaks(LifeId life) {
  const uint32_t place = paths_.PlaceOf(life);
  if (place == PathSet::kNone) return;
  paths_.SetBreaks(place);
  Serve();
}

void RequestQueue::PathEnded(LifeId life) {
  block::RequestList lost;
  std::vector<Attempt> perhaps;
  if (const uint32_t place = paths_.PlaceOf(life); place != PathSet::kNone) {
    paths_.Remove(place);
    PathSet::Path& path = paths_[place];
    for (Request* request = path.lost.front(); request != nullptr; request = path.lost.Next(*request)) {
      if (!Has(*request, kPerhaps)) continue;
      perhaps.push_back(AttemptOf(*request));
      if (!Has(*request, kInDoubt)) ++in_doubt_;
      WordOf(*request, kFlags) |= kInDoubt;
    }
    lost.Splice(path.lost);
    for (Slot& slot : slots_) {
      if (slot.kept == Kept::kUntilReport && slot.path == place) slot.kept = Kept::kUntilTable;
    }
  }
  owner_.Report(view_.EndLife(life, std::move(perhaps)));
  BeginAnew(lost);
}

// ---- The ledger

void RequestQueue::Adopt(DoubtTable table) {
  owner_.Acked(view_.Adopt(std::move(table), AttemptsUnderWay()));
  const bool has_freed = FreeKeptSlots();
  TryHeld();
  if (has_freed) Serve();
}

bool RequestQueue::FreeKeptSlots() {
  if (kept_slot_count_ == 0 || !view_.KnowsAllReports()) return false;
  const uint32_t free_before = free_slot_count_;
  for (uint32_t i = 0; i < kCommandsMax; ++i) {
    if (slots_[i].kept != Kept::kUntilTable) continue;
    slots_[i] = {};
    --kept_slot_count_;
    FreeSlot(i, /*writes=*/true);
  }
  return free_slot_count_ > free_before;
}

// The attempts of requests that write: those with a command under way, and those of lives that are not reported yet.
std::vector<Attempt> RequestQueue::AttemptsUnderWay() {
  std::vector<Attempt> attempts;
  const auto add = [&attempts](const Request& request) {
    if (Writes(request)) attempts.push_back(AttemptOf(request));
  };
  for (const Slot& slot : slots_) {
    if (slot.request != nullptr) add(*slot.request);
  }
  for (PathSet::Path& path : paths_.all()) {
    for (Request* request = path.lost.front(); request != nullptr; request = path.lost.Next(*request))
      add(*request);
  }
  const auto by_origin = [](const Attempt& a, const Attempt& b) { return a.origin < b.origin; };
  const auto same_origin = [](const Attempt& a, const Attempt& b) { return a.origin == b.origin; };
  std::sort(attempts.begin(), attempts.end(), by_origin);
  attempts.erase(std::unique(attempts.begin(), attempts.end(), same_origin), attempts.end());
  return attempts;
}

RequestQueue::Counts RequestQueue::counts() const {
  return {.requests = requests_,
          .for_path = waiting_.count(),
          .for_doubt = held_.count() + looked_at_.count(),
          .paused = paused_.count(),
          .in_doubt = in_doubt_};
}

}  // namespace cleat::nvme::host
