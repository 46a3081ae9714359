// SPDX-License-Identifier: Apache-2.0
#include "control/backup/store_restore.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sqlite3.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "control/backup/keys_needed.h"
#include "control/model/names.h"
#include "control/model/reasons.h"
#include "control/store/migrations.h"
#include "control/store/sqlite_row.h"
#include "control/validate/spec_rules.h"

namespace cleat::control {
namespace {

constexpr std::string_view kUploadPrefix = ".cleat.db.restore-";  // nobody else's

Error Unusable(std::string_view why) {
  return Refuse(v1::REASON_BACKUP_UNUSABLE, fmt::format("the backup can't be restored, and nothing was "
                                                        "changed: {}. Send another one",
                                                        why));
}

// A file that anybody may have sent, opened for reading alone.
class SentFile {
 public:
  ~SentFile() { sqlite3_close(db_); }
  SentFile() = default;
  SentFile(const SentFile&) = delete;
  SentFile& operator=(const SentFile&) = delete;

  Status Open(const std::string& path) {
    if (sqlite3_open_v2(path.c_str(), &db_, SQLITE_OPEN_READONLY, nullptr) != SQLITE_OK) return Failed();
    sqlite3_db_config(db_, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
    return Ok{};
  }
  // The first column of the first row.
  Result<std::string> Ask(const char* sql) {
    sqlite3_stmt* prepared = nullptr;
    if (sqlite3_prepare_v2(db_, sql, -1, &prepared, nullptr) != SQLITE_OK) return Failed();
    const std::unique_ptr<sqlite3_stmt, decltype(&sqlite3_finalize)> statement(prepared, &sqlite3_finalize);
    SqlRun run(prepared);
    if (run.Step() != SQLITE_ROW) return Failed();
    return run.Bytes(0);
  }
  Result<uint64_t> AskNumber(const char* sql) {
    CLEAT_ASSIGN(auto answer, Ask(sql));
    return std::strtoull(answer.c_str(), nullptr, 10);
  }

 private:
  Error Failed() const { return Unusable(fmt::format("it can't be read ({})", sqlite3_errmsg(db_))); }

  sqlite3* db_ = nullptr;
};

// ---- What changes

using Contents = std::map<std::string, std::string>;  // an object's name, and all that people decide about it

std::string Bytes(const google::protobuf::Message& spec, const Labels& labels, uint64_t revision) {
  return fmt::format("{}\n{}\n{}", revision, JoinLabels(labels), spec.SerializeAsString());
}

struct Host {
  Contents clusters;
  Contents subsystems;
  Contents pools;
  Contents groups;
  Contents disks;
  Contents kept;  // deleted disks
  Contents controllers;
  Contents attachments;
  std::set<std::string> keys;                       // wrapped, of all of them
  std::multimap<std::string, std::string> keys_of;  // names with a '+' before those of kept disks
};

void ExtractKey(Host& host, const std::string& name, const std::string& key) {
  if (key.empty()) return;
  host.keys.insert(key);
  host.keys_of.emplace(name, key);
}

// A key may have been wrapped anew meanwhile, so a disk's goes by the disk.
std::string WrappedKeyOf(const DiskRow& row) {
  return row.spec.has_encryption() ? fmt::format("{} {}", row.id, row.revision) : std::string();
}

std::string WrappedKeyOf(const ClusterRow& row) {
  return row.spec.has_wrapped_key() ? fmt::format("cluster {} {}", row.id, row.spec_revision) : std::string();
}

// What is on its way out is gone.
Host HostOf(const Rows& rows) {
  Host host;
  for (const ClusterRow& row : rows.clusters) {
    v1::ClusterSpec spec = row.spec;
    spec.clear_wrapped_key();
    host.clusters[ClusterName(row.id)] = Bytes(spec, row.labels, row.spec_revision);
    ExtractKey(host, ClusterName(row.id), WrappedKeyOf(row));
  }
  for (const SubsystemRow& row : rows.subsystems) {
    host.subsystems[SubsystemName(row.id)] = Bytes(row.spec, row.labels, row.revision);
    for (const v1::WrappedKey* const key : WrappedKeysIn(row.spec))
      ExtractKey(host, SubsystemName(row.id), fmt::format("subsystem {} {}", row.id, key->data()));
  }
  for (const PoolRow& row : rows.pools)
    host.pools[PoolName(row.id)] = Bytes(row.spec, row.labels, row.revision);
  for (const GroupRow& row : rows.groups)
    host.groups[GroupName(row.id)] = Bytes(row.spec, row.labels, row.revision);
  for (const DiskRow& row : rows.disks) {
    if (row.deleting) continue;
    v1::DiskSpec spec = row.spec;
    spec.clear_encryption();
    host.disks[DiskName(row.id)] = Bytes(spec, row.labels, row.revision);
    ExtractKey(host, DiskName(row.id), WrappedKeyOf(row));
  }
  for (const DeletedDiskRow& row : rows.deleted_disks) {
    const std::string name = fmt::format("+{} {}", DiskName(row.disk.id), row.disk.revision);
    host.kept[name] = "";
    ExtractKey(host, name, WrappedKeyOf(row.disk));
  }
  for (const ControllerRow& row : rows.controllers) {
    if (row.deleting) continue;
    host.controllers[ControllerName(row.id)] = Bytes(row.spec, row.labels, row.revision);
    for (const v1::WrappedKey* const key : WrappedKeysIn(row.spec))
      ExtractKey(host, ControllerName(row.id), fmt::format("controller {} {}", row.id, key->data()));
  }
  for (const AttachmentRow& row : rows.attachments) {
    if (!row.deleting)
      host.attachments[AttachmentName(row.controller, row.id)] = Bytes(row.spec, {}, row.revision);
  }
  return host;
}

class Planner {
 public:
  Planner(const Host& present, const Host& restored) : present_(present), restored_(restored) {}

