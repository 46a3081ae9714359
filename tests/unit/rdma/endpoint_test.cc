// SPDX-License-Identifier: Apache-2.0
#include "rdma/endpoint.h"

#include <gtest/gtest.h>

namespace cleat::rdma::endpoint_test {
namespace {

TEST(Endpoint, GoesToTheKernelAndBack) {
  for (const Endpoint& endpoint :
       {Endpoint{"192.0.2.1", 4420}, Endpoint{"2001:db8::1", 65535}, Endpoint{"0.0.0.0", 0}}) {
    const auto storage = ToKernel(endpoint);
    ASSERT_TRUE(storage.ok()) << endpoint.Text();
    const Endpoint back = FromKernel(*storage);
    EXPECT_EQ(back.address, endpoint.address);
    EXPECT_EQ(back.port, endpoint.port);
  }
}

TEST(Endpoint, IsWrittenAsUrlsHaveIt) {
  EXPECT_EQ((Endpoint{"192.0.2.1", 4420}.Text()), "192.0.2.1:4420");
  EXPECT_EQ((Endpoint{"2001:db8::1", 4420}.Text()), "[2001:db8::1]:4420");
  EXPECT_EQ(FromKernel({}).Text(), "no address");
}

TEST(Endpoint, NamesAreNoAddresses) {
  for (const char* address : {"", "localhost", "eth0", "192.0.2.1:4420", "[2001:db8::1]"}) {
    const auto storage = ToKernel({address, 4420});
    ASSERT_FALSE(storage.ok()) << address;
    EXPECT_EQ(storage.error().code, ErrorCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace cleat::rdma::endpoint_test
