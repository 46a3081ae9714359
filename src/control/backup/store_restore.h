// SPDX-License-Identifier: Apache-2.0
// Restoring the store from a backup while cleatd runs, in parts: taking a backup in and checking all of it (StoreUpload), saying what would
// change (PlanRestore), and which revisions are lost by it (LostBy). Restorer (state/restorer.h) puts them together.
//
// An upload lives in a folder of its own beside the store, which goes with it; it belongs to the call that sends it. Errors say that nothing
// was changed, for nothing was. Any thread, one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "cleat/v1/cleat.pb.h"
#include "control/model/model.h"
#include "control/store/store.h"
#include "keys/keyring.h"

namespace cleat::control {

// Revisions that a restored store skips beyond all that anybody was seen to have.
inline constexpr uint64_t kRevisionsSkipped = uint64_t{1} << 20;
// ... where the store of the backup was lost: nobody knows how many it handed out after the backup, a million at each start of cleatd among
// them. More than a thousand such starts would have to be missing in the backup, and their revisions in all engines.
inline constexpr uint64_t kRevisionsSkippedOfLost = uint64_t{1} << 30;
// Identities of disks have so many (base/disk_identity.h); the other half is for what comes after the last restore.
inline constexpr uint64_t kRestoredRevisionMax = DiskIdentity::kRevisionMax / 2;
inline constexpr int kRestoreChangesMax = 256;  // that an answer lists

class StoreUpload {
 public:
  static constexpr uint64_t kBytesMax = uint64_t{1} << 30;

  // For a file of that size.
  static Result<std::unique_ptr<StoreUpload>> Make(const std::string& store_folder, uint64_t size_bytes);
  ~StoreUpload();
  StoreUpload(const StoreUpload&) = delete;
  StoreUpload& operator=(const StoreUpload&) = delete;

  Status Write(std::string_view data);
  // All has come. BACKUP_UNUSABLE unless it is a whole store that a cleatd would start from - an older one is migrated -, KEY_UNKNOWN when
  // that cleatd would lack a key-encryption key; null: it has none. `check_loads`: whether cleatd would start from that store
  // (HostState::CheckLoads).
  Status Finish(const keys::Keyring* keyring, const std::function<Status(Store&)>& check_loads);

  // After Finish.
  Store& store() { return *store_; }
  const Rows& rows() const { return rows_; }
  uint64_t next_revision() const { return next_revision_; }
  v1::StoreInfo Info() const;

 private:
  StoreUpload(std::string folder, uint64_t size_bytes)
      : folder_(std::move(folder)), size_bytes_(size_bytes) {}
  Status CheckFile();
  Status CheckKeys(const keys::Keyring* keyring) const;

  const std::string folder_;
  const uint64_t size_bytes_;
  uint64_t written_bytes_ = 0;
  uint32_t schema_ = 0;
  UniqueFd file_;
  std::unique_ptr<Store> store_;
  Rows rows_;
  uint64_t next_revision_ = 0;
};

// Everything of the answer but `backup` and `kept_file`.
v1::RestoreStoreResponse PlanRestore(const Rows& present, const Rows& restored);

// What is lost when a store of `lost` goes back to the revision `first`, and on from `until`: in order, kLostRangesMax at most.
std::vector<LostRevisions> LostBy(std::vector<LostRevisions> lost, uint64_t first, uint64_t until);

// Removes what a cleatd that ended in the middle of an upload has left in the folder.
void RemoveUnfinishedUploads(const std::string& folder);

}  // namespace cleat::control
