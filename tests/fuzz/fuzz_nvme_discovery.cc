// SPDX-License-Identifier: Apache-2.0
// A discovery service made of random bytes against the host that reads its log, or watches it: what its log holds, how long it says that it
// is, when it changes, what it tells of that, statuses, data that is too short, silence, and connections that break. Whatever comes: the
// reading ends once, within its limits, and what it gives has names that are names and addresses that are addresses. A log that is watched is
// another one each time that it is seen, but perhaps the last; it is not read too often, and ends with an error.
//
// An input: a byte, odd where the log is watched; a byte for how many records the log has, and a byte for how many bytes of it are others;
// these, each with its place (a word) and its value; and a byte for each answer that is not as usual (Deed) and, of a log that is watched, for
// each turn in which nothing is to be answered (Turn).
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "nvme/host/discovery.h"
#include "tests/fuzz/input.h"

namespace cleat::nvme::host {
namespace {

enum Deed : uint8_t {
  kHonest = 0,
  kRefuse = 1,   // a status: a word
  kShorten = 2,  // data of so many bytes: a word
  kSilent = 3,
  kBreak = 4,
  kChange = 5,  // the log has another generation from now on
  kValue = 6,   // of a property, or of the answer to Connect: four words
  kDeeds = 7,
  kLate = 7,  // only of a log that is watched: not yet
  kDeedsWatched = 8,
};
enum Turn : uint8_t {
  kTick = 0,
  kSeconds = 1,   // ticks, a byte of them
  kTell = 2,      // an event: the log has changed, which it has
  kTellAny = 3,   // an event of any kind: two words
  kFail = 4,      // the event request: a status, a word
  kQuietly = 5,   // a byte of the log is another one, and nothing is told: a word and a byte
  kGiveUp = 6,    // the host
  kGiveUpIn = 7,  // ... when it sees a log
  kTurns = 8,
};

constexpr uint8_t kGetLogPage = 0x02;
constexpr uint8_t kIdentify = 0x06;
constexpr uint8_t kEventRequest = 0x0c;
constexpr uint32_t kLogChanged = 0x0070f002;  // a notice, F0h, log page 70h
constexpr uint32_t kKatoMs = 2000;
constexpr uint64_t kTimeoutNs = 1'000'000'000;
// Ticks that the reading gets when nothing is left of the input.
constexpr uint32_t kTicksAfterMax = 100;

// Commands of a reading that goes wrong as late as it can: each try has a piece for every four records and one for the header.
constexpr uint64_t kReadsMax = fabrics::kLogTriesMax * (fabrics::kDiscoveryRecordsMax / 4 + 3);
constexpr uint64_t kCommandsMax = 200 + kReadsMax;

class FuzzService final : public fabrics::QueuePair, private DiscoveryOwner {
 public:
  explicit FuzzService(FuzzInput input)
      : input_(input), watched_(input_.Byte() % 2 != 0), discovery_(ConfigOf(watched_), *this) {
    MakeLog();
  }

  void Play() {
    discovery_.Start(*this, now_ns_);
    discovery_.Connected();
    while (!told_) {
      if (IsAsked() && !silent_) {
        Answer();
      } else if (!IsAsked() && watched_) {
        TakeTurn();
      } else {
        Tick();
      }
      CheckLimits();
    }
    CLEAT_CHECK(pending_.empty());
  }

 private:
  static DiscoveryConfig ConfigOf(bool watched) {
    return {.who = "it",
            .host = fabrics::HostIdentityOfUuid({1}),
            .chap = {},
            .timeout_ns = kTimeoutNs,
            .kato_ms = watched ? kKatoMs : 0};
  }
  static bool IsAnswered(const fabrics::QueuedCommand& command) {
    return command.entry.opcode != kEventRequest;
  }

  bool IsAsked() const { return std::ranges::any_of(pending_, IsAnswered); }

  void Tick() {
    now_ns_ += Discovery::kTickNs;
    in_tick_ = true;
    discovery_.Tick(now_ns_);
    in_tick_ = false;
  }

  void CheckLimits() const {
    if (!watched_) {
      CLEAT_CHECK(commands_ <= kCommandsMax && now_ns_ <= 4 * kTimeoutNs);
      return;
    }
    CLEAT_CHECK(!is_same_ || over_);  // before the end: it is the last one that is told of
    CLEAT_CHECK(readings_ <= 1 + now_ns_ / Discovery::kRefreshSpacingNs);
    CLEAT_CHECK(reads_ <= kReadsMax * (1 + readings_));
    CLEAT_CHECK(events_ <= 2 + now_ns_ / Discovery::kTickNs);
    CLEAT_CHECK(!silent_ || now_ns_ - silent_since_ns_ <= 3 * kTimeoutNs + kKatoMs * 1'000'000ULL);
  }

