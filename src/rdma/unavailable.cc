// SPDX-License-Identifier: Apache-2.0
// In place of all that knows libibverbs, where its headers were missing when this was built.
#include "rdma/connection_manager.h"
#include "rdma/device.h"

namespace cleat::rdma {
namespace {

Error BuiltWithout() {
  return {ErrorCode::kUnavailable,
          "RDMA: built without the headers of libibverbs and librdmacm: install libibverbs-dev and "
          "librdmacm-dev and build again"};
}

}  // namespace

Result<std::string> DeviceNameAt(const std::string& /*local_address*/) {
  return BuiltWithout();
}
Result<std::unique_ptr<Device>> OpenDevice(const std::string& /*local_address*/) {
  return BuiltWithout();
}
Result<std::unique_ptr<ConnectionManager>> OpenConnectionManager() {
  return BuiltWithout();
}

}  // namespace cleat::rdma
