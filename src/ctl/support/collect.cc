// SPDX-License-Identifier: Apache-2.0
#include "ctl/support/collect.h"

#include <fmt/format.h>
#include <sys/utsname.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "base/version.h"
#include "ctl/engine_counters.h"
#include "ctl/support/redact.h"
#include "ctl/support/run_program.h"

namespace cleat::ctl {
namespace {

namespace fs = std::filesystem;
using Stub = v1::Cleat::Stub;

constexpr std::chrono::seconds kConnectTime{5};
constexpr std::chrono::seconds kAnswerTime{20};
constexpr std::chrono::seconds kVersionTime{5};
constexpr int kSlowRequestsMax = 1024;  // cleatd keeps no more
constexpr int kConfigsMax = 64;
constexpr int kEnginesMax = 16;
constexpr size_t kConfigBytesMax = size_t{1} << 20;
constexpr size_t kLogBytesMax = size_t{2} << 20;
constexpr const char* kLogLines = "5000";

std::string ReadFile(const fs::path& path, size_t bytes_max) {
  std::ifstream file(path, std::ios::binary);
  std::string text(bytes_max, '\0');
  file.read(text.data(), static_cast<std::streamsize>(bytes_max));
  text.resize(static_cast<size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  return text;
}

// ---- From cleatd

class CleatdParts {
 public:
  CleatdParts(const Globals& globals, Bundle& bundle) : bundle_(bundle) {
    const auto channel = Connect(globals.connection, kConnectTime);
    if (channel.ok()) {
      stub_ = v1::Cleat::NewStub(*channel);
    } else {
      away_ = channel.error().message;
    }
  }

  // All pages of a list as one message.
  template <typename Request, typename Response>
  void Add(const std::string& name,
           grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*), Request request) {
    Response all;
    for (;;) {
      if (stub_ == nullptr || silent_)
        return bundle_.LeaveOut(name, std::exchange(away_, "cleatd does not answer, as above"));
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() + kAnswerTime);
      Response page;
      const grpc::Status status = (stub_.get()->*method)(&context, request, &page);
      if (!status.ok()) return Failed(name, status);
      if constexpr (requires { page.next_page_token(); }) {
        request.set_page_token(page.next_page_token());
        page.clear_next_page_token();
        all.MergeFrom(page);
        if (!request.page_token().empty() && all.ByteSizeLong() < Bundle::kPartBytesMax) continue;
      } else {
        all = page;
      }
      ClearSecrets(all);
      return bundle_.Add(name, Redact(ToJson(all, true)));
    }
  }

 private:
  // What does not answer once is not asked for the rest: each would wait as long.
  void Failed(const std::string& name, const grpc::Status& status) {
    const bool silent = status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED ||
                        status.error_code() == grpc::StatusCode::UNAVAILABLE;
    const std::string why = "cleatd: " + status.error_message();
    silent_ |= silent;
    bundle_.LeaveOut(name, Redact(why));
  }

