// SPDX-License-Identifier: Apache-2.0
#include "modules/nvmf/doubt/kept_doubt_log.h"

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

DoubtLog::Number NumberFor(bool is_other_doubt) {
  return is_other_doubt ? DoubtLog::Number::kNew : DoubtLog::Number::kKept;
}

}  // namespace

KeptDoubtLog::KeptDoubtLog(std::span<uint8_t> memory)
    : memory_(memory), log_(DoubtLog::View(memory, kDoubtLogShape)) {}

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
  void* const memory =
      mmap(nullptr, kDoubtLogBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file.get(), 0);
  if (memory == MAP_FAILED) return ErrnoError(errno, disk + ": its log of writes in doubt: mmap");
  return std::shared_ptr<KeptDoubtLog>(new KeptDoubtLog({static_cast<uint8_t*>(memory), kDoubtLogBytes}));
}

KeptDoubtLog::Found KeptDoubtLog::Take(DoubtLedger& ledger, LifeId life, std::span<const LifeId> living) {
  CLEAT_CHECK(!is_taken_);
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
  if (IsTakenOver()) return;
  if (std::equal(lives.begin(), lives.end(), stored_lives_.begin(), stored_lives_.end())) return;
  stored_lives_.assign(lives.begin(), lives.end());
  log_.StoreLives(lives);
}

void KeptDoubtLog::Store(const DoubtLedger& ledger) {
  CLEAT_CHECK(is_taken_);
  if (IsTakenOver()) return;
  const bool is_other = std::exchange(stored_doubts_, ledger.doubts()) != ledger.doubts();
  log_.Store(ledger.ranges(), NumberFor(is_other));
}

}  // namespace cleat::modules
