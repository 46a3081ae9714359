// SPDX-License-Identifier: Apache-2.0
// Whatever a target answers to the commands of reservations: a life joins, looks, shuts others out and leaves, and the input says how each
// command ends, with what data, and when it is too late. Each task ends once, one command is under way at a time, Register is sent once, and
// a proof is given only after Preempt and Abort has succeeded.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "base/check.h"
#include "nvme/host/reservation/reservation.h"
#include "tests/fuzz/input.h"

namespace cleat::nvme::host {
namespace {

constexpr uint64_t kFamily = 0x0101010101010101;
constexpr LifeId kLife = 0x0202020202020202;
constexpr uint64_t kTickNs = 100'000'000;
constexpr uint32_t kEventsMax = 4096;

class FuzzOwner final : public ReservationOwner {
 public:
  FuzzOwner()
      : reservation_(
            {.who = "fuzz", .nsid = 1, .family = kFamily, .life = kLife, .registrants_persist = true},
            *this) {
    ++tasks_;
    reservation_.Join(0);
  }

  void SendReservation(LifeId /*life*/, const fabrics::QueuedCommand& command) override {
    CLEAT_CHECK(!command_ && reservation_.busy());
    command_ = command;
    const fabrics::SubmissionEntry& entry = command.entry;
    preempts_ = entry.opcode == static_cast<uint8_t>(Opcode::kReservationAcquire) && (entry.cdw10 & 7U) == 2;
    if (preempts_) succeeded_ = false;
    const bool registers = entry.opcode == static_cast<uint8_t>(Opcode::kReservationRegister);
    if (registers && (entry.cdw10 & 7U) != 1) CLEAT_CHECK(!std::exchange(registered_, true));
  }
  void Joined(LifeId /*life*/, const cleat::Status& status) override { TaskEnded(status.ok() == joined()); }
  void Seen(LifeId /*life*/, const Result<ReservationReport>& report) override {
    TaskEnded(!report || report->registrants.size() <= kRegistrantsMax);
  }
  void ShutOutEnded(LifeId /*life*/, LifeId /*dead*/, const ShutOutResult& result) override {
    TaskEnded(result.end != ShutOutEnd::kProved || (succeeded_ && joined()));
    CLEAT_CHECK(result.reason.empty() == (result.end == ShutOutEnd::kProved));
    succeeded_ = false;
  }
  void Left(LifeId /*life*/, const cleat::Status& /*status*/) override { TaskEnded(!joined()); }

  void Answer(uint8_t status, std::span<const uint8_t> data) {
    if (!command_) return;
    const fabrics::QueuedCommand command = *std::exchange(command_, std::nullopt);
    uint64_t bytes = 0;
    if (!command.from_target.empty()) {
      const block::Segment& room = command.from_target[0];
      bytes = std::min<uint64_t>(room.length_bytes, data.size());
      if (bytes > 0) std::memcpy(room.data(), data.data(), bytes);
    }
    if (preempts_) succeeded_ = status == 0;
    fabrics::CompletionEntry entry;
    entry.status_field = static_cast<uint16_t>(status << 1);
    reservation_.Completed(command.cookie, entry, bytes);
  }
  void Break() {
    if (command_) reservation_.Unanswered(std::exchange(command_, std::nullopt)->cookie);
  }
  void Task(uint8_t which) {
    if (reservation_.busy() || reservation_.in_flight()) return;
    ++tasks_;
    switch (which & 3) {
      case 0:
        return reservation_.See();
      case 1:
        return reservation_.Leave();
      default:
        return reservation_.ShutOut(which);
    }
  }
  void Tick(uint8_t times) {
    for (uint32_t i = 0; i < times; ++i) reservation_.Tick(now_ns_ += kTickNs);
  }
  void Finish() {
    Break();
    CLEAT_CHECK(tasks_ == 0 && !reservation_.busy() && !reservation_.in_flight());
  }

 private:
  bool joined() const { return reservation_.joined(); }
  void TaskEnded(bool as_it_may) {
    CLEAT_CHECK(as_it_may && tasks_ == 1 && !reservation_.busy());
    --tasks_;
  }

  Reservation reservation_;
  std::optional<fabrics::QueuedCommand> command_;
  uint64_t now_ns_ = 0;
  uint32_t tasks_ = 0;  // that have begun and not ended
  bool registered_ = false;
  bool preempts_ = false;   // the command under way
  bool succeeded_ = false;  // the last of these
};

void Run(FuzzInput input) {
  FuzzOwner owner;
  for (uint32_t events = 0; !input.empty() && events < kEventsMax; ++events) {
    const uint8_t what = input.Byte() & 7;
    const uint8_t how = input.Byte();
    if (what < 5) owner.Answer(how, input.Piece());
    if (what == 5) owner.Task(how);
    if (what == 6) owner.Tick(how);
    if (what == 7) owner.Break();
  }
  owner.Finish();
}

}  // namespace
}  // namespace cleat::nvme::host

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  cleat::nvme::host::Run(cleat::FuzzInput(data, size));
  return 0;
}
