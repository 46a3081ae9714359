// SPDX-License-Identifier: Apache-2.0
// A target's reservations of one namespace, as a process has them in its memory, and hosts whose sockets and commands outlive them. It
// does as the specification says unless a test says otherwise.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "nvme/host/reservation/reservation.h"

namespace cleat::nvme::host::reservation_test {

inline constexpr uint64_t kFamily = 0xfa31170000000001;
inline constexpr uint64_t kOtherFamily = 0xfa31170000000002;
inline constexpr uint8_t kConflict = 0x83;
inline constexpr uint8_t kInterrupted = 0x21;

class ReservationTarget {
 public:
  // ---- What a test changes
  bool gives_up = false;  // Preempt and Abort does not wait for what is under way, and says so
  bool lies = false;      // ... and says that it has
  bool persistent = false;
  // Sees a command before it is executed, and may take it over: its status.
  std::function<std::optional<uint8_t>(const fabrics::SubmissionEntry&)> refuse;
  std::optional<std::pair<Opcode, uint8_t>>
      refuse_next;  // the next one with this opcode ends with this status
  std::function<void(std::vector<uint8_t>&)> bend_report;

  // ---- What there is
  std::vector<Registrant> registrants;
  ReservationType type = ReservationType::kNone;
  uint32_t generation = 0;
  std::map<fabrics::Uuid, uint32_t> under_way;  // writes that were let in, and may be executed at any moment
  std::map<fabrics::Uuid, uint32_t> unread;     // writes in the sockets of hosts
  uint32_t registers = 0;
  std::map<fabrics::Uuid, uint32_t> came_in;  // how often each host has asked to be a registrant
  uint32_t acquires = 0;
  uint32_t preemptions = 0;
  uint32_t reports = 0;
  uint32_t last_cdw10 = 0;

  bool Has(const fabrics::Uuid& host) const { return Find(host) != registrants.end(); }
  bool LetsIn(const fabrics::Uuid& host) const { return type == ReservationType::kNone || Has(host); }
  // What no proof may be given for.
  bool MayStillWrite(const fabrics::Uuid& host) const {
    const auto count = [&](const auto& of) { return of.contains(host) ? of.at(host) : 0; };
    return count(under_way) > 0 || (count(unread) > 0 && LetsIn(host));
  }
  void ReadSocket(const fabrics::Uuid& host) {
    const uint32_t writes = std::exchange(unread[host], 0);
    if (LetsIn(host)) under_way[host] += writes;
  }
  void Clear() {
    registrants.clear();
    type = ReservationType::kNone;
    ++generation;
  }

  // Executes a host's command. The answer is a status code of type 0.
  uint8_t Execute(const fabrics::Uuid& host, const fabrics::SubmissionEntry& entry,
                  std::span<const uint8_t> to_target, std::span<uint8_t> from_target, uint64_t& data_bytes) {
    data_bytes = 0;
    if (refuse) {
      if (const auto status = refuse(entry)) return *status;
    }
    if (refuse_next && entry.opcode == static_cast<uint8_t>(refuse_next->first))
      return std::exchange(refuse_next, std::nullopt)->second;
    uint64_t keys[2] = {};
    if (!to_target.empty()) std::memcpy(keys, to_target.data(), std::min(to_target.size(), sizeof(keys)));
    switch (static_cast<Opcode>(entry.opcode)) {
      case Opcode::kReservationRegister:
        last_cdw10 = entry.cdw10;
        return Register(host, entry.cdw10, keys[0], keys[1]);
      case Opcode::kReservationAcquire:
        return Acquire(host, entry.cdw10, keys[0], keys[1]);
      case Opcode::kReservationReport: {
        ++reports;
        std::vector<uint8_t> report = Report();
        if (bend_report) bend_report(report);
        data_bytes = std::min<uint64_t>({report.size(), from_target.size(), (entry.cdw10 + 1) * uint64_t{4}});
        std::memcpy(from_target.data(), report.data(), data_bytes);
        return 0;
      }
      default:
        return 1;
    }
  }

  std::vector<uint8_t> Report() const {
    std::vector<uint8_t> report(kReportHeaderBytes + registrants.size() * kReportEntryBytes);
    std::memcpy(report.data(), &generation, sizeof(generation));
    report[4] = static_cast<uint8_t>(type);
    const auto count = static_cast<uint16_t>(registrants.size());
    std::memcpy(&report[5], &count, sizeof(count));
    report[9] = persistent ? 1 : 0;
    for (size_t i = 0; i < registrants.size(); ++i) {
      uint8_t* const entry = &report[kReportHeaderBytes + i * kReportEntryBytes];
      entry[0] = static_cast<uint8_t>(i + 1);
      entry[2] = type != ReservationType::kNone && (i == 0 || registrants[i].holder) ? 1 : 0;
      std::memcpy(entry + 8, &registrants[i].key, sizeof(registrants[i].key));
      std::memcpy(entry + 16, registrants[i].host_id.data(), registrants[i].host_id.size());
    }
    return report;
  }

 private:
  std::vector<Registrant>::const_iterator Find(const fabrics::Uuid& host) const {
    return std::ranges::find(registrants, host, &Registrant::host_id);
  }
  void Remove(const fabrics::Uuid& host) {
    std::erase_if(registrants, [&](const Registrant& registrant) { return registrant.host_id == host; });
    if (registrants.empty()) type = ReservationType::kNone;
    ++generation;
  }

