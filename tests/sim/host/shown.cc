// SPDX-License-Identifier: Apache-2.0
#include "shown.h"

namespace cleat::sim {
namespace {

v1::ListAttachmentsRequest OfAllControllers() {
  v1::ListAttachmentsRequest request;
  request.set_parent("controllers/-");
  return request;
}

}  // namespace

Shown::Shown(control::HostState& state)
    : engines(state.engines().List({}).value()),
      disks(state.disks().List({}).value()),
      groups(state.groups().List({}).value()),
      controllers(state.controllers().List({}).value()),
      attachments(state.attachments().List(OfAllControllers()).value()) {}

}  // namespace cleat::sim
