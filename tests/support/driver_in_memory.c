// A CUDA driver whose device memory is host memory, of which pinned memory takes its part. It agrees
// to everything and runs no kernel:
// a launch writes its own numbers, and a last one that is 1 if all blocks run at once, to the address
// that its arguments begin with.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, CAPTURE_INVALIDATED = 901, FROM_THE_FUTURE = 9999 };
enum { MAJOR = 75, MINOR = 76, MULTIPROCESSORS = 16, L2_BYTES = 38, SHARED_PER_MULTIPROCESSOR = 81 };
enum { SHARED_PER_BLOCK = 97 };

enum { MOST_SHARED = 227 << 10, STATIC_SHARED = 200 };  // bytes: of a block, and of each kernel
static const size_t TOTAL = (size_t)80 << 30, FREE = (size_t)70 << 30;

// The number of the card that a process sees under an ordinal, -1 for none: there are $CARDS, and
// CUDA_VISIBLE_DEVICES shows some of them. A control group hides those before $FIRST_CARD.
static int card_at(int ordinal) {
    const char *cards = getenv("CARDS"), *names = getenv("CUDA_VISIBLE_DEVICES"), *from = getenv("FIRST_CARD");
    const int first = from ? atoi(from) : 0, count = (cards ? atoi(cards) : 1) - first;
    if (names == NULL)
        return ordinal < count ? first + ordinal : -1;
    for (; ordinal > 0 && names != NULL; ordinal--)
        names = strchr(names, ',') ? strchr(names, ',') + 1 : NULL;
    const int number = names != NULL && *names != 0 ? atoi(names) : -1;
    return number >= 0 && number < count ? first + number : -1;
}

// Each start is a line of the file $DRIVER_STARTS: the process, and the first card that it sees.
int cuInit(unsigned flags) {
    static int has_started;
    if (!has_started && getenv("DRIVER_STARTS") != NULL) {
        FILE *file = fopen(getenv("DRIVER_STARTS"), "a");
        fprintf(file, "%d %d\n", getpid(), card_at(0));
        fclose(file);
    }
    has_started = 1;
    return card_at(0) < 0 ? NO_DEVICE : SUCCESS;
}

int cuDriverGetVersion(int *version) {
    *version = atoi(getenv("DRIVER_VERSION"));
    return SUCCESS;
}

int cuGetErrorString(int status, const char **text) {
    *text = status == OUT_OF_MEMORY ? "out of memory" : NULL;
    return SUCCESS;
}

int cuDeviceGetCount(int *count) {
    for (*count = 0; card_at(*count) >= 0; ++*count) {
    }
    return SUCCESS;
}

int cuDeviceGet(int *device, int ordinal) {
    *device = ordinal;
    return SUCCESS;
}

int cuDeviceGetName(char *name, int length, int device) {
    strncpy(name, "Card in memory", length);
    return SUCCESS;
}

int cuDeviceGetPCIBusId(char *bus, int length, int device) {
    snprintf(bus, length, "0000:%02x:00.0", 1 + card_at(device));
    return SUCCESS;
}

// The first eight digits are the card's number.
int cuDeviceGetUuid_v2(unsigned char uuid[16], int device) {
    memset(uuid, 0, 16);
    uuid[3] = card_at(device);
    return SUCCESS;
}

int cuDeviceTotalMem_v2(size_t *total, int device) {
    *total = TOTAL;
    return SUCCESS;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == MAJOR                       ? 9
             : attribute == MINOR                     ? 0
             : attribute == MULTIPROCESSORS           ? 132
             : attribute == L2_BYTES                  ? 60 << 20
             : attribute == SHARED_PER_MULTIPROCESSOR ? 228 << 10
             : attribute == SHARED_PER_BLOCK          ? MOST_SHARED
                                                      : 1000;
    return SUCCESS;
}

static size_t held;  // bytes of device memory and of pinned memory

enum { HEAD = 256 };  // before each block, for its size
enum { HOST_PAGE = 4096, ENTRY = 8 };  // a page of the host, and what the device lists it with

static void *taken(size_t size) {
    char *block = malloc(size + HEAD);
    *(size_t *)block = size;
    held += size;
    return block + HEAD;
}

static int given_back(void *address) {
    char *block = (char *)address - HEAD;
    held -= *(size_t *)block;
    free(block);
    return SUCCESS;
}

int cuMemGetInfo_v2(size_t *free, size_t *total) {
    *free = FREE - held, *total = TOTAL;
    return SUCCESS;
}

int cuMemAlloc_v2(uint64_t *address, size_t size) {
    if (size > FREE)
        return OUT_OF_MEMORY;
    const char *page = getenv("DEVICE_PAGE");  // to which sizes are rounded up, as real drivers do
    const size_t least = page ? atoi(page) : 1;
    *address = (uint64_t)taken((size + least - 1) / least * least);
    return SUCCESS;
}

int cuMemHostAlloc(void **address, size_t size, unsigned flags) {
    if (size > FREE)
        return OUT_OF_MEMORY;
    *address = taken(size);
    return SUCCESS;
}

int cuMemFree_v2(uint64_t address) {
    return given_back((void *)address);
}

int cuMemFreeHost(void *address) {
    return given_back(address);
}

static struct { char *address; size_t size; } registered[256];  // blocks; size 0 for none

static size_t with_list(size_t size) {  // of pages
    return size + (size + HOST_PAGE - 1) / HOST_PAGE * ENTRY;
}

