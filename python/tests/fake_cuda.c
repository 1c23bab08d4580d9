// A CUDA driver without a device, for tests: its memory is the host's, at addresses that nobody else can read, and copies are
// made no earlier than the stream is waited for.
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

// Where the device's memory begins.
#define DEVICE ((uint64_t)1 << 60)

struct copy {
    void *to;
    uint64_t from;
    size_t size;
};

struct stream {
    struct copy copies[8];
    int waiting;
};

// What tests ask for: bytes copied, of the largest copy, and pinned; how often the legacy default stream was waited for; contexts
// that are current; and what is set to make the copy that comes after so many fail.
uint64_t fake_copied, fake_largest, fake_pinned, fake_waited;
int64_t fake_current, fake_fails_after = -1;

static int context;

int cuInit(unsigned flags) {
    return flags ? 1 : 0;
}

int cuGetErrorName(int code, const char **name) {
    *name = code == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_INVALID_VALUE";
    return 0;
}

int cuDeviceGet(int *device, int ordinal) {
    *device = 100 + ordinal;
    return ordinal == 0 ? 0 : 101;
}

int cuDevicePrimaryCtxRetain(void **found, int device) {
    *found = &context;
    return device == 100 ? 0 : 101;
}

int cuCtxPushCurrent_v2(void *pushed) {
    fake_current += 1;
    return pushed == &context ? 0 : 201;
}

int cuCtxPopCurrent_v2(void **popped) {
    fake_current -= 1;
    *popped = &context;
    return 0;
}

int cuStreamCreate(void **stream, unsigned flags) {
    *stream = calloc(1, sizeof(struct stream));
    return flags || fake_current < 1 ? 1 : 0;
}

int cuMemAllocHost_v2(void **memory, size_t size) {
    *memory = malloc(size);
    fake_pinned += size;
    return fake_current < 1 ? 201 : 0;
}

int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t size, void *stream) {
    struct stream *queue = stream;
    if (from < DEVICE || queue->waiting == 8 || fake_current < 1) {
        return 1;
    }
    if (fake_fails_after == 0) {
        return 700;
    }
    fake_fails_after -= fake_fails_after > 0;
    // Whoever reads the buffer before the copy was waited for finds this.
    memset(to, 0xee, size);
    queue->copies[queue->waiting++] = (struct copy){to, from, size};
    return 0;
}

int cuStreamSynchronize(void *stream) {
    if (fake_current < 1) {
        return 201;
    }
    if (stream == (void *)1) {
        fake_waited += 1;
        return 0;
    }
    struct stream *queue = stream;
    for (int at = 0; at < queue->waiting; at++) {
        struct copy copy = queue->copies[at];
        memcpy(copy.to, (void *)(copy.from - DEVICE), copy.size);
        fake_copied += copy.size;
        fake_largest = copy.size > fake_largest ? copy.size : fake_largest;
    }
    queue->waiting = 0;
    return 0;
}
