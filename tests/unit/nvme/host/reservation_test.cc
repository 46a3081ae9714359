// SPDX-License-Identifier: Apache-2.0
#include "nvme/host/reservation/reservation.h"

#include <gtest/gtest.h>

#include <utility>

#include "base/random.h"
#include "tests/unit/nvme/host/reservation_target.h"

namespace cleat::nvme::host::reservation_test {
namespace {

constexpr uint64_t kSecondNs = 1'000'000'000;
constexpr LifeId kDead = 0xdead;
constexpr LifeId kNew = 0x1111;

bool Says(const std::string& text, std::string_view part) {
  return text.starts_with("disk: ") && text.find(part) != std::string::npos;
}

bool IsOpcode(const fabrics::SubmissionEntry& entry, Opcode opcode) {
  return entry.opcode == static_cast<uint8_t>(opcode);
}

// ---- Joining

TEST(ReservationIdentity, AHostIdentifierSaysItsFamilyAndLife) {
  const fabrics::Uuid host = HostIdOf(kFamily, 0x0123456789abcdef);
  EXPECT_EQ(fabrics::TextOfUuid(host), "fa311700-0000-0001-0123-456789abcdef");
  EXPECT_EQ(LifeOf(host, kFamily), 0x0123456789abcdefU);
  EXPECT_EQ(LifeOf(host, kOtherFamily), std::nullopt);
}

TEST(ReservationJoin, ALifeIsARegistrantAndTheReservationIsHeld) {
  ReservationTarget target;
  Party party(target, kNew);
  EXPECT_TRUE(party.Join());
  EXPECT_TRUE(party.reservation.joined());
  EXPECT_EQ(target.type, ReservationType::kWriteExclusiveAll);
  EXPECT_TRUE(target.Has(party.host));
  EXPECT_FALSE(target.LetsIn(HostIdOf(kOtherFamily, 1)));
}

TEST(ReservationJoin, ASecondLifeJoinsWhatTheFirstHolds) {
  ReservationTarget target;
  Party first(target, 1);
  Party second(target, 2);
  EXPECT_TRUE(first.Join());
  EXPECT_TRUE(second.Join());
  EXPECT_EQ(target.registrants.size(), 2U);
  EXPECT_EQ(target.acquires, 1U) << "some targets refuse a second holder's Acquire";
  EXPECT_NE(target.registrants[0].key, target.registrants[1].key);
}

TEST(ReservationJoin, ARegistrantOfAnotherHostIsNamedAndKeepsALifeOut) {
  ReservationTarget target;
  Party other(target, 0xab, kOtherFamily);
  ASSERT_TRUE(other.Join());
  Party party(target, kNew);
  EXPECT_FALSE(party.Join());
  const Error& error = party.joined->error();
  EXPECT_EQ(error.code, ErrorCode::kFailedPrecondition);
  EXPECT_TRUE(Says(error.message,
                   "host fa311700-0000-0002-0000-0000000000ab with key 00000000000000abh, which "
                   "holds a Write Exclusive - All Registrants reservation"))
      << error.message;
  EXPECT_FALSE(target.Has(party.host)) << "or it could write";
  EXPECT_EQ(target.registers, 1U);
}

TEST(ReservationJoin, ARegistrantOfAnotherHostThatHoldsNothingKeepsALifeOut) {
  ReservationTarget target;
  target.registrants.push_back({.host_id = HostIdOf(kOtherFamily, 1), .key = 1});
  Party party(target, kNew);
  EXPECT_FALSE(party.Join());
  EXPECT_EQ(target.type, ReservationType::kNone) << "the reservation would let it in";
}

TEST(ReservationJoin, AReservationOfAnotherTypeIsNotJoined) {
  ReservationTarget target;
  target.registrants.push_back({.host_id = HostIdOf(kFamily, 1), .key = 1});
  target.type = ReservationType::kWriteExclusive;
  Party party(target, kNew);
  EXPECT_FALSE(party.Join());
  EXPECT_TRUE(Says(party.joined->error().message, "a Write Exclusive reservation is held"));
}

TEST(ReservationJoin, AnotherKeyOfTheSameLifeIsReplaced) {
  ReservationTarget target;
  target.registrants.push_back({.host_id = HostIdOf(kFamily, kNew), .key = 77});
  Party party(target, kNew);
  EXPECT_TRUE(party.Join());
  ASSERT_EQ(target.registrants.size(), 1U);
  EXPECT_EQ(target.registrants[0].key, KeyOf(kNew));
}

TEST(ReservationJoin, ARegistrationThatTheTargetDoesNotListIsNone) {
  ReservationTarget target;
  Party party(target, kNew);
  target.bend_report = [](auto& report) { report[5] = 0; };
  EXPECT_FALSE(party.Join());
  EXPECT_FALSE(target.Has(party.host)) << "nothing is left behind";
}

TEST(ReservationJoin, AReservationThatComesAndGoesIsGivenUp) {
  ReservationTarget target;
  Party party(target, kNew);
  target.bend_report = [](auto& report) {
    report[4] = 0;
    if (report.size() > kReportHeaderBytes) report[kReportHeaderBytes + 2] = 0;
  };
  EXPECT_FALSE(party.Join());
  EXPECT_EQ(party.joined->error().code, ErrorCode::kAborted);
  EXPECT_EQ(target.acquires, Reservation::kHoldTriesMax);
  EXPECT_FALSE(target.Has(party.host));
}

TEST(ReservationJoin, WhatFailsIsNamedAndLeavesNoRegistrant) {
  for (const Opcode opcode :
       {Opcode::kReservationReport, Opcode::kReservationRegister, Opcode::kReservationAcquire}) {
    ReservationTarget target;
    Party party(target, kNew);
    target.refuse_next = {opcode, 0x06};
    EXPECT_FALSE(party.Join());
    EXPECT_TRUE(Says(party.joined->error().message, "Internal Error (0/06h)"));
    EXPECT_FALSE(target.Has(party.host));
    EXPECT_EQ(party.ShutOut(kDead).end, ShutOutEnd::kNotYet) << "a life that has not joined proves nothing";
    EXPECT_EQ(target.preemptions, 0U);
  }
}

TEST(ReservationJoin, ATargetWithoutRoomIsSaidToHaveSoManyRegistrants) {
  ReservationTarget target;
  Party first(target, 1);
  Party second(target, 2);
  ASSERT_TRUE(first.Join() && second.Join());
  Party party(target, kNew);
  target.refuse_next = {Opcode::kReservationRegister, uint8_t{0x02}};
  EXPECT_FALSE(party.Join());
  const std::string& why = party.joined->error().message;
  EXPECT_TRUE(Says(why, "the namespace has 2 registrants")) << why;
}

TEST(ReservationJoin, RegistrantsAreNotToOutliveTheTarget) {
  ReservationTarget target;
  target.persistent = true;
  Party party(target, kNew, kFamily, true);
  EXPECT_TRUE(party.Join());
  EXPECT_FALSE(target.persistent);
  ReservationTarget plain;
  Party other(plain, kNew);
  EXPECT_TRUE(other.Join());
  EXPECT_EQ(plain.last_cdw10 >> 30, 0U) << "not to be asked of a namespace that can't";
}

// Runs two joins in the order that the bits of `order` give: which of the two has its next command executed.
std::pair<bool, bool> JoinBoth(ReservationTarget& target, uint64_t second_family, uint32_t order) {
  Party first(target, 1);
  Party second(target, 2, second_family);
  first.reservation.Join(0);
  second.reservation.Join(0);
  for (uint32_t bits = order; !first.joined || !second.joined; bits >>= 1) {
    Party& next = (bits & 1U) != 0 ? second : first;
    Party& other = (bits & 1U) != 0 ? first : second;
    if (!next.ServeOne()) other.ServeOne();
  }
  EXPECT_EQ(target.Has(first.host), first.joined->ok());
  EXPECT_EQ(target.Has(second.host), second.joined->ok());
  return {first.joined->ok(), second.joined->ok()};
}

constexpr uint32_t kOrders = 1U << 11;

TEST(ReservationJoin, OfTwoHostsThatJoinAtOnceNeverBothGoOn) {
  uint32_t one = 0;
  for (uint32_t order = 0; order < kOrders; ++order) {
    ReservationTarget target;
    const auto [first, second] = JoinBoth(target, kOtherFamily, order);
    ASSERT_FALSE(first && second) << order;
    one += first || second ? 1 : 0;
  }
  EXPECT_GT(one, kOrders / 2);
}

TEST(ReservationJoin, TwoLivesOfOneDiskThatJoinAtOnceBothGoOn) {
  for (uint32_t order = 0; order < kOrders; ++order) {
    ReservationTarget target;
    const auto [first, second] = JoinBoth(target, kFamily, order);
    ASSERT_TRUE(first && second) << order;
    ASSERT_EQ(target.type, ReservationType::kWriteExclusiveAll) << order;
  }
}

// ---- Shutting a dead life out

// A target with a life that died, one that is new, and one beside it; the dead one has left writes in the target and in its socket.
struct Scene {
  explicit Scene(bool persist = false)
      : dead(target, kDead, kFamily, persist), fresh(target, kNew), beside(target, 0x2222) {
    EXPECT_TRUE(dead.Join() && fresh.Join() && beside.Join());
    target.under_way[dead.host] = 1;
    target.unread[dead.host] = 2;
  }
  // What no result may be wrong about, whatever the target did.
  ShutOutResult ShutOut() {
    ShutOutResult result = fresh.ShutOut(kDead);
    EXPECT_EQ(fresh.shut_out_life, kDead);
    if (result.end == ShutOutEnd::kProved) {
      EXPECT_FALSE(target.MayStillWrite(dead.host));
      target.ReadSocket(dead.host);
      EXPECT_FALSE(target.MayStillWrite(dead.host));
      EXPECT_EQ(result.reason, "");
    } else {
      EXPECT_TRUE(result.reason.starts_with("disk: ")) << result.reason;
    }
    return result;
  }
  // Does something when the n-th command with this opcode comes, before it is executed.
  void Before(Opcode opcode, uint32_t nth, std::function<void()> act) {
    target.refuse = [opcode, nth, act = std::move(act),
                     seen = uint32_t{0}](const auto& entry) mutable -> std::optional<uint8_t> {
      if (IsOpcode(entry, opcode) && ++seen == nth) act();
      return std::nullopt;
    };
  }

