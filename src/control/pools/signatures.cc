// SPDX-License-Identifier: Apache-2.0
#include "control/pools/signatures.h"

#include <blkid/blkid.h>

#include <cerrno>
#include <memory>
#include <string_view>

namespace cleat::control {
namespace {

constexpr size_t kValueCharactersMax = 64;  // of what the drive says, in a message

struct ProbeFree {
  void operator()(blkid_probe probe) const { blkid_free_probe(probe); }
};
using Probe = std::unique_ptr<std::remove_pointer_t<blkid_probe>, ProbeFree>;

// Empty when libblkid found no such thing. A label is whatever somebody wrote there.
std::string ProbedValue(const Probe& probe, const char* name) {
  const char* value = nullptr;
  if (blkid_probe_lookup_value(probe.get(), name, &value, nullptr) != 0 || value == nullptr) return {};
  std::string text = std::string(value).substr(0, kValueCharactersMax);
  for (char& c : text) {
    if (c < ' ' || c > '~') c = '?';
  }
  return text;
}

std::string_view KindOfUsage(const std::string& usage) {
  if (usage == "filesystem") return "a file system";
  if (usage == "raid") return "a part of a RAID or of LVM";
  if (usage == "crypto") return "an encrypted volume";
  return "somebody's data";
}

std::string DescribeProbed(const Probe& probe) {
  const std::string type = ProbedValue(probe, "TYPE");
  if (type.empty()) {
    const std::string table = ProbedValue(probe, "PTTYPE");
    return table.empty() ? "somebody's data" : "a partition table (" + table + ")";
  }
  const std::string label = ProbedValue(probe, "LABEL");
  return std::string(KindOfUsage(ProbedValue(probe, "USAGE"))) + " (" + type +
         (label.empty() ? "" : ", label " + label) + ")";
}

// What is damaged in part is still somebody's.
bool AskForAll(const Probe& probe) {
  blkid_probe p = probe.get();
  return blkid_probe_enable_superblocks(p, 1) == 0 &&
         blkid_probe_set_superblocks_flags(
             p, BLKID_SUBLKS_LABEL | BLKID_SUBLKS_TYPE | BLKID_SUBLKS_USAGE | BLKID_SUBLKS_BADCSUM) == 0 &&
         blkid_probe_enable_partitions(p, 1) == 0 &&
         blkid_probe_set_partitions_flags(p, BLKID_PARTS_FORCE_GPT) == 0;
}

}  // namespace

Result<std::optional<std::string>> FindSignature(const UniqueFd& opened, const std::string& what) {
  const auto failed = [&what](int error_number) {
    const Error error = ErrnoError(error_number == 0 ? EIO : error_number,
                                   what + " can't be searched for file systems and partitions");
    return Error(ErrorCode::kIo, error.message);
  };
  errno = 0;
  const Probe probe(blkid_new_probe());
  if (!probe) return failed(ENOMEM);
  if (blkid_probe_set_device(probe.get(), opened.get(), 0, 0) != 0 || !AskForAll(probe)) return failed(errno);
  switch (blkid_do_safeprobe(probe.get())) {
    case 0:
      return std::optional(DescribeProbed(probe));
    case 1:
      return std::optional<std::string>();
    case -2:
      return std::optional<std::string>("signatures of several kinds");
    default:
      return failed(errno);
  }
}

}  // namespace cleat::control
