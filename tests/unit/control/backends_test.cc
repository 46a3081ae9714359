// SPDX-License-Identifier: Apache-2.0
// Every kind of back end that the API has, and those that it will have: an engine is told of the same kind, and what cleatd knows of
// the storage is what the engine is told.
#include "control/validate/backends.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/build_options.h"
#include "control/model/reasons.h"
#include "control/validate/spec_rules.h"

namespace cleat::control::backends_test {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

std::vector<const FieldDescriptor*> KindsOf(const google::protobuf::Descriptor* disk) {
  std::vector<const FieldDescriptor*> kinds;
  const auto* backend = disk->FindOneofByName("backend");
  for (int i = 0; i < backend->field_count(); ++i) kinds.push_back(backend->field(i));
  return kinds;
}

// What a text field may say: the name of a cluster or a subsystem, a path, or a word.
std::string TextFor(const std::string& field) {
  if (field == "cluster") return "clusters/a";
  if (field == "subsystem") return "subsystems/a";
  return field == "path" ? "/a" : "a";
}

DiskRow RowOf(const FieldDescriptor* kind) {
  DiskRow row;
  row.id = "a";
  row.spec.set_size_bytes(1 << 20);
  Message* backend = row.spec.GetReflection()->MutableMessage(&row.spec, kind);
  for (int i = 0; i < backend->GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = backend->GetDescriptor()->field(i);
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING)
      backend->GetReflection()->SetString(backend, field, TextFor(field->name()));
  }
  return row;
}

TEST(EveryBackend, HasTheSameNameAndNumberInTheApiAndForEngines) {
  const auto kinds = KindsOf(v1::DiskSpec::descriptor());
  ASSERT_GE(kinds.size(), 4U);
  ASSERT_EQ(kinds.size(), KindsOf(engine::v1::Disk::descriptor()).size());
  for (const FieldDescriptor* kind : kinds) {
    const FieldDescriptor* told = engine::v1::Disk::descriptor()->FindFieldByName(kind->name());
    ASSERT_NE(told, nullptr) << kind->name();
    EXPECT_EQ(told->number(), kind->number()) << kind->name();
  }
}

TEST(EveryBackend, IsWhatTheEngineIsTold) {
  for (const FieldDescriptor* kind : KindsOf(v1::DiskSpec::descriptor())) {
    SCOPED_TRACE(kind->name());
    const DiskRow row = RowOf(kind);
    engine::v1::Disk told;
    PutBackend(row, false, &told);
    EXPECT_EQ(static_cast<int>(told.backend_case()), kind->number());
    EXPECT_EQ(ClusterOf(told), ClusterOf(row.spec));
  }
}

// Two disks of the same storage have the same claim, whose words make a sentence.
TEST(EveryBackend, ClaimsWhatItNames) {
  for (const FieldDescriptor* kind : KindsOf(v1::DiskSpec::descriptor())) {
    SCOPED_TRACE(kind->name());
    const DiskRow row = RowOf(kind);
    const auto claim = ClaimOf(row.spec);
    const bool names_storage = !FileOf(row.spec).empty() || !RemoteOf(row.spec).empty();
    EXPECT_TRUE(claim || !names_storage) << "another disk could have the same";
    if (!claim) continue;
    EXPECT_EQ(ClaimOfStorage(row.spec), ClaimOfStorage(RowOf(kind).spec));
    EXPECT_TRUE(std::string(claim->with_an).ends_with(claim->noun)) << claim->with_an;
    EXPECT_NE(claim->when_taken, v1::REASON_UNSPECIFIED);
  }
}

TEST(Backends, ADiskWithoutOneIsToldWhichThereAre) {
  v1::DiskSpec spec;
  const Status status = CompleteBackend("disks/a", &spec);
  ASSERT_FALSE(status.ok());
  EXPECT_TRUE(status.error().message.starts_with("disks/a: no back end: set one of null, memory, file, rbd"))
      << status.error().message;
  EXPECT_EQ(ClaimOfStorage(spec), "");
  EXPECT_EQ(FileOf(spec), "");
}

// What packages are made of has no example; a build for who writes a back end has it.
TEST(ExampleBackend, IsRefusedByAProductAndTakenWithTheOption) {
  v1::DiskSpec spec;
  spec.set_size_bytes(1 << 20);
  spec.mutable_example()->set_fill(7);
  const auto completed = CompleteDiskSpec("a", spec);
  ASSERT_EQ(completed.ok(), kExampleDisks);
  if (!kExampleDisks) {
    EXPECT_EQ(completed.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(ReasonOf(completed.error()), v1::REASON_INVALID_FIELD);
    EXPECT_EQ(MetadataOf(completed.error(), "field"), "spec.example");
    EXPECT_TRUE(completed.error().message.starts_with("disks/a: example")) << completed.error().message;
    EXPECT_NE(completed.error().message.find("CLEAT_EXAMPLE=OFF"), std::string::npos);
    return;
  }
  spec.mutable_example()->set_fill(256);
  const auto too_large = CompleteDiskSpec("a", spec);
  ASSERT_FALSE(too_large.ok());
  EXPECT_EQ(MetadataOf(too_large.error(), "field"), "spec.example.fill");
}

TEST(ExampleBackend, IsNamedAsAChoiceWithTheOptionAlone) {
  v1::DiskSpec spec;
  const Status status = CompleteBackend("disks/a", &spec);
  EXPECT_EQ(status.error().message.ends_with(", example"), kExampleDisks) << status.error().message;
}

}  // namespace
}  // namespace cleat::control::backends_test
