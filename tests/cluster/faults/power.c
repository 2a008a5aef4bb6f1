/* A power cut, without cutting power. Preloaded into a process, this keeps an undo journal: before a write to a file
 * under $POWER_DIR, what the write covers; at an fsync, that all writes to the file up to then are safe. Once the
 * processes have been killed, the test undoes every write that no fsync had covered, newest first: what a power cut
 * may take.
 *
 * Not modelled: names of files (a rename without an fsync of the folder survives here), writes through mmap, and
 * writes that reach the disk by themselves, whole or in part, in another order.
 *
 * A record is a header of 48 bytes, the file's path and the bytes before; numbers are of this machine's order. One
 * journal serves several processes: it is only appended to. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { WRITE = 1, SYNC = 2 };

struct header {
  uint64_t kind, inode, offset, length_before, path_bytes, old_bytes;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int journal = -1;

/* The path of a regular file under $POWER_DIR; 0 for anything else. */
static int watched(int fd, char *path, size_t room, struct stat *status) {
  const char *folder = getenv("POWER_DIR");
  char link[64];
  if (!folder || fd < 3 || fstat(fd, status) || !S_ISREG(status->st_mode)) return 0;
  strcpy(link, "/proc/self/fd/");
  char digits[12];
  int count = 0, rest = fd;
  do digits[count++] = (char)('0' + rest % 10); while (rest /= 10);
  size_t at = strlen(link);
  while (count) link[at++] = digits[--count];
  link[at] = 0;
  ssize_t length = readlink(link, path, room - 1);
  if (length < 0) return 0;
  path[length] = 0;
  return !strncmp(path, folder, strlen(folder));
}

static void record(uint64_t kind, const char *path, const struct stat *status, off_t offset, size_t length) {
  static ssize_t (*real_write)(int, const void *, size_t);
  if (!real_write) real_write = (ssize_t(*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
  if (journal < 0) journal = open(getenv("POWER_JOURNAL"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  size_t path_bytes = strlen(path), old = 0;
  if (kind == WRITE && offset < status->st_size) {
    old = (size_t)(status->st_size - offset) < length ? (size_t)(status->st_size - offset) : length;
  }
  char *buffer = malloc(sizeof(struct header) + path_bytes + old);
  if (!buffer) abort();
  if (old) {
    int reader = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = reader < 0 ? -1 : pread(reader, buffer + sizeof(struct header) + path_bytes, old, offset);
    if (reader >= 0) close(reader);
    old = got < 0 ? 0 : (size_t)got;
  }
  struct header header = {kind, status->st_ino, (uint64_t)offset, (uint64_t)status->st_size, path_bytes, old};
  memcpy(buffer, &header, sizeof header);
  memcpy(buffer + sizeof header, path, path_bytes);
  size_t bytes = sizeof header + path_bytes + old;
  if (real_write(journal, buffer, bytes) != (ssize_t)bytes) abort();
  free(buffer);
}

#define REAL(name) \
  static __typeof__(&name) real; \
  if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

ssize_t write(int fd, const void *bytes, size_t length) {
  REAL(write);
  char path[1024];
  struct stat status;
  if (!watched(fd, path, sizeof path, &status)) return real(fd, bytes, length);
  pthread_mutex_lock(&lock);
  fstat(fd, &status);
  off_t at = fcntl(fd, F_GETFL) & O_APPEND ? status.st_size : lseek(fd, 0, SEEK_CUR);
  record(WRITE, path, &status, at, length);
  ssize_t written = real(fd, bytes, length);
  pthread_mutex_unlock(&lock);
  return written;
}

static ssize_t write_at(int fd, const void *bytes, size_t length, off_t at,
                        ssize_t (*real)(int, const void *, size_t, off_t)) {
  char path[1024];
  struct stat status;
  if (!watched(fd, path, sizeof path, &status)) return real(fd, bytes, length, at);
  pthread_mutex_lock(&lock);
  fstat(fd, &status);
  record(WRITE, path, &status, at, length);
  ssize_t written = real(fd, bytes, length, at);
  pthread_mutex_unlock(&lock);
  return written;
}

ssize_t pwrite(int fd, const void *bytes, size_t length, off_t at) {
  REAL(pwrite);
  return write_at(fd, bytes, length, at, real);
}

ssize_t pwrite64(int fd, const void *bytes, size_t length, off64_t at) {
  REAL(pwrite64);
  return write_at(fd, bytes, length, at, real);
}

static int synced(int fd, int (*real)(int)) {
  char path[1024];
  struct stat status;
  if (!watched(fd, path, sizeof path, &status)) return real(fd);
  /* Writes that come in while it runs may not be covered: they are recorded after it. */
  pthread_mutex_lock(&lock);
  int outcome = real(fd);
  if (!outcome) record(SYNC, path, &status, 0, 0);
  pthread_mutex_unlock(&lock);
  return outcome;
}

int fsync(int fd) {
  REAL(fsync);
  return synced(fd, real);
}

int fdatasync(int fd) {
  REAL(fdatasync);
  return synced(fd, real);
}
