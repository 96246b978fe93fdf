// A wall clock that jumps: preloaded into the daemon and its clients, it adds as many seconds to the time of day as the
// file named by CHAOS_CLOCK says. Everything that must not depend on the wall clock is shown not to.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *offset_s;
static int (*real_clock_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void find(void) {
  real_clock_gettime = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  const char *path = getenv("CHAOS_CLOCK");
  int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (fd < 0) return;
  void *map = mmap(0, sizeof *offset_s, PROT_READ, MAP_SHARED, fd, 0);
  close(fd);
  if (map != MAP_FAILED) offset_s = map;
}

int clock_gettime(clockid_t which, struct timespec *out) {
  if (!real_clock_gettime) find();
  int result = real_clock_gettime(which, out);
  if (!result && offset_s && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) out->tv_sec += *offset_s;
  return result;
}

time_t time(time_t *out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out) *out = now.tv_sec;
  return now.tv_sec;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
  (void)zone;
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  out->tv_sec = now.tv_sec;
  out->tv_usec = now.tv_nsec / 1000;
  return 0;
}
