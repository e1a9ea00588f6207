#pragma once
#include <pybind11/pybind11.h>

#include "coll/stream_codec.hpp"

namespace accdp::bind {

inline pybind11::dict report_of(const StreamReport& report) {
  pybind11::dict d;
  d["logical_bytes"] = report.logical_bytes;
  d["wire_bytes"] = report.wire_bytes;
  d["codec"] = report.codec;
  d["codec_place"] = report.codec_place;
  d["algorithm"] = report.algorithm;
  pybind11::dict seconds;
  seconds["encode"] = report.encode_s;
  seconds["decode"] = report.decode_s;
  seconds["wire"] = report.wire_s;
  seconds["node"] = report.node_s;
  seconds["total"] = report.total_s;
  d["seconds"] = seconds;
  return d;
}

}  // namespace accdp::bind