int cuMemHostRegister_v2(void *address, size_t size, unsigned flags) {
    for (int i = 0; i < 256; ++i) {
        if (registered[i].size) continue;
        registered[i].address = address, registered[i].size = size;
        held += with_list(size);
        return SUCCESS;
    }
    return OUT_OF_MEMORY;
}

int cuMemHostGetDevicePointer_v2(uint64_t *found, void *address, unsigned flags) {
    *found = (uint64_t)address;
    return SUCCESS;
}

int cuMemHostUnregister(void *address) {
    for (int i = 0; i < 256; ++i) {
        if (!registered[i].size || registered[i].address != address) continue;
        held -= with_list(registered[i].size);
        registered[i].size = 0;
        return SUCCESS;
    }
    return INVALID_VALUE;
}

static int is_in_one(const char *begin, size_t size) {  // or in none
    for (int i = 0; i < 256; ++i) {
        const char *first = registered[i].address, *end = first + registered[i].size;
        if (registered[i].size && begin < end && begin + size > first) {
            return begin >= first && begin + size <= end;
        }
    }
    return 1;
}

static int copy(void *target, const void *source, size_t size, void *stream) {
    if (!is_in_one(target, size) || !is_in_one(source, size)) return INVALID_VALUE;
    memcpy(target, source, size);
    return SUCCESS;
}

int cuMemsetD8Async(uint64_t target, unsigned char byte, size_t size, void *stream) {
    memset((void *)target, byte, size);
    return SUCCESS;
}

int cuEventElapsedTime(float *milliseconds, void *start, void *stop) {
    *milliseconds = 1.5;
    return SUCCESS;
}

int cuFuncGetAttribute(int *value, int attribute, void *function) {
    *value = STATIC_SHARED;
    return SUCCESS;
}

int cuFuncSetAttribute(void *function, int attribute, int value) {
    return value == MOST_SHARED - STATIC_SHARED ? SUCCESS : OUT_OF_MEMORY;
}

int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *kernel, int threads, size_t shared) {
    *blocks = threads > 1024 ? 0 : threads == 64 && shared == 128 ? 2 : 1;
    return SUCCESS;
}

static int is_broken;  // by a launch of no blocks, until the capture ends

int cuStreamEndCapture(void *stream, void **graph) {
    const int status = is_broken ? CAPTURE_INVALIDATED : SUCCESS;
    is_broken = 0;
    return status;
}

typedef struct {
    int kind;
    char padding[4], value[64];
} Attribute;

typedef struct {
    unsigned grid[3], block[3], shared;
    void *stream;
    const Attribute *attributes;
    unsigned count;
} Launch;

int cuLaunchKernelEx(const Launch *launch, void *kernel, void **arguments, void **extra) {
    if (launch->grid[0] == 0) {
        is_broken = 1;
        return FROM_THE_FUTURE;
    }
    uint32_t *numbers = **(void ***)arguments;
    memcpy(numbers, launch->grid, 7 * sizeof *numbers);
    for (unsigned i = 0; i < launch->count; i++)
        numbers[7] += launch->attributes[i].kind * launch->attributes[i].value[0];
    return SUCCESS;
}

static int agree(void) { return SUCCESS; }

// What cuDNN's engines are linked with.
int cuModuleGetFunction(void) { return SUCCESS; }
int cuModuleLoadData(void) { return SUCCESS; }
int cuModuleUnload(void) { return SUCCESS; }
int cuTensorMapEncodeIm2col(void) { return SUCCESS; }
int cuTensorMapEncodeTiled(void) { return SUCCESS; }

static const struct {
    const char *name;
    void *function;
} FUNCTIONS[] = {
    {"cuDriverGetVersion", cuDriverGetVersion},
    {"cuGetErrorString", cuGetErrorString},
    {"cuDeviceGet", cuDeviceGet},
    {"cuDeviceGetName", cuDeviceGetName},
    {"cuDeviceGetPCIBusId", cuDeviceGetPCIBusId},
    {"cuDeviceGetAttribute", cuDeviceGetAttribute},
    {"cuMemGetInfo", cuMemGetInfo_v2},
    {"cuMemAlloc", cuMemAlloc_v2},
    {"cuMemFree", cuMemFree_v2},
    {"cuMemHostAlloc", cuMemHostAlloc},
    {"cuMemFreeHost", cuMemFreeHost},
    {"cuMemHostRegister", cuMemHostRegister_v2},
    {"cuMemHostGetDevicePointer", cuMemHostGetDevicePointer_v2},
    {"cuMemHostUnregister", cuMemHostUnregister},
    {"cuMemcpyHtoDAsync", copy},
    {"cuMemcpyDtoHAsync", copy},
    {"cuMemcpyDtoDAsync", copy},
    {"cuMemsetD8Async", cuMemsetD8Async},
    {"cuEventElapsedTime", cuEventElapsedTime},
    {"cuFuncGetAttribute", cuFuncGetAttribute},
    {"cuFuncSetAttribute", cuFuncSetAttribute},
    {"cuOccupancyMaxActiveBlocksPerMultiprocessor", cuOccupancyMaxActiveBlocksPerMultiprocessor},
    {"cuStreamEndCapture", cuStreamEndCapture},
    {"cuLaunchKernelEx", cuLaunchKernelEx},
};

int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *found) {
    *function = agree;
    for (size_t i = 0; i < sizeof FUNCTIONS / sizeof *FUNCTIONS; i++)
        if (strcmp(name, FUNCTIONS[i].name) == 0)
            *function = FUNCTIONS[i].function;
    if (found)
        *found = 0;
    return SUCCESS;
}
