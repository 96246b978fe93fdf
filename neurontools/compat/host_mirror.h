/* Which paths are the driver's, and the mirror that holds their files: what host_files.c asks at each call. */
#pragma once
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* The next library's function of this name: the C library's. */
#define NEXT(name)                                                    \
    ({                                                                \
        static __typeof__(&name) next;                                \
        if (!next) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name); \
        next;                                                         \
    })

struct place {
    const char *path;
    bool whole;   /* what is below it too */
    bool instead; /* the host's own file is hidden even where the mirror has none */
};

static const struct place places[] = {
    {"/dev/neuron", false, true}, /* and a number */
    {"/proc/devices", false, false},
    {"/sys/class/neuron_device", true, true},
    {"/sys/devices/virtual/neuron_device", true, true},
    {"/sys/devices/virtual/dmi/id/product_name", false, false},
    {"/sys/module/neuron", true, true},
    {"/opt/aws/neuron/bin", true, false},
};
enum { PLACES = sizeof places / sizeof *places, REFRESH_NS = 1000000000, HEADER = 64 };
static const char request[] = "RENDER host-files";

static char machine[PATH_MAX], python[PATH_MAX], release[64];
static char mirror[PATH_MAX]; /* "" before the first answer */
static int64_t asked_ns;
static int asked_device = -1;
static bool is_refused; /* no machine, and none can be started */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- the machine ---- */

static void take(void) { pthread_mutex_lock(&lock); }
static void give(void) { pthread_mutex_unlock(&lock); }

__attribute__((constructor)) static void start(void) {
    const char *directory = getenv("NEURONTOOLS_HOST_FILES"), *name = getenv("NEURONTOOLS_MACHINE");
    const char *interpreter = getenv("NEURONTOOLS_HOST_PYTHON"), *emulate = getenv("NEURONTOOLS_EMULATE");
    if (!directory || !*directory || strlen(directory) >= sizeof machine) return;
    strcpy(machine, directory);
    if (name && *name) {
        char *last = strrchr(machine, '/');
        snprintf(last ? last + 1 : machine, sizeof machine - (last ? last + 1 - machine : 0), "%s", name);
    }
    snprintf(python, sizeof python, "%s", interpreter ? interpreter : "");
    snprintf(release, sizeof release, "%s", emulate ? emulate : "");
    pthread_atfork(take, give, give);
}

static bool connect_to(int connection, const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path) return false;
    strcpy(address.sun_path, path);
    return !connect(connection, (struct sockaddr *)&address, sizeof address);
}

static bool connect_to_machine(int connection) {
    char path[PATH_MAX + 16], pointed[PATH_MAX] = "";
    snprintf(path, sizeof path, "%s/neurond.sock", machine);
    if (connect_to(connection, path)) return true;
    snprintf(path, sizeof path, "%s/socket", machine); /* holds a shorter path */
    int file = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return false;
    ssize_t size = read(file, pointed, sizeof pointed - 1);
    close(file);
    pointed[size > 0 ? strcspn(pointed, "\n") : 0] = 0;
    return size > 0 && connect_to(connection, pointed);
}

/* Ask neurond for the mirror with the files of a device: 1 for an answer, 0 for none, -1 if no neurond listens. */
static int ask(int device) {
    int connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connection < 0) return 0;
    struct timeval patience = {.tv_sec = 30};
    setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (!connect_to_machine(connection)) return close(connection), -1;
    char line[sizeof request + sizeof release + 16], answer[PATH_MAX + HEADER];
    int length = snprintf(line, sizeof line, "%s%c%s%c%d\n", request, 0, release, 0, device);
    size_t have = 0;
    int code = 1, size = 0, errors = 0, start_at = 0;
    if (send(connection, line, length, MSG_NOSIGNAL) == length)
        for (ssize_t got; have < sizeof answer - 1; have += got) {
            if ((got = recv(connection, answer + have, sizeof answer - 1 - have, 0)) <= 0) break;
            answer[have + got] = 0;
            if (sscanf(answer, "%d %d %d\n%n", &code, &size, &errors, &start_at) == 3 && start_at &&
                have + got >= (size_t)start_at + size)
                break;
        }
    close(connection);
    if (!start_at || code || size <= 0 || (size_t)size >= sizeof mirror) return 0;
    memcpy(mirror, answer + start_at, size);
    mirror[size] = 0;
    return 1;
}

static void start_machine(void) {
    char *arguments[] = {python, "-P", "-m", "neurontools.compat.host_files", NULL};
    size_t count = 0, kept = 0;
    while (environ[count]) count++;
    char *environment[count + 1];
    for (size_t i = 0; i < count; i++)
        if (strncmp(environ[i], "LD_PRELOAD=", 11)) environment[kept++] = environ[i];
    environment[kept] = NULL;
    pid_t child;
    int status;
    if (!*python || NEXT(posix_spawn)(&child, python, NULL, NULL, arguments, environment)) return;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
}

