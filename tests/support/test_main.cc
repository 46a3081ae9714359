// SPDX-License-Identifier: Apache-2.0
#include "tests/support/test_main.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <set>
#include <string>
#include <string_view>

namespace cleat::test {
namespace {

constexpr std::string_view kOf = "--of";

template <typename... Words>
[[noreturn]] void Refuse(const Words&... why) {
  std::cerr << "test program: ";
  (std::cerr << ... << why) << '\n';
  std::exit(2);
}

std::set<std::string> SplitAtCommas(std::string_view text) {
  std::set<std::string> parts;
  while (!text.empty()) {
    const size_t comma = text.find(',');
    parts.emplace(text.substr(0, comma));
    text.remove_prefix(comma == std::string_view::npos ? text.size() : comma + 1);
  }
  return parts;
}

std::string FileName(std::string_view path) {
  return std::string(path.substr(path.rfind('/') + 1));
}

// The one file that defines the tests of a suite.
std::string FileOf(const testing::TestSuite& suite) {
  std::string file = FileName(suite.GetTestInfo(0)->file());
  for (int i = 1; i < suite.total_test_count(); ++i) {
    const std::string other = FileName(suite.GetTestInfo(i)->file());
    if (other != file) Refuse("suite ", suite.name(), " is in ", file, " and in ", other);
  }
  return file;
}

// A gtest filter with each suite of these files.
std::string FilterOf(const std::set<std::string>& files) {
  std::string filter;
  std::set<std::string> without_tests = files;
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *all.GetTestSuite(i);
    const std::string file = FileOf(suite);
    if (files.count(file) == 0) continue;
    without_tests.erase(file);
    filter += std::string(suite.name()) + ".*:";
  }
  if (!without_tests.empty()) Refuse("no test is defined in " + *without_tests.begin());
  return filter;
}

}  // namespace

void InitTestProgram(int* argc, char** argv) {
  // A death test's child is told its one test by a filter, with the arguments of its parent.
  const bool is_death_test = std::any_of(argv, argv + *argc, [](std::string_view argument) {
    return argument.starts_with("--gtest_internal_run_death_test");
  });
  testing::InitGoogleTest(argc, argv);
  int kept = 1;
  std::string_view of;
  for (int i = 1; i < *argc; ++i) {
    if (argv[i] != kOf) {
      argv[kept++] = argv[i];
      continue;
    }
    if (++i == *argc) Refuse("--of takes the names of source files, separated by commas");
    of = argv[i];
  }
  *argc = kept;
  argv[kept] = nullptr;
  if (of.empty()) return;
  const std::string filter = FilterOf(SplitAtCommas(of));
  if (is_death_test) return;
  if (testing::GTEST_FLAG(filter) != "*") Refuse("--of or --gtest_filter, not both");
  testing::GTEST_FLAG(filter) = filter;
}

}  // namespace cleat::test
