// SPDX-License-Identifier: Apache-2.0
#include "modules/nvmf/doubt/kept_doubt_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <utility>
#include <vector>

#include "base/check.h"
#include "nvme/host/doubt/doubt.h"

namespace cleat::modules {
namespace {

using nvme::host::BlockRange;
using nvme::host::DoubtLedger;
using nvme::host::DoubtLog;
using nvme::host::kDoubtLogBytes;
using nvme::host::kDoubtLogShape;
using nvme::host::LifeId;

static_assert(nvme::host::kGhostsMax <= kDoubtLogShape.ghosts);

// Whatever size the disk has, or comes to have.
constexpr BlockRange kWholeDisk{.first = 0, .blocks = std::numeric_limits<uint64_t>::max()};

// Blocks that several ranges have count once.
uint64_t BytesOf(std::vector<BlockRange> ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const BlockRange& a, const BlockRange& b) { return a.first < b.first; });
  uint64_t blocks = 0;
  uint64_t counted_to = 0;
  for (const BlockRange& range : ranges) {
    const uint64_t first = std::max(range.first, counted_to);
    if (range.end() <= first) continue;
    blocks += range.end() - first;
    counted_to = range.end();
  }
  constexpr uint64_t kBlockBytes = nvme::host::kDoubtBlockBytes;
  return std::min(blocks, std::numeric_limits<uint64_t>::max() / kBlockBytes) * kBlockBytes;
}

bool SetLock(const UniqueFd& file, short type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;  // from 0 on, and to the end: all of it
  return fcntl(file.get(), F_OFD_SETLK, &lock) == 0;
}

DoubtLog::Number NumberFor(bool is_other_doubt) {
  return is_other_doubt ? DoubtLog::Number::kNew : DoubtLog::Number::kKept;
}

}  // namespace

KeptDoubtLog::KeptDoubtLog(std::span<uint8_t> memory, UniqueFd lock, std::string disk)
    : memory_(memory),
      lock_(std::move(lock)),
      disk_(std::move(disk)),
      log_(DoubtLog::View(memory, kDoubtLogShape)) {}

KeptDoubtLog::~KeptDoubtLog() {
  munmap(memory_.data(), memory_.size());
}

Result<std::shared_ptr<KeptDoubtLog>> KeptDoubtLog::Map(const UniqueFd& file, const std::string& disk) {
  struct stat status {};
  if (fstat(file.get(), &status) != 0) return ErrnoError(errno, disk + ": its log of writes in doubt: fstat");
  if (status.st_size != static_cast<off_t>(kDoubtLogBytes)) {
    return Error(
        ErrorCode::kInvalidArgument,
        fmt::format(
            "{}: its log of writes in doubt has {} bytes, not {}: it is another version's; serve the disk "
            "with that one",
            disk, status.st_size, kDoubtLogBytes));
  }
  UniqueFd lock(open(fmt::format("/proc/self/fd/{}", file.get()).c_str(), O_RDWR | O_CLOEXEC));
  if (!lock.valid()) return ErrnoError(errno, disk + ": its log of writes in doubt: opening it for a lock");
  void* const memory =
      mmap(nullptr, kDoubtLogBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file.get(), 0);
  if (memory == MAP_FAILED) return ErrnoError(errno, disk + ": its log of writes in doubt: mmap");
  return std::shared_ptr<KeptDoubtLog>(
      new KeptDoubtLog({static_cast<uint8_t*>(memory), kDoubtLogBytes}, std::move(lock), disk));
}

Status KeptDoubtLog::TryOwn() {
  if (is_owned_) return Ok{};
  if (!SetLock(lock_, F_WRLCK)) {
    if (errno != EAGAIN && errno != EACCES)
      return ErrnoError(errno, disk_ + ": its log of writes in doubt: locking it");
    return Error(ErrorCode::kUnavailable, disk_ + ": another engine of this host has it");
  }
  is_owned_ = true;
  const DoubtLog::Claimed claim = log_.Claim();
  has_changed_hands_ = claim_ && claim.number != claim_->number + 1;
  claim_ = claim;
  return Ok{};
}

void KeptDoubtLog::GiveUp() {
  CLEAT_CHECK(is_owned_);
  log_.GiveUp();
}

void KeptDoubtLog::SetLeaving(uint32_t attachment) {
  CLEAT_CHECK(is_owned_);
  log_.SetLeaving(attachment);
}

void KeptDoubtLog::Yield() {
  is_taken_ = false;
  if (std::exchange(is_owned_, false)) CLEAT_CHECK(SetLock(lock_, F_UNLCK));
}

KeptDoubtLog::Found KeptDoubtLog::Take(DoubtLedger& ledger, LifeId life, std::span<const LifeId> living) {
  CLEAT_CHECK(is_owned_ && !is_taken_);
  is_taken_ = true;
  const auto number = static_cast<uint32_t>(life);
  Found found;
  auto opened = DoubtLog::Open(memory_, kDoubtLogShape, number);
  std::vector<BlockRange> ranges;
  std::vector<LifeId> lives;
  bool is_other = true;
  if (opened) {
    lives = opened->ReadLives();
    std::erase_if(lives,
                  [&](LifeId each) { return std::find(living.begin(), living.end(), each) != living.end(); });
    // An operator has seen the ghosts, and never what was under way when the engine ended.
    found.was_confirmed = opened->IsConfirmed();
    ranges = found.was_confirmed ? opened->ReadAttempts() : opened->Read();
    is_other = found.was_confirmed || !opened->ReadAttempts().empty();
  } else {
    found.was_confirmed = DoubtLog::IsLostAndConfirmed(memory_);
    if (!found.was_confirmed) {
      ranges = {kWholeDisk};
      found.unreadable = opened.error();
    }
  }
  found.ranges = ranges.size();
  found.bytes = BytesOf(ranges);
  if (lives.empty()) lives = {life};
  ledger.Doubt(lives, ranges);
  if (opened) {
    log_.Store(ledger.ranges(), NumberFor(is_other));
    log_.ForgetAttempts();
  } else {
    (void)DoubtLog::Format(memory_, kDoubtLogShape, ledger.ranges(), number);
  }
  stored_doubts_ = ledger.doubts();
  stored_lives_ = log_.ReadLives();
  return found;
}

void KeptDoubtLog::StoreLives(std::span<const LifeId> lives) {
  CLEAT_CHECK(is_taken_);
  if (std::equal(lives.begin(), lives.end(), stored_lives_.begin(), stored_lives_.end())) return;
  stored_lives_.assign(lives.begin(), lives.end());
  log_.StoreLives(lives);
}

void KeptDoubtLog::Store(const DoubtLedger& ledger) {
  CLEAT_CHECK(is_taken_);
  const bool is_other = std::exchange(stored_doubts_, ledger.doubts()) != ledger.doubts();
  log_.Store(ledger.ranges(), NumberFor(is_other));
}

}  // namespace cleat::modules
