// SPDX-License-Identifier: Apache-2.0
// What a cluster and an RBD disk may say.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "control/names.h"
#include "control/reasons.h"
#include "control/spec_rules.h"
#include "keys/secret.h"

namespace cleat::control {
namespace {

constexpr uint32_t kImagesPerClientDefault = 16;
constexpr int64_t kConnectTimeoutSecondsDefault = 30;
constexpr int64_t kNsInMs = 1'000'000;

Error InvalidRbd(std::string_view resource, std::string_view field, const std::string& why) {
  return RefuseFor(resource, v1::REASON_INVALID_FIELD, fmt::format("{}: {} {}", resource, field, why),
                   {{"field", fmt::format("spec.{}", field)}});
}

bool IsPrintable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](unsigned char c) { return c > ' ' && c != 0x7f; });
}

// Of a pool, namespace, image or snapshot, as rbd's own POOL/NAMESPACE/IMAGE@SNAPSHOT can be read.
Status CheckPart(std::string_view disk, std::string_view field, const std::string& name) {
  if (name.size() > kCephNameBytesMax || !IsPrintable(name) ||
      name.find_first_of("/@") != std::string::npos) {
    return InvalidRbd(disk, field,
                      fmt::format("is no name of Ceph's: at most {} bytes, without spaces, '/' and '@'",
                                  kCephNameBytesMax));
  }
  return Ok{};
}

Status CheckUser(std::string_view cluster, const std::string& user) {
  if (user.empty())
    return InvalidRbd(cluster, "user", "is missing: name the one whose key this is, without 'client.'");
  if (user.starts_with("client."))
    return InvalidRbd(cluster, "user", fmt::format("is '{:.80}': leave 'client.' out", user));
  const bool known = std::all_of(user.begin(), user.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '-' || c == '_';
  });
  if (known && user.size() <= kCephNameBytesMax) return Ok{};
  return InvalidRbd(cluster, "user", "is no name of a Ceph user: letters, digits, '.', '-' and '_'");
}

Status CheckConnectTimeout(std::string_view cluster, const google::protobuf::Duration& timeout) {
  const bool whole = timeout.nanos() >= 0 && timeout.nanos() % kNsInMs == 0;
  const bool near = timeout.seconds() >= 0 && timeout.seconds() <= kConnectTimeoutMsMax;
  const int64_t ms = near ? timeout.seconds() * 1000 + timeout.nanos() / kNsInMs : -1;
  if (whole && ms >= kConnectTimeoutMsMin && ms <= kConnectTimeoutMsMax) return Ok{};
  return InvalidRbd(cluster, "connect_timeout",
                    fmt::format("must be {} s to {} s, in whole milliseconds", kConnectTimeoutMsMin / 1000,
                                kConnectTimeoutMsMax / 1000));
}

}  // namespace

Result<v1::ClusterSpec> CompleteClusterSpec(std::string_view id, v1::ClusterSpec spec) {
  const std::string cluster = ClusterName(id);
  if (spec.images_per_client() == 0) spec.set_images_per_client(kImagesPerClientDefault);
  if (spec.connect_timeout().ByteSizeLong() == 0)
    spec.mutable_connect_timeout()->set_seconds(kConnectTimeoutSecondsDefault);

  if (spec.monitors().empty() && spec.conf_file().empty())
    return InvalidRbd(cluster, "monitors",
                      "and conf_file are missing: one of them says where the cluster is");
  const std::string& monitors = spec.monitors();
  const bool printable =
      std::all_of(monitors.begin(), monitors.end(), [](unsigned char c) { return c >= ' ' && c < 0x7f; });
  if (!printable || monitors.size() > kMonitorsBytesMax) {
    return InvalidRbd(cluster, "monitors",
                      fmt::format("must be printable ASCII, {} bytes at most", kMonitorsBytesMax));
  }
  if (!spec.conf_file().empty()) {
    CLEAT_ASSIGN(auto path, CompletePath(cluster, "conf_file", spec.conf_file(), kFilePathBytesMax));
    spec.set_conf_file(path);
  }
  CLEAT_TRY(CheckUser(cluster, spec.user()));
  if (spec.images_per_client() > kImagesPerClientMax) {
    return InvalidRbd(
        cluster, "images_per_client",
        fmt::format("is {}: it must be 1 to {}", spec.images_per_client(), kImagesPerClientMax));
  }
  CLEAT_TRY(CheckConnectTimeout(cluster, spec.connect_timeout()));
  return spec;
}

Status CheckClusterKey(std::string_view cluster, const v1::ClusterSpec& spec) {
  if (spec.has_wrapped_key() || !spec.conf_file().empty()) return Ok{};
  return RefuseFor(cluster, v1::REASON_KEY_INVALID,
                   fmt::format("{}: neither a key nor a conf_file, which may name a keyring: give plain_key "
                               "(over the unix socket) or wrapped_key",
                               cluster),
                   {{"field", "spec.key"}});
}

Status CheckRbd(std::string_view disk, const v1::RbdBackend& rbd) {
  if (auto cluster = ParseClusterName(rbd.cluster()); !cluster.ok())
    return InvalidRbd(disk, "rbd.cluster", "is wrong: " + cluster.error().message);
  if (rbd.pool().empty()) return InvalidRbd(disk, "rbd.pool", "is missing");
  if (rbd.image().empty()) return InvalidRbd(disk, "rbd.image", "is missing");
  CLEAT_TRY(CheckPart(disk, "rbd.pool", rbd.pool()));
  CLEAT_TRY(CheckPart(disk, "rbd.name_space", rbd.name_space()));
  CLEAT_TRY(CheckPart(disk, "rbd.image", rbd.image()));
  return CheckPart(disk, "rbd.snapshot", rbd.snapshot());
}

v1::ClusterSpec WithoutKey(v1::ClusterSpec spec) {
  WipePlainKey(&spec);
  spec.clear_key();
  return spec;
}

void WipePlainKey(v1::ClusterSpec* spec) {
  if (!spec->has_plain_key()) return;
  keys::Wipe(*spec->mutable_plain_key());
  spec->clear_plain_key();
}

}  // namespace cleat::control
