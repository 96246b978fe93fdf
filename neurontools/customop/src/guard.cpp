// The process that the host starts keeps the worker in a child and outlives it: whatever a kernel starts ends with the
// worker, also after kill -9 of the host or when the kernel executes another program.
#include <dirent.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "worker.hpp"

namespace worker {

namespace {

constexpr int kThreadEnded = SIGUSR2;

pid_t child = 0;
int child_status = 0;
bool child_ended = false;

void note_end(pid_t ended, int status) {
  if (ended != child) return;
  child_status = status;
  child_ended = true;
}

// Reap what has ended; true if children are left.
bool reap() {
  int status = 0;
  pid_t ended;
  while ((ended = waitpid(-1, &status, WNOHANG)) > 0) note_end(ended, status);
  return ended == 0;
}

pid_t parent_of(const char* pid) {
  char path[64];
  char line[512];
  std::snprintf(path, sizeof path, "/proc/%.20s/stat", pid);
  std::FILE* file = std::fopen(path, "re");
  if (file == nullptr) return 0;
  const std::size_t length = std::fread(line, 1, sizeof line - 1, file);
  std::fclose(file);
  line[length] = '\0';
  const char* name_end = std::strrchr(line, ')');  // the name may hold anything
  int parent = 0;
  return name_end != nullptr && std::sscanf(name_end, ") %*c %d", &parent) == 1 ? parent : 0;
}

// Kill all children; false if there is none that can be killed.
bool kill_children() {
  bool killed = !child_ended && kill(child, SIGKILL) == 0;
  DIR* processes = opendir("/proc");
  if (processes == nullptr) return killed;
  while (const dirent* entry = readdir(processes)) {
    const pid_t pid = std::atoi(entry->d_name);
    if (pid > 0 && parent_of(entry->d_name) == getpid() && kill(pid, SIGKILL) == 0) killed = true;
  }
  closedir(processes);
  return killed;
}

// Orphans of the worker become children of this process, and their orphans when they end.
void end_children() {
  int status = 0;
  while (reap() && kill_children()) note_end(waitpid(-1, &status, 0), status);
}

[[noreturn]] void end_like_child() {
  if (WIFSIGNALED(child_status)) {
    const int number = WTERMSIG(child_status);
    sigset_t unblocked;
    sigemptyset(&unblocked);
    sigaddset(&unblocked, number);
    signal(number, SIG_DFL);
    sigprocmask(SIG_UNBLOCK, &unblocked, nullptr);
    raise(number);
  }
  _exit(WIFEXITED(child_status) ? WEXITSTATUS(child_status) : 1);
}

[[noreturn]] void guard(pid_t host) {
  sigset_t awaited;
  sigemptyset(&awaited);
  for (const int number : {SIGCHLD, SIGTERM, SIGUSR1, kThreadEnded}) sigaddset(&awaited, number);
  for (int fd = 0; fd <= kKernelFd; ++fd) close(fd);
  while (!child_ended && getppid() == host) {
    const int number = sigwaitinfo(&awaited, nullptr);
    if (number == SIGTERM) break;
    if (number == SIGUSR1) kill(child, SIGUSR1);
    if (number == SIGCHLD) reap();
  }
  end_children();
  end_like_child();
}

}  // namespace

void start_guarded(pid_t host) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, &before);
  signal(SIGCHLD, SIG_DFL);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  prctl(PR_SET_PDEATHSIG, kThreadEnded);  // sent when the thread ends that started this process, not only the host
  const pid_t self = getpid();
  child = fork();
  if (child < 0) _exit(1);
  if (child > 0) guard(host);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != self) _exit(1);
  sigprocmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace worker
