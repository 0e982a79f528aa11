/* A stand-in for libnvidia-ml.so.1 that answers what a test told it, so that the real Python binding can be
 * driven end to end without a GPU.
 *
 * fake_nvml_set("s.gpus=2;0.power=123456;1.*=!15;0.temp=~;...") sets every answer at once: DEVICE.KEY=NUMBER,
 * =!CODE for an NVML error, =~ for a call that does not return while the text stands. A key that was not set
 * is NOT_SUPPORTED, "DEVICE.*" comes before all others, and without s.gpus no driver is loaded. FAKE_NVML_VALUES in the
 * environment is the first text. Whole GPUs are devices 0 to 7; MIG instance P of GPU G is 10 + 8 G + P.
 * fake_nvml_hangs() counts the calls that have begun not to return.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, SMALL = 7, NO_DRIVER = 9,
       TIMEOUT = 10 };
enum { DEVICES = 80, SYSTEM = -1 };
typedef char *Handle;

static char values[1 << 16], handles[DEVICES];
static int started, loaded;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct { int device; uint64_t type, data; } events[64];
static int num_events;
static volatile int num_hangs;

API void fake_nvml_set(const char *text) {
  pthread_mutex_lock(&lock);
  snprintf(values, sizeof values, ";%s;", text);
  started = 1;
  pthread_mutex_unlock(&lock);
}
API void fake_nvml_reload(void) { loaded = 0; num_events = 0; }
API int fake_nvml_hangs(void) { return num_hangs; }
API void fake_nvml_push_event(int device, uint64_t type, uint64_t data) {
  events[num_events].device = device;
  events[num_events].type = type;
  events[num_events++].data = data;
}

static int find(int device, const char *key, char *answer, size_t size) {
  char wanted[96];
  if (device == SYSTEM) snprintf(wanted, sizeof wanted, ";s.%s=", key);
  else snprintf(wanted, sizeof wanted, ";%d.%s=", device, key);
  pthread_mutex_lock(&lock);
  if (!started) {
    const char *first = getenv("FAKE_NVML_VALUES");
    snprintf(values, sizeof values, ";%s;", first ? first : "");
    started = 1;
  }
  const char *at = strstr(values, wanted);
  if (at) snprintf(answer, size, "%.*s", (int)strcspn(at + strlen(wanted), ";"), at + strlen(wanted));
  pthread_mutex_unlock(&lock);
  return at != NULL;
}

static void hang(int *is_hanging) {
  if (!*is_hanging) __sync_fetch_and_add(&num_hangs, 1);
  *is_hanging = 1;
  usleep(1000);
}
static int number(int device, const char *key, double *out) {
  char answer[64];
  if (device != SYSTEM && !loaded) return UNINITIALIZED;
  int is_hanging = 0;
  while (find(device, "*", answer, sizeof answer) && answer[0] == '~') hang(&is_hanging);
  if (!find(device, "*", answer, sizeof answer) && !find(device, key, answer, sizeof answer)) return NOT_SUPPORTED;
  while (answer[0] == '~') {
    hang(&is_hanging);
    if (!find(device, key, answer, sizeof answer)) return NOT_SUPPORTED;
  }
  if (answer[0] == '!') return atoi(answer + 1);
  *out = atof(answer);
  return OK;
}
static int whole(Handle h, const char *key, unsigned *out) {
  double value = 0;
  int code = number((int)(h - handles), key, &value);
  if (code == OK) *out = (unsigned)value;
  return code;
}
static int large(Handle h, const char *key, unsigned long long *out) {
  double value = 0;
  int code = number((int)(h - handles), key, &value);
  if (code == OK) *out = (unsigned long long)value;
  return code;
}
static int text(Handle h, char *out, unsigned size, const char *pattern) {
  double ignored;
  int code = number((int)(h - handles), "alive", &ignored);
  if (code != OK && code != NOT_SUPPORTED) return code;
  snprintf(out, size, pattern, (int)(h - handles));
  return OK;
}

API int nvmlInitWithFlags(unsigned flags) {
  double gpus;
  (void)flags;
  int code = number(SYSTEM, "gpus", &gpus);
  if (code == NOT_SUPPORTED) return NO_DRIVER;
  if (code == OK) loaded = 1;
  return code;
}
API int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
API int nvmlShutdown(void) { return loaded ? OK : UNINITIALIZED; }
API const char *nvmlErrorString(int code) { (void)code; return "an error of the fake"; }
API int nvmlSystemGetDriverVersion(char *out, unsigned size) { snprintf(out, size, "999.42"); return OK; }
API int nvmlSystemGetCudaDriverVersion(int *out) { *out = 12040; return OK; }
API int nvmlSystemGetCudaDriverVersion_v2(int *out) { *out = 12040; return OK; }
API int nvmlDeviceGetCount_v2(unsigned *out) {
  double gpus;
  int code = number(SYSTEM, "gpus", &gpus);
  *out = (unsigned)gpus;
  return code;
}
API int nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle *out) { *out = &handles[index]; return OK; }
API int nvmlDeviceGetHandleByUUID(const char *uuid, Handle *out) {
  unsigned index;
  if (!loaded) return UNINITIALIZED;
  int is_gpu = sscanf(uuid, "GPU-%8u", &index) == 1 && index < 10;
  int is_mig = !is_gpu && sscanf(uuid, "MIG-%8u", &index) == 1 && index >= 10 && index < DEVICES;
  if (!is_gpu && !is_mig) return NOT_FOUND;
  *out = &handles[index];
  return OK;
}
API int nvmlDeviceGetName(Handle h, char *out, unsigned size) { return text(h, out, size, "Fake NVML GPU"); }
API int nvmlDeviceGetUUID(Handle h, char *out, unsigned size) {
  return text(h, out, size, h - handles < 10 ? "GPU-%08d-aaaa-bbbb-cccc-000000000000" : "MIG-%08d-aaaa");
}
API int nvmlDeviceGetVbiosVersion(Handle h, char *out, unsigned size) { return text(h, out, size, "96.00.%02d"); }
API int nvmlDeviceGetPciInfo_v3(Handle h, void *out) {
  struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } *info = out;
  memset(info, 0, sizeof *info);
  info->device = 0;
  return whole(h, "pci_bus", &info->bus);
}

API int nvmlDeviceGetGpuFabricInfo(Handle h, void *out) {
  struct { unsigned char cluster[16]; unsigned status, clique, state; } *info = out;
  memset(info, 0, sizeof *info);
  return whole(h, "fabric_state", &info->state);
}

#define WHOLE(function, key) API int function(Handle h, unsigned *out) { return whole(h, key, out); }
WHOLE(nvmlDeviceGetPowerUsage, "power")
WHOLE(nvmlDeviceGetEnforcedPowerLimit, "power_limit")
WHOLE(nvmlDeviceGetPowerManagementDefaultLimit, "power_default")
WHOLE(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_gen")
WHOLE(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width")
WHOLE(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_gen_max")
WHOLE(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width_max")
WHOLE(nvmlDeviceGetPcieReplayCounter, "replay")
WHOLE(nvmlDeviceGetPerformanceState, "pstate")
WHOLE(nvmlDeviceGetFanSpeed, "fan")
WHOLE(nvmlDeviceGetPersistenceMode, "persistence")
WHOLE(nvmlDeviceGetGpuInstanceId, "gi")
WHOLE(nvmlDeviceGetComputeInstanceId, "ci")
WHOLE(nvmlDeviceGetMaxMigDeviceCount, "mig_max")

#define KEYED(function, prefix)                                              \
  API int function(Handle h, unsigned which, unsigned *out) {                \
    char key[32];                                                            \
    snprintf(key, sizeof key, prefix "%u", which);                           \
    return whole(h, key, out);                                               \
  }
KEYED(nvmlDeviceGetClockInfo, "clock")
KEYED(nvmlDeviceGetMaxClockInfo, "clock_max")
KEYED(nvmlDeviceGetApplicationsClock, "clock_app")
KEYED(nvmlDeviceGetTemperature, "temp")
KEYED(nvmlDeviceGetTemperatureThreshold, "threshold")
KEYED(nvmlDeviceGetPcieThroughput, "pcie_rate")
API int nvmlDeviceGetNvLinkState(Handle h, unsigned link, unsigned *out) {
  char key[32];
  snprintf(key, sizeof key, "link%u", link);
  int code = whole(h, key, out);
  return code == NOT_SUPPORTED && link > 0 ? INVALID : code;
}

API int nvmlDeviceGetUtilizationRates(Handle h, unsigned *out) {
  int code = whole(h, "util", &out[0]);
  return code ? code : whole(h, "util_mem", &out[1]);
}
API int nvmlDeviceGetPowerManagementLimitConstraints(Handle h, unsigned *low, unsigned *high) {
  int code = whole(h, "power_min", low);
  return code ? code : whole(h, "power_max", high);
}
API int nvmlDeviceGetTotalEnergyConsumption(Handle h, unsigned long long *out) { return large(h, "energy", out); }
API int nvmlDeviceGetMemoryInfo(Handle h, unsigned long long *out) {
  unsigned long long reserved = 0;
  int code = large(h, "mem_total", &out[0]);
  if (!code) code = large(h, "mem_used", &out[2]);
  if (!code) large(h, "mem_reserved", &reserved);
  out[2] += reserved;
  return code;
}
API int nvmlDeviceGetCurrentClocksThrottleReasons(Handle h, unsigned long long *out) { return large(h, "reasons", out); }
#ifndef OLD_DRIVER
API int nvmlDeviceGetCurrentClocksEventReasons(Handle h, unsigned long long *out) { return large(h, "reasons", out); }
API int nvmlDeviceGetMemoryInfo_v2(Handle h, unsigned *version_and_rest) {
  unsigned long long *out = (unsigned long long *)version_and_rest;
  if (version_and_rest[0] != 0x02000028) return INVALID;
  int code = large(h, "mem_total", &out[1]);
  if (!code) code = large(h, "mem_used", &out[4]);
  return code ? code : large(h, "mem_reserved", &out[2]);
}
API int nvmlDeviceGetTemperatureV(Handle h, unsigned *out) {
  char key[32];
  snprintf(key, sizeof key, "temp%u", out[1]);
  return whole(h, key, &out[2]);
}
API int nvmlDeviceGetMarginTemperature(Handle h, unsigned *out) { return whole(h, "margin", &out[1]); }
#endif
API int nvmlDeviceGetViolationStatus(Handle h, unsigned policy, unsigned long long *out) {
  char key[32];
  snprintf(key, sizeof key, "violation%u", policy);
  return large(h, key, &out[1]);
}
API int nvmlDeviceGetTotalEccErrors(Handle h, unsigned kind, unsigned lasting, unsigned long long *out) {
  char key[32];
  snprintf(key, sizeof key, "ecc%u_%u", kind, lasting);
  return large(h, key, out);
}
API int nvmlDeviceGetRemappedRows(Handle h, unsigned *a, unsigned *b, unsigned *c, unsigned *d) {
  unsigned *out[4] = {a, b, c, d};
  char key[16];
  for (int i = 0; i < 4; i++) {
    snprintf(key, sizeof key, "rows%d", i);
    int code = whole(h, key, out[i]);
    if (code) return code;
  }
  return OK;
}
API int nvmlDeviceGetEccMode(Handle h, unsigned *now, unsigned *later) {
  *later = 0;
  return whole(h, "ecc_mode", now);
}
API int nvmlDeviceGetMigMode(Handle h, unsigned *now, unsigned *later) {
  *later = 0;
  return whole(h, "mig", now);
}
API int nvmlDeviceGetMigDeviceHandleByIndex(Handle h, unsigned place, Handle *out) {
  unsigned count = 0;
  int code = whole(h, "mig_count", &count);
  if (code) return code;
  if (place >= count) return NOT_FOUND;
  *out = &handles[10 + 8 * (h - handles) + place];
  return OK;
}
API int nvmlDeviceGetCudaComputeCapability(Handle h, unsigned *major, unsigned *minor) {
  *minor = 0;
  return whole(h, "capability", major);
}

struct Field { uint32_t id, scope; int64_t time, latency; uint32_t type, code; union { double d; uint32_t ui; uint64_t ull; } value; };
API int nvmlDeviceGetFieldValues(Handle h, int count, struct Field *fields) {
  char key[32];
  double value;
  int code = number((int)(h - handles), "alive", &value);
  if (code != OK && code != NOT_SUPPORTED) return code;
  for (int i = 0; i < count; i++) {
    snprintf(key, sizeof key, "field%u", fields[i].id);
    fields[i].code = number((int)(h - handles), key, &value);
    if ((fields[i].id == 138 || fields[i].id == 139) && fields[i].scope != 0xFFFFFFFF) fields[i].code = INVALID;
    fields[i].type = fields[i].id == 82 ? 1 : 3;
    if (fields[i].code) continue;
    if (fields[i].type == 1) fields[i].value.ui = (uint32_t)value;
    else fields[i].value.ull = (uint64_t)value;
  }
  return OK;
}

struct Process { unsigned pid; unsigned long long used; unsigned gi, ci; };
static int processes(Handle h, const char *kind, unsigned *count, struct Process *out) {
  unsigned there = 0;
  char key[32];
  int code = whole(h, kind, &there);
  if (code) return code;
  if (*count < there) { *count = there; return SMALL; }
  for (unsigned i = 0; i < there; i++) {
    snprintf(key, sizeof key, "%s_pid%u", kind, i);
    whole(h, key, &out[i].pid);
    snprintf(key, sizeof key, "%s_mem%u", kind, i);
    if (large(h, key, &out[i].used)) out[i].used = ~0ULL;
  }
  *count = there;
  return OK;
}
API int nvmlDeviceGetComputeRunningProcesses_v3(Handle h, unsigned *n, void *out) { return processes(h, "compute", n, out); }
API int nvmlDeviceGetGraphicsRunningProcesses_v3(Handle h, unsigned *n, void *out) { return processes(h, "graphics", n, out); }

API int nvmlEventSetCreate(void **out) { *out = events; return OK; }
API int nvmlDeviceGetSupportedEventTypes(Handle h, unsigned long long *out) { return large(h, "event_types", out); }
API int nvmlDeviceRegisterEvents(Handle h, unsigned long long types, void *set) { (void)h; (void)types; (void)set; return OK; }
API int nvmlEventSetWait_v2(void *set, void *out, unsigned timeout_ms) {
  struct { Handle device; uint64_t type, data; unsigned gi, ci; } *event = out;
  (void)set; (void)timeout_ms;
  if (!loaded) return UNINITIALIZED;
  if (num_events == 0) return TIMEOUT;
  event->device = &handles[events[0].device];
  event->type = events[0].type;
  event->data = events[0].data;
  memmove(events, events + 1, sizeof events - sizeof events[0]);
  num_events--;
  return OK;
}

/* A sample is the number of times that samples were taken: a metric is its key's value times the difference. */
API int nvmlGpmQueryDeviceSupport(Handle h, unsigned *out) { return whole(h, "gpm", &out[1]); }
API int nvmlGpmSampleAlloc(void **out) { *out = calloc(1, 64); return OK; }
API int nvmlGpmSampleFree(void *sample) { free(sample); return OK; }
API int nvmlGpmSampleGet(Handle h, int *sample) {
  static int taken;
  double ignored;
  int code = number((int)(h - handles), "gpm_sample", &ignored);
  if (code != OK && code != NOT_SUPPORTED) return code;
  sample[0] = ++taken;
  sample[1] = (int)(h - handles);
  return OK;
}
struct Metric { unsigned id, code; double value; const char *names[3]; };
API int nvmlGpmMetricsGet(void *request) {
  struct { unsigned version, count; int *begin, *end; struct Metric metrics[]; } *get = request;
  char key[32];
  for (unsigned i = 0; i < get->count; i++) {
    snprintf(key, sizeof key, "gpm%u", get->metrics[i].id);
    get->metrics[i].code = number(get->begin[1], key, &get->metrics[i].value);
    get->metrics[i].value *= get->end[0] - get->begin[0];
  }
  return OK;
}
