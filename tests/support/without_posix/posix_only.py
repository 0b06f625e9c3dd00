"""Names that Python's library has on POSIX systems and not on Windows, from typeshed's stubs."""

_OS = """
chflags chown chroot confstr confstr_names copy_file_range ctermid environb eventfd eventfd_read
eventfd_write fchdir fchown fdatasync fork forkpty fpathconf fstatvfs fwalk getegid getenvb geteuid
getgid getgrouplist getgroups getloadavg getpgid getpgrp getpriority getrandom getresgid getresuid
getsid getuid getxattr grantpt initgroups killpg lchflags lchown listxattr lockf login_tty major
makedev memfd_create minor mkfifo mknod nice openpty pathconf pathconf_names pidfd_open pipe2
posix_fadvise posix_fallocate posix_openpt posix_spawn posix_spawnp pread preadv ptsname pwrite
pwritev readv register_at_fork removexattr sched_get_priority_max sched_get_priority_min
sched_getaffinity sched_getparam sched_getscheduler sched_param sched_rr_get_interval
sched_setaffinity sched_setparam sched_setscheduler sched_yield sendfile setegid seteuid setgid
setgroups setns setpgid setpgrp setpriority setregid setresgid setresuid setreuid setsid setuid
setxattr spawnlp spawnlpe spawnvp spawnvpe splice statvfs sync sysconf sysconf_names tcgetpgrp
tcsetpgrp timerfd_create timerfd_gettime timerfd_gettime_ns timerfd_settime timerfd_settime_ns
ttyname uname unlockpt unshare wait wait3 wait4 waitid waitid_result writev
CLD_CONTINUED CLD_DUMPED CLD_EXITED CLD_KILLED CLD_STOPPED CLD_TRAPPED CLONE_FILES CLONE_FS
CLONE_NEWCGROUP CLONE_NEWIPC CLONE_NEWNET CLONE_NEWNS CLONE_NEWPID CLONE_NEWTIME CLONE_NEWUSER
CLONE_NEWUTS CLONE_SIGHAND CLONE_SYSVSEM CLONE_THREAD CLONE_VM EFD_CLOEXEC EFD_NONBLOCK
EFD_SEMAPHORE EX_CANTCREAT EX_CONFIG EX_DATAERR EX_IOERR EX_NOHOST EX_NOINPUT EX_NOPERM EX_NOUSER
EX_OSERR EX_OSFILE EX_PROTOCOL EX_SOFTWARE EX_TEMPFAIL EX_UNAVAILABLE EX_USAGE F_LOCK F_TEST F_TLOCK
F_ULOCK GRND_NONBLOCK GRND_RANDOM MFD_ALLOW_SEALING MFD_CLOEXEC MFD_HUGETLB MFD_HUGE_16GB
MFD_HUGE_16MB MFD_HUGE_1GB MFD_HUGE_1MB MFD_HUGE_256MB MFD_HUGE_2GB MFD_HUGE_2MB MFD_HUGE_32MB
MFD_HUGE_512KB MFD_HUGE_512MB MFD_HUGE_64KB MFD_HUGE_8MB MFD_HUGE_MASK MFD_HUGE_SHIFT NGROUPS_MAX
O_ACCMODE O_ASYNC O_CLOEXEC O_DIRECT O_DIRECTORY O_DSYNC O_EVTONLY O_EXEC O_EXLOCK O_FSYNC
O_LARGEFILE O_NDELAY O_NOATIME O_NOCTTY O_NOFOLLOW O_NOFOLLOW_ANY O_NONBLOCK O_PATH O_RSYNC O_SEARCH
O_SHLOCK O_SYMLINK O_SYNC O_TMPFILE PIDFD_NONBLOCK POSIX_FADV_DONTNEED POSIX_FADV_NOREUSE
POSIX_FADV_NORMAL POSIX_FADV_RANDOM POSIX_FADV_SEQUENTIAL POSIX_FADV_WILLNEED POSIX_SPAWN_CLOSE
POSIX_SPAWN_CLOSEFROM POSIX_SPAWN_DUP2 POSIX_SPAWN_OPEN PRIO_DARWIN_BG PRIO_DARWIN_NONUI
PRIO_DARWIN_PROCESS PRIO_DARWIN_THREAD PRIO_PGRP PRIO_PROCESS PRIO_USER P_ALL P_PGID P_PID P_PIDFD
RTLD_DEEPBIND RTLD_GLOBAL RTLD_LAZY RTLD_LOCAL RTLD_NODELETE RTLD_NOLOAD RTLD_NOW RWF_APPEND
RWF_DSYNC RWF_HIPRI RWF_NOWAIT RWF_SYNC SCHED_BATCH SCHED_FIFO SCHED_IDLE SCHED_OTHER
SCHED_RESET_ON_FORK SCHED_RR SEEK_DATA SEEK_HOLE SPLICE_F_MORE SPLICE_F_MOVE SPLICE_F_NONBLOCK
ST_APPEND ST_MANDLOCK ST_NOATIME ST_NODEV ST_NODIRATIME ST_NOEXEC ST_NOSUID ST_RDONLY ST_RELATIME
ST_SYNCHRONOUS ST_WRITE TFD_CLOEXEC TFD_NONBLOCK TFD_TIMER_ABSTIME TFD_TIMER_CANCEL_ON_SET
WCONTINUED WCOREDUMP WEXITED WEXITSTATUS WIFCONTINUED WIFEXITED WIFSIGNALED WIFSTOPPED WNOHANG
WNOWAIT WSTOPPED WSTOPSIG WTERMSIG WUNTRACED XATTR_CREATE XATTR_REPLACE XATTR_SIZE_MAX
"""

