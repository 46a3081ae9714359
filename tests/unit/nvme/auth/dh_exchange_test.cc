// SPDX-License-Identifier: Apache-2.0
#include "nvme/auth/dh_exchange.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tests/unit/nvme/auth/controller.h"

namespace cleat::nvme::auth {
namespace {

// The larger groups take more than the time of all other tests here, and are the same code.
constexpr uint8_t kGroupsTried[] = {1, 2, 3};

TEST(DhExchange, GivesBothSidesTheSameInTheGroupsOfRfc7919) {
  for (const uint8_t group : kGroupsTried) {
    const Bytes exponent(32, 0x6b);
    const auto ours = ExchangeDh(*DhGroupOf(group), PowerOf(group, {2}, exponent));
    ASSERT_TRUE(ours.ok()) << ours.error().message;
    EXPECT_EQ(ours->value.size(), BytesOf(*DhGroupOf(group)));
    const Bytes theirs = PowerOf(group, ours->value, exponent);
    EXPECT_TRUE(std::ranges::equal(ours->shared.bytes(), theirs)) << NameOf(*DhGroupOf(group));
  }
}

TEST(DhExchange, TakesAValueWithoutItsLeadingZeros) {
  // 2 to the second power: one byte.
  const auto ours = ExchangeDh(DhGroup::kFfdhe2048, Bytes{4});
  ASSERT_TRUE(ours.ok()) << ours.error().message;
  EXPECT_TRUE(std::ranges::equal(ours->shared.bytes(), PowerOf(1, ours->value, {2})));
}

TEST(DhExchange, HasAKeyOfItsOwnEachTime) {
  EXPECT_NE(ExchangeDh(DhGroup::kFfdhe2048, Bytes{4})->value,
            ExchangeDh(DhGroup::kFfdhe2048, Bytes{4})->value);
}

Bytes Plus(Bytes number, int add) {  // of the last byte, which has room for it
  number.back() = static_cast<uint8_t>(number.back() + add);
  return number;
}

TEST(DhExchange, RefusesAValueFromWhichThePeerWouldKnowTheResult) {
  const Bytes prime = PrimeOf(1);
  const Bytes bad[] = {{}, {0}, {1}, Bytes(256, 0), Plus(prime, -1), prime, Bytes(256, 0xff), Bytes(257, 2)};
  for (const Bytes& value : bad) {
    const auto exchange = ExchangeDh(DhGroup::kFfdhe2048, value);
    ASSERT_FALSE(exchange.ok()) << value.size();
    EXPECT_EQ(exchange.error().code, ErrorCode::kInvalidArgument) << exchange.error().message;
  }
}

TEST(DhExchange, RefusesAValueOutsideOfThePrimeOrderSubgroup) {
  // g = 2 makes the subgroup of squares; -2 is no square modulo a prime that is 7 modulo 8.
  EXPECT_EQ(PrimeOf(1).back() & 7, 7);
  EXPECT_FALSE(ExchangeDh(DhGroup::kFfdhe2048, Plus(PrimeOf(1), -2)).ok());
}

}  // namespace
}  // namespace cleat::nvme::auth
