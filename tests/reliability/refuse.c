/* Refuses chosen allocations of Python, PyTorch or NumPy, as an exhausted memory does. Preloaded by refused.py.

An allocation belongs to the library that the call returns to. Nothing is counted before `refuse` is called. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

enum { PYTHON, OBJECTS, TORCH, NUMPY, LIBRARIES, GROUPS };
enum { MOST = 64, SMALL = 512 }; /* Python keeps objects of up to 512 bytes in arenas, unless PYTHONMALLOC=malloc */

static struct { uintptr_t first, last; int group; } ranges[MOST];
static int known;
static atomic_int armed;
static atomic_long seen[GROUPS], refused;
static long point, times;
static size_t least;
static int wanted;

static int note(struct dl_phdr_info *info, size_t size, void *data) {
    const char *name = info->dlpi_name;
    int group = strstr(name, "/libpython") || !*name                ? PYTHON
                : strstr(name, "/libc10")                            ? TORCH
                : strstr(name, "/numpy/") || strstr(name, "/numpy.") ? NUMPY
                : strstr(name, "/libtorch")                          ? LIBRARIES
                                                                     : -1;
    for (int i = 0; group >= 0 && i < info->dlpi_phnum && known < MOST; i++)
        if (info->dlpi_phdr[i].p_type == PT_LOAD && info->dlpi_phdr[i].p_flags & PF_X) {
            uintptr_t first = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
            ranges[known].first = first;
            ranges[known].last = first + info->dlpi_phdr[i].p_memsz;
            ranges[known++].group = group;
        }
    return 0;
}

/* Refuse `count` allocations of at least `size` bytes, from number `start` of a group on; none if `start` is 0. */
void refuse(int group, long start, long count, size_t size) {
    armed = 0;
    known = 0;
    dl_iterate_phdr(note, NULL);
    for (int i = 0; i < GROUPS; i++) seen[i] = 0;
    refused = 0;
    wanted = group, point = start, times = count, least = size;
    armed = 1;
}

void relent(void) { armed = 0; }
long refusals(void) { return refused; }
long allocations(int group) { return seen[group]; }

static int refuses(size_t size, void *caller) {
    if (!armed || size < least) return 0;
    int group = -1;
    for (int i = 0; i < known && group < 0; i++)
        if ((uintptr_t)caller - ranges[i].first < ranges[i].last - ranges[i].first) group = ranges[i].group;
    if (group < 0) return 0;
    if (group == PYTHON && size <= SMALL) group = OBJECTS;
    long number = ++seen[group];
    if (!point || (group == wanted ? number < point : !refused) || refused >= times) return 0;
    refused++;
    errno = ENOMEM;
    return 1;
}

#define CALLER __builtin_return_address(0)

void *malloc(size_t size) { return refuses(size, CALLER) ? NULL : __libc_malloc(size); }

void *calloc(size_t count, size_t size) { return refuses(count * size, CALLER) ? NULL : __libc_calloc(count, size); }

void *realloc(void *old, size_t size) { return refuses(size, CALLER) ? NULL : __libc_realloc(old, size); }

int posix_memalign(void **memory, size_t alignment, size_t size) {
    if (refuses(size, CALLER)) return ENOMEM;
    *memory = __libc_memalign(alignment, size);
    return *memory ? 0 : ENOMEM;
}

void *aligned_alloc(size_t alignment, size_t size) {
    return refuses(size, CALLER) ? NULL : __libc_memalign(alignment, size);
}

void *mmap(void *at, size_t size, int protection, int flags, int file, off_t offset) {
    if (refuses(size, CALLER)) return MAP_FAILED;
    return (void *)syscall(SYS_mmap, at, size, protection, flags, file, offset);
}
