// SPDX-License-Identifier: Apache-2.0
// Backups as bytes, and back from them.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "control/backup/store_restore.h"
#include "control/state/host_state.h"

namespace cleat::control {

inline std::string BytesOfBackup(HostState& state) {
  const auto backup = state.BackUpStore();
  EXPECT_TRUE(backup.ok());
  if (!backup.ok()) return {};
  std::string bytes(backup->info.size_bytes(), '\0');
  EXPECT_EQ(pread(backup->file.get(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  return bytes;
}

// As RestoreStore does with what it gets.
inline Result<v1::RestoreStoreResponse> Restore(HostState& state, const std::string& bytes,
                                                bool dry_run = false, const std::string& etag = {}) {
  auto upload = StoreUpload::Make(state.store_folder(), bytes.size());
  if (!upload.ok()) return std::move(upload).error();
  if (auto status = (*upload)->Write(bytes); !status.ok()) return std::move(status).error();
  if (auto status = (*upload)->Finish(state.keyring(), HostState::CheckLoads); !status.ok())
    return std::move(status).error();
  v1::RestoreStoreOptions options;
  options.set_dry_run(dry_run);
  options.set_etag(etag);
  return state.restorer().Restore(**upload, options);
}

}  // namespace cleat::control