_SIGNAL = """
ITIMER_PROF ITIMER_REAL ITIMER_VIRTUAL ItimerError SIGALRM SIGBUS SIGCHLD SIGCLD SIGCONT SIGEMT
SIGHUP SIGINFO SIGIO SIGIOT SIGKILL SIGPIPE SIGPOLL SIGPROF SIGPWR SIGQUIT SIGRTMAX SIGRTMIN
SIGSTKFLT SIGSTOP SIGSYS SIGTRAP SIGTSTP SIGTTIN SIGTTOU SIGURG SIGUSR1 SIGUSR2 SIGVTALRM SIGWINCH
SIGXCPU SIGXFSZ SIG_BLOCK SIG_SETMASK SIG_UNBLOCK Sigmasks alarm getitimer pause pidfd_send_signal
pthread_kill pthread_sigmask setitimer siginterrupt sigpending sigtimedwait sigwait sigwaitinfo
struct_siginfo
"""

_MODULES = "fcntl grp posix pty pwd readline resource syslog termios tty"
_TIME = "clock_getres clock_gettime clock_gettime_ns clock_settime clock_settime_ns tzset"
_SOCKET = "AF_UNIX recv_fds send_fds sethostname"
_SELECT = "epoll kevent kqueue poll"
_MMAP = "MAP_ANONYMOUS MAP_PRIVATE MAP_SHARED PROT_EXEC PROT_READ PROT_WRITE"
_ARGUMENTS = "dir_fd pass_fds preexec_fn process_group start_new_session umask user"

MODULES = frozenset(_MODULES.split())
ATTRIBUTES = {
    "os": frozenset(_OS.split()),
    "signal": frozenset(_SIGNAL.split()),
    "time": frozenset(_TIME.split()),
    "socket": frozenset(_SOCKET.split()),
    "select": frozenset(_SELECT.split()),
    "mmap": frozenset(_MMAP.split()),
}
ARGUMENTS = frozenset(_ARGUMENTS.split())
"""Arguments of functions of `os` and `subprocess`."""
