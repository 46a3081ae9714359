// SPDX-License-Identifier: Apache-2.0
// Reservations of a namespace: who may do what, and what each command makes of them.
#include "nvme/target/reservations/reservation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <span>

#include "base/random.h"
#include "nvme/fabrics/commands.h"
#include "nvme/host/reservation/reservation_commands.h"
#include "nvme/target/reservations/reservation_commands.h"
#include "tests/unit/nvme/target/reservation_scene.h"

namespace cleat::nvme::target::reservation_test {
namespace {

using fabrics::AcquireAction;
using fabrics::PowerLoss;
using fabrics::RegisterAction;
using fabrics::ReleaseAction;
using fabrics::SubmissionEntry;
using fabrics::Uuid;
using host::ExistingKey;
using reservation_scene::Bytes;
using reservation_scene::HeldByA;
using reservation_scene::IsForAll;
using reservation_scene::IsForHolder;
using reservation_scene::kA;
using reservation_scene::kB;
using reservation_scene::kC;
using reservation_scene::kConflict;
using reservation_scene::kDnr;
using reservation_scene::kInvalid;
using reservation_scene::kKeyA;
using reservation_scene::kKeyB;
using reservation_scene::kKeyC;
using reservation_scene::kNsid;
using reservation_scene::kTypes;
using reservation_scene::Namespace;
using reservation_scene::Notices;

// ---- Who may do what (base figure 452)

TEST(ReservationAccess, IsWhatEachTypeLetsWhomDo) {
  struct Row {
    ReservationType type;
    bool holder_reads, holder_writes, registrant_reads, registrant_writes, other_reads, other_writes;
  };
  constexpr Row kRows[] = {
      {ReservationType::kNone, true, true, true, true, true, true},
      {ReservationType::kWriteExclusive, true, true, true, false, true, false},
      {ReservationType::kExclusiveAccess, true, true, false, false, false, false},
      {ReservationType::kWriteExclusiveRegistrants, true, true, true, true, true, false},
      {ReservationType::kExclusiveAccessRegistrants, true, true, true, true, false, false},
      {ReservationType::kWriteExclusiveAll, true, true, true, true, true, false},
      {ReservationType::kExclusiveAccessAll, true, true, true, true, false, false},
  };
  for (const Row& row : kRows) {
    Reservation space;
    space.type = row.type;
    space.registrants = {{.host_id = kA, .key = kKeyA}, {.host_id = kB, .key = kKeyB}};
    if (row.type != ReservationType::kNone && !IsForAll(row.type)) space.holder = kA;
    const auto type = static_cast<int>(row.type);
    EXPECT_EQ(MayExecute(space, kA, ReservationAccess::kReads), row.holder_reads) << type;
    EXPECT_EQ(MayExecute(space, kA, ReservationAccess::kWrites), row.holder_writes) << type;
    EXPECT_EQ(MayExecute(space, kB, ReservationAccess::kReads), row.registrant_reads) << type;
    EXPECT_EQ(MayExecute(space, kB, ReservationAccess::kWrites), row.registrant_writes) << type;
    EXPECT_EQ(MayExecute(space, kC, ReservationAccess::kReads), row.other_reads) << type;
    EXPECT_EQ(MayExecute(space, kC, ReservationAccess::kWrites), row.other_writes) << type;
  }
}

TEST(ReservationAccess, OfATypeThatThereIsNotIsNobodys) {
  Reservation space;
  space.type = static_cast<ReservationType>(7);
  space.registrants = {{.host_id = kA, .key = kKeyA}};
  space.holder = kA;
  EXPECT_FALSE(MayExecute(space, kA, ReservationAccess::kReads));
}

// ---- Register

TEST(ReservationRegister, AHostHasOneKeyUntilItReplacesIt) {
  Namespace space;
  EXPECT_EQ(space.Register(kB, kKeyB), 0);
  EXPECT_EQ(space.Register(kA, kKeyA), 0);
  EXPECT_EQ(space.now.generation, 2U);
  const std::vector<Registrant> both = {{.host_id = kA, .key = kKeyA}, {.host_id = kB, .key = kKeyB}};
  EXPECT_EQ(space.now.registrants, both) << "by host identifier";
  EXPECT_EQ(space.Register(kA, kKeyA), 0) << "the same key again";
  EXPECT_EQ(space.now.registrants, both);
  EXPECT_EQ(space.Register(kA, kKeyB), kConflict);
  EXPECT_EQ(space.Register(kA, 0), kInvalid);
  EXPECT_EQ(space.Change(kA, RegisterAction::kReplace, kKeyB, kKeyC), kConflict);
  EXPECT_EQ(space.Change(kA, RegisterAction::kReplace, kKeyA, 0), kInvalid);
  EXPECT_EQ(space.Change(kA, RegisterAction::kReplace, kKeyA, kKeyC), 0);
  EXPECT_EQ(space.now.Find(kA)->key, kKeyC);
  EXPECT_EQ(space.Change(kA, RegisterAction::kReplace, 77, kKeyA, ExistingKey::kIgnored), 0);
  EXPECT_EQ(space.now.Find(kA)->key, kKeyA);
  EXPECT_EQ(space.Change(kC, RegisterAction::kReplace, 0, kKeyC), kConflict) << "no registrant";
  EXPECT_EQ(space.Change(kC, RegisterAction::kReplace, 0, kKeyC, ExistingKey::kIgnored), 0);
  EXPECT_EQ(space.now.Find(kC)->key, kKeyC);
  EXPECT_TRUE(space.notices.empty());
}

TEST(ReservationRegister, AHostLeavesWithItsKeyOrWithoutAsking) {
  Namespace space;
  EXPECT_EQ(space.Unregister(kA, kKeyA), kConflict);
  EXPECT_EQ(space.Register(kA, kKeyA), 0);
  EXPECT_EQ(space.Unregister(kA, kKeyB), kConflict);
  EXPECT_EQ(space.Unregister(kA, kKeyA), 0);
  EXPECT_FALSE(space.Has(kA));
  EXPECT_EQ(space.Register(kA, kKeyA), 0);
  EXPECT_EQ(space.Change(kA, RegisterAction::kUnregister, kKeyB, 0, ExistingKey::kIgnored), 0);
  EXPECT_FALSE(space.Has(kA));
  EXPECT_EQ(space.Change(kA, RegisterAction::kUnregister, 0, 0, ExistingKey::kIgnored), kConflict);
}

TEST(ReservationRegister, TheHoldersLeavingReleasesWhatItHolds) {
  for (const ReservationType type : kTypes) {
    Namespace space = HeldByA(type);
    const auto what = static_cast<int>(type);
    EXPECT_EQ(space.Unregister(kA, kKeyA), 0);
    if (IsForAll(type)) {
      EXPECT_EQ(space.now.type, type) << "the others hold it";
      EXPECT_TRUE(space.notices.empty());
      EXPECT_EQ(space.Unregister(kB, kKeyB), 0);
      EXPECT_EQ(space.now.type, type);
      EXPECT_EQ(space.Unregister(kC, kKeyC), 0);
      EXPECT_TRUE(space.notices.empty());
    } else if (IsForHolder(type)) {
      EXPECT_TRUE(space.notices.empty()) << what;
    } else {
      const Notices released = {{kB, ReservationNotice::kReservationReleased},
                                {kC, ReservationNotice::kReservationReleased}};
      EXPECT_EQ(space.notices, released) << what;
    }
    EXPECT_FALSE(space.now.held()) << what;
    EXPECT_FALSE(space.now.holder) << what;
  }
}

TEST(ReservationRegister, AnothersLeavingReleasesNothing) {
  for (const ReservationType type : kTypes) {
    Namespace space = HeldByA(type);
    EXPECT_EQ(space.Unregister(kB, kKeyB), 0);
    EXPECT_EQ(space.now.type, type);
    EXPECT_TRUE(space.notices.empty());
  }
}

TEST(ReservationRegister, TheHolderKeepsItWithAnotherKey) {
  for (const ReservationType type : kTypes) {
    Namespace space = HeldByA(type);
    EXPECT_EQ(space.Change(kA, RegisterAction::kReplace, kKeyA, 0x77), 0);
    EXPECT_EQ(space.now.type, type);
    EXPECT_TRUE(space.now.IsHolder(kA));
    EXPECT_TRUE(space.notices.empty());
  }
}

TEST(ReservationRegister, SaysWhatOutlivesThePower) {
  Namespace space;
  const auto change = [&](RegisterAction action, PowerLoss power) {
    return space.Change(kA, action, kKeyA, kKeyA, ExistingKey::kHasToFit, power);
  };
  EXPECT_EQ(change(RegisterAction::kRegister, PowerLoss::kPersist), 0);
  EXPECT_TRUE(space.now.persists);
  EXPECT_EQ(change(RegisterAction::kRegister, PowerLoss::kAsItIs), 0);
  EXPECT_TRUE(space.now.persists);
  EXPECT_EQ(change(RegisterAction::kReplace, static_cast<PowerLoss>(1)), kInvalid);
  EXPECT_EQ(change(RegisterAction::kReplace, PowerLoss::kForget), 0);
  EXPECT_FALSE(space.now.persists);
  EXPECT_EQ(change(RegisterAction::kUnregister, PowerLoss::kPersist), 0);
  EXPECT_TRUE(space.now.persists);
}

TEST(ReservationRegister, EndsAtTheLimitOfRegistrants) {
  Namespace space;
  for (uint8_t i = 0; i < kRegistrantsMax; ++i) EXPECT_EQ(space.Register(Uuid{9, i}, 1), 0);
  EXPECT_EQ(space.Register(kA, kKeyA), status_field::kInternalError) << "there may be room later";
  EXPECT_EQ(space.Change(kA, RegisterAction::kReplace, 0, kKeyA, ExistingKey::kIgnored),
            status_field::kInternalError);
  EXPECT_EQ(space.Register(Uuid{9, 5}, 1), 0) << "no other one";
  EXPECT_EQ(space.Unregister(Uuid{9, 5}, 1), 0);
  EXPECT_EQ(space.Register(kA, kKeyA), 0);
}

// ---- Acquire

TEST(ReservationAcquire, IsForRegistrantsWithTheirKey) {
  Namespace space;
  EXPECT_EQ(space.Acquire(kA, kKeyA, ReservationType::kWriteExclusive), kConflict);
  EXPECT_EQ(space.Acquire(kA, 0, ReservationType::kWriteExclusive), kConflict);
  EXPECT_EQ(space.Register(kA, kKeyA), 0);
  EXPECT_EQ(space.Acquire(kA, kKeyB, ReservationType::kWriteExclusive), kConflict);
  EXPECT_EQ(space.Preempt(kA, kKeyB, kKeyA, ReservationType::kWriteExclusive), kConflict);
  EXPECT_EQ(space.Release(kA, kKeyB, ReservationType::kWriteExclusive), kConflict);
  EXPECT_EQ(space.Clear(kA, kKeyB), kConflict);
}

TEST(ReservationAcquire, ByTheHolderOnceMoreOfTheSameTypeChangesNothing) {
  for (const ReservationType type : kTypes) {
    Namespace space = HeldByA(type);
    const Reservation held = space.now;
    EXPECT_EQ(held.generation, 3U) << "registrations alone count";
    EXPECT_EQ(space.Acquire(kA, kKeyA, type), 0);
    EXPECT_EQ(space.now, held);
    EXPECT_EQ(space.Acquire(kB, kKeyB, type), IsForAll(type) ? 0 : kConflict);
    EXPECT_EQ(space.now, held);
    for (const ReservationType other : kTypes) {
      if (other == type) continue;
      EXPECT_EQ(space.Acquire(kA, kKeyA, other), kConflict);
      EXPECT_EQ(space.Acquire(kB, kKeyB, other), kConflict);
    }
  }
}

TEST(ReservationAcquire, WhatThereIsNotIsRefused) {
  Namespace space = HeldByA(ReservationType::kWriteExclusive);
  for (const int type : {0, 7, 0x80, 0xff}) {
    for (const auto action : {AcquireAction::kAcquire, AcquireAction::kPreempt}) {
      EXPECT_EQ(space.Preempt(kA, kKeyA, kKeyA, static_cast<ReservationType>(type), action), kInvalid)
          << type;
    }
    EXPECT_EQ(space.Release(kA, kKeyA, static_cast<ReservationType>(type)), kInvalid) << type;
  }
  for (uint32_t action = 3; action < 8; ++action) {
    const fabrics::AcquireData data{.current_key = kKeyA, .preempted_key = kKeyA};
    SubmissionEntry entry = fabrics::EntryOf(
        host::ReservationAcquire(kNsid, AcquireAction::kAcquire, ReservationType::kWriteExclusive));
    entry.cdw10 |= action;
    EXPECT_EQ(space.Do(kA, entry, Bytes(data)), kInvalid) << action;
    entry.opcode = static_cast<uint8_t>(Opcode::kReservationRegister);
    entry.cdw10 = action;
    EXPECT_EQ(space.Do(kA, entry, Bytes(data)), kInvalid) << action;
    entry.opcode = static_cast<uint8_t>(Opcode::kReservationRelease);
    entry.cdw10 = action | 1U << 8;
    EXPECT_EQ(space.Do(kA, entry, Bytes(data)), kInvalid) << action;
  }
}

TEST(ReservationAcquire, AKeyIsNeverIgnored) {
  Namespace space = HeldByA(ReservationType::kWriteExclusive);
  constexpr uint32_t kIgnored = 1U << 3;
  for (Command command :
       {host::ReservationAcquire(kNsid, AcquireAction::kAcquire, ReservationType::kWriteExclusive),
        host::ReservationAcquire(kNsid, AcquireAction::kPreempt, ReservationType::kWriteExclusive),
        host::ReservationRelease(kNsid, ReleaseAction::kRelease, ReservationType::kWriteExclusive),
        host::ReservationRelease(kNsid, ReleaseAction::kClear, ReservationType::kNone)}) {
    command.cdw10 |= kIgnored;
    EXPECT_EQ(space.Do(kA, command, fabrics::AcquireData{.current_key = kKeyA, .preempted_key = kKeyA}),
              kInvalid);
  }
}

TEST(ReservationCommand, WithTooLittleDataIsRefused) {
  Namespace space = HeldByA(ReservationType::kWriteExclusive);
  constexpr uint16_t kTooShort = status_field::kSglLengthInvalid | kDnr;
  const std::vector<uint8_t> zeroes(64);
  const auto with = [&](const Command& command, size_t bytes) {
    return space.Do(kA, fabrics::EntryOf(command), std::span(zeroes).first(bytes));
  };
  const Command unregister = host::ReservationRegister(kNsid, RegisterAction::kUnregister,
                                                       ExistingKey::kIgnored, PowerLoss::kAsItIs);
  const Command acquire =
      host::ReservationAcquire(kNsid, AcquireAction::kAcquire, ReservationType::kWriteExclusive);
  const Command clear = host::ReservationRelease(kNsid, ReleaseAction::kClear, ReservationType::kNone);
  for (size_t bytes = 0; bytes < 16; ++bytes) {
    EXPECT_EQ(with(unregister, bytes), kTooShort) << bytes;
    EXPECT_EQ(with(acquire, bytes), kTooShort) << bytes;
    EXPECT_EQ(with(clear, bytes), bytes < 8 ? kTooShort : kConflict) << bytes;
  }
  EXPECT_EQ(with(unregister, 64), 0) << "more is none of its business";
}

// ---- Preempt

TEST(ReservationPreempt, TheHoldersKeyTakesTheReservation) {
  for (const ReservationType type : kTypes) {
    if (IsForAll(type)) continue;
    for (const ReservationType next : kTypes) {
      for (const auto action : {AcquireAction::kPreempt, AcquireAction::kPreemptAndAbort}) {
        Namespace space = HeldByA(type);
        EXPECT_EQ(space.Preempt(kB, kKeyB, kKeyA, next, action), 0);
        EXPECT_EQ(space.now.type, next);
        EXPECT_TRUE(space.now.IsHolder(kB));
        EXPECT_FALSE(space.Has(kA));
        EXPECT_TRUE(space.Has(kC));
        EXPECT_EQ(space.now.generation, 4U);
        Notices told = {{kA, ReservationNotice::kRegistrationPreempted}};
        if (next != type) told.emplace_back(kC, ReservationNotice::kReservationReleased);
        EXPECT_EQ(space.notices, told);
      }
    }
  }
}

TEST(ReservationPreempt, AnothersKeyTakesItsRegistrationAlone) {
  for (const ReservationType type : kTypes) {
    for (const auto& [host, key] : {std::pair(kA, kKeyA), std::pair(kB, kKeyB)}) {
      Namespace space = HeldByA(type);
      EXPECT_EQ(space.Preempt(host, key, kKeyC, ReservationType::kWriteExclusive), 0);
      EXPECT_EQ(space.now.type, type);
      EXPECT_TRUE(space.now.IsHolder(kA));
      EXPECT_FALSE(space.Has(kC));
      EXPECT_EQ(space.notices, (Notices{{kC, ReservationNotice::kRegistrationPreempted}}));
      EXPECT_EQ(space.Preempt(host, key, kKeyC, ReservationType::kWriteExclusive), kConflict)
          << "nobody has that key";
    }
  }
}

TEST(ReservationPreempt, WithoutAReservationTakesRegistrationsByTheirKey) {
  Namespace space;
  EXPECT_EQ(space.Register(kA, kKeyA), 0);
  EXPECT_EQ(space.Register(kB, kKeyB), 0);
  EXPECT_EQ(space.Register(kC, kKeyB), 0);
  EXPECT_EQ(space.Preempt(kA, kKeyA, 0, ReservationType::kWriteExclusive), kConflict);
  EXPECT_EQ(space.Preempt(kA, kKeyA, kKeyB, ReservationType::kWriteExclusive), 0);
  EXPECT_FALSE(space.now.held()) << "there was none to be taken";
  EXPECT_EQ(space.now.registrants.size(), 1U);
  EXPECT_EQ(space.notices, (Notices{{kB, ReservationNotice::kRegistrationPreempted},
                                    {kC, ReservationNotice::kRegistrationPreempted}}));
  EXPECT_EQ(space.Preempt(kA, kKeyA, kKeyA, ReservationType::kWriteExclusive), 0);
  EXPECT_TRUE(space.now.registrants.empty()) << "its own key is one as well";
  EXPECT_TRUE(space.notices.empty());
}

TEST(ReservationPreempt, KeyZeroIsAllOthersWhereAllHoldIt) {
  for (const ReservationType type : kTypes) {
    Namespace space = HeldByA(type);
    const uint16_t status = space.Preempt(kB, kKeyB, 0, ReservationType::kExclusiveAccess);
    if (!IsForAll(type)) {
      EXPECT_EQ(status, kInvalid);
      continue;
    }
    EXPECT_EQ(status, 0);
    EXPECT_EQ(space.now.type, ReservationType::kExclusiveAccess);
    EXPECT_EQ(space.now.holder, kB);
    EXPECT_EQ(space.now.registrants.size(), 1U);
    EXPECT_EQ(space.notices, (Notices{{kA, ReservationNotice::kRegistrationPreempted},
                                      {kC, ReservationNotice::kRegistrationPreempted}}));
  }
}

TEST(ReservationPreempt, AHolderThatPreemptsItselfHasAnotherType) {
  Namespace space = HeldByA(ReservationType::kWriteExclusive);
  EXPECT_EQ(space.Preempt(kA, kKeyA, kKeyA, ReservationType::kExclusiveAccessAll), 0);
  EXPECT_EQ(space.now.type, ReservationType::kExclusiveAccessAll);
  EXPECT_FALSE(space.now.holder);
  EXPECT_EQ(space.now.registrants.size(), 3U);
  EXPECT_EQ(space.notices, (Notices{{kB, ReservationNotice::kReservationReleased},
                                    {kC, ReservationNotice::kReservationReleased}}));
}

TEST(ReservationPreempt, WhoeverHasTheHoldersKeyGoesWithIt) {
  Namespace space = HeldByA(ReservationType::kWriteExclusive);
  EXPECT_EQ(space.Change(kB, RegisterAction::kReplace, kKeyB, kKeyA), 0);
  EXPECT_EQ(space.Preempt(kB, kKeyA, kKeyA, ReservationType::kWriteExclusive), 0);
  EXPECT_EQ(space.now.holder, kB) << "who asks stays, though its key is the same";
  EXPECT_FALSE(space.Has(kA));
  EXPECT_TRUE(space.Has(kC));
}

TEST(ReservationPreempt, WhereAllHoldItTheLastKeyReleasesIt) {
  Namespace space;
  EXPECT_EQ(space.Register(kA, kKeyA), 0);
  EXPECT_EQ(space.Register(kB, kKeyA), 0);
  EXPECT_EQ(space.Acquire(kA, kKeyA, ReservationType::kWriteExclusiveAll), 0);
  EXPECT_EQ(space.Preempt(kA, kKeyA, kKeyA, ReservationType::kWriteExclusiveAll), 0);
  EXPECT_TRUE(space.now.registrants.empty());
  EXPECT_FALSE(space.now.held());
  EXPECT_EQ(space.notices, (Notices{{kB, ReservationNotice::kRegistrationPreempted}}));
}

// ---- Release

TEST(ReservationRelease, TheHolderReleasesByTheTypeThatItHolds) {
  for (const ReservationType type : kTypes) {
    Namespace space = HeldByA(type);
    for (const ReservationType other : kTypes) {
      if (other != type) {
        EXPECT_EQ(space.Release(kA, kKeyA, other), kInvalid);
      }
    }
    const Reservation held = space.now;
    EXPECT_EQ(space.Release(kA, kKeyA, type), 0);
    EXPECT_FALSE(space.now.held());
    EXPECT_FALSE(space.now.holder);
    EXPECT_EQ(space.now.registrants, held.registrants);
    EXPECT_EQ(space.now.generation, held.generation);
    Notices released;
    if (!IsForHolder(type))
      released = {{kB, ReservationNotice::kReservationReleased},
                  {kC, ReservationNotice::kReservationReleased}};
    EXPECT_EQ(space.notices, released);
  }
}

TEST(ReservationRelease, OfWhoHoldsNothingHasNoEffect) {
  Namespace space = HeldByA(ReservationType::kWriteExclusive);
  const Reservation held = space.now;
  EXPECT_EQ(space.Release(kB, kKeyB, ReservationType::kWriteExclusive), 0);
  EXPECT_EQ(space.Release(kB, kKeyB, ReservationType::kExclusiveAccess), 0);
  EXPECT_EQ(space.now, held);
  EXPECT_EQ(space.Release(Uuid{9}, 0, ReservationType::kWriteExclusive), kConflict) << "no registrant";
  EXPECT_EQ(space.Release(kA, kKeyA, ReservationType::kWriteExclusive), 0);
  const Reservation released = space.now;
  EXPECT_EQ(space.Release(kA, kKeyA, ReservationType::kWriteExclusive), 0);
  EXPECT_EQ(space.now, released);
}

TEST(ReservationRelease, ClearEndsAllRegistrationsAndTellsTheOthers) {
  for (const ReservationType type : kTypes) {
    Namespace space = HeldByA(type);
    EXPECT_EQ(space.Clear(kB, kKeyB), 0) << "any registrant may";
    EXPECT_FALSE(space.now.held());
    EXPECT_FALSE(space.now.holder);
    EXPECT_TRUE(space.now.registrants.empty());
    EXPECT_EQ(space.now.generation, 4U);
    EXPECT_EQ(space.notices, (Notices{{kA, ReservationNotice::kReservationPreempted},
                                      {kC, ReservationNotice::kReservationPreempted}}));
  }
}

// ---- What changes no reservation

// The fourth, Reservation Report, changes nothing and is answered with ReportOf.
TEST(ReservationCommand, OfAnyOpcodeButThreeIsRefused) {
  Namespace space = HeldByA(ReservationType::kWriteExclusive);
  std::set<int> executed;
  for (int opcode = 0; opcode < 256; ++opcode) {
    const fabrics::RegisterData data{.current_key = kKeyA, .new_key = kKeyA};
    if (space.Do(kA, Command{.opcode = static_cast<uint8_t>(opcode)}, data) !=
        (status_field::kInvalidOpcode | kDnr))
      executed.insert(opcode);
  }
  EXPECT_EQ(executed, (std::set<int>{0x0d, 0x11, 0x15}));
}

// ---- Any commands of any hosts

void ExpectSound(const Reservation& now) {
  std::set<Uuid> hosts;
  for (const Registrant& registrant : now.registrants) {
    EXPECT_TRUE(hosts.insert(registrant.host_id).second) << "a host twice";
    EXPECT_NE(registrant.key, 0U);
  }
  EXPECT_TRUE(std::ranges::is_sorted(now.registrants, {}, &Registrant::host_id));
  EXPECT_LE(now.registrants.size(), kRegistrantsMax);
  EXPECT_LE(now.type, ReservationType::kExclusiveAccessAll);
  if (!now.held() || IsForAll(now.type)) {
    EXPECT_FALSE(now.holder);
    EXPECT_TRUE(!now.held() || !now.registrants.empty());
  } else {
    ASSERT_TRUE(now.holder);
    EXPECT_NE(now.Find(*now.holder), nullptr);
  }
}

TEST(ReservationCommands, OfAnyHostsKeepItSound) {
  constexpr Opcode kOpcodes[] = {Opcode::kReservationRegister, Opcode::kReservationAcquire,
                                 Opcode::kReservationRelease};
  Random random(20240229);
  Reservation now;
  std::set<ReservationType> seen;
  uint32_t done = 0;
  for (uint32_t i = 0; i < 100'000; ++i) {
    SubmissionEntry entry;
    entry.opcode = static_cast<uint8_t>(kOpcodes[random.Next() % 3]);
    // Mostly what there is, and now and then what there is not.
    const bool any = random.Next() % 8 == 0;
    const uint64_t action = random.Next() % (any ? 8 : 2), power = any ? random.Next() % 4 : 0;
    const uint64_t type = any ? random.Next() % 8 : random.Next() % 6 + 1;
    entry.cdw10 = static_cast<uint32_t>(action | type << 8 | power << 30);
    if (now.held() && random.Next() % 2 == 0)
      entry.cdw10 = static_cast<uint32_t>(action) | static_cast<uint32_t>(now.type) << 8;
    if (random.Next() % 16 == 0) entry.cdw10 |= 1U << 3;
    // The bits that are reserved are any.
    entry.cdw10 |= static_cast<uint32_t>(random.Next() & 0x3fff'0000);
    uint64_t keys[2] = {random.Next() % 4, random.Next() % 4};
    const Uuid host = {static_cast<uint8_t>(random.Next() % 5)};
    // Most hosts know their key, or little would come of it.
    const Registrant* const own = now.Find(host);
    if (own != nullptr && random.Next() % 4 != 0) keys[0] = own->key;
    const size_t bytes = random.Next() % 64 == 0 ? random.Next() % 16 : sizeof(keys);
    const ReservationOutcome outcome = Execute(now, host, entry, Bytes(keys).first(bytes));
    if (outcome.status != 0) {
      ASSERT_EQ(outcome.after, now);
      ASSERT_TRUE(outcome.notices.empty());
      continue;
    }
    ++done;
    ASSERT_TRUE(outcome.after.generation == now.generation || outcome.after.generation == now.generation + 1);
    if (outcome.after.registrants != now.registrants) {
      ASSERT_EQ(outcome.after.generation, now.generation + 1);
    }
    std::set<Uuid> told;
    for (const auto& [to, notice] : outcome.notices) {
      ASSERT_NE(to, host);
      ASSERT_NE(now.Find(to), nullptr) << "who was no registrant has nothing to hear";
      ASSERT_TRUE(told.insert(to).second);
      ASSERT_EQ(outcome.after.Find(to) != nullptr, notice == ReservationNotice::kReservationReleased);
    }
    for (const Registrant& before : now.registrants) {
      const bool lost = outcome.after.Find(before.host_id) == nullptr;
      ASSERT_TRUE(!lost || before.host_id == host || told.contains(before.host_id)) << "lost and not told";
    }
    now = outcome.after;
    seen.insert(now.type);
    ExpectSound(now);
    ASSERT_FALSE(testing::Test::HasFailure()) << "command " << i;
  }
  EXPECT_EQ(seen.size(), 7U) << "each type was held, and none";
  EXPECT_GT(done, 10'000U);
}

}  // namespace
}  // namespace cleat::nvme::target::reservation_test
