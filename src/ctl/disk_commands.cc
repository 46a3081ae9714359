// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "ctl/ask.h"
#include "ctl/backends.h"
#include "ctl/commands.h"
#include "ctl/disk_key.h"
#include "ctl/in_doubt.h"
#include "ctl/limits.h"
#include "ctl/reasons.h"

namespace cleat::ctl {
namespace {

using Stub = v1::Cleat::Stub;

struct DiskArguments {
  std::string id;
  uint64_t size_bytes = 0;
  uint64_t block_bytes = 0;
  uint64_t physical_block_bytes = 0;
  std::string serial;
  std::string wwn;
  v1::DiskSpec backend;  // and nothing else
  bool many_readers = false;
  uint64_t fault_seed = 0;
  uint64_t fault_delay_us = 0;
  uint32_t fault_fail_per_million = 0;
  KeyArguments key;
  std::vector<std::string> limits;
  std::string on_no_space;  // "", "error" or "wait"
  std::string in_doubt;     // "", or as ParseInDoubt takes it
  LabelArguments labels;
  std::string etag;
  std::string uid;
  uint64_t doubt = 0;  // DiskDoubt.number; 0: as it is
  bool deleted = false;
  bool purge = false;
  bool yes = false;
  int wait_s = -1;
};

constexpr uint64_t kBlockBytesMax = 1 << 20;  // beyond what cleatd takes; so that the message is cleatd's

v1::OnNoSpace OnNoSpaceFrom(const DiskArguments& arguments) {
  if (arguments.on_no_space.empty()) return v1::ON_NO_SPACE_UNSPECIFIED;
  return arguments.on_no_space == "wait" ? v1::ON_NO_SPACE_WAIT : v1::ON_NO_SPACE_ERROR;
}

v1::CreateDiskRequest DiskFrom(const DiskArguments& arguments) {
  v1::CreateDiskRequest request;
  request.set_disk_id(std::string(IdOf(arguments.id)));
  ChangeLabels(arguments.labels, *request.mutable_disk()->mutable_labels());
  v1::DiskSpec& spec = *request.mutable_disk()->mutable_spec();
  spec = arguments.backend;
  spec.set_size_bytes(arguments.size_bytes);
  spec.set_logical_block_bytes(static_cast<uint32_t>(std::min(arguments.block_bytes, kBlockBytesMax)));
  spec.set_physical_block_bytes(
      static_cast<uint32_t>(std::min(arguments.physical_block_bytes, kBlockBytesMax)));
  spec.set_serial(arguments.serial);
  spec.set_wwn(arguments.wwn);
  spec.set_on_no_space(OnNoSpaceFrom(arguments));
  if (arguments.many_readers) spec.set_access_mode(v1::ACCESS_MODE_MANY_READERS);
  if (arguments.fault_delay_us != 0 || arguments.fault_fail_per_million != 0) {
    spec.mutable_fault()->set_seed(arguments.fault_seed);
    spec.mutable_fault()->set_delay_ns_max(arguments.fault_delay_us * 1000);
    spec.mutable_fault()->set_fail_per_million(arguments.fault_fail_per_million);
  }
  return request;
}

std::string DiskName(const DiskArguments& arguments) {
  return FullName("disks/", arguments.id);
}

ExitCode CreateDisk(Client& client, const DiskArguments& arguments) {
  v1::CreateDiskRequest request = DiskFrom(arguments);
  auto limits = ParseLimits(arguments.limits);
  if (!limits.ok()) return Fail(kUsage, limits.error().message);
  *request.mutable_disk()->mutable_spec()->mutable_limits() = std::move(*limits);
  if (!arguments.in_doubt.empty()) {
    auto rule = ParseInDoubt(arguments.in_doubt);
    if (!rule.ok()) return Fail(kUsage, rule.error().message);
    *request.mutable_disk()->mutable_spec()->mutable_in_doubt() = std::move(*rule);
  }
  if (auto status = ReadKey(arguments.key, request.mutable_disk()->mutable_spec()); !status.ok()) {
    return Fail(kUsage, status.error().message);
  }
  v1::Disk disk;
  const ExitCode code = client.Call(&Stub::CreateDisk, request, disk);
  WipeKey(request.mutable_disk()->mutable_spec());
  if (code != kOk) return code;
  return WaitAndShow(client, disk, arguments.wait_s, &v1::WaitResponse::disk);
}

ExitCode GetDisk(Client& client, const DiskArguments& arguments) {
  v1::GetDiskRequest request;
  request.set_name(DiskName(arguments));
  v1::Disk disk;
  if (const ExitCode code = client.Call(&Stub::GetDisk, request, disk); code != kOk) return code;
  return ShowOne(client, disk, Detail::kAll);
}

ExitCode ListDisks(Client& client, const DiskArguments& arguments) {
  v1::ListDisksRequest request;
  if (!arguments.deleted) return ListAll(client, &Stub::ListDisks, request, &v1::ListDisksResponse::disks);
  request.set_show_deleted(true);
  v1::ListDisksResponse all;
  if (const ExitCode code = client.CallForAll(&Stub::ListDisks, request, all); code != kOk) return code;
  *all.mutable_disks() = DeletedOf(all.disks());
  client.Show(all, [&] { return TableOfDeleted(all.disks()).Rows(); });
  return kOk;
}

// What is given of those that change while the disk is attached, in one call.
ExitCode UpdateSettings(Client& client, const DiskArguments& arguments, v1::Disk& disk) {
  v1::UpdateDiskRequest request;
  request.mutable_disk()->set_name(DiskName(arguments));
  request.mutable_disk()->set_etag(arguments.etag);
  if (!arguments.on_no_space.empty()) {
    request.mutable_disk()->mutable_spec()->set_on_no_space(OnNoSpaceFrom(arguments));
    request.mutable_update_mask()->add_paths("spec.on_no_space");
  }
  if (!arguments.in_doubt.empty()) {
    auto rule = ParseInDoubt(arguments.in_doubt);
    if (!rule.ok()) return Fail(kUsage, rule.error().message);
    *request.mutable_disk()->mutable_spec()->mutable_in_doubt() = std::move(*rule);
    request.mutable_update_mask()->add_paths("spec.in_doubt");
  }
  return client.Call(&Stub::UpdateDisk, request, disk);
}

ExitCode UpdateDisk(Client& client, const DiskArguments& arguments) {
  v1::Disk disk;
  const bool labels = !arguments.labels.set.empty() || !arguments.labels.remove.empty();
  if (!arguments.on_no_space.empty() || !arguments.in_doubt.empty()) {
    if (labels)
      return Fail(kUsage, "--on-no-space or --in-doubt, and labels, are changed one after the other");
    const ExitCode code = UpdateSettings(client, arguments, disk);
    return code != kOk ? code : WaitAndShow(client, disk, arguments.wait_s, &v1::WaitResponse::disk);
  }
  const ExitCode code =
      UpdateLabels(client, &Stub::GetDisk, &Stub::UpdateDisk, &v1::UpdateDiskRequest::mutable_disk,
                   DiskName(arguments), arguments.etag, arguments.labels, disk);
  return code != kOk ? code : ShowOne(client, disk, Detail::kLine);
}

ExitCode Resize(Client& client, const DiskArguments& arguments) {
  v1::UpdateDiskRequest request;
  request.mutable_disk()->set_name(DiskName(arguments));
  request.mutable_disk()->set_etag(arguments.etag);
  request.mutable_disk()->mutable_spec()->set_size_bytes(arguments.size_bytes);
  request.mutable_update_mask()->add_paths("spec.size_bytes");
  v1::Disk disk;
  if (const ExitCode code = client.Call(&Stub::UpdateDisk, request, disk); code != kOk) return code;
  return WaitAndShow(client, disk, arguments.wait_s, &v1::WaitResponse::disk);
}

ExitCode LimitDisk(Client& client, const DiskArguments& arguments) {
  auto limits = ParseLimits(arguments.limits);
  if (!limits.ok()) return Fail(kUsage, limits.error().message);
  v1::UpdateDiskRequest request;
  request.mutable_disk()->set_name(DiskName(arguments));
  request.mutable_disk()->set_etag(arguments.etag);
  *request.mutable_disk()->mutable_spec()->mutable_limits() = std::move(*limits);
  request.mutable_update_mask()->add_paths("spec.limits");
  v1::Disk disk;
  if (const ExitCode code = client.Call(&Stub::UpdateDisk, request, disk); code != kOk) return code;
  return WaitAndShow(client, disk, arguments.wait_s, &v1::WaitResponse::disk);
}

ExitCode DeleteDisk(Client& client, const DiskArguments& arguments) {
  v1::DeleteDiskRequest request;
  request.set_name(DiskName(arguments));
  request.set_etag(arguments.etag);
  request.set_purge(arguments.purge);
  v1::DeleteDiskResponse response;
  if (const ExitCode code = CallSparingKey(client, &Stub::DeleteDisk, request, response, arguments.yes);
      code != kOk) {
    return code;
  }
  const std::string& message = response.disk().status().message();
  if (!message.empty() && client.format() == Format::kTable)
    fmt::print(stderr, "{}: {}\n", request.name(), message);
  return WaitAndShowGone(client, request.name(), arguments.wait_s, response);
}

ExitCode UndeleteDisk(Client& client, const DiskArguments& arguments) {
  v1::UndeleteDiskRequest request;
  request.set_name(DiskName(arguments));
  request.set_uid(arguments.uid);
  v1::Disk disk;
  if (const ExitCode code = client.Call(&Stub::UndeleteDisk, request, disk); code != kOk) return code;
  return ShowOne(client, disk, Detail::kLine);
}

ExitCode PurgeDisk(Client& client, const DiskArguments& arguments) {
  v1::PurgeDiskRequest request;
  request.set_name(DiskName(arguments));
  request.set_uid(arguments.uid);
  v1::PurgeDiskResponse response;
  if (const ExitCode code = CallSparingKey(client, &Stub::PurgeDisk, request, response, arguments.yes);
      code != kOk)
    return code;
  if (!response.has_disk() && client.format() == Format::kTable)
    fmt::print(stderr, "nothing was kept of {}\n", request.name());
  client.Show(response, [] { return std::string(); });
  return kOk;
}

std::string ShowDoubt(const v1::Disk& disk) {
  const v1::DiskDoubt& doubt = disk.status().doubt();
  const std::string how_much =
      doubt.whole_disk() ? "all of it" : fmt::format("{} ranges, {} bytes", doubt.ranges(), doubt.bytes());
  return fmt::format(
      "{}: in doubt: {} (number {}). Its target may still execute what it was sent on paths that broke. If "
      "it does after this, newer data is "
      "lost: confirm only what is known to be dead, as a target that was restarted or whose host is off.\n",
      disk.name(), how_much, doubt.number());
}

ExitCode ConfirmDead(Client& client, const DiskArguments& arguments) {
  v1::ConfirmDeadRequest request;
  request.set_name(DiskName(arguments));
  request.set_doubt_number(arguments.doubt);
  if (arguments.doubt == 0) {
    v1::GetDiskRequest get;
    get.set_name(request.name());
    v1::Disk disk;
    if (const ExitCode code = client.Call(&Stub::GetDisk, get, disk); code != kOk) return code;
    const bool in_doubt = disk.status().has_doubt();
    if (in_doubt && !arguments.yes) {
      if (const ExitCode code = Ask(ShowDoubt(disk), "Are they dead?"); code != kOk) return code;
    }
    // The status says nothing where the log is not here, and cleatd refuses then.
    if (!in_doubt) {
      if (const ExitCode code = client.Call(&Stub::ConfirmDead, request, disk); code != kOk) return code;
      fmt::print(stderr, "{}: nothing is in doubt\n", request.name());
      return ShowOne(client, disk, Detail::kLine);
    }
    request.set_doubt_number(disk.status().doubt().number());
  }
  v1::Disk disk;
  if (const ExitCode code = client.Call(&Stub::ConfirmDead, request, disk); code != kOk) return code;
  return ShowOne(client, disk, Detail::kLine);
}

void AddOnNoSpace(CLI::App& command, std::string& on_no_space) {
  command
      .add_option(
          "--on-no-space", on_no_space,
          "What writes do when the storage is full: error (the default), or wait until there is space")
      ->check(CLI::IsMember({"error", "wait"}))
      ->type_name("error|wait");
}

void AddInDoubt(CLI::App& command, std::string& in_doubt) {
  command
      .add_option(
          "--in-doubt", in_doubt,
          "Of a disk over NVMe-oF: what writes do that an older one, left on a path that broke, may still "
          "overwrite: hold (wait; the default), fail-after=SECONDS, or accept the risk")
      ->type_name(kInDoubtForm);
}

void AddCreateDisk(CLI::App& disk, Globals& globals, const std::shared_ptr<DiskArguments>& arguments) {
  CLI::App* create =
      AddCommand(disk, "create", "Make a disk",
                 "cleatctl disk create root --size 10G --file /var/lib/vms/root.img --create\n"
                 "cleatctl disk create data --size 1T --block 4K --file /dev/vg0/data --label vm=a\n"
                 "cleatctl disk create scratch --size 512M --memory\n"
                 "cleatctl disk create db --size 100G --rbd ceph1/vms/db\n"
                 "cleatctl disk create fast --size 100G --pool nvme0\n"
                 "head -c 64 /dev/urandom > root.key    keep it, and keep it secret\n"
                 "cleatctl disk create root --size 10G --file /dev/vg0/root --encryption-key-file root.key "
                 "--limit iops=6000");
  create->add_option("ID", arguments->id, "Its id: small letters, digits, dashes; a letter first")
      ->required();
  AddSize(*create, "--size", arguments->size_bytes, "Size: 10G, 512MiB, 4096 (powers of 1024)")->required();
  AddBackends(*create, arguments->backend);
  AddSize(*create, "--block", arguments->block_bytes, "Logical block size: 512 (the default) or 4096");
  AddSize(*create, "--physical-block", arguments->physical_block_bytes,
          "Physical block size; 4096 by default");
  create->add_option("--serial", arguments->serial,
                     "What the guest reads as serial number; the id by default");
  create->add_option("--wwn", arguments->wwn,
                     "World wide name, 0x and 16 hexadecimal digits; made from the id by default");
  create->add_flag("--many-readers", arguments->many_readers,
                   "Any number of read-only attachments, instead of one writer");
  AddLimits(*create, arguments->limits);
  AddOnNoSpace(*create, arguments->on_no_space);
  AddInDoubt(*create, arguments->in_doubt);
  AddKey(*create, arguments->key);
  AddLabels(*create, arguments->labels);
  create->add_option("--fault-seed", arguments->fault_seed, "Tests: seed of the faults");
  create->add_option("--fault-delay-us", arguments->fault_delay_us,
                     "Tests: delay each request by up to this");
  create->add_option("--fault-fail-per-million", arguments->fault_fail_per_million,
                     "Tests: requests that fail");
  AddWait(*create, arguments->wait_s, "the disk is ready");
  OnRun(*create, globals, arguments, CreateDisk);
}

void AddRemovingCommands(CLI::App& disk, Globals& globals, const std::shared_ptr<DiskArguments>& arguments) {
  constexpr const char* kWhich = "ID or disks/ID";
  constexpr const char* kYes = "Destroy the disk's key without asking; needed without a terminal";
  CLI::App* remove = AddCommand(
      disk, "delete", "Delete a disk that is not attached; its file stays, and so does its key for some days",
      "cleatctl disk delete scratch\n"
      "cleatctl disk undelete scratch    brings it back\n"
      "cleatctl disk delete scratch --purge");
  remove->add_option(kDiskArgument, arguments->id, kWhich)->required();
  remove->add_flag("--purge", arguments->purge, "Don't keep it, nor its key; takes the role admin");
  remove->add_flag("-y,--yes", arguments->yes, kYes);
  AddEtag(*remove, arguments->etag);
  AddWait(*remove, arguments->wait_s, "it is gone");
  OnRun(*remove, globals, arguments, DeleteDisk);

  CLI::App* undelete =
      AddCommand(disk, "undelete", "Bring back a deleted disk, with its key; memory comes back empty",
                 "cleatctl disk list --deleted\n"
                 "cleatctl disk undelete root\n"
                 "cleatctl disk undelete root --uid 00a1b20000000f4f");
  undelete->add_option(kDeletedDiskArgument, arguments->id, kWhich)->required();
  undelete->add_option("--uid", arguments->uid, "Which one; the one that was deleted last if not given");
  OnRun(*undelete, globals, arguments, UndeleteDisk);

  CLI::App* purge =
      AddCommand(disk, "purge", "Destroy what is kept of a deleted disk, with its key; its file stays",
                 "cleatctl disk purge root --yes");
  purge->add_option(kDeletedDiskArgument, arguments->id, kWhich)->required();
  purge->add_option("--uid", arguments->uid, "Which one; needed when there are several");
  purge->add_flag("-y,--yes", arguments->yes, kYes);
  OnRun(*purge, globals, arguments, PurgeDisk);
}

void AddConfirmDead(CLI::App& disk, Globals& globals, const std::shared_ptr<DiskArguments>& arguments) {
  CLI::App* confirm = AddCommand(
      disk, "confirm-dead",
      "Say that an NVMe-oF disk's targets execute nothing any more of what is in doubt; takes the role admin",
      "cleatctl disk get data    says what is in doubt\n"
      "cleatctl disk confirm-dead data\n"
      "cleatctl disk confirm-dead data --doubt 7");
  confirm->add_option(kDiskArgument, arguments->id, "ID or disks/ID")->required();
  confirm->add_option("--doubt", arguments->doubt,
                      "Number of what is in doubt, as `disk get` says; asks about what is now if not given");
  confirm->add_flag("-y,--yes", arguments->yes, "Don't ask; needed without a terminal");
  OnRun(*confirm, globals, arguments, ConfirmDead);
}

}  // namespace

void AddDiskCommands(CLI::App& app, Globals& globals) {
  CLI::App* disk = AddCommand(
      app, "disk",
      "What stores blocks: create, list, get, update, resize, limit, delete, undelete, purge, confirm-dead",
      "");
  disk->require_subcommand(1);
  const auto arguments = std::make_shared<DiskArguments>();
  constexpr const char* kWhich = "ID or disks/ID";
  AddCreateDisk(*disk, globals, arguments);

  CLI::App* list = AddCommand(*disk, "list", "Show all disks",
                              "cleatctl disk list\n"
                              "cleatctl disk list --output json | jq -r '.disks[].name'\n"
                              "cleatctl disk list --deleted");
  list->add_flag("--deleted", arguments->deleted, "Show the deleted ones instead that can be undeleted");
  OnRun(*list, globals, arguments, ListDisks);

  CLI::App* get = AddCommand(*disk, "get", "Show a disk", "cleatctl disk get root");
  get->add_option(kDiskArgument, arguments->id, kWhich)->required();
  OnRun(*get, globals, arguments, GetDisk);

  CLI::App* update =
      AddCommand(*disk, "update", "Change a disk's labels, or what its writes do without space or in doubt",
                 "cleatctl disk update root --label owner=ann --remove-label old\n"
                 "cleatctl disk update root --on-no-space wait --wait\n"
                 "cleatctl disk update root --in-doubt fail-after=30 --wait");
  update->add_option(kDiskArgument, arguments->id, kWhich)->required();
  AddLabels(*update, arguments->labels);
  AddRemoveLabels(*update, arguments->labels);
  AddOnNoSpace(*update, arguments->on_no_space);
  AddInDoubt(*update, arguments->in_doubt);
  AddEtag(*update, arguments->etag);
  AddWait(*update, arguments->wait_s, "its engines know");
  OnRun(*update, globals, arguments, UpdateDisk);

  CLI::App* resize = AddCommand(*disk, "resize", "Let a disk grow; its guests are told",
                                "cleatctl disk resize root 20G --wait");
  resize->add_option(kDiskArgument, arguments->id, kWhich)->required();
  AddSize(*resize, "SIZE,--size", arguments->size_bytes, "The new size: 20G, 512MiB")->required();
  AddEtag(*resize, arguments->etag);
  AddWait(*resize, arguments->wait_s, "all its guests were told");
  OnRun(*resize, globals, arguments, Resize);

  CLI::App* limit =
      AddCommand(*disk, "limit", "Give a disk other limits, all of them at once, while it works",
                 "cleatctl disk limit root iops=6000,burst=12000/30s bytes=100M --wait\n"
                 "cleatctl disk limit root none");
  limit->add_option(kDiskArgument, arguments->id, kWhich)->required();
  AddAllLimits(*limit, arguments->limits);
  AddEtag(*limit, arguments->etag);
  AddWait(*limit, arguments->wait_s, "they hold");
  OnRun(*limit, globals, arguments, LimitDisk);

  AddRemovingCommands(*disk, globals, arguments);
  AddConfirmDead(*disk, globals, arguments);
}

}  // namespace cleat::ctl