  Bundle& bundle_;
  std::unique_ptr<Stub> stub_;
  std::string away_ = "cleatd does not answer, as above";  // why it is not asked
  bool silent_ = false;
};

void AddHost(const Globals& globals, Bundle& bundle) {
  CleatdParts parts(globals, bundle);
  parts.Add("host/engines.json", &Stub::ListEngines, v1::ListEnginesRequest());
  v1::ListDisksRequest disks;
  disks.set_show_deleted(true);
  parts.Add("host/disks.json", &Stub::ListDisks, disks);
  parts.Add("host/clusters.json", &Stub::ListClusters, v1::ListClustersRequest());
  parts.Add("host/subsystems.json", &Stub::ListSubsystems, v1::ListSubsystemsRequest());
  parts.Add("host/pools.json", &Stub::ListPools, v1::ListPoolsRequest());
  parts.Add("host/groups.json", &Stub::ListGroups, v1::ListGroupsRequest());
  parts.Add("host/controllers.json", &Stub::ListControllers, v1::ListControllersRequest());
  v1::ListAttachmentsRequest attachments;
  attachments.set_parent("controllers/-");
  parts.Add("host/attachments.json", &Stub::ListAttachments, attachments);
  v1::ListSlowRequestsRequest slow;
  slow.set_limit(kSlowRequestsMax);
  parts.Add("host/slow.json", &Stub::ListSlowRequests, slow);
  v1::GetStatsRequest stats;
  stats.set_histograms(true);
  parts.Add("host/stats.json", &Stub::GetStats, stats);
}

// ---- From processes

// The processes of that name, by /proc's short one.
std::vector<pid_t> ProcessesOf(const std::string& processes, std::string_view name) {
  std::vector<pid_t> found;
  std::error_code error;
  for (fs::directory_iterator entry(processes, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    const std::string number = entry->path().filename();
    pid_t pid = 0;
    const auto parsed = std::from_chars(number.data(), number.data() + number.size(), pid);
    if (parsed.ec != std::errc() || parsed.ptr != number.data() + number.size()) continue;
    if (ReadFile(entry->path() / "comm", 64).starts_with(name)) found.push_back(pid);
  }
  std::ranges::sort(found);
  return found;
}

void AddCounters(const SupportSources& sources, Bundle& bundle) {
  int count = 0;
  for (const pid_t pid : ProcessesOf(sources.processes, "cleat-engine")) {
    const std::string name = fmt::format("engines/{}-counters.json", pid);
    if (++count > kEnginesMax) {
      bundle.LeaveOut(name, fmt::format("there are more than {} engines", kEnginesMax));
      continue;
    }
    const auto reader = OpenCountersOf(pid);
    if (!reader.ok()) {
      bundle.LeaveOut(name, reader.error().message);
      continue;
    }
    bundle.Add(name, Redact(ToJson(StatsOf(**reader, "", true), true)));
  }
  if (count == 0) bundle.LeaveOut("engines/*-counters.json", "no cleat-engine runs here");
}

std::string VersionOf(const std::string& program) {
  const auto end = RunProgram({program, "--version"}, {.time = kVersionTime});
  const std::string text = end.ok() ? end->output : end.error().message;
  return fmt::format("{}: {}\n", program, text.substr(0, text.find('\n')));
}

void AddVersions(const SupportSources& sources, Bundle& bundle) {
  std::string text = fmt::format("cleatctl: {}\n", kVersion);
  // The programs that are installed; what runs, and which version it is, host/engines.json has.
  for (const char* program : {"cleatd", "cleat-engine", "qemu-system-x86_64"}) text += VersionOf(program);
  utsname kernel{};
  if (uname(&kernel) == 0)
    text += fmt::format("kernel: {} {} {}\n", kernel.release, kernel.version, kernel.machine);
  for (const char* name : {"cleatd", "cleat-engine", "qemu-system"}) {
    text += fmt::format("processes {}:", name);
    for (const pid_t pid : ProcessesOf(sources.processes, name)) text += fmt::format(" {}", pid);
    text += "\n";
  }
  text += ReadFile("/etc/os-release", 4096);
  bundle.Add("versions", Redact(text));
}

// ---- From files

void AddConfiguration(const SupportSources& sources, Bundle& bundle) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator entry(sources.config_folder, error);
       !error && entry != fs::directory_iterator(); entry.increment(error)) {
    if (entry->path().extension() == ".conf") files.push_back(entry->path());
  }
  if (error) bundle.LeaveOut("config", fmt::format("{}: {}", sources.config_folder, error.message()));
  std::ranges::sort(files);
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string name = "config/" + files[i].filename().string();
    // A link might lead to a key.
    if (!fs::is_regular_file(fs::symlink_status(files[i], error))) {
      bundle.LeaveOut(name, "it is no regular file");
    } else if (i >= kConfigsMax) {
      bundle.LeaveOut(name, fmt::format("there are more than {} files", kConfigsMax));
    } else if (std::ifstream(files[i]).good()) {
      bundle.Add(name, Redact(ReadFile(files[i], kConfigBytesMax)));
    } else {
      bundle.LeaveOut(name, "it can't be read by this user");
    }
  }
}

void AddLog(const SupportSources& sources, Bundle& bundle) {
  const auto end = RunProgram({sources.journalctl, "--no-pager", "--output=short-iso-precise", "--lines",
                               kLogLines, "--unit=cleatd", "--unit=cleat-engine@*"},
                              {.output_bytes_max = kLogBytesMax});
  if (!end.ok()) return bundle.LeaveOut("log", end.error().message);
  if (end->status != 0)
    return bundle.LeaveOut("log",
                           fmt::format("journalctl ended with {}: {}", end->status, Redact(end->output)));
  if (end->output.find("-- No entries --") != std::string::npos)
    return bundle.LeaveOut("log",
                           "the journal has nothing of cleatd and engines: did they log elsewhere, or is "
                           "this user not let read it?");
  bundle.Add("log", Redact(end->output));
}

}  // namespace

Bundle CollectBundle(const Globals& globals, const SupportSources& sources) {
  Bundle bundle;
  AddVersions(sources, bundle);
  AddConfiguration(sources, bundle);
  AddHost(globals, bundle);
  AddCounters(sources, bundle);
  AddLog(sources, bundle);
  bundle.LeaveOut("keys", "never: neither key files, credentials and certificates nor cleatd's store");
  bundle.LeaveOut("environment", "never: variables may have secrets");
  bundle.LeaveOut("guests' data", "never");
  return bundle;
}

}  // namespace cleat::ctl
