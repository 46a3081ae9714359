// SPDX-License-Identifier: Apache-2.0
// Lines carry the request that their thread works for. Costs no time.
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "base/log.h"
#include "base/log_request.h"

namespace cleat::log::log_request_test {
namespace {

// What is logged at the end is what a reader of standard error sees.
std::string Logged(const std::function<void()>& act) {
  ::testing::internal::CaptureStderr();
  EXPECT_TRUE(Init("test", "info").ok());
  act();
  spdlog::default_logger()->flush();
  std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_TRUE(Init("test", "error").ok());
  return text;
}

TEST(LogRequestTest, ALineEndsWithTheRequestOfItsThread) {
  const std::string text = Logged([] {
    spdlog::info("disks/a: before");
    {
      const RequestScope outer("r-1");
      spdlog::info("disks/a: outer");
      {
        const RequestScope inner("r-2");
        spdlog::info("disks/a: inner");
        const RequestScope none("");
        spdlog::info("disks/a: none");
      }
      std::thread([] { spdlog::info("disks/a: another thread"); }).join();
      spdlog::info("disks/a: again");
    }
    spdlog::info("disks/a: after");
  });
  const auto has = [&](const std::string& line) {
    return text.find(": " + line + "\n") != std::string::npos;
  };
  for (const char* line : {"before", "none", "another thread", "after", "outer request=r-1",
                           "again request=r-1", "inner request=r-2"})
    EXPECT_TRUE(has(std::string("disks/a: ") + line)) << line << "\n" << text;
}

TEST(LogRequestTest, AnIdIsOneWordOfBoundedLength) {
  EXPECT_TRUE(IsRequestId("attach-17"));
  EXPECT_TRUE(IsRequestId(std::string(kRequestBytesMax, 'x')));
  for (const std::string& bad :
       {std::string(), std::string("a b"), std::string("a\nb"), std::string("a\0b", 3),
        std::string("\xc3\xa4"), std::string("\x7f"), std::string(kRequestBytesMax + 1, 'x')}) {
    EXPECT_FALSE(IsRequestId(bad)) << bad;
    EXPECT_TRUE(bad.empty() || IsRequestId(AsRequestId(bad))) << bad;
  }
  EXPECT_EQ(AsRequestId("a b\n\"c\""), "a_b_\"c\"");
}

}  // namespace
}  // namespace cleat::log::log_request_test
