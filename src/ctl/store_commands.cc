// SPDX-License-Identifier: Apache-2.0
// Backups of cleatd's store, and back from one.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>
#include <string>
#include <thread>

#include "base/result.h"
#include "base/unique_fd.h"
#include "ctl/ask.h"
#include "ctl/commands.h"
#include "ctl/new_file.h"
#include "ctl/size.h"

namespace cleat::ctl {
namespace {

constexpr std::chrono::minutes kBackupTime{10};
constexpr size_t kPieceBytes = size_t{1024} * 1024;
constexpr int kChangesShown = 40;  // before it asks
// After a restore: for cleatd, and for the engines that were connected, to be there again.
constexpr std::chrono::seconds kReturnTime{60};
constexpr std::chrono::milliseconds kReturnTurn{100};

struct StoreArguments {
  std::string file;
  bool force = false;
  bool dry_run = false;
  bool yes = false;
};

std::string Describe(const v1::StoreInfo& info, const std::string& file) {
  Table table(
      {{"FILE"}, {"SIZE"}, {"SCHEMA"}, {"DISKS"}, {"DELETED DISKS"}, {"CONTROLLERS"}, {"KEYS UNDER"}});
  std::string keks;
  for (const std::string& kek : info.key_encryption_keys()) keks += (keks.empty() ? "" : ",") + kek;
  table.Add({file, HumanSize(info.size_bytes()), std::to_string(info.schema()), std::to_string(info.disks()),
             std::to_string(info.deleted_disks()), std::to_string(info.controllers()), keks});
  return table.Rows();
}

// All that cleatd sends goes to the file. It says what it sends first.
ExitCode Receive(Client& client, NewFile& file, v1::StoreInfo& info) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kBackupTime);
  const auto reader = client.stub().BackupStore(&context, {});
  v1::BackupStoreResponse piece;
  uint64_t received_bytes = 0;
  while (reader->Read(&piece)) {
    if (piece.has_info()) info = piece.info();
    received_bytes += piece.data().size();
    Status written;
    if (received_bytes <= info.size_bytes()) written = file.Write(piece.data());
    if (received_bytes <= info.size_bytes() && written.ok()) continue;
    context.TryCancel();
    reader->Finish();
    return Fail(kFailed, written.ok() ? "cleatd sends more than it said: nothing is kept of it"
                                      : written.error().message);
  }
  if (const ExitCode code = client.Say(reader->Finish()); code != kOk) return code;
  if (received_bytes == info.size_bytes() && received_bytes != 0) return kOk;
  return Fail(kFailed, fmt::format("{} of {} bytes have come: nothing is kept of them. Repeat the command",
                                   received_bytes, info.size_bytes()));
}

ExitCode Backup(Client& client, const StoreArguments& arguments) {
  struct stat there {};
  if (!arguments.force && lstat(arguments.file.c_str(), &there) == 0)
    return Fail(kUsage, fmt::format("'{}' is there: name another file, or give --force", arguments.file));
  if (const ExitCode code = client.Dial(); code != kOk) return code;
  NewFile file(arguments.file, "name another file, or give --force");
  if (auto status = file.Open(); !status.ok()) return Fail(kUsage, status.error().message);
  v1::StoreInfo info;
  if (const ExitCode code = Receive(client, file, info); code != kOk) return code;
  if (auto status = file.Finish(arguments.force); !status.ok()) return Fail(kFailed, status.error().message);
  client.Show(info, [&] { return Describe(info, arguments.file); });
  return kOk;
}

// ---- Restoring

