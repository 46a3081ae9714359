// SPDX-License-Identifier: Apache-2.0
// What packing and unpacking of the engine's protocol share: short names of protobuf-c's structs. For codec_pack.cc and
// codec_unpack.cc alone.
#pragma once

#include <cleat/engine/v1/engine.pb-c.h>

#include "qos/limits.h"

namespace cleat::engine {

using PbEnvelope = Cleat__Engine__V1__Envelope;
using PbDisk = Cleat__Engine__V1__Disk;
using PbController = Cleat__Engine__V1__Controller;
using PbAttachment = Cleat__Engine__V1__Attachment;
using PbMemory = Cleat__Engine__V1__Memory;
using PbEncryption = Cleat__Engine__V1__Encryption;
using PbRate = Cleat__Engine__V1__Rate;
using PbLimits = Cleat__Engine__V1__Limits;
using PbGroup = Cleat__Engine__V1__Group;
using PbCluster = Cleat__Engine__V1__Cluster;
using PbCephClient = Cleat__Engine__V1__CephClient;
using PbHandOver = Cleat__Engine__V1__HandOver;
using PbDiskHandOver = Cleat__Engine__V1__DiskHandOver;
using PbControllerStatus = Cleat__Engine__V1__ControllerStatus;
using PbAttachmentStatus = Cleat__Engine__V1__AttachmentStatus;

// In the order of qos::Meter.
inline constexpr PbRate* PbLimits::*kRates[qos::kMeters] = {&PbLimits::iops,       &PbLimits::read_iops,
                                                            &PbLimits::write_iops, &PbLimits::bytes,
                                                            &PbLimits::read_bytes, &PbLimits::write_bytes};

}  // namespace cleat::engine
