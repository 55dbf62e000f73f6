/*
 * A libnvidia-ml.so.1 with two GPUs, driven by environment variables:
 *   NVML_STUB_FAIL   "<function>:<code>[:<after>]" separated by commas; the function returns the code from its
 *                    call number <after> + 1 on (default 0: from the first call)
 *   NVML_STUB_COUNT  number of GPUs, at most 8 (default 2)
 *   NVML_STUB_TRACE  file to which the name of each called function is appended, one per line
 *   NVML_STUB_UUID   bytes to return as UUID instead of the default
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

typedef int Return;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned gpu, memory; } Utilisation;
typedef struct {
    char legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} Pci;

static int devices[8];

static void trace(const char *function) {
    const char *path = getenv("NVML_STUB_TRACE");
    if (!path) return;
    FILE *file = fopen(path, "a");
    if (!file) abort();
    fprintf(file, "%s\n", function);
    fclose(file);
}

/* The code that this call must return; `calls` counts the calls of this function. */
static Return enter(const char *function, int *calls) {
    trace(function);
    int call = (*calls)++;
    const char *rule = getenv("NVML_STUB_FAIL");
    size_t length = strlen(function);
    while (rule && *rule) {
        if (!strncmp(rule, function, length) && rule[length] == ':') {
            char *rest;
            long code = strtol(rule + length + 1, &rest, 10);
            long after = *rest == ':' ? strtol(rest + 1, NULL, 10) : 0;
            if (call >= after) return (Return)code;
        }
        rule = strchr(rule, ',');
        if (rule) rule++;
    }
    return 0;
}

#define ENTER(name)                          \
    static int calls;                        \
    Return failure = enter(name, &calls);    \
    if (failure) return failure

static int index_of(const void *handle) { return (int)((const int *)handle - devices); }

EXPORT Return nvmlInitWithFlags(unsigned flags) { (void)flags; ENTER("nvmlInit"); return 0; }

EXPORT Return nvmlInit_v2(void) { ENTER("nvmlInit"); return 0; }

EXPORT Return nvmlShutdown(void) { ENTER("nvmlShutdown"); return 0; }

EXPORT const char *nvmlErrorString(Return code) { (void)code; return "stub error"; }

EXPORT Return nvmlSystemGetDriverVersion(char *text, unsigned size) {
    ENTER("nvmlSystemGetDriverVersion");
    snprintf(text, size, "580.95.05");
    return 0;
}

EXPORT Return nvmlDeviceGetCount_v2(unsigned *count) {
    ENTER("nvmlDeviceGetCount");
    const char *wanted = getenv("NVML_STUB_COUNT");
    *count = wanted ? (unsigned)atoi(wanted) : 2;
    return 0;
}

EXPORT Return nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    ENTER("nvmlDeviceGetHandleByIndex");
    if (index >= 8) return 2;
    *handle = &devices[index];
    return 0;
}

EXPORT Return nvmlDeviceGetUUID(void *handle, char *text, unsigned size) {
    ENTER("nvmlDeviceGetUUID");
    const char *fixed = getenv("NVML_STUB_UUID");
    if (fixed) snprintf(text, size, "%s", fixed);
    else snprintf(text, size, "GPU-11111111-2222-3333-4444-00000000000%d", index_of(handle));
    return 0;
}

EXPORT Return nvmlDeviceGetName(void *handle, char *text, unsigned size) {
    ENTER("nvmlDeviceGetName");
    snprintf(text, size, "Stub Accelerator %c", 'A' + index_of(handle));
    return 0;
}

EXPORT Return nvmlDeviceGetPciInfo_v3(void *handle, Pci *info) {
    ENTER("nvmlDeviceGetPciInfo");
    memset(info, 0, sizeof *info);
    info->bus = 0x41u + (unsigned)index_of(handle);
    snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02X:00.0", info->bus);
    return 0;
}

EXPORT Return nvmlDeviceGetMemoryInfo(void *handle, Memory *memory) {
    (void)handle;
    ENTER("nvmlDeviceGetMemoryInfo");
    memory->total = 80ull << 30;
    memory->used = 1ull << 30;
    memory->free = memory->total - memory->used;
    return 0;
}

EXPORT Return nvmlDeviceGetUtilizationRates(void *handle, Utilisation *rates) {
    (void)handle;
    ENTER("nvmlDeviceGetUtilizationRates");
    rates->gpu = 37;
    rates->memory = 12;
    return 0;
}

EXPORT Return nvmlDeviceGetTemperature(void *handle, int sensor, unsigned *celsius) {
    (void)handle;
    ENTER("nvmlDeviceGetTemperature");
    if (sensor != 0) return 2;
    *celsius = 33;
    return 0;
}

EXPORT Return nvmlDeviceGetPowerUsage(void *handle, unsigned *milliwatts) {
    (void)handle;
    ENTER("nvmlDeviceGetPowerUsage");
    *milliwatts = 71504;
    return 0;
}
