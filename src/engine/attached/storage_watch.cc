// SPDX-License-Identifier: Apache-2.0
#include "engine/attached/storage_watch.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "engine/protocol/backend.h"
#include "nvme/status.h"

namespace cleat::engine {
namespace {

using block::IoStatus;
using block::Op;

// A reactor with requests in flight that has not looked at them for so long stands still, or the whole process did: what it saw
// last says nothing of the storage.
constexpr uint64_t kScanFreshNs = kNsPerSecond;

const char* NameOf(Op op) {
  return observe::kOpNames[static_cast<uint32_t>(observe::ColumnOf(op))];
}

// What the storage said, or what comes nearest to a status of ours.
int ErrnoOf(const StorageCell::Failure& failure) {
  if (failure.error_number != 0) return failure.error_number;
  switch (failure.status) {
    case IoStatus::kNoSpace:
      return ENOSPC;
    case IoStatus::kReadOnly:
      return EROFS;
    case IoStatus::kReservationConflict:
      return EBUSY;
    default:
      return EIO;
  }
}

// `over_paths`: what is in doubt may be what the request waited for.
const char* NextStep(int error_number, bool over_paths) {
  constexpr const char* kLookElsewhere = "see the host's kernel log (dmesg) and the storage's";
  switch (error_number) {
    case ENOSPC:
    case EDQUOT:
      return "make room in what it lies on (a file system, a thin pool, a Ceph pool or its quota)";
    case EROFS:
      return "what it lies on is read-only: see the host's kernel log (dmesg)";
    case ENODEV:
      return "the drive was pulled out, or the kernel has given it up (dmesg): once it is back, detach the "
             "disk and "
             "attach it again";
    case ETIME:
      return !over_paths ? kLookElsewhere
                         : "it waited for a write in doubt for as long as the disk's in_doubt says: see that "
                           "the target executes nothing old any more, then cleatctl disk confirm-dead";
    case EBUSY:
    case EBADE:
      return "somebody else owns it: see who, and detach it there or here";
    default:
      return kLookElsewhere;
  }
}

std::string InWords(const StorageCell::Failure& failure, bool over_paths) {
  if (const auto status = nvme::StatusOfErrorNumber(failure.error_number)) {
    return fmt::format("{} at byte {}: NVMe status {}; see the drive's logs (nvme smart-log, nvme error-log)",
                       NameOf(failure.op), failure.offset_bytes, nvme::NameOf(*status));
  }
  const int error_number = ErrnoOf(failure);
  return fmt::format("{} at byte {}: {}; {}", NameOf(failure.op), failure.offset_bytes,
                     std::generic_category().message(error_number), NextStep(error_number, over_paths));
}

std::string Seconds(uint64_t duration_ns) {
  return fmt::format("{} s", duration_ns / kNsPerSecond);
}

}  // namespace

// ---- StorageCell

void StorageCell::Failed(const block::Request& request) {
  constexpr uint32_t kByte = 8;
  constexpr uint32_t kWord = 16;
  last_what_.store(static_cast<uint32_t>(request.op) | static_cast<uint32_t>(request.status) << kByte |
                   (static_cast<uint32_t>(request.error_number) & 0xffff) << kWord);
  last_offset_.store(request.offset_bytes);
  // The count, then the flag; Listen's caller does it the other way round: one of the two sees the other.
  failed_.store(failed_.load(std::memory_order_relaxed) + 1);
  Tell();
}

// The count, then the flag, as in Failed.
void StorageCell::WaitForSpace(uint32_t requests) {
  waiting_.store(requests);
  if (requests > 0) Tell();
}

void StorageCell::Tell() {
  if (!listening_.load() || !listening_.exchange(false)) return;
  mail_.keeps = shared_from_this();
  control_.Post(mail_);
}

void StorageCell::Wake::Deliver(Mail& mail) {
  const std::shared_ptr<StorageCell> cell = std::exchange(static_cast<Wake&>(mail).keeps, nullptr);
  cell->told_ = true;
  if (cell->watch_ != nullptr) cell->watch_->Wake();
}

void StorageCell::Listen() {
  if (std::exchange(told_, false)) listening_.store(true);
}

StorageCell::Failure StorageCell::last() const {
  const uint32_t what = last_what_.load();
  return {static_cast<Op>(what & 0xff), static_cast<IoStatus>(what >> 8 & 0xff),
          static_cast<uint16_t>(what >> 16), last_offset_.load()};
}

// ---- StorageWatch

StorageWatch::StorageWatch(Reactor& control, const AttachmentSpec& spec, std::function<void()> on_change)
    : control_(control),
      disk_(spec.disk.name),
      controller_(spec.controller),
      storage_(StorageOf(spec.disk.backend)),
      on_change_(std::move(on_change)) {}

StorageWatch::~StorageWatch() {
  End();
}

void StorageWatch::BeginOpening() {
  opening_since_ns_ = control_.now_ns();
  control_.AddTimer(timer_, opening_since_ns_ + kOpeningNs);
}

void StorageWatch::EndOpening() {
  timer_.Cancel();
  opening_since_ns_ = 0;
  if (std::exchange(opening_late_, false)) TellChange();
  Wake();  // a channel may have failed something meanwhile
}

std::shared_ptr<StorageCell> StorageWatch::AddCell() {
  return cells_.emplace_back(std::make_shared<StorageCell>(control_, *this));
}

void StorageWatch::AddCounters(observe::DiskCounters& disk, const observe::ReactorCounters& reactor) {
  counted_.push_back({&disk, &reactor});
}

void StorageWatch::End() {
  if (std::exchange(ended_, true)) return;
  timer_.Cancel();
  failed_ = CountFailed();
  if (failing_.since_ns != 0) EndFailing();
  if (full_.since_ns != 0) EndFull();
  if (unanswered_since_ns_ != 0) EndUnanswered();
  if (stuck_since_ns_ != 0) EndStuck();
  device_ = nullptr;
  paths_.reset();
  for (const auto& cell : cells_) cell->Forget();
  cells_.clear();
  counted_.clear();
}

void StorageWatch::Wake() {
  if (!ended_ && !timer_.pending()) Look();
}

// Not at once: a path that comes and goes is told of once in that time.
void StorageWatch::PathsChanged() {
  if (ended_ || device_ == nullptr || opening_since_ns_ != 0 || timer_.pending()) return;
  control_.AddTimer(timer_, control_.now_ns() + kLookEveryNs);
}

void StorageWatch::Look() {
  if (opening_since_ns_ != 0) {
    opening_late_ = true;
    opening_since_ = InDays(opening_since_ns_);
    return TellChange();
  }
  const StorageState before = state();
  LookAtPaths();
  LookAtFailures();
  LookAtSpace();
  LookAtOldest();
  const uint64_t now_ns = control_.now_ns();
  const bool bad = state() != StorageState::kOk;
  const bool other_number = (bad && full_.waiting != told_waiting_) || paths_ != told_paths_;
  if (state() != before || other_number || (bad && now_ns - told_ns_ >= kRepeatNs)) TellChange();
  if (!bad && !slow_) Rest();
  if (bad || slow_ || CountFailed() != failed_ || CountWaiting() != 0)
    control_.AddTimer(timer_, now_ns + kLookEveryNs);
}

// Nothing is to be looked for until a cell wakes this again. What has failed just before a cell listens is seen here.
void StorageWatch::Rest() {
  for (const auto& cell : cells_) cell->Listen();
}

void StorageWatch::LookAtFailures() {
  const uint64_t failed = CountFailed();
  if (failed != failed_) {
    if (failing_.since_ns == 0) {
      BeginFailing(failed);
    } else {
      for (const auto& cell : cells_) {
        if (cell->failed() != 0) failing_.last = InWords(cell->last(), paths_.has_value());
      }
    }
    failed_ = failed;
    failing_.last_ns = control_.now_ns();
    failing_.succeeded_at_last = CountSucceeded();
  } else if (failing_.since_ns != 0 && WorksAgain()) {
    EndFailing();
  }
}

bool StorageWatch::WorksAgain() const {
  const uint64_t quiet_ns = control_.now_ns() - failing_.last_ns;
  if (quiet_ns >= kGivenUpNs) return true;
  return quiet_ns >= kQuietNs && (counted_.empty() || CountSucceeded() != failing_.succeeded_at_last);
}

void StorageWatch::BeginFailing(uint64_t failed) {
  failing_.since_ns = control_.now_ns();
  failing_.since = InDays(failing_.since_ns);
  failing_.failed_before = failed_;
  for (const auto& cell : cells_) {
    if (cell->failed() != 0) failing_.last = InWords(cell->last(), paths_.has_value());
  }
  spdlog::error("{}: storage fails: {} requests of {}, the last a {}", disk_, failed - failed_, controller_,
                failing_.last);
}

void StorageWatch::EndFailing() {
  spdlog::info("{}: storage fails no more: {} requests of {} failed within {}", disk_,
               failed_ - failing_.failed_before, controller_,
               Seconds(std::max(failing_.last_ns, failing_.since_ns) - failing_.since_ns));
  failing_ = {};
}

StorageWatch::Oldest StorageWatch::FindOldest() const {
  const uint64_t now_ns = control_.now_ns();
  Oldest found;
  for (const Counted& counted : counted_) {
    const uint64_t scan_ns = counted.reactor->last_scan_ns();
    const auto oldest = counted.disk->CopyOldest();
    if (oldest && (oldest->in_flight == 0 || oldest->scanned_ns < scan_ns)) continue;
    if (!oldest || now_ns > scan_ns + kScanFreshNs) {
      found.unknown = true;
      continue;
    }
    found.in_flight += oldest->in_flight;
    if (oldest->seen_ns + counted.reactor->slow_after_ns() > now_ns) continue;
    if (found.seen_ns == 0 || oldest->seen_ns < found.seen_ns) found.seen_ns = oldest->seen_ns;
    const auto stage = static_cast<RequestStage>(oldest->stage);
    if (stage < RequestStage::kQosOut || stage >= RequestStage::kDone) continue;
    if (found.storage_ns == 0 || oldest->stage_ns < found.storage_ns) found.storage_ns = oldest->stage_ns;
  }
  return found;
}

void StorageWatch::LookAtOldest() {
  const uint64_t now_ns = control_.now_ns();
  const Oldest oldest = FindOldest();
  slow_ = oldest.seen_ns != 0 || oldest.unknown;
  const uint64_t succeeded = CountSucceeded();
  if (std::exchange(succeeded_, succeeded) != succeeded || oldest.in_flight == 0) succeeded_at_ns_ = now_ns;
  const bool unanswered =
      oldest.storage_ns != 0 && now_ns >= oldest.storage_ns + kUnansweredNs && !IsOldSinceStuck(oldest);
  if (unanswered && unanswered_since_ns_ == 0) {
    unanswered_since_ = InDays(oldest.storage_ns);
    spdlog::error("{}: storage does not answer: the oldest request of {} waits since {}; see to {}", disk_,
                  controller_, unanswered_since_, storage_);
    unanswered_since_ns_ = oldest.storage_ns;
  } else if (!unanswered && !oldest.unknown && unanswered_since_ns_ != 0) {
    EndUnanswered();
  }
}

// What is stuck is the engine's to answer, not the storage's; beside it the storage may answer nothing else either.
bool StorageWatch::IsOldSinceStuck(const Oldest& oldest) const {
  if (stuck_since_ns_ == 0) return false;
  return oldest.in_flight <= paths_->waiting || control_.now_ns() < succeeded_at_ns_ + kUnansweredNs;
}

void StorageWatch::EndUnanswered() {
  spdlog::info("{}: storage answers again: a request of {} had waited for {}", disk_, controller_,
               Seconds(control_.now_ns() - unanswered_since_ns_));
  unanswered_since_ns_ = 0;
}

void StorageWatch::LookAtSpace() {
  const uint64_t now_ns = control_.now_ns();
  full_.waiting = CountWaiting();
  if (full_.waiting == 0) {
    if (full_.since_ns != 0 && now_ns - full_.last_ns >= kSpaceQuietNs) EndFull();
    return;
  }
  full_.last_ns = now_ns;
  full_.most_waiting = std::max(full_.most_waiting, full_.waiting);
  if (full_.since_ns != 0) return;
  full_.since_ns = now_ns;
  full_.since = InDays(now_ns);
  spdlog::error("{}: storage has no space: {} requests of {} wait for it; {}", disk_, full_.waiting,
                controller_, NextStep(ENOSPC, false));
}

void StorageWatch::EndFull() {
  spdlog::info("{}: storage is waited for no more: up to {} requests of {} waited for space within {}", disk_,
               full_.most_waiting, controller_, Seconds(full_.last_ns - full_.since_ns));
  full_ = {};
}

void StorageWatch::LookAtPaths() {
  paths_ = device_ == nullptr ? std::nullopt : device_->paths();
  if (!IsStuck()) {
    if (stuck_since_ns_ != 0) EndStuck();
    return;
  }
  if (stuck_since_ns_ != 0) return;
  stuck_since_ns_ = paths_->waiting_since_ns;
  spdlog::error("{}: stuck: {} requests of {} wait for writes in doubt since {}, {}; {}", disk_,
                paths_->waiting, controller_, InDays(stuck_since_ns_), paths_->doubt_left_by, ConfirmStep());
}

// Without a path it is the storage that does not answer, whatever is in doubt.
bool StorageWatch::IsStuck() const {
  return paths_ && paths_->has_usable() && paths_->waiting > 0 && paths_->waiting_since_ns != 0 &&
         control_.now_ns() >= paths_->waiting_since_ns + kStuckNs;
}

void StorageWatch::EndStuck() {
  spdlog::info("{}: stuck no more: a request of {} had waited for {}", disk_, controller_,
               Seconds(control_.now_ns() - stuck_since_ns_));
  stuck_since_ns_ = 0;
}

std::string StorageWatch::StuckMessage() const {
  return fmt::format("stuck: {} requests wait for writes in doubt since {}, {}; {}", paths_->waiting,
                     InDays(paths_->waiting_since_ns), paths_->doubt_left_by, ConfirmStep());
}

std::string StorageWatch::ConfirmStep() const {
  return "see that the target executes nothing of that any more, then cleatctl disk confirm-dead " +
         disk_.substr(disk_.find('/') + 1);
}

uint32_t StorageWatch::CountWaiting() const {
  uint32_t sum = 0;
  for (const auto& cell : cells_) sum += cell->waiting();
  return sum;
}

uint64_t StorageWatch::CountFailed() const {
  uint64_t sum = 0;
  for (const auto& cell : cells_) sum += cell->failed();
  return sum;
}

uint64_t StorageWatch::CountSucceeded() const {
  uint64_t sum = 0;
  for (const Counted& counted : counted_) sum += counted.disk->succeeded();
  return sum;
}

StorageState StorageWatch::state() const {
  if (opening_late_ || unanswered_since_ns_ != 0) return StorageState::kNotAnswering;
  if (stuck_since_ns_ != 0) return StorageState::kStuck;
  if (failing_.since_ns != 0) return StorageState::kFailing;
  return full_.since_ns != 0 ? StorageState::kNoSpace : StorageState::kOk;
}

std::string StorageWatch::message() const {
  if (opening_late_) {
    return fmt::format("opening {}: {} does not answer since {}; see to it", disk_, storage_, opening_since_);
  }
  std::string text;
  if (unanswered_since_ns_ != 0) {
    text = fmt::format("storage does not answer: the oldest request waits since {}; see to {}",
                       unanswered_since_, storage_);
  }
  const auto add = [&text](const std::string& more) { text += (text.empty() ? "" : ". ") + more; };
  if (stuck_since_ns_ != 0) add(StuckMessage());
  if (paths_ && paths_->accepts && paths_->doubt_ranges > 0) {
    add(fmt::format("writes in doubt are accepted: {} bytes, {}, may still overwrite newer data",
                    paths_->doubt_bytes, paths_->doubt_left_by));
  }
  if (full_.since_ns != 0) {
    add(fmt::format("storage has no space: {} requests wait for it since {}; {}", full_.waiting, full_.since,
                    NextStep(ENOSPC, false)));
  }
  if (failing_.since_ns != 0) {
    add(fmt::format("storage fails: {} requests since {}, the last a {}", failed_ - failing_.failed_before,
                    failing_.since, failing_.last));
  }
  return text;
}

void StorageWatch::TellChange() {
  told_ns_ = control_.now_ns();
  told_waiting_ = full_.waiting;
  told_paths_ = paths_;
  on_change_();
}

uint64_t StorageWatch::UnixSeconds(uint64_t at_ns) const {
  const auto ago = std::chrono::nanoseconds(control_.now_ns() - at_ns);
  const auto then = std::chrono::system_clock::now() - ago;
  return static_cast<uint64_t>(
      std::chrono::system_clock::to_time_t(std::chrono::time_point_cast<std::chrono::seconds>(then)));
}

// The time of day at `at_ns` of the reactor's clock.
std::string StorageWatch::InDays(uint64_t at_ns) const {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(static_cast<time_t>(UnixSeconds(at_ns))));
}

}  // namespace cleat::engine
