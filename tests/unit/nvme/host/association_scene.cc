// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/nvme/host/association_scene.h"

#include <gtest/gtest.h>

namespace cleat::nvme::host {

void News::Live(uint64_t life, const AssociationInfo& live) {
  EXPECT_EQ(life, kLife);
  EXPECT_FALSE(info);
  info = live;
}

void News::Changed(uint64_t life, uint32_t bits, const AssociationInfo& now) {
  EXPECT_EQ(life, kLife);
  EXPECT_TRUE(info && !lost);
  ++readings;
  info = now;
  if (bits == 0) return;
  changed |= bits;
  ++changes;
}

void News::Lost(uint64_t life, const Error& reason) {
  EXPECT_EQ(life, kLife);
  EXPECT_FALSE(lost || gone);
  lost = reason;
}

void News::Gone(uint64_t life) {
  EXPECT_EQ(life, kLife);
  EXPECT_FALSE(gone);
  gone = true;
}

AssociationConfig Config() {
  AssociationConfig config;
  config.who = "subsystems/a at 10.0.0.1:4420";
  config.life = kLife;
  config.host = fabrics::HostIdentityOfUuid(fabrics::kTestUuid);
  config.subsystem_nqn = fabrics::kTestSubsystem;
  config.wanted.ids.uuid = fabrics::kTestUuid;
  config.io_queues = 8;
  return config;
}

Scene::Scene(AssociationConfig config) : association(std::move(config), news) {
  target.owner = &association;
}

void Scene::Begin() {
  association.Start(target, now_ns);
  association.Connected();
  target.Serve();
}

void Scene::Pass(uint64_t ns) {
  for (const uint64_t end = now_ns + ns; now_ns < end;) {
    now_ns += Association::kTickNs;
    association.Tick(now_ns);
    target.Serve();
  }
}

void Scene::StandStill(uint64_t ns) {
  now_ns += ns;
  association.Tick(now_ns);
}

bool Scene::LostFor(std::string_view part) const {
  return news.lost && news.gone && target.aborted && lost().starts_with("subsystems/a at 10.0.0.1:4420") &&
         lost().find(part) != std::string::npos;
}

}  // namespace cleat::nvme::host