/* The mirror's directory, NULL without a machine. Signals wait: a handler may look at files too. */
static const char *refresh(bool now, int device) {
    if (!*machine || is_refused) return NULL;
    int error = errno;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    take();
    struct timespec clock;
    clock_gettime(CLOCK_MONOTONIC, &clock);
    int64_t time_ns = clock.tv_sec * (int64_t)REFRESH_NS + clock.tv_nsec;
    if (!*mirror || now || time_ns - asked_ns > REFRESH_NS || (device >= 0 && device != asked_device)) {
        asked_ns = time_ns;
        int answered = ask(device);
        if (answered < 0) {
            start_machine();
            answered = ask(device);
        }
        asked_device = answered > 0 ? device : -1;
        is_refused = answered < 0;
    }
    give();
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = error;
    return *mirror && !is_refused ? mirror : NULL;
}

/* ---- paths ---- */

static bool begins(const char *path, const char *start) { return !strncmp(path, start, strlen(start)); }

static bool path_of(int descriptor, char *path) {
    char link[32];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t size = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX - 1);
    path[size > 0 ? size : 0] = 0;
    return size > 0;
}

/* Write the absolute path without ".", ".." and double slashes; false where it is certainly not one of ours. */
static bool absolute(int directory, const char *path, char *out) {
    size_t length = 0;
    if (!*machine || !path || strlen(path) >= PATH_MAX / 2) return false;
    if (*path == '/') {
        if (!strchr("dpso./", path[1])) return false;
    } else {
        if (directory == AT_FDCWD ? syscall(SYS_getcwd, out, PATH_MAX) <= 0 : !path_of(directory, out)) return false;
        size_t root = strlen(mirror);
        if (root && begins(out, mirror)) memmove(out, out + root, strlen(out + root) + 1);
        length = strlen(out);
        if (length > PATH_MAX / 2 || (length && (*out != '/' || !strchr("dpso", out[1])))) return false;
        if (length == 1) length = 0;
    }
    for (const char *part = path; *part;) {
        size_t size = strcspn(part, "/");
        if (size == 2 && part[0] == '.' && part[1] == '.') {
            while (length && out[--length] != '/') continue;
        } else if (size && !(size == 1 && *part == '.')) {
            out[length++] = '/';
            memcpy(out + length, part, size);
            length += size;
        }
        part += size + (part[size] == '/');
    }
    out[length] = 0;
    return true;
}

static bool is_node(const char *path) {
    if (!begins(path, places[0].path)) return false;
    const char *number = path + strlen(places[0].path);
    return *number && strlen(number) < 8 && strspn(number, "0123456789") == strlen(number);
}

static const struct place *place_of(const char *path) {
    if (is_node(path)) return places;
    for (const struct place *place = places + 1; place < places + PLACES; place++) {
        size_t length = strlen(place->path);
        if (begins(path, place->path) && (!path[length] || (place->whole && path[length] == '/'))) return place;
    }
    return NULL;
}

/* Whether a directory has one of the places below it. All of /proc is there on any host. */
static bool is_above(const char *path) {
    size_t length = strlen(path);
    for (const struct place *place = places; place < places + PLACES; place++)
        if (length > 1 && begins(place->path, path) && place->path[length] == '/' && strcmp(path, "/proc")) return true;
    return false;
}

/* The number of the device whose directory in /sys a path is in, -1 for any other path. */
static int device_of(const char *path) {
    const char *name = begins(path, "/sys/") ? strstr(path, "/neuron_device/neuron") : NULL;
    return name && name[21] >= '0' && name[21] <= '9' ? atoi(name + 21) : -1;
}

static bool exists(int directory, const char *path) {
    return !syscall(SYS_newfstatat, directory, path, &(struct stat){0}, AT_SYMLINK_NOFOLLOW);
}

/* The path to use instead: in the mirror, written into `out`, or the given one. */
static const char *redirect(int directory, const char *path, char *out) {
    char host[PATH_MAX];
    int error = errno;
    const char *used = path, *root;
    if (path && *path && absolute(directory, path, host)) {
        const struct place *place = place_of(host);
        if (!place && (!is_above(host) || exists(AT_FDCWD, host))) {
            if (strstr(path, "/..") && place_of(path)) used = strcpy(out, host); /* out of a place */
            goto done;
        }
        if (!(root = refresh(place && strstr(host, "/stats/"), device_of(host)))) goto done;
        if ((size_t)snprintf(out, PATH_MAX, "%s%s", root, host) >= PATH_MAX) goto done;
        if ((place && place->instead) || exists(AT_FDCWD, out)) used = out;
    }
done:
    errno = error;
    return used;
}
