// SPDX-License-Identifier: Apache-2.0
#include "modules/rbd/owner_record.h"

#include <dirent.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <fstream>
#include <sstream>

namespace cleat::modules {
namespace {

constexpr std::string_view kVersion = "cleat1";
constexpr size_t kRecordBytesMax = 1024;

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

struct ProcessStat {
  char state = 0;
  uint64_t start_ticks = 0;
};

// proc_pid_stat(5). The command stands in parentheses and may hold anything, so it is counted from the last one on.
std::optional<ProcessStat> StatOf(const std::string& process) {
  const std::string line = FirstLine("/proc/" + process + "/stat");
  const size_t end = line.rfind(')');
  if (end == std::string::npos) return std::nullopt;
  std::istringstream fields(line.substr(end + 1));
  ProcessStat stat;
  std::string skipped;
  fields >> stat.state;
  constexpr int kBetween = 18;  // fields 4 to 21
  for (int i = 0; i < kBetween; ++i) fields >> skipped;
  fields >> stat.start_ticks;
  if (!fields) return std::nullopt;
  return stat;
}

bool HasOtherThreads(pid_t pid) {
  DIR* folder = opendir(("/proc/" + std::to_string(pid) + "/task").c_str());
  if (folder == nullptr) return false;
  int threads = 0;
  while (const dirent* entry = readdir(folder)) threads += entry->d_name[0] != '.' ? 1 : 0;
  closedir(folder);
  return threads > 1;
}

std::string PidNamespace() {
  std::array<char, 64> link{};
  const ssize_t length = readlink("/proc/self/ns/pid", link.data(), link.size() - 1);
  return length > 0 ? std::string(link.data(), static_cast<size_t>(length)) : std::string();
}

template <typename T>
bool ParseNumber(std::string_view text, T& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

std::string OwnerRecordKey(const std::string& client) {
  return "cleat.owner." + client;
}

std::string EncodeOwnerRecord(const OwnerRecord& record) {
  std::ostringstream out;
  out << kVersion << " machine=" << record.machine << " boot=" << record.boot
      << " pidns=" << record.pid_namespace << " pid=" << record.pid << " start=" << record.start_ticks
      << " engine=" << record.engine;
  return out.str();
}

std::optional<OwnerRecord> ParseOwnerRecord(std::string_view text) {
  if (text.size() > kRecordBytesMax || !text.starts_with(kVersion)) return std::nullopt;
  OwnerRecord record;
  bool good = true;
  std::istringstream words{std::string(text.substr(kVersion.size()))};
  const auto take = [&](const char* name) {
    std::string word;
    const std::string prefix = std::string(name) + "=";
    words >> word;
    good = good && word.starts_with(prefix);
    return good ? word.substr(prefix.size()) : std::string();
  };
  record.machine = take("machine");
  record.boot = take("boot");
  record.pid_namespace = take("pidns");
  good = ParseNumber(take("pid"), record.pid) && good;
  good = ParseNumber(take("start"), record.start_ticks) && good;
  record.engine = take("engine");
  if (!good || record.machine.empty() || record.boot.empty() || record.pid <= 0) return std::nullopt;
  return record;
}

Result<OwnerRecord> RecordOfThisProcess(const std::string& engine) {
  OwnerRecord record;
  record.machine = FirstLine("/etc/machine-id");
  record.boot = FirstLine("/proc/sys/kernel/random/boot_id");
  record.pid_namespace = PidNamespace();
  record.pid = getpid();
  for (const char letter : engine) record.engine += letter > ' ' && letter < 0x7f ? letter : '_';
  const auto stat = StatOf("self");
  if (!stat || record.boot.empty() || record.pid_namespace.empty()) {
    return Error(ErrorCode::kInternal,
                 "/proc does not tell what this process is: its boot id, process id namespace "
                 "and start time are needed to own an RBD image");
  }
  record.start_ticks = stat->start_ticks;
  // Without one nobody else's record equals ours, and nothing is ever proven; the disks work all the same.
  if (record.machine.empty()) record.machine = "unknown-" + record.boot;
  return record;
}

OwnerState JudgeOwner(const OwnerRecord& owner, const OwnerRecord& self, bool same_address) {
  if (owner.machine != self.machine) return OwnerState::kElsewhere;
  if (owner.boot != self.boot) return same_address ? OwnerState::kDead : OwnerState::kElsewhere;
  if (owner.pid_namespace != self.pid_namespace) return OwnerState::kElsewhere;
  const auto stat = StatOf(std::to_string(owner.pid));
  if (!stat) {  // /proc may also hide the processes of others (hidepid)
    return kill(owner.pid, 0) != 0 && errno == ESRCH ? OwnerState::kDead : OwnerState::kAlive;
  }
  if (stat->start_ticks != owner.start_ticks) return OwnerState::kDead;
  // A zombie has ended, and its parent has not waited for it yet. Its threads may outlive the first of them.
  const bool ended = stat->state == 'Z' || stat->state == 'X';
  return ended && !HasOtherThreads(owner.pid) ? OwnerState::kDead : OwnerState::kAlive;
}

std::string DescribeOwner(const OwnerRecord& owner, const OwnerRecord& self) {
  const bool here = owner.machine == self.machine && owner.boot == self.boot;
  return "process " + std::to_string(owner.pid) + " (engine " + owner.engine + ") on " +
         (here ? "this machine" : "the machine " + owner.machine);
}

}  // namespace cleat::modules