// The file goes to cleatd, which says what it makes of it.
ExitCode Send(Client& client, const UniqueFd& file, const std::string& name,
              const v1::RestoreStoreOptions& options, v1::RestoreStoreResponse& response) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kBackupTime);
  const auto writer = client.stub().RestoreStore(&context, &response);
  v1::RestoreStoreRequest piece;
  *piece.mutable_options() = options;
  off_t offset = 0;
  // A write that fails has a reason, which Finish has.
  while (writer->Write(piece)) {
    std::string& data = *piece.mutable_data();
    data.resize(kPieceBytes);
    const ssize_t bytes = pread(file.get(), data.data(), data.size(), offset);
    if (bytes < 0) {
      const int why = errno;
      context.TryCancel();
      (void)writer->Finish();
      return Fail(kUsage, ErrnoError(why, fmt::format("'{}' can't be read", name)).message);
    }
    if (bytes == 0) break;
    data.resize(static_cast<size_t>(bytes));
    offset += bytes;
  }
  writer->WritesDone();
  return client.Say(writer->Finish());
}

std::string Describe(v1::RestoreAction action) {
  switch (action) {
    case v1::RESTORE_ACTION_COMES_BACK:
      return "COMES BACK";
    case v1::RESTORE_ACTION_GOES:
      return "GOES";
    case v1::RESTORE_ACTION_CHANGES:
      return "CHANGES";
    default:
      return "?";
  }
}

std::string Describe(const v1::RestoreStoreResponse& plan, int shown_max) {
  Table table({{"ACTION"}, {"NAME"}, {"NOTE"}});
  int shown = 0;
  for (const v1::RestoreChange& change : plan.listed()) {
    if (shown == shown_max) break;
    ++shown;
    std::string note = change.kept() ? "deleted, and kept" : "";
    if (change.loses_key()) note += fmt::format("{}its key is not in the backup", note.empty() ? "" : "; ");
    table.Add({Describe(change.action()), change.name(), note});
  }
  const uint32_t total = plan.comes_back() + plan.goes() + plan.changes();
  std::string text = total == 0 ? "nothing differs\n" : table.Rows();
  if (total > static_cast<uint32_t>(shown))
    text += fmt::format("and {} more\n", total - static_cast<uint32_t>(shown));
  return text;
}

ExitCode ConfirmRestore(const v1::RestoreStoreResponse& plan, const StoreArguments& arguments) {
  if (arguments.yes) return kOk;
  return Ask(fmt::format(
                 "{}What was made or changed since the backup is served as it is, and left alone until it is "
                 "made again or deleted.\n",
                 Describe(plan, kChangesShown)),
             fmt::format("Restore the store from '{}'?", arguments.file));
}

// The revision that cleatd is at; 0 while it can't be asked.
uint64_t RevisionNow(Client& client) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
  const auto reader = client.stub().Watch(&context, {});
  v1::WatchResponse event;
  while (reader->Read(&event)) {
    if (!event.has_synced()) continue;
    context.TryCancel();
    (void)reader->Finish();
    return event.revision();
  }
  (void)reader->Finish();
  return 0;
}

std::set<std::string> Connected(const v1::ListEnginesResponse& engines) {
  std::set<std::string> connected;
  for (const v1::Engine& engine : engines.engines()) {
    if (engine.status().connected()) connected.insert(engine.name());
  }
  return connected;
}

// Until cleatd serves the restored store, and `engines` are there again.
ExitCode AwaitReturn(Client& client, uint64_t first_revision, const std::set<std::string>& engines,
                     v1::ListEnginesResponse& now) {
  const auto until = std::chrono::steady_clock::now() + kReturnTime;
  bool serves = false;
  for (;;) {
    if (!serves) serves = RevisionNow(client) >= first_revision;
    if (serves && client.TryCall(&v1::Cleat::Stub::ListEngines, v1::ListEnginesRequest(), now).ok()) {
      const std::set<std::string> there = Connected(now);
      if (std::includes(there.begin(), there.end(), engines.begin(), engines.end())) return kOk;
    }
    if (std::chrono::steady_clock::now() >= until) break;
    std::this_thread::sleep_for(kReturnTurn);
  }
  if (!serves)
    return Fail(kTimedOut, "the store was restored, but cleatd does not serve again: look at its log");
  return Fail(kTimedOut,
              "the store was restored; not all engines are connected again: see cleatctl engine list");
}

