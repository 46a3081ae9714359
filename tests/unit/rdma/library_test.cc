// SPDX-License-Identifier: Apache-2.0
#include "rdma/ibverbs/library.h"

#include <gtest/gtest.h>

#include <string>

namespace cleat::rdma::library_test {
namespace {

constexpr const char* kAbsent = "libcleat-absent.so.1";
constexpr const char* kIbverbs = "libibverbs.so.1";

void ExpectWords(const Error& error, std::initializer_list<const char*> words) {
  EXPECT_EQ(error.code, ErrorCode::kUnavailable);
  for (const char* word : words)
    EXPECT_NE(error.message.find(word), std::string::npos) << word << ": " << error.message;
}

TEST(Library, OneThatIsMissingIsNamedWithItsPackage) {
  const auto loaded = LoadLibraryFrom(kAbsent, kAbsent);
  ASSERT_FALSE(loaded.ok());
  ExpectWords(loaded.error(), {kAbsent, "libibverbs1", "ibverbs-providers", "rdma link"});
}

TEST(Library, TheSecondIsNamedAsWell) {
  if (!LoadLibraryFrom(kIbverbs, "librdmacm.so.1").ok())
    GTEST_SKIP() << "this machine has no libibverbs1 and librdmacm1";
  const auto loaded = LoadLibraryFrom(kIbverbs, kAbsent);
  ASSERT_FALSE(loaded.ok());
  ExpectWords(loaded.error(), {kAbsent, "librdmacm1", "ibverbs-providers", "rdma link"});
}

TEST(Library, OneWithoutTheFunctionsIsRefused) {
  const auto loaded = LoadLibraryFrom("libc.so.6", "libc.so.6");
  ASSERT_FALSE(loaded.ok());
  ExpectWords(loaded.error(), {"libc.so.6", "ibv_query_device@IBVERBS_1.1"});
}

TEST(Library, TheInstalledOnesHaveAllFunctions) {
  const auto first = GetLibrary();
  if (!first.ok()) GTEST_SKIP() << first.error().message;
  EXPECT_NE((*first)->reg_mr, nullptr);
  EXPECT_NE((*first)->disconnect, nullptr);
  EXPECT_EQ(*GetLibrary(), *first);
}

}  // namespace
}  // namespace cleat::rdma::library_test
