/* A preloaded library in whose programs chosen calls that write fail.

   BAD_DISK_CALLS names a file with the integers of `struct control`, which programs and test share. Below the folder
   BAD_DISK_ROOT, calls are counted, and from number `first` on, `times` of them fail with the error `number`. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct control {
    int first, times, number, count, failed;
    char call[16], path[PATH_MAX];
};

static struct control *shared(void) {
    static struct control *control;
    if (!control) {
        int descriptor = syscall(257, AT_FDCWD, getenv("BAD_DISK_CALLS"), O_RDWR | O_CLOEXEC, 0); /* openat */
        if (descriptor < 0) return NULL;
        control = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
        syscall(3, descriptor); /* close */
        if (control == MAP_FAILED) control = NULL;
    }
    return control;
}

static int fails(const char *call, const char *path) {
    struct control *control = shared();
    const char *root = getenv("BAD_DISK_ROOT");
    if (!control || !path || !root || strncmp(path, root, strlen(root))) return 0;
    int index = __sync_add_and_fetch(&control->count, 1) - control->first;
    if (index < 0 || index >= control->times) return 0;
    snprintf(control->call, sizeof control->call, "%s", call);
    snprintf(control->path, sizeof control->path, "%s", path);
    __sync_add_and_fetch(&control->failed, 1);
    errno = control->number;
    return 1;
}

static int descriptor_fails(const char *call, int descriptor) {
    char link[64], path[PATH_MAX];
    int number = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    errno = number;
    if (length < 0) return 0;
    path[length] = 0;
    return fails(call, path);
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define OPEN(name, ...)                                                       \
    va_list rest;                                                             \
    va_start(rest, flags);                                                    \
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;   \
    va_end(rest);                                                             \
    if (flags & (O_WRONLY | O_RDWR | O_CREAT) && fails("open", path)) return -1; \
    return NEXT(name)(__VA_ARGS__, flags, mode);

int open(const char *path, int flags, ...) { OPEN(open, path) }
int open64(const char *path, int flags, ...) { OPEN(open64, path) }
int openat(int folder, const char *path, int flags, ...) { OPEN(openat, folder, path) }
int openat64(int folder, const char *path, int flags, ...) { OPEN(openat64, folder, path) }

#define BY_DESCRIPTOR(type, name, parameters, arguments) \
    type name parameters { return descriptor_fails(#name, descriptor) ? -1 : NEXT(name) arguments; }

BY_DESCRIPTOR(ssize_t, write, (int descriptor, const void *data, size_t size), (descriptor, data, size))
BY_DESCRIPTOR(ssize_t, pwrite, (int descriptor, const void *data, size_t size, off_t offset), (descriptor, data, size, offset))
BY_DESCRIPTOR(ssize_t, pwrite64, (int descriptor, const void *data, size_t size, off64_t offset), (descriptor, data, size, offset))
BY_DESCRIPTOR(int, fsync, (int descriptor), (descriptor))
BY_DESCRIPTOR(int, fdatasync, (int descriptor), (descriptor))
BY_DESCRIPTOR(int, ftruncate, (int descriptor, off_t size), (descriptor, size))
BY_DESCRIPTOR(int, ftruncate64, (int descriptor, off64_t size), (descriptor, size))

int rename(const char *source, const char *path) { return fails("rename", path) ? -1 : NEXT(rename)(source, path); }
int mkdir(const char *path, mode_t mode) { return fails("mkdir", path) ? -1 : NEXT(mkdir)(path, mode); }
int link(const char *source, const char *path) { return fails("link", path) ? -1 : NEXT(link)(source, path); }
int unlink(const char *path) { return fails("unlink", path) ? -1 : NEXT(unlink)(path); }
