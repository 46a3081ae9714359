// SPDX-License-Identifier: Apache-2.0
#include "reactor/mailbox.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

namespace cleat::mailbox_test {
namespace {

struct Letter : Mail {
  Letter() : Mail(nullptr) {}
  int sender = 0;
  int number = 0;
};

TEST(Mailbox, KeepsEachSendersOrder) {
  constexpr int kSenders = 4;
  constexpr int kLetters = 50'000;
  Mailbox mailbox;
  std::vector<std::unique_ptr<Letter[]>> letters;
  std::vector<std::thread> senders;
  for (int s = 0; s < kSenders; ++s) letters.push_back(std::make_unique<Letter[]>(kLetters));
  for (int s = 0; s < kSenders; ++s) {
    senders.emplace_back([&mailbox, mine = letters[static_cast<size_t>(s)].get(), s] {
      for (int i = 0; i < kLetters; ++i) {
        mine[i].sender = s;
        mine[i].number = i;
        mailbox.Send(mine[i]);
      }
    });
  }
  std::vector<int> next(kSenders, 0);
  for (int received = 0; received < kSenders * kLetters;) {
    Mail* mail = mailbox.Receive();
    if (mail == nullptr) {
      std::this_thread::yield();
      continue;
    }
    const auto& letter = static_cast<Letter&>(*mail);
    ASSERT_EQ(letter.number, next[static_cast<size_t>(letter.sender)]++);
    ++received;
  }
  for (std::thread& sender : senders) sender.join();
  EXPECT_EQ(mailbox.Receive(), nullptr);
  EXPECT_FALSE(mailbox.MaybePending());
}

TEST(Mailbox, AMailMayBeSentAgainOnceReceived) {
  Mailbox mailbox;
  Letter a;
  Letter b;
  for (int i = 0; i < 10; ++i) {
    mailbox.Send(a);
    mailbox.Send(b);
    EXPECT_TRUE(mailbox.MaybePending());
    EXPECT_EQ(mailbox.Receive(), &a);
    mailbox.Send(a);
    EXPECT_EQ(mailbox.Receive(), &b);
    EXPECT_TRUE(mailbox.MaybePending());
    EXPECT_EQ(mailbox.Receive(), &a);
    EXPECT_EQ(mailbox.Receive(), nullptr);
    EXPECT_FALSE(mailbox.MaybePending());
  }
}

}  // namespace
}  // namespace cleat::mailbox_test