  void MakeLog() {
    const uint64_t records = input_.Byte();
    log_.resize(1024 * (records + 1));
    std::memcpy(log_.data() + 8, &records, sizeof(records));
    for (size_t at = 1024; at < log_.size(); at += 1024) {
      log_[at] = 3;
      log_[at + 1] = 1;
      log_[at + 2] = 2;
      std::memcpy(&log_[at + 32], "4420", 4);
      std::memcpy(&log_[at + 256], "nqn.2024-01.com.example:a", 25);
      std::memcpy(&log_[at + 512], "10.0.0.1", 8);
    }
    for (int changes = input_.Byte(); changes > 0; --changes) {
      const size_t at = input_.Word() % log_.size();
      log_[at] = input_.Byte();
    }
  }

  // ---- QueuePair
  uint32_t room() const override { return over_ ? 0 : 31; }
  // One command at a time; of a log that is watched beside it one Keep Alive and one event request.
  void Submit(const fabrics::QueuedCommand& command) override {
    CLEAT_CHECK(!over_ && pending_.size() < (watched_ ? 3 : 1));
    CLEAT_CHECK(std::ranges::find(pending_, command.cookie, &fabrics::QueuedCommand::cookie) ==
                pending_.end());
    ++commands_;
    reads_ += command.entry.opcode == kGetLogPage ? 1 : 0;
    readings_ += command.entry.opcode == kGetLogPage && in_tick_ ? 1 : 0;
    events_ += command.entry.opcode == kEventRequest ? 1 : 0;
    pending_.push_back(command);
  }
  void Abort(const Error& reason) override {
    if (over_) return;
    over_ = true;
    for (const fabrics::QueuedCommand& left : std::exchange(pending_, {}))
      discovery_.Unanswered(left.cookie, fabrics::Reached::kPerhapsAll);
    discovery_.Ended(reason);
  }

  uint64_t UsualResult(const fabrics::SubmissionEntry& entry) const {
    constexpr uint8_t kFabrics = 0x7f;
    if (entry.opcode != kFabrics) return 0;
    if (entry.nsid == 1) return 7;
    if (entry.nsid == 0) return 0;
    return entry.cdw11 == 0 ? 127 | uint64_t{1} << 24 | uint64_t{1} << 37 : 1;
  }

  // The first of the commands that are to be answered.
  void Answer() {
    const auto deed = static_cast<Deed>(input_.Byte() % (watched_ ? kDeedsWatched : kDeeds));
    if (deed == kSilent) {
      silent_ = true;
      silent_since_ns_ = now_ns_;
      return;
    }
    if (deed == kLate) return Tick();
    if (deed == kBreak) return Abort({ErrorCode::kUnavailable, "it: closed"});
    if (deed == kChange) ++log_[0];
    const fabrics::QueuedCommand command = Take(IsAnswered).value();
    fabrics::CompletionEntry entry;
    entry.result = UsualResult(command.entry);
    if (deed == kRefuse) entry.status_field = input_.Word();
    if (deed == kValue) {
      entry.result = 0;
      for (int i = 0; i < 4; ++i) entry.result = entry.result << 16 | input_.Word();
    }
    uint64_t bytes = 0;
    if (!command.from_target.empty()) {
      bytes = Fill(command.from_target[0], command.entry);
      if (deed == kShorten) bytes = std::min<uint64_t>(bytes, input_.Word());
    }
    discovery_.Completed(command.cookie, entry, bytes);
  }

  std::optional<fabrics::QueuedCommand> Take(bool (*which)(const fabrics::QueuedCommand& command)) {
    const auto found = std::ranges::find_if(pending_, which);
    if (found == pending_.end()) return std::nullopt;
    const fabrics::QueuedCommand taken = *found;
    pending_.erase(found);
    return taken;
  }

