#pragma once

#include <cstdio>
#include <cstdlib>
#include <utility>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/string_view.h>

/// Returns early with the status of `expr` when it is not OK.
#define RETURN_IF_ERROR(expr)                           \
  do {                                                  \
    if (absl::Status status_ = (expr); !status_.ok()) { \
      return status_;                                   \
    }                                                   \
  } while (false)

#define LONGSHORE_CONCAT_INNER(a, b) a##b
#define LONGSHORE_CONCAT(a, b) LONGSHORE_CONCAT_INNER(a, b)

/// ASSIGN_OR_RETURN(auto x, F()): the value of F(), or an early return with its status.
#define ASSIGN_OR_RETURN(lhs, expr) \
  LONGSHORE_ASSIGN_OR_RETURN_INNER(LONGSHORE_CONCAT(status_or_, __LINE__), lhs, expr)
// NOLINTBEGIN(bugprone-macro-parentheses): tmp and lhs are declarations
#define LONGSHORE_ASSIGN_OR_RETURN_INNER(tmp, lhs, expr) \
  auto tmp = (expr);                                     \
  if (!tmp.ok()) {                                       \
    return std::move(tmp).status();                      \
  }                                                      \
  lhs = std::move(tmp).value()
// NOLINTEND(bugprone-macro-parentheses)

/// Ends the process when one of our own invariants is broken. Never used on input.
#define LONGSHORE_CHECK(condition)                                                           \
  do {                                                                                       \
    if (!(condition)) {                                                                      \
      std::fprintf(stderr, "%s:%d: broken invariant: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                          \
    }                                                                                        \
  } while (false)
