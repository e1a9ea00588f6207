#pragma once
#include <pybind11/pybind11.h>

#include <algorithm>

#include "coll/group.hpp"

namespace accdp::bind {

constexpr long long kMostTag = (1LL << 31) - 1;

/// A number from 0 to most, else -1.
inline long long number(pybind11::handle value, long long most) {
  if (!PyLong_CheckExact(value.ptr())) return -1;
  int overflow = 0;
  const long long n = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
  return overflow == 0 && n <= most ? std::max(n, -1LL) : -1;
}
inline int rank_in(const Group& g, pybind11::handle value) { return static_cast<int>(number(value, g.size() - 1)); }

}  // namespace accdp::bind
