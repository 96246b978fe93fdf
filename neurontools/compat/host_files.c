/* Shows a machine's host files at their real paths, in every program that neuron-run starts.
 *
 * Calls that take a path of the driver get the file of the same name in the mirror, a directory that neurond writes
 * (neurontools/sysfs/host_files.py). Directories such as /dev list the mirror's names after their own. The mirror's
 * plain file dev/neuron<N> is shown as a character device. neurond updates the mirror first: at each look at a
 * counter, at the first look at a device, otherwise at most once a second.
 *
 * Without NEURONTOOLS_HOST_FILES, or without a machine, every call is the real one.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fts.h>
#include <ftw.h>
#include <glob.h>
#include <stdarg.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>

#include "host_mirror.h"

#ifndef NEURON_MAJOR
#error "NEURON_MAJOR is the number in the mirror's /proc/devices"
#endif
#define EXPORT __attribute__((visibility("default")))
/* A second symbol of a call: on 64-bit Linux both forms have the same types. */
#define SAME(symbol, name) EXPORT extern __typeof__(name) also_##symbol __asm__(#symbol) __attribute__((alias(#name)))

/* ---- files ---- */

#define TO(directory, path)      \
    char changed[PATH_MAX];      \
    path = redirect(directory, path, changed)
#define FORWARD(type, name, parameters, directory, arguments) \
    EXPORT type name parameters {                             \
        TO(directory, path);                                  \
        return NEXT(name) arguments;                          \
    }
#define MODE(flags)                                              \
    mode_t mode = 0;                                             \
    if ((flags) & O_CREAT || ((flags) & O_TMPFILE) == O_TMPFILE) { \
        va_list rest;                                            \
        va_start(rest, flags);                                   \
        mode = va_arg(rest, mode_t);                             \
        va_end(rest);                                            \
    }

EXPORT int open(const char *path, int flags, ...) {
    MODE(flags)
    TO(AT_FDCWD, path);
    return NEXT(open)(path, flags, mode);
}
EXPORT int openat(int directory, const char *path, int flags, ...) {
    MODE(flags)
    TO(directory, path);
    return NEXT(openat)(directory, path, flags, mode);
}
EXPORT int __open_2(const char *path, int flags) { return open(path, flags); }
EXPORT int __openat_2(int directory, const char *path, int flags) { return openat(directory, path, flags); }
FORWARD(FILE *, fopen, (const char *path, const char *mode), AT_FDCWD, (path, mode))
FORWARD(int, access, (const char *path, int mode), AT_FDCWD, (path, mode))
FORWARD(int, euidaccess, (const char *path, int mode), AT_FDCWD, (path, mode))
FORWARD(int, faccessat, (int directory, const char *path, int mode, int flags), directory,
        (directory, path, mode, flags))
EXPORT ssize_t readlinkat(int directory, const char *path, char *out, size_t size) {
    TO(directory, path);
    return syscall(SYS_readlinkat, directory, path, out, size);
}
EXPORT ssize_t readlink(const char *path, char *out, size_t size) { return readlinkat(AT_FDCWD, path, out, size); }
EXPORT ssize_t __readlink_chk(const char *path, char *out, size_t size, size_t room) {
    return readlinkat(AT_FDCWD, path, out, size < room ? size : room);
}
EXPORT ssize_t __readlinkat_chk(int directory, const char *path, char *out, size_t size, size_t room) {
    return readlinkat(directory, path, out, size < room ? size : room);
}
EXPORT char *realpath(const char *path, char *out) {
    TO(AT_FDCWD, path);
    char *found = NEXT(realpath)(path, out);
    size_t root = strlen(mirror);
    if (found && path == changed && begins(found, mirror)) memmove(found, found + root, strlen(found + root) + 1);
    return found;
}
EXPORT char *__realpath_chk(const char *path, char *out, size_t room) {
    (void)room;
    return realpath(path, out);
}
EXPORT char *canonicalize_file_name(const char *path) { return realpath(path, NULL); }
FORWARD(int, chdir, (const char *path), AT_FDCWD, (path))
FORWARD(ssize_t, getxattr, (const char *path, const char *name, void *value, size_t size), AT_FDCWD,
        (path, name, value, size))
FORWARD(ssize_t, lgetxattr, (const char *path, const char *name, void *value, size_t size), AT_FDCWD,
        (path, name, value, size))
FORWARD(ssize_t, listxattr, (const char *path, char *list, size_t size), AT_FDCWD, (path, list, size))
FORWARD(ssize_t, llistxattr, (const char *path, char *list, size_t size), AT_FDCWD, (path, list, size))
FORWARD(int, execve, (const char *path, char *const arguments[], char *const environment[]), AT_FDCWD,
        (path, arguments, environment))