std::string DescribeResult(const v1::RestoreStoreResponse& response, const v1::ListEnginesResponse& engines) {
  std::string text =
      fmt::format("restored: {} come back, {} go, {} change\nthe store of before: {}\n",
                  response.comes_back(), response.goes(), response.changes(), response.kept_file());
  for (const v1::Engine& engine : engines.engines()) {
    const v1::EngineStatus& status = engine.status();
    if (status.left_alone_total() == 0) continue;
    text += fmt::format("left alone in {}: {}", engine.name(), fmt::join(status.left_alone(), ", "));
    const auto named = static_cast<uint32_t>(status.left_alone_size());
    if (status.left_alone_total() > named)
      text += fmt::format(" and {} more", status.left_alone_total() - named);
    text += "\n";
  }
  return text;
}

ExitCode Restore(Client& client, const StoreArguments& arguments) {
  const UniqueFd file(open(arguments.file.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info {};
  if (!file.valid() || fstat(file.get(), &info) != 0)
    return Fail(kUsage, ErrnoError(errno, fmt::format("'{}' can't be read", arguments.file)).message);
  if (const ExitCode code = client.Dial(); code != kOk) return code;
  v1::RestoreStoreOptions options;
  options.set_size_bytes(static_cast<uint64_t>(info.st_size));
  options.set_dry_run(true);
  v1::RestoreStoreResponse response;
  if (const ExitCode code = Send(client, file, arguments.file, options, response); code != kOk) return code;
  if (arguments.dry_run) {
    client.Show(response, [&] { return Describe(response, response.listed_size()); });
    return kOk;
  }
  if (const ExitCode code = ConfirmRestore(response, arguments); code != kOk) return code;
  v1::ListEnginesResponse engines;
  if (const ExitCode code = client.Call(&v1::Cleat::Stub::ListEngines, v1::ListEnginesRequest(), engines);
      code != kOk)
    return code;
  options.set_dry_run(false);
  options.set_etag(response.etag());
  response.Clear();
  if (const ExitCode code = Send(client, file, arguments.file, options, response); code != kOk) return code;
  const std::set<std::string> connected = Connected(engines);
  const ExitCode returned = AwaitReturn(client, response.first_revision(), connected, engines);
  client.Show(response, [&] { return DescribeResult(response, engines); });
  return returned;
}

}  // namespace

void AddStoreCommands(CLI::App& app, Globals& globals) {
  CLI::App* store = AddCommand(app, "store", "cleatd's store: backup, restore", "");
  store->require_subcommand(1);
  const auto arguments = std::make_shared<StoreArguments>();
  CLI::App* backup = AddCommand(*store, "backup",
                                "Write a copy of the store to a file while cleatd runs; takes the role admin",
                                "cleatctl store backup /srv/backup/cleat-$(date +%F).db\n"
                                "cleatctl store backup --force latest.db");
  backup->add_option("FILE", arguments->file, "The new file, of mode 0600")
      ->required()
      ->type_name(kFileArgument);
  backup->add_flag("--force", arguments->force, "Replace a file that is there");
  OnRun(*backup, globals, arguments, Backup);
  CLI::App* restore =
      AddCommand(*store, "restore",
                 "Go back to a backup of the store while cleatd runs and guests go on; takes the role admin",
                 "cleatctl store restore --dry-run /srv/backup/cleat-2026-03-01.db\n"
                 "cleatctl store restore /srv/backup/cleat-2026-03-01.db\n"
                 "cleatctl store restore --yes /var/lib/cleat/cleat.db.before-restore-20260301T120000Z");
  restore->add_option("FILE", arguments->file, "What store backup wrote")
      ->required()
      ->type_name(kFileArgument);
  restore->add_flag("--dry-run", arguments->dry_run, "Only check the file and say what would change");
  restore->add_flag("-y,--yes", arguments->yes, "Restore without asking; needed without a terminal");
  OnRun(*restore, globals, arguments, Restore);
}

}  // namespace cleat::ctl
