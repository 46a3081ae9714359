// SPDX-License-Identifier: Apache-2.0
// Options of `disk create` that say what stores the blocks, and how that is shown.
#include "ctl/backends.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/build_options.h"

namespace cleat::ctl::backends_test {
namespace {

struct Parsed {
  bool ok;
  v1::DiskSpec spec;
};

Parsed Parse(std::vector<std::string> arguments) {
  CLI::App app;
  Parsed parsed{};
  AddBackends(app, parsed.spec);
  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes the last one first
  try {
    app.parse(arguments);
    parsed.ok = true;
  } catch (const CLI::ParseError&) {
  }
  return parsed;
}

TEST(Backends, AreWrittenAndShown) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"--null"}, "null"},
      {{"--skip-reads", "--null"}, "null (reads skipped)"},
      {{"--memory"}, "memory"},
      {{"--file", "/a.img"}, "file:/a.img"},
      {{"--create", "--file", "/a.img"}, "file:/a.img"},
      {{"--rbd", "c/vms/a"}, "rbd:c/vms/a"},
      {{"--rbd", "clusters/c/vms/n/a@then"}, "rbd:c/vms/n/a@then"},
      {{"--pool", "nvme0"}, "pool:nvme0"},
      {{"--pool", "pools/nvme0"}, "pool:nvme0"},
      {{"--nvme-tcp", "array", "--namespace", "4c0f"}, "nvme-tcp:array/4c0f"},
      {{"--namespace", "4c0f", "--nvme-tcp", "subsystems/array"}, "nvme-tcp:array/4c0f"},
  };
  for (const auto& [arguments, shown] : cases) {
    const Parsed parsed = Parse(arguments);
    EXPECT_TRUE(parsed.ok) << shown;
    EXPECT_EQ(ShowBackend(parsed.spec), shown);
  }
  EXPECT_TRUE(Parse({"--create", "--file", "/a.img"}).spec.file().create());
  EXPECT_FALSE(Parse({"--file", "/a.img"}).spec.file().create());
  EXPECT_EQ(Parse({"--rbd", "c/vms/n/a@then"}).spec.rbd().cluster(), "clusters/c");
  EXPECT_EQ(Parse({"--pool", "nvme0"}).spec.pool().pool(), "pools/nvme0");
  EXPECT_EQ(Parse({"--nvme-tcp", "array", "--namespace", "4c0f"}).spec.nvme_tcp().subsystem(),
            "subsystems/array");
  EXPECT_EQ(ShowBackend(v1::DiskSpec()), "?");
}

TEST(Backends, OneIsNeededWithWhatGoesWithIt) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{},
                                             {"--null", "--memory"},
                                             {"--memory", "--skip-reads"},
                                             {"--memory", "--create"},
                                             {"--pool", "nvme0", "--create"},
                                             {"--pool", "nvme0", "--file", "/a.img"},
                                             {"--nvme-tcp", "array"},
                                             {"--namespace", "4c0f"},
                                             {"--memory", "--namespace", "4c0f"},
                                             {"--rbd", "c/a"},
                                             {"--rbd", "c/vms/a@"}}) {
    EXPECT_FALSE(Parse(arguments).ok) << CLI::detail::join(arguments, " ");
  }
}

TEST(Backends, EachKindHasAnOptionOfItsNameAndIsShown) {
  CLI::App app;
  v1::DiskSpec spec;
  AddBackends(app, spec);
  const auto* backend = v1::DiskSpec::descriptor()->FindOneofByName("backend");
  for (int i = 0; i < backend->field_count(); ++i) {
    const auto* kind = backend->field(i);
    const bool offered = kExampleDisks || kind->number() != v1::DiskSpec::kExampleFieldNumber;
    std::string name = kind->name();
    std::replace(name.begin(), name.end(), '_', '-');
    EXPECT_EQ(app.get_option_no_throw("--" + name) != nullptr, offered) << name;
    v1::DiskSpec disk;
    disk.GetReflection()->MutableMessage(&disk, kind);
    EXPECT_TRUE(ShowBackend(disk).starts_with(name)) << ShowBackend(disk);
  }
}

TEST(Backends, TheExampleHasItsFillWhereItIsOffered) {
  const Parsed parsed = Parse({"--example", "--fill", "7"});
  ASSERT_EQ(parsed.ok, kExampleDisks);
  if (!kExampleDisks) return;
  EXPECT_EQ(ShowBackend(parsed.spec), "example (filled with 7)");
}

}  // namespace
}  // namespace cleat::ctl::backends_test