EXPORT int execv(const char *path, char *const arguments[]) { return execve(path, arguments, environ); }
FORWARD(int, posix_spawn,
        (pid_t *child, const char *path, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attributes,
         char *const arguments[], char *const environment[]),
        AT_FDCWD, (child, path, actions, attributes, arguments, environment))
SAME(open64, open);
SAME(openat64, openat);
SAME(__open64_2, __open_2);
SAME(__openat64_2, __openat_2);
SAME(fopen64, fopen);
SAME(eaccess, euidaccess);

/* ---- status ---- */

/* The path below the mirror of its file behind a path or descriptor that may be a device, "" for any other. */
static const char *node_name(const char *path, int descriptor, bool may_be, char *out) {
    if (!*mirror || !may_be) return "";
    if (!path && !path_of(descriptor, out)) return "";
    path = path ? path : out;
    const char *name = begins(path, mirror) ? path + strlen(mirror) : "";
    return is_node(name) ? name : "";
}

static int finish(int outcome, const char *path, int descriptor, struct stat *status) {
    char out[PATH_MAX];
    bool may_be = !outcome && S_ISREG(status->st_mode) && !status->st_size;
    const char *name = node_name(path, descriptor, may_be, out);
    if (*name) {
        status->st_mode = S_IFCHR | 0666;
        status->st_rdev = makedev(NEURON_MAJOR, atoi(name + strlen(places[0].path)));
        status->st_uid = status->st_gid = 0;
    }
    return outcome;
}

EXPORT int fstat(int descriptor, struct stat *status) {
    return finish(syscall(SYS_fstat, descriptor, status), NULL, descriptor, status);
}
EXPORT int fstatat(int directory, const char *path, struct stat *status, int flags) {
    TO(directory, path);
    bool is_descriptor = path && !*path && flags & AT_EMPTY_PATH;
    int outcome = syscall(SYS_newfstatat, directory, path, status, flags);
    return is_descriptor || path == changed ? finish(outcome, is_descriptor ? NULL : path, directory, status) : outcome;
}
EXPORT int stat(const char *path, struct stat *status) { return fstatat(AT_FDCWD, path, status, 0); }
EXPORT int lstat(const char *path, struct stat *status) {
    return fstatat(AT_FDCWD, path, status, AT_SYMLINK_NOFOLLOW);
}
/* The names that programs built for glibc before 2.33 call. */
EXPORT int __fxstat(int version, int descriptor, struct stat *status) {
    (void)version;
    return fstat(descriptor, status);
}
EXPORT int __xstat(int version, const char *path, struct stat *status) {
    (void)version;
    return stat(path, status);
}
EXPORT int __lxstat(int version, const char *path, struct stat *status) {
    (void)version;
    return lstat(path, status);
}
EXPORT int __fxstatat(int version, int directory, const char *path, struct stat *status, int flags) {
    (void)version;
    return fstatat(directory, path, status, flags);
}
EXPORT int statx(int directory, const char *path, int flags, unsigned mask, struct statx *status) {
    TO(directory, path);
    int outcome = syscall(SYS_statx, directory, path, flags, mask | STATX_TYPE | STATX_SIZE, status);
    char out[PATH_MAX];
    bool is_descriptor = path && !*path && flags & AT_EMPTY_PATH;
    bool may_be = !outcome && S_ISREG(status->stx_mode) && !status->stx_size;
    const char *name = node_name(is_descriptor ? NULL : path, directory, may_be, out);
    if (*name) {
        status->stx_mode = S_IFCHR | 0666;
        status->stx_rdev_major = NEURON_MAJOR;
        status->stx_rdev_minor = atoi(name + strlen(places[0].path));
        status->stx_uid = status->stx_gid = 0;
    }
    return outcome;
}
SAME(stat64, stat);
SAME(lstat64, lstat);
SAME(fstat64, fstat);
SAME(fstatat64, fstatat);
SAME(__fxstat64, __fxstat);
SAME(__xstat64, __xstat);
SAME(__lxstat64, __lxstat);
SAME(__fxstatat64, __fxstatat);

/* ---- directories ---- */

struct joined {
    DIR *own, *added; /* the host's directory, and the mirror's, whose new names follow */
    bool is_at_end;   /* of the host's own names */
    struct joined *next;
};
static struct joined *joined_directories;

static struct joined *joined_with(DIR *own) {
    if (!__atomic_load_n(&joined_directories, __ATOMIC_ACQUIRE)) return NULL;
    take();
    struct joined *each = joined_directories;
    while (each && each->own != own) each = each->next;
    give();
    return each;
}

