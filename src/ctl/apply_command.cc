// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "ctl/ask.h"
#include "ctl/commands.h"
#include "ctl/host_file.h"

namespace cleat::ctl {
namespace {

// Beyond what the call waits for removals: for files that are made, and for the store.
constexpr std::chrono::seconds kWorkTime{120};

// How many removals are shown before it asks.
constexpr int kRemovalsShown = 20;

struct ApplyArguments {
  std::string file;
  std::string mode = "add";
  bool dry_run = false;
  bool yes = false;
  bool allow_empty = false;
  std::optional<uint32_t> max_removals;
  int timeout_s = 30;
};

bool IsRemoval(const v1::ApplyResult& result) {
  return result.action() == v1::APPLY_ACTION_DELETED;
}

std::string RemovalLines(const v1::ApplyHostResponse& plan, int64_t removals) {
  std::string lines;
  int64_t shown = 0;
  for (const v1::ApplyResult& result : plan.results()) {
    if (!IsRemoval(result) || shown == kRemovalsShown) continue;
    lines += fmt::format("  {}{}\n", result.name(), result.deletes_key() ? "  and with it its key" : "");
    ++shown;
  }
  if (removals > shown) lines += fmt::format("  and {} more: --dry-run lists all\n", removals - shown);
  return lines;
}

// Whether the removals of that plan are meant: by the options, or because somebody at the terminal says so.
ExitCode Confirm(const ApplyArguments& arguments, const v1::ApplyHostResponse& plan, int64_t removals) {
  if (arguments.max_removals && removals > *arguments.max_removals) {
    return Fail(
        kFailed,
        fmt::format(
            "{} objects of the host are not in the file, more than --max-removals {}: nothing was done\n{}",
            removals, *arguments.max_removals, RemovalLines(plan, removals)));
  }
  if (removals == 0 || arguments.yes) return kOk;
  return Ask(fmt::format("{} objects of the host are not in the file, and will be removed:\n{}", removals,
                         RemovalLines(plan, removals)),
             "Remove them?");
}

// What removes is planned first, and done only as long as the host is as it was then.
ExitCode PlanExact(Client& client, const ApplyArguments& arguments, std::chrono::seconds time,
                   v1::ApplyHostRequest& request) {
  request.set_dry_run(true);
  v1::ApplyHostResponse plan;
  if (const ExitCode code = client.Call(&v1::Cleat::Stub::ApplyHost, request, plan, time); code != kOk)
    return code;
  const auto removals = std::count_if(plan.results().begin(), plan.results().end(), IsRemoval);
  if (const ExitCode code = Confirm(arguments, plan, removals); code != kOk) return code;
  request.set_dry_run(false);
  request.set_max_removals(static_cast<uint32_t>(removals));
  request.set_etag(plan.etag());
  return kOk;
}

ExitCode Apply(Client& client, const ApplyArguments& arguments) {
  auto request = ReadHostFile(arguments.file);
  if (!request.ok()) return Fail(kUsage, request.error().message);
  const bool exact = arguments.mode == "exact";
  request->set_mode(exact ? v1::APPLY_MODE_EXACT : v1::APPLY_MODE_ADD_ONLY);
  request->set_dry_run(arguments.dry_run);
  request->set_allow_empty(arguments.allow_empty);
  request->mutable_timeout()->set_seconds(arguments.timeout_s);
  const auto time = std::chrono::seconds(arguments.timeout_s) + kWorkTime;
  if (exact && !arguments.dry_run) {
    if (const ExitCode code = PlanExact(client, arguments, time, *request); code != kOk) return code;
  }
  v1::ApplyHostResponse report;
  if (const ExitCode code = client.Call(&v1::Cleat::Stub::ApplyHost, *request, report, time); code != kOk) {
    return code;
  }
  client.Show(report, [&] { return TableOf(report, arguments.dry_run).Rows(); });
  const auto failed = std::count_if(report.results().begin(), report.results().end(), [](const auto& result) {
    return result.action() == v1::APPLY_ACTION_FAILED;
  });
  if (failed == 0 && report.complete()) return kOk;
  return Fail(kFailed, fmt::format("{} of {} objects failed; repeat the command when the causes are mended",
                                   failed, report.results_size()));
}

}  // namespace

void AddApplyCommand(CLI::App& app, Globals& globals) {
  const auto arguments = std::make_shared<ApplyArguments>();
  CLI::App* apply =
      AddCommand(app, "apply", "Make the host have what a file says, with a report for each object",
                 "cleatctl apply -f host.yaml --dry-run\n"
                 "cleatctl apply -f host.yaml --mode exact\n"
                 "cleatctl apply -f host.yaml --mode exact --yes --max-removals 3\n"
                 "cleatctl disk list --output yaml | ssh host2 cleatctl apply -f -\n"
                 "The file, in YAML or JSON:\n"
                 "  disks:\n"
                 "  - name: disks/root\n"
                 "    spec: {size_bytes: 10G, file: {path: /var/lib/vms/root.img, create: true}}\n"
                 "  clusters:\n"
                 "  - name: clusters/ceph1\n"
                 "    spec: {conf_file: /etc/ceph/ceph.conf, user: cleat}\n"
                 "  groups:\n"
                 "  - name: groups/vm1\n"
                 "    spec: {limits: {iops: {per_second: 6000}, bytes: {per_second: 200M}}}\n"
                 "  controllers:\n"
                 "  - name: controllers/vm1\n"
                 "    spec: {type: SCSI, socket_path: /run/vms/vm1.sock, queues: 4, group: groups/vm1}\n"
                 "  attachments:\n"
                 "  - name: controllers/vm1/attachments/root\n"
                 "    spec: {disk: disks/root}");
  apply->add_option("-f,--file", arguments->file, "The file; - for standard input")
      ->required()
      ->type_name(kFileArgument);
  apply
      ->add_option("--mode", arguments->mode,
                   "add: leave alone what the file does not name; exact: detach and delete it")
      ->check(CLI::IsMember({"add", "exact"}))
      ->capture_default_str();
  apply->add_flag("--dry-run", arguments->dry_run, "Only say what would be done");
  apply->add_flag("-y,--yes", arguments->yes, "With exact: remove without asking; needed without a terminal");
  apply->add_option("--max-removals", arguments->max_removals,
                    "With exact: do nothing if more objects would be removed");
  apply->add_flag("--allow-empty", arguments->allow_empty, "With exact: take a file that names nothing");
  AddTime(*apply, "--timeout", arguments->timeout_s,
          "How long to wait for removals that are in the way: 30, 5m")
      ->capture_default_str();
  OnRun(*apply, globals, arguments, Apply);
}

}  // namespace cleat::ctl