  v1::RestoreStoreResponse Plan() {
    for (const auto kind : {&Host::clusters, &Host::subsystems, &Host::pools, &Host::groups, &Host::disks,
                            &Host::kept, &Host::controllers, &Host::attachments})
      Compare(present_.*kind, restored_.*kind);
    std::stable_partition(changes_.begin(), changes_.end(), [](const auto& c) { return c.loses_key(); });
    for (v1::RestoreChange& change : changes_) {
      if (plan_.listed_size() < kRestoreChangesMax) *plan_.add_listed() = std::move(change);
    }
    return std::move(plan_);
  }

 private:
  void Compare(const Contents& present, const Contents& restored) {
    for (const auto& [name, what] : present) {
      const auto other = restored.find(name);
      if (other == restored.end()) {
        Add(name, v1::RESTORE_ACTION_GOES);
        plan_.set_goes(plan_.goes() + 1);
      } else if (other->second != what) {
        Add(name, v1::RESTORE_ACTION_CHANGES);
        plan_.set_changes(plan_.changes() + 1);
      }
    }
    for (const auto& [name, what] : restored) {
      if (present.contains(name)) continue;
      Add(name, v1::RESTORE_ACTION_COMES_BACK);
      plan_.set_comes_back(plan_.comes_back() + 1);
    }
  }
  void Add(const std::string& name, v1::RestoreAction action) {
    v1::RestoreChange& change = changes_.emplace_back();
    change.set_kept(name.front() == '+');
    change.set_name(change.kept() ? name.substr(1, name.find(' ') - 1) : name);
    change.set_action(action);
    const auto [first, last] = present_.keys_of.equal_range(name);
    change.set_loses_key(
        std::any_of(first, last, [this](const auto& key) { return !restored_.keys.contains(key.second); }));
  }

