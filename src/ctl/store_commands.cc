// SPDX-License-Identifier: Apache-2.0
// Backups of cleatd's store.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "ctl/commands.h"
#include "ctl/size.h"

namespace cleat::ctl {
namespace {

constexpr std::chrono::minutes kBackupTime{10};

struct StoreArguments {
  std::string file;
  bool force = false;
};

// A file that gets its name only when all of it is on the disk.
class NewFile {
 public:
  explicit NewFile(std::string path) : path_(std::move(path)), unfinished_(path_ + ".unfinished-XXXXXX") {}
  ~NewFile() {
    if (fd_.valid()) unlink(unfinished_.c_str());
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  // Makes the file, of mode 0600.
  Status Open() {
    fd_ = UniqueFd(mkostemp(unfinished_.data(), O_CLOEXEC));
    return fd_.valid() ? Status(Ok{}) : Status(Failed());
  }
  Status Write(std::string_view data) {
    while (!data.empty()) {
      const ssize_t written = write(fd_.get(), data.data(), data.size());
      if (written < 0 && errno != EINTR) return Failed();
      if (written > 0) data.remove_prefix(static_cast<size_t>(written));
    }
    return Ok{};
  }
  Status Finish(bool replace) {
    if (fsync(fd_.get()) != 0) return Failed();
    if (!Rename(replace)) return Failed();
    fd_.Reset();
    const std::string folder = std::filesystem::path(path_).parent_path();
    const UniqueFd parent(open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    return parent.valid() && fsync(parent.get()) == 0 ? Status(Ok{}) : Status(Failed());
  }

 private:
  bool Rename(bool replace) const {
    const unsigned flags = replace ? 0 : RENAME_NOREPLACE;
    if (renameat2(AT_FDCWD, unfinished_.c_str(), AT_FDCWD, path_.c_str(), flags) == 0) return true;
    // Some file systems don't know RENAME_NOREPLACE; NFS is one.
    if (replace || errno != EINVAL || link(unfinished_.c_str(), path_.c_str()) != 0) return false;
    unlink(unfinished_.c_str());
    return true;
  }
  Error Failed() const {
    const int why = errno;
    if (why == EEXIST) {
      return Error(ErrorCode::kAlreadyExists,
                   fmt::format("'{}' is there: name another file, or give --force", path_));
    }
    return ErrnoError(why, fmt::format("'{}' can't be written", path_));
  }

  const std::string path_;
  std::string unfinished_;
  UniqueFd fd_;
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
  NewFile file(arguments.file);
  if (auto status = file.Open(); !status.ok()) return Fail(kUsage, status.error().message);
  v1::StoreInfo info;
  if (const ExitCode code = Receive(client, file, info); code != kOk) return code;
  if (auto status = file.Finish(arguments.force); !status.ok()) return Fail(kFailed, status.error().message);
  client.Show(info, [&] { return Describe(info, arguments.file); });
  return kOk;
}

}  // namespace

void AddStoreCommands(CLI::App& app, Globals& globals) {
  CLI::App* store = AddCommand(app, "store", "cleatd's store: backup", "");
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
}

}  // namespace cleat::ctl