  uint8_t Register(const fabrics::Uuid& host, uint32_t cdw10, uint64_t current, uint64_t fresh) {
    ++registers;
    const bool ignore = (cdw10 & 8U) != 0;
    if (cdw10 >> 30 == static_cast<uint32_t>(PowerLoss::kForget)) persistent = false;
    const auto found = std::ranges::find(registrants, host, &Registrant::host_id);
    const bool there = found != registrants.end();
    if ((cdw10 & 7U) != static_cast<uint32_t>(RegisterAction::kUnregister)) ++came_in[host];
    switch (static_cast<RegisterAction>(cdw10 & 7U)) {
      case RegisterAction::kRegister:
        if (there) return found->key == fresh ? 0 : kConflict;
        registrants.push_back({.host_id = host, .key = fresh});
        ++generation;
        return 0;
      case RegisterAction::kUnregister:
        if (!there || (!ignore && found->key != current)) return kConflict;
        Remove(host);
        return 0;
      case RegisterAction::kReplace:
        if (!there || (!ignore && found->key != current)) return kConflict;
        found->key = fresh;
        ++generation;
        return 0;
    }
    return 2;
  }

  uint8_t Acquire(const fabrics::Uuid& host, uint32_t cdw10, uint64_t current, uint64_t preempted) {
    const auto own = Find(host);
    const auto wanted = static_cast<ReservationType>(cdw10 >> 8 & 0xff);
    if ((cdw10 & 8U) != 0) return 2;
    if (own == registrants.end() || own->key != current) return kConflict;
    const auto action = static_cast<AcquireAction>(cdw10 & 7U);
    if (action == AcquireAction::kAcquire) {
      ++acquires;
      if (type != ReservationType::kNone) return type == wanted ? 0 : kConflict;
      type = wanted;
      return 0;
    }
    ++preemptions;
    std::vector<fabrics::Uuid> out;
    for (const Registrant& registrant : registrants) {
      const bool named = preempted == 0 ? registrant.host_id != host : registrant.key == preempted;
      if (named) out.push_back(registrant.host_id);
    }
    if (out.empty() && type != ReservationType::kNone) return kConflict;
    uint8_t status = 0;
    for (const auto& gone : out) {
      Remove(gone);
      if (action != AcquireAction::kPreemptAndAbort || gone == host || under_way[gone] == 0) continue;
      if (gives_up) status = kInterrupted;
      if (!gives_up && !lies) under_way[gone] = 0;
    }
    return status;
  }
};

// What a dead path left of a reservation command in its socket.
struct LeftCommand {
  fabrics::Uuid host;
  fabrics::SubmissionEntry entry;
  std::vector<uint8_t> data;
};

// A life and its I/O queue to a target.
class Party final : public ReservationOwner {
 public:
  Party(ReservationTarget& t, LifeId l, uint64_t family = kFamily, bool registrants_persist = false)
      : reservation({.who = "disk",
                     .nsid = 5,
                     .family = family,
                     .life = l,
                     .registrants_persist = registrants_persist},
                    *this),
        host(HostIdOf(family, l)),
        life(l),
        target_(t) {}
  ~Party() { Die(); }
  Party(const Party&) = delete;
  Party& operator=(const Party&) = delete;

  void SendReservation(LifeId l, const fabrics::QueuedCommand& command) override {
    CLEAT_CHECK(l == life && queue.empty());
    queue.push_back(command);
  }
  void Joined(LifeId, const cleat::Status& status) override { joined = status; }
  void Seen(LifeId, const Result<ReservationReport>& report) override { seen = report; }
  void ShutOutEnded(LifeId, LifeId dead, const ShutOutResult& result) override {
    shut_out = result;
    shut_out_life = dead;
  }
  void Left(LifeId, const cleat::Status& status) override { left = status; }

  // Executes a command and answers it. False: there is none.
  bool ServeOne() {
    if (queue.empty()) return false;
    const fabrics::QueuedCommand command = queue.front();
    queue.pop_front();
    fabrics::CompletionEntry entry;
    uint64_t bytes = 0;
    const uint8_t code =
        target_.Execute(host, command.entry, Bytes(command.to_target), Bytes(command.from_target), bytes);
    entry.status_field = static_cast<uint16_t>(code << 1);
    reservation.Completed(command.cookie, entry, bytes);
    return true;
  }
  void Serve() {
    while (ServeOne()) {
    }
  }
  // The path is broken. What it leaves may be executed later.
  std::vector<LeftCommand> Die() {
    std::vector<LeftCommand> left_commands;
    while (!queue.empty()) {
      const fabrics::QueuedCommand command = queue.front();
      queue.pop_front();
      const auto data = Bytes(command.to_target);
      left_commands.push_back({host, command.entry, {data.begin(), data.end()}});
      reservation.Unanswered(command.cookie);
    }
    return left_commands;
  }

  bool Join() {
    reservation.Join(0);
    Serve();
    return joined && joined->ok();
  }
  ShutOutResult ShutOut(LifeId dead) {
    shut_out.reset();
    reservation.ShutOut(dead);
    Serve();
    return shut_out.value();
  }

  Reservation reservation;
  const fabrics::Uuid host;
  const LifeId life;
  std::deque<fabrics::QueuedCommand> queue;
  std::optional<cleat::Status> joined;
  std::optional<Result<ReservationReport>> seen;
  std::optional<ShutOutResult> shut_out;
  LifeId shut_out_life = 0;
  std::optional<cleat::Status> left;

 private:
  static std::span<uint8_t> Bytes(std::span<const block::Segment> segments) {
    if (segments.empty()) return {};
    return {segments[0].data(), segments[0].length_bytes};
  }
  ReservationTarget& target_;
};

}  // namespace cleat::nvme::host::reservation_test