  ReservationTarget target;
  Party dead;
  Party fresh;
  Party beside;
};

TEST(ReservationShutOut, PreemptAndAbortProvesThatADeadLifeIsOver) {
  Scene scene;
  EXPECT_TRUE(scene.target.MayStillWrite(scene.dead.host));
  EXPECT_EQ(scene.ShutOut().end, ShutOutEnd::kProved);
  EXPECT_FALSE(scene.target.Has(scene.dead.host));
  EXPECT_TRUE(scene.target.Has(scene.beside.host)) << "the living stay";
  EXPECT_TRUE(scene.target.Has(scene.fresh.host));
  EXPECT_EQ(scene.target.type, ReservationType::kWriteExclusiveAll);
}

TEST(ReservationShutOut, WhatAnotherProcessHasIsNotProved) {
  ReservationTarget elsewhere;
  Party dead(elsewhere, kDead);
  ASSERT_TRUE(dead.Join());
  elsewhere.under_way[dead.host] = 1;
  ReservationTarget target;
  Party fresh(target, kNew);
  ASSERT_TRUE(fresh.Join());
  const ShutOutResult result = fresh.ShutOut(kDead);
  EXPECT_EQ(result.end, ShutOutEnd::kNever);
  EXPECT_TRUE(Says(result.reason, "is no registrant here")) << result.reason;
  EXPECT_EQ(target.preemptions, 0U) << "its success would say nothing";
  EXPECT_TRUE(elsewhere.MayStillWrite(dead.host));
}

TEST(ReservationShutOut, ATargetThatGivesUpProvesNothingEver) {
  Scene scene;
  scene.target.gives_up = true;
  ShutOutResult result = scene.ShutOut();
  EXPECT_EQ(result.end, ShutOutEnd::kNever);
  EXPECT_TRUE(Says(result.reason, "Command Interrupted (0/21h), and the registrant is gone"))
      << result.reason;
  EXPECT_TRUE(scene.target.MayStillWrite(scene.dead.host));
  scene.target.gives_up = false;
  EXPECT_EQ(scene.ShutOut().end, ShutOutEnd::kNever) << "the second try has nobody to wait for";
}

TEST(ReservationShutOut, AFailureThatLeavesTheRegistrantMayBeTriedAgain) {
  Scene scene;
  scene.target.refuse_next = {Opcode::kReservationAcquire, kInterrupted};
  const ShutOutResult result = scene.ShutOut();
  EXPECT_EQ(result.end, ShutOutEnd::kNotYet);
  EXPECT_TRUE(Says(result.reason, "Command Interrupted")) << result.reason;
  EXPECT_EQ(scene.ShutOut().end, ShutOutEnd::kProved);
}

TEST(ReservationShutOut, ASuccessWithoutAReservationProvesNothing) {
  Scene scene;
  scene.Before(Opcode::kReservationAcquire, 1, [&] { scene.target.type = ReservationType::kNone; });
  const ShutOutResult result = scene.ShutOut();
  EXPECT_EQ(result.end, ShutOutEnd::kNever);
  EXPECT_TRUE(Says(result.reason, "no reservation is held any more")) << result.reason;
  EXPECT_TRUE(scene.target.MayStillWrite(scene.dead.host));
  EXPECT_FALSE(scene.fresh.reservation.joined());
}

TEST(ReservationShutOut, NoPreemptionIsSentWhereNoReservationIsHeld) {
  Scene scene;
  scene.target.type = ReservationType::kNone;
  EXPECT_EQ(scene.ShutOut().end, ShutOutEnd::kNotYet);
  EXPECT_EQ(scene.target.preemptions, 0U) << "it would cost the registrant, and prove nothing";
}

TEST(ReservationShutOut, ATargetThatKeepsTheRegistrantIsNotBelieved) {
  Scene scene;
  scene.Before(Opcode::kReservationReport, 2, [&] {
    scene.target.registrants.push_back({.host_id = scene.dead.host, .key = KeyOf(kDead)});
  });
  const ShutOutResult result = scene.ShutOut();
  EXPECT_EQ(result.end, ShutOutEnd::kNever);
  EXPECT_TRUE(Says(result.reason, "it is not believed")) << result.reason;
}

TEST(ReservationShutOut, AKeyThatTheLivingHaveTooIsNotPreempted) {
  for (const bool own : {true, false}) {
    Scene scene;
    for (Registrant& registrant : scene.target.registrants) {
      if (registrant.host_id == scene.dead.host) registrant.key = KeyOf(own ? kNew : scene.beside.life);
    }
    const ShutOutResult result = scene.ShutOut();
    EXPECT_EQ(result.end, ShutOutEnd::kNotYet);
    EXPECT_TRUE(Says(result.reason, "shares its key")) << result.reason;
    EXPECT_EQ(scene.target.preemptions, 0U);
    EXPECT_TRUE(scene.target.Has(scene.fresh.host) && scene.target.Has(scene.beside.host));
  }
}

TEST(ReservationShutOut, RegistrantsThatOutliveTheTargetProveNothing) {
  Scene scene;
  scene.target.persistent = true;
  const ShutOutResult result = scene.ShutOut();
  EXPECT_EQ(result.end, ShutOutEnd::kNotYet);
  EXPECT_TRUE(Says(result.reason, "PTPLS")) << result.reason;
  EXPECT_EQ(scene.target.preemptions, 0U);
}

TEST(ReservationShutOut, ALifeThatWasShutOutItselfProvesNothing) {
  Scene scene;
  ASSERT_EQ(scene.beside.ShutOut(kNew).end, ShutOutEnd::kProved);
  const ShutOutResult result = scene.ShutOut();
  EXPECT_EQ(result.end, ShutOutEnd::kNotYet);
  EXPECT_TRUE(Says(result.reason, "no registrant any more")) << result.reason;
  EXPECT_FALSE(scene.fresh.reservation.joined());
  EXPECT_EQ(scene.beside.ShutOut(kDead).end, ShutOutEnd::kProved) << "over another path";
}

TEST(ReservationShutOut, ALifeThatWasFoundWithoutAReservationProvesNothingThoughItIsListedAgain) {
  Scene scene;
  const ReservationType type = std::exchange(scene.target.type, ReservationType::kNone);
  scene.fresh.reservation.See();
  scene.fresh.Serve();
  ASSERT_FALSE(scene.fresh.reservation.joined());
  scene.target.type = type;
  const ShutOutResult result = scene.ShutOut();
  EXPECT_EQ(result.end, ShutOutEnd::kNotYet);
  EXPECT_TRUE(Says(result.reason, "lists this life again")) << result.reason;
  EXPECT_EQ(scene.target.preemptions, 0U);
}

TEST(ReservationShutOut, AReportThatFailsAfterThePreemptionIsAskedForAgain) {
  Scene scene;
  scene.Before(Opcode::kReservationReport, 2, [&] {
    scene.target.refuse_next = {Opcode::kReservationReport, 0x06};
  });
  EXPECT_EQ(scene.ShutOut().end, ShutOutEnd::kProved);
}

TEST(ReservationShutOut, AReportThatFailsForGoodLeavesNoProof) {
  Scene scene;
  scene.target.refuse = [&, reports = 0U](const auto& entry) mutable -> std::optional<uint8_t> {
    if (!IsOpcode(entry, Opcode::kReservationReport) || ++reports == 1) return std::nullopt;
    EXPECT_LE(reports, 1 + Reservation::kReportTriesMax);
    return uint8_t{0x06};
  };
  EXPECT_EQ(scene.ShutOut().end, ShutOutEnd::kNotYet);
}

TEST(ReservationShutOut, ATargetThatLiesIsNotFoundOut) {
  Scene scene;
  scene.target.lies = true;
  EXPECT_EQ(scene.fresh.ShutOut(kDead).end, ShutOutEnd::kProved);
  EXPECT_TRUE(scene.target.MayStillWrite(scene.dead.host))
      << "why the proof is for targets alone that are known to wait";
}

TEST(ReservationShutOut, WhatWasProvedLastsAsLongAsTheReservation) {
  ReservationTarget target;
  Party dead(target, kDead);
  Party fresh(target, kNew);
  ASSERT_TRUE(dead.Join() && fresh.Join());
  target.unread[dead.host] = 1;
  ASSERT_EQ(fresh.ShutOut(kDead).end, ShutOutEnd::kProved);
  ASSERT_FALSE(target.MayStillWrite(dead.host));
  fresh.reservation.Leave();
  fresh.Serve();
  EXPECT_TRUE(fresh.left->ok());
  EXPECT_TRUE(target.MayStillWrite(dead.host)) << "the last to leave lets in what was never read";
}

// ---- Answers that do not come

TEST(ReservationAnswers, OneThatDoesNotComeInTimeProvesNothingNorDoesALateOne) {
  Scene scene;
  scene.fresh.reservation.ShutOut(kDead);
  ASSERT_TRUE(scene.fresh.ServeOne());
  uint64_t now_ns = 0;
  for (; !scene.fresh.shut_out && now_ns < 60 * kSecondNs; now_ns += kSecondNs / 10)
    scene.fresh.reservation.Tick(now_ns);
  ASSERT_TRUE(scene.fresh.shut_out);
  EXPECT_GE(now_ns, 30 * kSecondNs) << "SPDK's target takes up to ten seconds";
  EXPECT_EQ(scene.fresh.shut_out->end, ShutOutEnd::kNotYet);
  EXPECT_TRUE(Says(scene.fresh.shut_out->reason, "has not answered Reservation Acquire (Preempt and Abort)"));
  EXPECT_TRUE(scene.fresh.reservation.in_flight());
  scene.fresh.shut_out.reset();
  scene.fresh.Serve();
  EXPECT_FALSE(scene.fresh.shut_out) << "one result a task";
  EXPECT_FALSE(scene.fresh.reservation.joined());
  const uint32_t preemptions = scene.target.preemptions;
  EXPECT_TRUE(Says(scene.fresh.ShutOut(kDead).reason, "has no part in the reservation"));
  EXPECT_EQ(scene.target.preemptions, preemptions) << "nothing follows a command that was not answered";
  EXPECT_EQ(scene.beside.ShutOut(kDead).end, ShutOutEnd::kNever) << "it was removed, and nobody heard how";
}

TEST(ReservationAnswers, AHostThatStoodStillBlamesNoTarget) {
  ReservationTarget target;
  Party party(target, kNew);
  party.reservation.Join(0);
  party.reservation.Tick(3600 * kSecondNs);
  EXPECT_FALSE(party.joined);
  party.Serve();
  EXPECT_TRUE(party.joined->ok());
}

TEST(ReservationAnswers, ATaskEndsWithItsPathAtEachOfItsCommands) {
  for (uint32_t commands = 0; commands < 4; ++commands) {
    ReservationTarget target;
    Party party(target, kNew);
    party.reservation.Join(0);
    for (uint32_t i = 0; i < commands; ++i) ASSERT_TRUE(party.ServeOne());
    EXPECT_EQ(party.Die().size(), 1U) << commands;
    ASSERT_TRUE(party.joined);
    EXPECT_EQ(party.joined->error().code, ErrorCode::kUnavailable);
    EXPECT_FALSE(party.reservation.busy() || party.reservation.in_flight());
  }
  for (uint32_t commands = 0; commands < 3; ++commands) {
    Scene scene;
    scene.fresh.reservation.ShutOut(kDead);
    for (uint32_t i = 0; i < commands; ++i) ASSERT_TRUE(scene.fresh.ServeOne());
    scene.fresh.Die();
    EXPECT_EQ(scene.fresh.shut_out->end, ShutOutEnd::kNotYet);
  }
}

TEST(ReservationAnswers, OneToNoCommandIsNoNews) {
  ReservationTarget target;
  Party party(target, kNew);
  party.reservation.Join(0);
  party.reservation.Completed(party.queue.front().cookie + 1, {}, 0);
  EXPECT_FALSE(party.joined);
  const uint64_t cookie = party.queue.front().cookie;
  party.Serve();
  EXPECT_TRUE(party.joined->ok());
  party.reservation.Completed(cookie, {}, 0);
  party.reservation.Unanswered(cookie);
  EXPECT_TRUE(party.reservation.joined());
}

TEST(ReservationSee, SaysWhoIsThereAndChangesNothing) {
  Scene scene;
  const uint32_t generation = scene.target.generation;
  scene.fresh.reservation.See();
  scene.fresh.Serve();
  ASSERT_TRUE(scene.fresh.seen && scene.fresh.seen->ok());
  const ReservationReport& report = **scene.fresh.seen;
  EXPECT_EQ(report.generation, generation);
  ASSERT_EQ(report.registrants.size(), 3U);
  EXPECT_EQ(LifeOf(report.registrants[0].host_id, kFamily), kDead);
  EXPECT_EQ(scene.target.generation, generation);
  EXPECT_TRUE(scene.fresh.reservation.joined());
  scene.target.Clear();
  scene.fresh.reservation.See();
  scene.fresh.Serve();
  EXPECT_FALSE(scene.fresh.reservation.joined()) << "its writes are safe from nobody";
}

}  // namespace
}  // namespace cleat::nvme::host::reservation_test
