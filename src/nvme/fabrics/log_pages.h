// SPDX-License-Identifier: Apache-2.0
// The two log pages by which a host finds its way: the discovery log (which subsystems are where) and the ANA log (how good this
// controller's way is to each group of namespaces). Both are longer than one command may carry and can change while they are read.
//
// Source: NVM Express Base Specification 2.0 ("base"), 5.16.1.13 and 5.16.1.23. Whoever reads a log owns its reader, on one thread; the rest
// are plain values. The logs come from a target: sizes are bounded before memory is taken, and the work is at most n log n of them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "nvme/command.h"
#include "nvme/fabrics/names.h"

namespace cleat::nvme::fabrics {

inline constexpr uint32_t kDiscoveryRecordsMax = 1024;
inline constexpr uint32_t kAnaGroupsMax = 2048;
inline constexpr uint32_t kAnaNamespacesMax = 8192;  // listed in all groups of a log together
inline constexpr uint32_t kLogTriesMax = 5;          // to read a log that changes meanwhile
inline constexpr uint32_t kLogPieceMax =
    64U << 10;  // that is read with one command, whatever the controller would allow

// Reads a log piece by piece: issue command() with room() as the memory for its data, give how much came to Take, until that says kDone.
class LogReader {
 public:
  enum class Progress : uint8_t { kMore, kDone };

  // kFollowed: the controller tells of the log's changes, and of the next one once this one has been read (RAE). What changes on the way is not
  // told, so that the counter is read again in any case, and with that the controller may tell again.
  enum class Events : uint8_t { kNone, kFollowed };

  // `transfer_bytes_max`: the controller's (MDTS), 0 for no limit.
  static LogReader Discovery(uint64_t transfer_bytes_max, std::string who, Events events = Events::kNone);
  // Groups only, without the namespaces in them. `offsets`: whether the controller reads a log from its middle on (LPA); a log that then
  // does not fit in one command is an error of Take.
  static LogReader Ana(uint32_t groups, bool offsets, uint64_t transfer_bytes_max, std::string who);

  Command command() const;
  // Stays where it is until Take.
  std::span<uint8_t> room();
  // kAborted: it has changed in each of kLogTriesMax tries. kDataLoss: damage.
  Result<Progress> Take(uint64_t data_bytes);
  // Begins anew, from the log's beginning.
  void Restart();
  std::span<const uint8_t> log() const { return log_; }

 private:
  enum class Kind : uint8_t { kDiscovery, kAna };
  LogReader(Kind kind, Events events, uint64_t total_bytes, bool offsets, uint64_t transfer_bytes_max,
            std::string who);
  uint64_t piece_bytes() const;
  cleat::Status TakeHeader();
  Result<Progress> TakeCounter();
  void Begin();

  Kind kind_;
  Events events_;
  bool offsets_;
  bool checking_ = false;  // the whole has been read: the counter is read again
  uint32_t piece_bytes_max_;
  uint64_t known_bytes_;  // of the log, before any of it is read
  uint64_t total_bytes_ = 0;
  uint64_t read_bytes_ = 0;
  uint32_t pieces_ = 0;
  uint32_t tries_ = 0;
  std::vector<uint8_t> log_;
  std::vector<uint8_t> counter_;
  std::string who_;
};

// ---- Discovery

enum class DiscoveredKind : uint8_t { kReferral = 1, kSubsystem = 2, kThisService = 3 };
enum class SecureChannel : uint8_t { kNotSaid = 0, kRequired = 1, kNotRequired = 2 };

struct DiscoveryRecord {
  uint8_t transport = 0;  // TransportType, and others
  DiscoveredKind kind = DiscoveredKind::kSubsystem;
  SecureChannel secure_channel = SecureChannel::kNotSaid;
  bool flow_control_optional = false;  // TREQ
  bool tls = false;                    // TSAS of TCP
  uint16_t port_id = 0;
  uint16_t controller_id = 0;  // kAnyController for most
  uint16_t admin_entries_max = 0;
  std::string subsystem_nqn;
  std::string address_text;  // TRADDR and TRSVCID as they are, printable
  std::string port_text;
  std::optional<TransportAddress> address;  // IP transports

  bool operator==(const DiscoveryRecord&) const = default;
};

struct DiscoveryLog {
  uint64_t generation = 0;
  std::vector<DiscoveryRecord> records;
  uint32_t skipped = 0;  // records with a field that can't be what it has to be
  std::string
      why_skipped;  // of the first of them: "record 3 has a port (TRSVCID) with bytes that are no text"
};
// One damaged record says nothing of the others, so that it is skipped. kDataLoss: the log ends before its records do.
Result<DiscoveryLog> ParseDiscoveryLog(std::span<const uint8_t> log, const std::string& who);

// ---- ANA

enum class AnaState : uint8_t {
  kOptimized = 0x01,
  kNonOptimized = 0x02,
  kInaccessible = 0x03,
  kPersistentLoss = 0x04,
  kChange = 0x0f,
};
// "optimized", "persistent loss".
std::string NameOf(AnaState state);

struct AnaGroup {
  uint32_t id = 0;
  AnaState state = AnaState::kInaccessible;
  uint64_t change_count = 0;
};

struct AnaLog {
  uint64_t change_count = 0;
  std::vector<AnaGroup> groups;  // by id
  std::vector<std::pair<uint32_t, uint32_t>>
      namespaces;  // nsid and group, by nsid; empty where groups only were asked for

  // nullptr: there is no such group.
  const AnaGroup* Find(uint32_t group) const;
};
// kDataLoss: it ends within an entry, names a group or a namespace twice, or has a state that is none.
Result<AnaLog> ParseAnaLog(std::span<const uint8_t> log, const std::string& who);

}  // namespace cleat::nvme::fabrics
