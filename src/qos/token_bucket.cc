// SPDX-License-Identifier: Apache-2.0
#include "qos/token_bucket.h"

#include <bit>
#include <cstring>

namespace cleat::qos {
namespace {

// An account as one value. Every machine with 64-bit atomics in C++ that this runs on (x86-64 since 2004, Armv8) also
// exchanges two words at a time; CMakeLists.txt tells the compiler.
struct Both {
  uint64_t paid_until;
  uint64_t price;
};

bool ExchangeBoth(Account& account, const Both& expected, const Both& wanted) {
  return __sync_bool_compare_and_swap(reinterpret_cast<Wide*>(&account), std::bit_cast<Wide>(expected),
                                      std::bit_cast<Wide>(wanted));
}

}  // namespace

uint64_t Rescale(uint64_t units, uint64_t from_price, uint64_t to_price) {
  const Wide scaled = static_cast<Wide>(units) * to_price / from_price;
  return scaled < kSpanUnitsMax ? static_cast<uint64_t>(scaled) : kSpanUnitsMax;
}

void Account::SetPrice(uint64_t new_price, uint64_t now, uint64_t fresh) {
  for (;;) {
    const Both before{paid_until.load(std::memory_order_relaxed), price.load(std::memory_order_relaxed)};
    if (before.price == new_price) return;
    Both after{fresh, new_price};
    if (before.price != 0 && new_price != 0) {
      const bool owes = Before(now, before.paid_until);
      const uint64_t span = owes ? before.paid_until - now : now - before.paid_until;
      const uint64_t scaled = Rescale(span, before.price, new_price);
      after.paid_until = owes ? now + scaled : now - scaled;
    }
    if (ExchangeBoth(*this, before, after)) return;
  }
}

}  // namespace cleat::qos