static DIR *join(DIR *own, const char *host) {
    int error = errno;
    const char *root = own && is_above(host) ? refresh(false, -1) : NULL;
    char path[PATH_MAX];
    DIR *added = root && snprintf(path, sizeof path, "%s%s", root, host) < PATH_MAX ? NEXT(opendir)(path) : NULL;
    struct joined *each = added ? malloc(sizeof *each) : NULL;
    if (each) {
        *each = (struct joined){own, added, false, NULL};
        take();
        each->next = joined_directories;
        __atomic_store_n(&joined_directories, each, __ATOMIC_RELEASE);
        give();
    }
    errno = error;
    return own;
}

EXPORT DIR *opendir(const char *path) {
    char changed[PATH_MAX], host[PATH_MAX];
    const char *used = redirect(AT_FDCWD, path, changed);
    DIR *own = NEXT(opendir)(used);
    return used == path && absolute(AT_FDCWD, path, host) ? join(own, host) : own;
}
EXPORT DIR *fdopendir(int descriptor) {
    char host[PATH_MAX];
    DIR *own = NEXT(fdopendir)(descriptor);
    return own && *machine && path_of(descriptor, host) ? join(own, host) : own;
}
EXPORT struct dirent *readdir(DIR *own) {
    struct joined *each = joined_with(own);
    int error = errno;
    if (!each || !each->is_at_end) {
        errno = 0;
        struct dirent *entry = NEXT(readdir)(own);
        if (entry || errno || !each) {
            errno = errno ? errno : error;
            return entry;
        }
        each->is_at_end = true;
    }
    struct dirent *entry;
    while ((entry = NEXT(readdir)(each->added)) && (*entry->d_name == '.' || exists(dirfd(own), entry->d_name)))
        continue;
    if (entry && entry->d_type == DT_REG && begins(entry->d_name, "neuron")) entry->d_type = DT_CHR;
    errno = error;
    return entry;
}
EXPORT void rewinddir(DIR *own) {
    struct joined *each = joined_with(own);
    if (each) {
        each->is_at_end = false;
        NEXT(rewinddir)(each->added);
    }
    NEXT(rewinddir)(own);
}
EXPORT int closedir(DIR *own) {
    struct joined *each = joined_with(own);
    if (each) {
        take();
        struct joined **link = &joined_directories;
        while (*link != each) link = &(*link)->next;
        *link = each->next;
        give();
        NEXT(closedir)(each->added);
        free(each);
    }
    return NEXT(closedir)(own);
}

/* The C library's own scandir() and glob() call its own opendir(). */
EXPORT int scandir(const char *path, struct dirent ***list, int (*select)(const struct dirent *),
                   int (*compare)(const struct dirent **, const struct dirent **)) {
    DIR *directory = opendir(path);
    if (!directory) return -1;
    struct dirent **found = NULL;
    size_t count = 0;
    for (struct dirent *entry; (entry = readdir(directory));) {
        if (select && !select(entry)) continue;
        struct dirent **longer = realloc(found, (count + 1) * sizeof *found);
        struct dirent *copy = longer ? malloc(entry->d_reclen) : NULL;
        found = longer ? longer : found;
        if (!copy) break;
        found[count++] = memcpy(copy, entry, entry->d_reclen);
    }
    closedir(directory);
    if (compare && count) qsort(found, count, sizeof *found, (int (*)(const void *, const void *))compare);
    *list = found ? found : malloc(1);
    return (int)count;
}
static void *open_for_glob(const char *path) { return opendir(path); }
static struct dirent *read_for_glob(void *directory) { return readdir(directory); }
static void close_for_glob(void *directory) { closedir(directory); }
EXPORT int glob(const char *pattern, int flags, int (*on_error)(const char *, int), glob_t *found) {
    if (!(flags & GLOB_ALTDIRFUNC)) {
        found->gl_opendir = open_for_glob;
        found->gl_readdir = read_for_glob;
        found->gl_closedir = close_for_glob;
        found->gl_stat = stat;
        found->gl_lstat = lstat;
    }
    return NEXT(glob)(pattern, flags | GLOB_ALTDIRFUNC, on_error, found);
}
/* Nor do its walks call ours: one that begins in a place goes through the mirror, and tells the paths there. */
EXPORT int nftw(const char *path, __nftw_func_t visit, int descriptors, int flags) {
    TO(AT_FDCWD, path);
    return NEXT(nftw)(path, visit, descriptors, flags);
}
EXPORT FTS *fts_open(char *const *paths, int options, int (*compare)(const FTSENT **, const FTSENT **)) {
    char changed[PATH_MAX], *one[] = {NULL, NULL};
    if (paths && paths[0] && !paths[1]) one[0] = (char *)redirect(AT_FDCWD, paths[0], changed);
    return NEXT(fts_open)(one[0] ? one : paths, options, compare);
}
SAME(nftw64, nftw);
SAME(fts64_open, fts_open);
SAME(readdir64, readdir);
SAME(scandir64, scandir);
SAME(glob64, glob);
