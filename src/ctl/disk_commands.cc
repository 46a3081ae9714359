// SPDX-License-Identifier: Apache-2.0
#include "ctl/commands.h"

namespace cleat::ctl {
namespace {

struct DiskArguments {
  std::string id;
  uint64_t size_bytes = 0;
  uint32_t block_bytes = 0;
  uint32_t physical_block_bytes = 0;
  std::string serial;
  std::string file;
  bool create = false;
  bool memory = false;
  bool null = false;
  bool many_readers = false;
  uint64_t fault_seed = 0;
  uint64_t fault_delay_us = 0;
  uint32_t fault_fail_per_million = 0;
  int wait_s = -1;
};

v1::CreateDiskRequest RequestFrom(const DiskArguments& arguments) {
  v1::CreateDiskRequest request;
  request.set_disk_id(std::string(IdOf(arguments.id)));
  v1::DiskSpec& spec = *request.mutable_disk()->mutable_spec();
  spec.set_size_bytes(arguments.size_bytes);
  spec.set_logical_block_bytes(arguments.block_bytes);
  spec.set_physical_block_bytes(arguments.physical_block_bytes);
  spec.set_serial(arguments.serial);
  if (arguments.many_readers) spec.set_access_mode(v1::ACCESS_MODE_MANY_READERS);
  if (arguments.memory) spec.mutable_memory();
  if (arguments.null) spec.mutable_null();
  if (!arguments.file.empty()) {
    spec.mutable_file()->set_path(arguments.file);
    spec.mutable_file()->set_create(arguments.create);
  }
  if (arguments.fault_delay_us != 0 || arguments.fault_fail_per_million != 0) {
    spec.mutable_fault()->set_seed(arguments.fault_seed);
    spec.mutable_fault()->set_delay_ns_max(arguments.fault_delay_us * 1000);
    spec.mutable_fault()->set_fail_per_million(arguments.fault_fail_per_million);
  }
  return request;
}

void Create(Globals& globals, const DiskArguments& arguments) {
  Client client(globals);
  grpc::ClientContext context;
  v1::Disk disk;
  if (!client.Dial() || !client.Check(client.stub().CreateDisk(&context, RequestFrom(arguments), &disk)))
    return;
  Print(Show(globals, disk, false));
  if (arguments.wait_s >= 0) WaitFor(client, disk.name(), Goal::kReady, arguments.wait_s);
}

void Get(Globals& globals, const DiskArguments& arguments) {
  Client client(globals);
  grpc::ClientContext context;
  v1::GetDiskRequest request;
  request.set_name(FullName("disks/", arguments.id));
  v1::Disk disk;
  if (!client.Dial() || !client.Check(client.stub().GetDisk(&context, request, &disk))) return;
  Print(Show(globals, disk, true));
}

void List(Globals& globals) {
  Client client(globals);
  if (!client.Dial()) return;
  v1::ListDisksResponse all;
  const auto field = [](v1::ListDisksResponse& page) { return page.mutable_disks(); };
  const auto call = [&](auto... arguments) { return client.stub().ListDisks(arguments...); };
  if (ListAll(client, v1::ListDisksRequest(), all, call, field)) PrintAll(globals, all, field);
}

void Delete(Globals& globals, const DiskArguments& arguments) {
  Client client(globals);
  grpc::ClientContext context;
  v1::DeleteDiskRequest request;
  request.set_name(FullName("disks/", arguments.id));
  v1::DeleteDiskResponse response;
  if (!client.Dial() || !client.Check(client.stub().DeleteDisk(&context, request, &response))) return;
  if (arguments.wait_s >= 0 && !WaitFor(client, request.name(), Goal::kGone, arguments.wait_s)) return;
  if (globals.json) Print(ToJson(response, true));
}

void AddCreate(CLI::App& disk, Globals& globals, const std::shared_ptr<DiskArguments>& arguments) {
  CLI::App* create = disk.add_subcommand("create", "Make a disk");
  create->footer(
      "Examples:\n"
      "  cleatctl disk create root --size 10G --file /var/lib/vms/root.img --create\n"
      "  cleatctl disk create data --size 1T --block 4096 --file /dev/vg0/data\n"
      "  cleatctl disk create scratch --size 512M --memory");
  create->add_option("ID", arguments->id, "Its id: small letters, digits, dashes; a letter first")
      ->required();
  create->add_option("--size", arguments->size_bytes, "Size: 10G, 512M, 4096 (powers of 1024)")
      ->required()
      ->transform(CLI::AsSizeValue(false));
  auto* backend = create->add_option_group("backend", "What stores the blocks");
  auto* file = backend->add_option("--file", arguments->file, "A regular file or a block device");
  backend->add_flag("--memory", arguments->memory,
                    "Memory of this host; lost when cleatd and the engine both end");
  backend->add_flag("--null", arguments->null, "Nothing: reads give zeroes");
  backend->require_option(1);
  create->add_flag("--create", arguments->create, "Make the file (sparse) when there is none")->needs(file);
  create->add_option("--block", arguments->block_bytes, "Logical block size: 512 (the default) or 4096");
  create->add_option("--physical-block", arguments->physical_block_bytes,
                     "Physical block size; 4096 by default");
  create->add_option("--serial", arguments->serial,
                     "What the guest reads as serial number; the id by default");
  create->add_flag("--many-readers", arguments->many_readers,
                   "Any number of read-only attachments, instead of one writer");
  create->add_option("--fault-seed", arguments->fault_seed, "Tests: seed of the faults");
  create->add_option("--fault-delay-us", arguments->fault_delay_us,
                     "Tests: delay each request by up to this");
  create->add_option("--fault-fail-per-million", arguments->fault_fail_per_million,
                     "Tests: requests that fail");
  AddWait(*create, arguments->wait_s, "the disk is ready");
  create->callback([&globals, arguments] { Create(globals, *arguments); });
}

}  // namespace

void AddDiskCommands(CLI::App& app, Globals& globals) {
  CLI::App* disk = app.add_subcommand("disk", "Disks: create, get, list, delete");
  disk->require_subcommand(1);
  const auto arguments = std::make_shared<DiskArguments>();
  AddCreate(*disk, globals, arguments);

  CLI::App* get = disk->add_subcommand("get", "Show a disk");
  get->add_option("DISK", arguments->id, "ID or disks/ID")->required();
  get->callback([&globals, arguments] { Get(globals, *arguments); });

  disk->add_subcommand("list", "Show all disks")->callback([&globals] { List(globals); });

  CLI::App* remove = disk->add_subcommand("delete", "Delete a disk that is not attached; its file stays");
  remove->add_option("DISK", arguments->id, "ID or disks/ID")->required();
  AddWait(*remove, arguments->wait_s, "it is gone");
  remove->callback([&globals, arguments] { Delete(globals, *arguments); });
}

}  // namespace cleat::ctl
