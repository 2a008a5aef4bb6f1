/* A disk that is full, for one process. Preloaded, this lets writes to files under $DISK_DIR fail with ENOSPC while the
 * file $DISK_FULL exists. Names of files can still be made and removed, as on many a full disk. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The log of the process is in the same place, but not under $DISK_DIR: it can always say what is wrong. */
static int is_full(int fd) {
  const char *folder = getenv("DISK_DIR"), *flag = getenv("DISK_FULL");
  struct stat status;
  char link[64], path[1024];
  if (!folder || !flag || fd < 3 || fstat(fd, &status) || !S_ISREG(status.st_mode)) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = 0;
  if (strncmp(path, folder, strlen(folder)) || access(flag, F_OK)) return 0;
  errno = ENOSPC;
  return 1;
}

#define REAL(name) \
  static __typeof__(&name) real; \
  if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

ssize_t write(int fd, const void *bytes, size_t length) {
  REAL(write);
  return is_full(fd) ? -1 : real(fd, bytes, length);
}

ssize_t pwrite(int fd, const void *bytes, size_t length, off_t at) {
  REAL(pwrite);
  return is_full(fd) ? -1 : real(fd, bytes, length, at);
}

ssize_t pwrite64(int fd, const void *bytes, size_t length, off64_t at) {
  REAL(pwrite64);
  return is_full(fd) ? -1 : real(fd, bytes, length, at);
}

int fallocate(int fd, int mode, off_t at, off_t length) {
  REAL(fallocate);
  return is_full(fd) ? -1 : real(fd, mode, at, length);
}