  // Nothing is to be answered, of a log that is watched.
  void TakeTurn() {
    if (input_.empty() && ++ticks_after_ > kTicksAfterMax) return discovery_.GiveUp();
    switch (static_cast<Turn>(input_.Byte() % kTurns)) {
      case kSeconds:
        for (int ticks = input_.Byte(); ticks > 0 && !IsAsked() && !over_; --ticks) Tick();
        break;
      case kTell:
        ++log_[0];
        if (log_.size() > 1024)
          log_[1024 + 520] = static_cast<uint8_t>('0' + log_[0] % 10);  // 10.0.0.1, or .12
        return AnswerEvent({.result = kLogChanged});
      case kTellAny: {
        const uint32_t low = input_.Word();
        return AnswerEvent({.result = low | uint64_t{input_.Word()} << 16});
      }
      case kFail:
        return AnswerEvent({.status_field = input_.Word()});
      case kQuietly: {
        const size_t at = input_.Word() % log_.size();
        log_[at] = input_.Byte();
        break;
      }
      case kGiveUp:
        return discovery_.GiveUp();
      case kGiveUpIn:
        gives_up_ = true;
        break;
      default:
        break;
    }
    if (!over_) Tick();
  }

  void AnswerEvent(const fabrics::CompletionEntry& entry) {
    const auto request = Take([](const auto& command) { return !IsAnswered(command); });
    if (request) return discovery_.Completed(request->cookie, entry, 0);
    Tick();
  }

  uint64_t Fill(const block::Segment& room, const fabrics::SubmissionEntry& entry) const {
    CLEAT_CHECK(room.length_bytes <= kDiscoveryPieceBytes);
    std::memset(room.data(), 0, room.length_bytes);
    if (entry.opcode == kIdentify) {
      constexpr size_t kEventsSupported = 92;  // OAES, of which bit 31 is the one that counts
      room.data()[kEventsSupported + 3] = 0x80;
      return room.length_bytes;
    }
    const uint64_t from = entry.cdw12;
    if (from < log_.size()) {
      const auto count = std::min<size_t>(room.length_bytes, log_.size() - from);
      std::memcpy(room.data(), log_.data() + from, count);
    }
    return room.length_bytes;
  }

  // ---- DiscoveryOwner
  void Seen(const fabrics::DiscoveryLog& log) override {
    CLEAT_CHECK(watched_ && !told_);
    is_same_ = seen_ && seen_->records == log.records && seen_->skipped == log.skipped;
    seen_ = log;
    CheckLog(log);
    if (gives_up_) discovery_.GiveUp();
  }
  void Discovered(Result<fabrics::DiscoveryLog> log) override {
    CLEAT_CHECK(!told_);
    told_ = true;
    if (!log) {
      CLEAT_CHECK(log.error().message.starts_with("it: "));
      return;
    }
    CLEAT_CHECK(!watched_);
    CheckLog(*log);
  }
  static void CheckLog(const fabrics::DiscoveryLog& log) {
    CLEAT_CHECK(log.records.size() + log.skipped <= fabrics::kDiscoveryRecordsMax);
    CLEAT_CHECK(log.why_skipped.empty() == (log.skipped == 0));
    for (const fabrics::DiscoveryRecord& record : log.records) Check(record);
  }
  static void Check(const fabrics::DiscoveryRecord& record) {
    const auto is_text = [](char c) { return c >= ' ' && c <= '~'; };
    CLEAT_CHECK(fabrics::CheckNqn(record.subsystem_nqn, "it").ok());
    CLEAT_CHECK(std::ranges::all_of(record.address_text, is_text) && record.address_text.size() <= 256);
    CLEAT_CHECK(std::ranges::all_of(record.port_text, is_text) && record.port_text.size() <= 32);
    if (record.address) CLEAT_CHECK(!fabrics::TextOfAddress(*record.address).empty());
  }

  FuzzInput input_;
  const bool watched_;
  std::vector<uint8_t> log_;
  std::vector<fabrics::QueuedCommand> pending_;
  std::optional<fabrics::DiscoveryLog> seen_;
  bool is_same_ = false;  // as the one before
  bool gives_up_ = false;
  uint32_t ticks_after_ = 0;
  bool silent_ = false;
  uint64_t silent_since_ns_ = 0;
  bool over_ = false;
  bool told_ = false;
  uint64_t commands_ = 0;
  bool in_tick_ = false;
  uint64_t reads_ = 0;
  uint64_t readings_ = 0;  // anew, each of which begins in a tick
  uint64_t events_ = 0;
  uint64_t now_ns_ = 0;
  Discovery discovery_;
};

}  // namespace
}  // namespace cleat::nvme::host

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  cleat::nvme::host::FuzzService service(cleat::FuzzInput(data, size));
  service.Play();
  return 0;
}
