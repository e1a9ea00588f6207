#pragma once
#include <cstdio>
#include <cstdlib>
#include <string>

constexpr int kSkipped = 77;  // a test program's status where the machine lacks what it is about

/// Ends the test program with file and line if the condition is false. Works in release builds and in child processes.
#define CHECK(condition)                                                                 \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      std::fprintf(stderr, "%s:%d: CHECK(%s) failed\n", __FILE__, __LINE__, #condition); \
      std::_Exit(1);                                                                     \
    }                                                                                    \
  } while (false)

/// Ends the test program if the expression does not throw `type`; `text` must be part of what() ("" for any text).
#define CHECK_THROWS(expression, type, text)                                                        \
  do {                                                                                              \
    bool thrown = false;                                                                            \
    try {                                                                                           \
      (void)(expression);                                                                           \
    } catch (const type& error) {                                                                   \
      thrown = true;                                                                                \
      const std::string what = error.what();                                                        \
      if (what.find(text) == std::string::npos) std::fprintf(stderr, "what(): %s\n", what.c_str()); \
      CHECK(what.find(text) != std::string::npos);                                                  \
    }                                                                                               \
    CHECK(thrown);                                                                                  \
  } while (false)
