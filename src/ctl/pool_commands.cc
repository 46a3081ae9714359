// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "ctl/commands.h"
#include "ctl/size.h"

namespace cleat::ctl {
namespace {

using Stub = v1::Cleat::Stub;

struct PoolArguments {
  bool discard_unknown = false;
  std::string id;
  std::string device;
  uint64_t extent_bytes = 0;
  bool overwrite = false;
  bool from_drive = false;
  LabelArguments labels;
  std::string etag;
  int wait_s = -1;
};

std::string PoolName(const PoolArguments& arguments) {
  return FullName("pools/", arguments.id);
}

ExitCode CreatePool(Client& client, const PoolArguments& arguments) {
  v1::CreatePoolRequest request;
  request.set_pool_id(std::string(IdOf(arguments.id)));
  request.set_overwrite(arguments.overwrite);
  request.set_from_drive(arguments.from_drive);
  ChangeLabels(arguments.labels, *request.mutable_pool()->mutable_labels());
  v1::PoolSpec& spec = *request.mutable_pool()->mutable_spec();
  spec.set_device(arguments.device);
  spec.set_extent_bytes(arguments.extent_bytes);
  v1::Pool pool;
  if (const ExitCode code = client.Call(&Stub::CreatePool, request, pool); code != kOk) return code;
  return WaitAndShow(client, pool, arguments.wait_s, &v1::WaitResponse::pool);
}

// What a drive says, and what can be done about it.
std::string DescribeScan(const v1::ScanDriveResponse& scan, const std::string& device) {
  const v1::Pool& pool = scan.pool();
  const v1::PoolStatus& status = pool.status();
  const std::string name = pool.name().empty() ? "a pool without a name that could be one" : pool.name();
  std::string text =
      fmt::format("{} on {}: {}, uid {}, of {}\n", name, device, RoundedSize(status.capacity_bytes()),
                  status.uid(), scan.of_this_host() ? "this host" : "another host");
  if (!status.message().empty()) text += status.message() + "\n";
  text += scan.disks().empty() ? "no disks\n" : TableOf(scan.disks()).Rows();
  if (pool.name().empty()) return text;
  const std::string id(IdOf(pool.name()));
  if (status.state() != v1::POOL_STATE_UNSPECIFIED)
    return text + fmt::format("cleatd has it already: cleatctl pool get {}\n", id);
  const auto stay = std::count_if(scan.disks().begin(), scan.disks().end(),
                                  [](const auto& disk) { return !disk.problem().empty(); });
  if (stay != 0)
    text += fmt::format("{} of the disks would stay on the drive, unknown, and keep their extents\n", stay);
  if (!scan.of_this_host()) text += "the other host must not use the drive any more\n";
  return text +
         fmt::format("to have it here, with its disks: cleatctl pool create {} --device {} --from-drive\n",
                     id, device);
}

ExitCode ScanDrive(Client& client, const PoolArguments& arguments) {
  v1::ScanDriveRequest request;
  request.set_device(arguments.device);
  v1::ScanDriveResponse response;
  if (const ExitCode code = client.Call(&Stub::ScanDrive, request, response); code != kOk) return code;
  client.Show(response, [&] { return DescribeScan(response, arguments.device); });
  return kOk;
}

ExitCode GetPool(Client& client, const PoolArguments& arguments) {
  v1::GetPoolRequest request;
  request.set_name(PoolName(arguments));
  v1::Pool pool;
  if (const ExitCode code = client.Call(&Stub::GetPool, request, pool); code != kOk) return code;
  return ShowOne(client, pool, Detail::kAll);
}

ExitCode ListPools(Client& client, const PoolArguments&) {
  return ListAll(client, &Stub::ListPools, v1::ListPoolsRequest(), &v1::ListPoolsResponse::pools);
}

ExitCode DeletePool(Client& client, const PoolArguments& arguments) {
  v1::DeletePoolRequest request;
  request.set_name(PoolName(arguments));
  request.set_etag(arguments.etag);
  request.set_discard_unknown(arguments.discard_unknown);
  v1::DeletePoolResponse response;
  if (const ExitCode code = client.Call(&Stub::DeletePool, request, response); code != kOk) return code;
  return WaitAndShowGone(client, request.name(), arguments.wait_s, response);
}

void AddDevice(CLI::App& command, std::string& device) {
  command
      .add_option("--device", device,
                  "The drive: a block device, best by its name in /dev/disk/by-id, which stays the same")
      ->required()
      ->type_name(kFileArgument);
}

void AddScanDrive(CLI::App& pool, Globals& globals, const std::shared_ptr<PoolArguments>& arguments) {
  CLI::App* scan =
      AddCommand(pool, "scan", "Show which pool a drive is, and its disks, as the drive has them",
                 "cleatctl pool scan --device /dev/disk/by-id/nvme-MODEL_SERIAL\n"
                 "cleatctl pool create nvme0 --device /dev/disk/by-id/nvme-MODEL_SERIAL --from-drive");
  AddDevice(*scan, arguments->device);
  OnRun(*scan, globals, arguments, ScanDrive);
}

void AddCreatePool(CLI::App& pool, Globals& globals, const std::shared_ptr<PoolArguments>& arguments) {
  CLI::App* create = AddCommand(
      pool, "create", "Make a pool of a drive, for disks to be cut from it; what is on the drive is erased",
      "cleatctl pool create nvme0 --device /dev/disk/by-id/nvme-MODEL_SERIAL\n"
      "cleatctl disk create root --pool nvme0 --size 100G\n"
      "truncate -s 10G /var/lib/cleat/disks/trial.img    a regular file will do for trials\n"
      "cleatctl pool create trial --device /var/lib/cleat/disks/trial.img --extent-size 64M");
  create->add_option("ID", arguments->id, "Its id: small letters, digits, dashes; a letter first")
      ->required();
  AddDevice(*create, arguments->device);
  AddSize(*create, "--extent-size", arguments->extent_bytes,
          "The unit that disks are made of: 64M, 128M, 256M (the default), 512M or 1G");
  CLI::Option* const from_drive = create->add_flag("--from-drive", arguments->from_drive,
                                                   "Make it as the drive has it, with its disks, after the "
                                                   "store was lost (cleatctl pool scan shows them)");
  create
      ->add_flag("--overwrite", arguments->overwrite,
                 "Take the drive although a file system, partitions or another pool's label are on it, "
                 "which are lost")
      ->excludes(from_drive);
  AddLabels(*create, arguments->labels);
  AddWait(*create, arguments->wait_s, "it is ready");
  OnRun(*create, globals, arguments, CreatePool);
}

}  // namespace

void AddPoolCommands(CLI::App& app, Globals& globals) {
  CLI::App* pool =
      AddCommand(app, "pool", "Drives that disks are cut from: create, list, get, delete, scan", "");
  pool->require_subcommand(1);
  const auto arguments = std::make_shared<PoolArguments>();
  constexpr const char* kWhich = "ID or pools/ID";

  AddCreatePool(*pool, globals, arguments);

  CLI::App* list =
      AddCommand(*pool, "list", "Show all pools, and how much each has left", "cleatctl pool list");
  OnRun(*list, globals, arguments, ListPools);

  CLI::App* get = AddCommand(*pool, "get", "Show a pool", "cleatctl pool get nvme0");
  get->add_option(kPoolArgument, arguments->id, kWhich)->required();
  OnRun(*get, globals, arguments, GetPool);

  CLI::App* remove = AddCommand(*pool, "delete", "Delete a pool that has no disks, deleted ones included",
                                "cleatctl disk purge root --yes    a deleted disk that is kept\n"
                                "cleatctl pool delete nvme0");
  remove->add_option(kPoolArgument, arguments->id, kWhich)->required();
  remove->add_flag(
      "--discard-unknown", arguments->discard_unknown,
      "Also with disks that the store, which was restored or lost, does not know: their data is lost");
  AddEtag(*remove, arguments->etag);
  AddWait(*remove, arguments->wait_s, "it is gone");
  OnRun(*remove, globals, arguments, DeletePool);

  AddScanDrive(*pool, globals, arguments);
}

}  // namespace cleat::ctl
