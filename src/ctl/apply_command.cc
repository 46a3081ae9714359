// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "ctl/commands.h"
#include "ctl/host_file.h"

namespace cleat::ctl {
namespace {

// Beyond what the call waits for removals: for files that are made, and for the store.
constexpr std::chrono::seconds kWorkTime{120};

struct ApplyArguments {
  std::string file;
  std::string mode = "add";
  bool dry_run = false;
  int timeout_s = 30;
};

ExitCode Apply(Client& client, const ApplyArguments& arguments) {
  auto request = ReadHostFile(arguments.file);
  if (!request.ok()) return Fail(kUsage, request.error().message);
  request->set_mode(arguments.mode == "exact" ? v1::APPLY_MODE_EXACT : v1::APPLY_MODE_ADD_ONLY);
  request->set_dry_run(arguments.dry_run);
  request->mutable_timeout()->set_seconds(arguments.timeout_s);
  v1::ApplyHostResponse report;
  const auto time = std::chrono::seconds(arguments.timeout_s) + kWorkTime;
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
  AddTime(*apply, "--timeout", arguments->timeout_s,
          "How long to wait for removals that are in the way: 30, 5m")
      ->capture_default_str();
  OnRun(*apply, globals, arguments, Apply);
}

}  // namespace cleat::ctl
