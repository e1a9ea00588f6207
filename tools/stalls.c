// `make stalls`: stands before the system's library in all processes of a test (LD_PRELOAD), and lets a few of their
// system calls take long, by chance. So whatever two processes tell each other comes early in one run and late in the
// next, as it does once in some hundred runs on a machine that is busy with other things.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static long number(const char* name, long otherwise) {
  const char* text = getenv(name);
  return text ? atol(text) : otherwise;
}

static void stall(void) {
  static long per_mille = -1, most_us;
  static __thread uint64_t chance;
  const int before = errno;
  if (per_mille < 0) {
    most_us = number("STALLS_MOST_US", 20000);
    per_mille = number("STALLS_PER_MILLE", 10);
  }
  if (!chance) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    chance = ((uint64_t)now.tv_nsec << 20 ^ (uint64_t)getpid() << 40 ^ (uintptr_t)&chance) | 1;
  }
  chance ^= chance << 13, chance ^= chance >> 7, chance ^= chance << 17;
  if ((long)((chance >> 20) % 1000) < per_mille) {
    const long us = (chance >> 33) % most_us;
    const struct timespec time = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&time, NULL);
  }
  errno = before;
}

#define REAL(name)               \
  static __typeof__(name)* real; \
  if (!real) real = (__typeof__(name)*)dlsym(RTLD_NEXT, #name)

#define STALLED(result, name, parameters, arguments) \
  result name parameters {                           \
    REAL(name);                                      \
    stall();                                         \
    const result got = real arguments;               \
    stall();                                         \
    return got;                                      \
  }

STALLED(ssize_t, read, (int fd, void* data, size_t bytes), (fd, data, bytes))
STALLED(ssize_t, write, (int fd, const void* data, size_t bytes), (fd, data, bytes))
STALLED(ssize_t, send, (int fd, const void* data, size_t bytes, int flags), (fd, data, bytes, flags))
STALLED(ssize_t, recv, (int fd, void* data, size_t bytes, int flags), (fd, data, bytes, flags))
STALLED(int, close, (int fd), (fd))
STALLED(int, poll, (struct pollfd * fds, nfds_t count, int ms), (fds, count, ms))
STALLED(int, epoll_wait, (int fd, struct epoll_event* events, int most, int ms), (fd, events, most, ms))
STALLED(int, connect, (int fd, const struct sockaddr* address, socklen_t bytes), (fd, address, bytes))
STALLED(int, accept4, (int fd, struct sockaddr* address, socklen_t* bytes, int flags), (fd, address, bytes, flags))
STALLED(int, kill, (pid_t pid, int signal), (pid, signal))
STALLED(int, unlink, (const char* path), (path))
STALLED(int, rename, (const char* from, const char* to), (from, to))
STALLED(int, ftruncate, (int fd, off_t bytes), (fd, bytes))
STALLED(int, sched_yield, (void), ())
STALLED(pid_t, waitpid, (pid_t pid, int* status, int options), (pid, status, options))
STALLED(pid_t, fork, (void), ())

#define STALLED_OPEN(name)                     \
  int name(const char* path, int flags, ...) { \
    REAL(name);                                \
    va_list more;                              \
    va_start(more, flags);                     \
    const int mode = va_arg(more, int);        \
    va_end(more);                              \
    stall();                                   \
    return real(path, flags, mode);            \
  }
STALLED_OPEN(open)
STALLED_OPEN(open64)

long syscall(long which, ...) {  // futexes
  REAL(syscall);
  va_list more;
  va_start(more, which);
  long a[6];
  for (int i = 0; i < 6; ++i) a[i] = va_arg(more, long);
  va_end(more);
  stall();
  return real(which, a[0], a[1], a[2], a[3], a[4], a[5]);
}