  const Host& present_;
  const Host& restored_;
  std::vector<v1::RestoreChange> changes_;
  v1::RestoreStoreResponse plan_;
};

// How much there is, and the newest revision of its intent: as ApplyHostCall's, and of what is on its way out, and of deleted disks, too.
std::string EtagOfHost(const Rows& rows) {
  uint64_t newest = 0;
  const auto look = [&newest](const auto& all) {
    for (const auto& row : all) newest = std::max(newest, row.intent_revision);
  };
  look(rows.disks);
  look(rows.groups);
  look(rows.clusters);
  look(rows.subsystems);
  look(rows.pools);
  look(rows.controllers);
  look(rows.attachments);
  for (const DeletedDiskRow& row : rows.deleted_disks) newest = std::max(newest, row.disk.intent_revision);
  const size_t count = rows.disks.size() + rows.groups.size() + rows.clusters.size() +
                       rows.subsystems.size() + rows.pools.size() + rows.controllers.size() +
                       rows.attachments.size() + rows.deleted_disks.size();
  return fmt::format("{:x}-{:x}", newest, count);
}

}  // namespace

// ---- The upload

Result<std::unique_ptr<StoreUpload>> StoreUpload::Make(const std::string& store_folder, uint64_t size_bytes) {
  if (size_bytes == 0 || size_bytes > kBytesMax) {
    return Refuse(v1::REASON_INVALID_FIELD,
                  fmt::format("options.size_bytes: {} is not between 1 and {}", size_bytes, kBytesMax),
                  {{"field", "options.size_bytes"}, {"limit", std::to_string(kBytesMax)}});
  }
  std::string folder = fmt::format("{}/{}XXXXXX", store_folder, kUploadPrefix);
  if (mkdtemp(folder.data()) == nullptr)
    return UnwritableError(folder, "a folder for the backup can't be made there", errno);
  std::unique_ptr<StoreUpload> upload(new StoreUpload(folder, size_bytes));
  const std::string path = fmt::format("{}/{}", folder, Store::kFileName);
  upload->file_ = UniqueFd(open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600));
  if (!upload->file_.valid()) return UnwritableError(path, "the backup can't be put there", errno);
  return upload;
}

StoreUpload::~StoreUpload() {
  store_.reset();
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

Status StoreUpload::Write(std::string_view data) {
  if (written_bytes_ + data.size() > size_bytes_)
    return Unusable(fmt::format("more than the {} bytes have come that were announced", size_bytes_));
  while (!data.empty()) {
    const ssize_t written = write(file_.get(), data.data(), data.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      return UnwritableError(folder_, "the backup can't be written there", errno);
    }
    data.remove_prefix(static_cast<size_t>(written));
    written_bytes_ += static_cast<size_t>(written);
  }
  return Ok{};
}

Status StoreUpload::CheckFile() {
  SentFile file;
  CLEAT_TRY(file.Open(fmt::format("{}/{}", folder_, Store::kFileName)));
  const auto version = file.AskNumber("PRAGMA user_version");
  CLEAT_TRY(version);
  CLEAT_ASSIGN(const auto application, file.AskNumber("PRAGMA application_id"));
  if (*version == 0 || (application != 0 && application != Store::kApplicationId))
    return Unusable("it is another program's database, not a store of cleatd's");
  if (*version > kSchemaVersion) {
    return Unusable(fmt::format("it is of a newer cleatd (schema {}, this one knows {}): start that version",
                                *version, kSchemaVersion));
  }
  // cleatd makes none. They would change rows behind the checks of what the rows say.
  CLEAT_ASSIGN(
      const auto active,
      file.AskNumber(
          "SELECT count(*) FROM sqlite_master WHERE type NOT IN ('table', 'index') OR sql LIKE 'CREATE "
          "VIRTUAL%'"));
  if (active != 0)
    return Unusable("it has triggers, views or virtual tables, which no store of cleatd's has");
  CLEAT_ASSIGN(const auto verdict, file.Ask("PRAGMA integrity_check(1)"));
  if (verdict != "ok") return Unusable(fmt::format("it is damaged ({})", verdict));
  schema_ = static_cast<uint32_t>(*version);
  return Ok{};
}

Status StoreUpload::CheckKeys(const keys::Keyring* keyring) const {
  const std::vector<std::string> there = keyring == nullptr ? std::vector<std::string>() : keyring->ids();
  std::vector<std::string> missing;
  std::string object;
  for (const auto& [kek, one] : KeysNeeded(rows_)) {
    if (std::find(there.begin(), there.end(), kek) != there.end()) continue;
    missing.push_back(kek);
    if (object.empty()) object = one;
  }
  if (missing.empty()) return Ok{};
  return Refuse(
      v1::REASON_KEY_UNKNOWN,
      fmt::format("the backup has keys that only the key-encryption keys {} can open, that of {} for "
                  "one, and cleatd has not got them; nothing was changed. Give cleatd their file "
                  "beside the present one (--kek-file, then SIGHUP or a restart), and repeat",
                  fmt::join(missing, ", "), object),
      {{"resource", object}});
}

Status StoreUpload::Finish(const keys::Keyring* keyring, const std::function<Status(Store&)>& check_loads) {
  if (written_bytes_ != size_bytes_)
    return Unusable(fmt::format("{} of its {} bytes have come", written_bytes_, size_bytes_));
  file_.Reset();
  CLEAT_TRY(CheckFile());
  auto store = Store::Open(folder_);
  if (!store.ok()) return Unusable(store.error().message);
  store_ = std::move(*store);
  auto rows = store_->Load();
  if (!rows.ok()) return Unusable(rows.error().message);
  rows_ = std::move(*rows);
  // Before it is loaded, which may take some.
  CLEAT_ASSIGN(next_revision_, store_->NextRevision());
  if (auto status = check_loads(*store_); !status.ok()) return Unusable(status.error().message);
  return CheckKeys(keyring);
}

v1::StoreInfo StoreUpload::Info() const {
  v1::StoreInfo info;
  info.set_size_bytes(size_bytes_);
  info.set_schema(schema_);
  info.set_disks(static_cast<uint32_t>(rows_.disks.size()));
  info.set_deleted_disks(static_cast<uint32_t>(rows_.deleted_disks.size()));
  info.set_controllers(static_cast<uint32_t>(rows_.controllers.size()));
  for (const auto& [kek, object] : KeysNeeded(rows_)) info.add_key_encryption_keys(kek);
  return info;
}

// ---- What is planned

v1::RestoreStoreResponse PlanRestore(const Rows& present, const Rows& restored) {
  const Host now = HostOf(present);
  const Host then = HostOf(restored);
  v1::RestoreStoreResponse plan = Planner(now, then).Plan();
  plan.set_etag(EtagOfHost(present));
  return plan;
}

std::vector<LostRevisions> LostBy(std::vector<LostRevisions> lost, uint64_t first, uint64_t until) {
  lost.push_back({first, until});
  std::sort(lost.begin(), lost.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<LostRevisions> merged;
  for (const LostRevisions& range : lost) {
    if (!merged.empty() && range.first <= merged.back().until) {
      merged.back().until = std::max(merged.back().until, range.until);
    } else {
      merged.push_back(range);
    }
  }
  while (merged.size() > kLostRangesMax) {
    merged[1].first = merged[0].first;
    merged.erase(merged.begin());
  }
  return merged;
}

void RemoveUnfinishedUploads(const std::string& folder) {
  std::error_code failed;
  std::filesystem::directory_iterator file(folder, failed);
  for (; !failed && file != std::filesystem::directory_iterator(); file.increment(failed)) {
    std::error_code ignored;
    if (file->path().filename().string().starts_with(kUploadPrefix))
      std::filesystem::remove_all(file->path(), ignored);
  }
}

}  // namespace cleat::control
