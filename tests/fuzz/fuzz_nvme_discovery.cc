// SPDX-License-Identifier: Apache-2.0
// A discovery service made of random bytes against the host that reads it: what its log holds, how long it says that it is, when it
// changes, statuses, data that is too short, silence, and connections that break. Whatever comes: the reading ends once, within its
// limits, and what it gives has names that are names and addresses that are addresses.
//
// An input: a byte for how many records the log has, and a byte for how many bytes of it are others; these, each with its place (a
// word) and its value; and a byte for each answer that is not as usual (Deed).
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
};

// Commands of a reading that goes wrong as late as it can: each try has a piece for every four records and one for the header.
constexpr uint64_t kCommandsMax = 200 + fabrics::kLogTriesMax * (fabrics::kDiscoveryRecordsMax / 4 + 3);

class FuzzService final : public fabrics::QueuePair, private DiscoveryOwner {
 public:
  explicit FuzzService(FuzzInput input)
      : input_(input),
        discovery_(
            {.who = "it", .host = fabrics::HostIdentityOfUuid({1}), .chap = {}, .timeout_ns = 1'000'000'000},
            *this) {
    MakeLog();
  }

  void Play() {
    discovery_.Start(*this, now_ns_);
    discovery_.Connected();
    while (!told_) {
      if (pending_ && !silent_) {
        Answer();
      } else {
        now_ns_ += Discovery::kTickNs;
        discovery_.Tick(now_ns_);
      }
      CLEAT_CHECK(commands_ <= kCommandsMax && now_ns_ <= 4'000'000'000);
    }
    CLEAT_CHECK(!pending_);
  }

 private:
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
  void Submit(const fabrics::QueuedCommand& command) override {
    CLEAT_CHECK(!pending_ && !over_);
    ++commands_;
    pending_ = command;
  }
  void Abort(const Error& reason) override {
    if (over_) return;
    over_ = true;
    if (const auto left = std::exchange(pending_, std::nullopt))
      discovery_.Unanswered(left->cookie, fabrics::Reached::kPerhapsAll);
    discovery_.Ended(reason);
  }

  uint64_t UsualResult(const fabrics::SubmissionEntry& entry) const {
    constexpr uint8_t kFabrics = 0x7f;
    if (entry.opcode != kFabrics) return 0;
    if (entry.nsid == 1) return 7;
    if (entry.nsid == 0) return 0;
    return entry.cdw11 == 0 ? 127 | uint64_t{1} << 24 | uint64_t{1} << 37 : 1;
  }

  void Answer() {
    const auto deed = static_cast<Deed>(input_.Byte() % kDeeds);
    if (deed == kSilent) {
      silent_ = true;
      return;
    }
    if (deed == kBreak) return Abort({ErrorCode::kUnavailable, "it: closed"});
    if (deed == kChange) ++log_[0];
    const fabrics::QueuedCommand command = *std::exchange(pending_, std::nullopt);
    fabrics::CompletionEntry entry;
    entry.result = UsualResult(command.entry);
    if (deed == kRefuse) entry.status_field = input_.Word();
    if (deed == kValue) {
      entry.result = 0;
      for (int i = 0; i < 4; ++i) entry.result = entry.result << 16 | input_.Word();
    }
    uint64_t bytes = 0;
    if (!command.from_target.empty()) {
      bytes = Fill(command.from_target[0], command.entry.cdw12);
      if (deed == kShorten) bytes = std::min<uint64_t>(bytes, input_.Word());
    }
    discovery_.Completed(command.cookie, entry, bytes);
  }

  uint64_t Fill(const block::Segment& room, uint64_t from) const {
    CLEAT_CHECK(room.length_bytes <= kDiscoveryPieceBytes);
    std::memset(room.data(), 0, room.length_bytes);
    if (from < log_.size()) {
      const auto count = std::min<size_t>(room.length_bytes, log_.size() - from);
      std::memcpy(room.data(), log_.data() + from, count);
    }
    return room.length_bytes;
  }

  // ---- DiscoveryOwner
  void Seen(const fabrics::DiscoveryLog&) override { CLEAT_CHECK(false); }  // of a log that is watched
  void Discovered(Result<fabrics::DiscoveryLog> log) override {
    CLEAT_CHECK(!told_);
    told_ = true;
    if (!log) {
      CLEAT_CHECK(log.error().message.starts_with("it: "));
      return;
    }
    CLEAT_CHECK(log->records.size() + log->skipped <= fabrics::kDiscoveryRecordsMax);
    CLEAT_CHECK(log->why_skipped.empty() == (log->skipped == 0));
    for (const fabrics::DiscoveryRecord& record : log->records) Check(record);
  }
  static void Check(const fabrics::DiscoveryRecord& record) {
    const auto is_text = [](char c) { return c >= ' ' && c <= '~'; };
    CLEAT_CHECK(fabrics::CheckNqn(record.subsystem_nqn, "it").ok());
    CLEAT_CHECK(std::ranges::all_of(record.address_text, is_text) && record.address_text.size() <= 256);
    CLEAT_CHECK(std::ranges::all_of(record.port_text, is_text) && record.port_text.size() <= 32);
    if (record.address) CLEAT_CHECK(!fabrics::TextOfAddress(*record.address).empty());
  }

  FuzzInput input_;
  std::vector<uint8_t> log_;
  std::optional<fabrics::QueuedCommand> pending_;
  bool silent_ = false;
  bool over_ = false;
  bool told_ = false;
  uint64_t commands_ = 0;
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
