#pragma once
#include "codec/codec.hpp"
#include "codec/policy.hpp"

namespace accdp {

/// As codec_speed() of codec/speeds.hpp, on a device, which is the current one: of runs of DeviceTensors::kRunBytes,
/// the way of the encoded bytes to the host and back included. The codec is one that works there. Measured at first
/// use, some milliseconds, and kept by the GPU's model, beside the host's. One that fails is as slow as nobody wants
/// it, and standard error says so once: who asks for it by name gets the error.
CodecCost device_codec_speed(int device, const CodecRow& codec, Datatype type);

}  // namespace accdp
