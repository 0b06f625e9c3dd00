/* Wall clock of all programs that preload this library: that of the machine plus an offset.

   The offset, in nanoseconds, is in a file that WALL_CLOCK names and that every process maps, so
   that one write moves the time of day of all of them at once. Monotonic clocks go on as they are,
   as on a machine whose clock is set. libfaketime 0.9.10 cannot do this: with the monotonic clock
   faked, the waits of Python's locks (sem_clockwait) last for days after a jump, and without,
   clock_nanosleep fails with EINVAL. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define NANOSECONDS 1000000000LL

static int (*machine_clock)(clockid_t, struct timespec *);
static const volatile int64_t *offset;

static void open_clock(void) {
    const char *path = getenv("WALL_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *mapped = MAP_FAILED;
    if (file >= 0) {
        mapped = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
        close(file);
    }
    static const int64_t none = 0;
    offset = mapped == MAP_FAILED ? &none : mapped;
    machine_clock = dlsym(RTLD_NEXT, "clock_gettime");
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (machine_clock == NULL)
        open_clock();
    int status = machine_clock(clock, now);
    if (status == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t moment = now->tv_sec * NANOSECONDS + now->tv_nsec + *offset;
        now->tv_sec = moment / NANOSECONDS;
        now->tv_nsec = moment % NANOSECONDS;
    }
    return status;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec moment;
    int status = clock_gettime(CLOCK_REALTIME, &moment);
    now->tv_sec = moment.tv_sec;
    now->tv_usec = moment.tv_nsec / 1000;
    return status;
}

time_t time(time_t *where) {
    struct timespec moment;
    clock_gettime(CLOCK_REALTIME, &moment);
    if (where)
        *where = moment.tv_sec;
    return moment.tv_sec;
}
