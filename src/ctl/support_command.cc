// SPDX-License-Identifier: Apache-2.0
// cleatctl support-bundle: a file for a bug report.
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <ctime>

#include "ctl/commands.h"
#include "ctl/support/collect.h"

namespace cleat::ctl {
namespace {

std::string DefaultName() {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  tm utc{};
  const time_t now = time(nullptr);
  gmtime_r(&now, &utc);
  return fmt::format("cleat-support-{}-{:%Y%m%dT%H%M%SZ}.tar.gz", host.data(), utc);
}

ExitCode MakeBundle(const Globals& globals, const std::string& path) {
  const Bundle bundle = CollectBundle(globals, SupportSources());
  if (const Status status = WriteBundle(bundle, path); !status.ok()) {
    const bool there = status.error().code == ErrorCode::kAlreadyExists;
    return Fail(there ? kUsage : kFailed, status.error().message);
  }
  for (const Bundle::LeftOut& left_out : bundle.left_out()) {
    if (!left_out.why.starts_with("never"))
      Fail(kOk, fmt::format("left out: {}: {}", left_out.name, left_out.why));
  }
  Print(path + "\n");
  Fail(kOk, "secrets were taken out as far as they look like secrets: look through it before you send it");
  return kOk;
}

}  // namespace

void AddSupportCommand(CLI::App& app, Globals& globals) {
  const auto path = std::make_shared<std::string>();
  CLI::App* command = AddCommand(
      app, "support-bundle",
      "Make a file for a bug report: versions, configuration, status, counters, logs; no keys",
      "cleatctl support-bundle\n"
      "cleatctl support-bundle --output /tmp/bug.tar.gz\n"
      "As root it has most; without cleatd it says what is missing. An existing file is left alone.");
  command
      ->add_option(
          "--output", *path,
          "The file, a compressed tar archive; cleat-support-HOST-TIME.tar.gz in this folder if not given")
      ->type_name(kFileArgument);
  command->callback([&globals, path] {
    globals.action = [&globals, path] { return MakeBundle(globals, path->empty() ? DefaultName() : *path); };
  });
}

}  // namespace cleat::ctl
