// SPDX-License-Identifier: Apache-2.0
// What a cluster may say.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "control/model/names.h"
#include "control/model/reasons.h"
#include "control/validate/spec_rules.h"

namespace cleat::control {
namespace {

constexpr uint32_t kImagesPerClientDefault = 16;
constexpr int64_t kConnectTimeoutSecondsDefault = 30;
constexpr int64_t kNsInMs = 1'000'000;

Error InvalidCluster(std::string_view resource, std::string_view field, const std::string& why) {
  return RefuseFor(resource, v1::REASON_INVALID_FIELD, fmt::format("{}: {} {}", resource, field, why),
                   {{"field", fmt::format("spec.{}", field)}});
}

Status CheckUser(std::string_view cluster, const std::string& user) {
  if (user.empty())
    return InvalidCluster(cluster, "user", "is missing: name the one whose key this is, without 'client.'");
  if (user.starts_with("client."))
    return InvalidCluster(cluster, "user", fmt::format("is '{:.80}': leave 'client.' out", user));
  const bool known = std::all_of(user.begin(), user.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '-' || c == '_';
  });
  if (known && user.size() <= kCephNameBytesMax) return Ok{};
  return InvalidCluster(cluster, "user", "is no name of a Ceph user: letters, digits, '.', '-' and '_'");
}

Status CheckConnectTimeout(std::string_view cluster, const google::protobuf::Duration& timeout) {
  const bool whole = timeout.nanos() >= 0 && timeout.nanos() % kNsInMs == 0;
  const bool near = timeout.seconds() >= 0 && timeout.seconds() <= kConnectTimeoutMsMax;
  const int64_t ms = near ? timeout.seconds() * 1000 + timeout.nanos() / kNsInMs : -1;
  if (whole && ms >= kConnectTimeoutMsMin && ms <= kConnectTimeoutMsMax) return Ok{};
  return InvalidCluster(cluster, "connect_timeout",
                        fmt::format("must be {} s to {} s, in whole milliseconds",
                                    kConnectTimeoutMsMin / 1000, kConnectTimeoutMsMax / 1000));
}

}  // namespace

Result<v1::ClusterSpec> CompleteClusterSpec(std::string_view id, v1::ClusterSpec spec) {
  const std::string cluster = ClusterName(id);
  if (spec.images_per_client() == 0) spec.set_images_per_client(kImagesPerClientDefault);
  if (spec.connect_timeout().ByteSizeLong() == 0)
    spec.mutable_connect_timeout()->set_seconds(kConnectTimeoutSecondsDefault);

  if (spec.monitors().empty() && spec.conf_file().empty())
    return InvalidCluster(cluster, "monitors",
                          "and conf_file are missing: one of them says where the cluster is");
  const std::string& monitors = spec.monitors();
  const bool printable =
      std::all_of(monitors.begin(), monitors.end(), [](unsigned char c) { return c >= ' ' && c < 0x7f; });
  if (!printable || monitors.size() > kMonitorsBytesMax) {
    return InvalidCluster(cluster, "monitors",
                          fmt::format("must be printable ASCII, {} bytes at most", kMonitorsBytesMax));
  }
  if (!spec.conf_file().empty()) {
    CLEAT_ASSIGN(auto path, CompletePath(cluster, "conf_file", spec.conf_file(), kFilePathBytesMax));
    spec.set_conf_file(path);
  }
  CLEAT_TRY(CheckUser(cluster, spec.user()));
  if (spec.images_per_client() > kImagesPerClientMax) {
    return InvalidCluster(
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

}  // namespace cleat::control
