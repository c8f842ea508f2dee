/* What NVTX loads where NVTX_INJECTION64_PATH names it: counts the ranges that the process opens and closes, by name,
 * and writes them at its end into the file that COUNTED_RANGES names: a count and a name a line, then the count of
 * those closed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <nvtx3/nvToolsExt.h>

enum { most_names_k = 1024 };

static struct {
    char name[64];
    unsigned long count;
} pushed[most_names_k];
static unsigned names, popped;

static int count_push(char const* name) {
    unsigned place = 0;
    while (place != names && strncmp(pushed[place].name, name, sizeof(pushed[place].name) - 1))
        ++place;
    if (place == most_names_k)
        return 0;
    if (place == names) {
        strncpy(pushed[place].name, name, sizeof(pushed[place].name) - 1);
        ++names;
    }
    __atomic_add_fetch(&pushed[place].count, 1, __ATOMIC_RELAXED);
    return 0;
}

static int count_pop(void) { return (int)__atomic_add_fetch(&popped, 1, __ATOMIC_RELAXED); }

__attribute__((destructor)) static void write_counts(void) {
    char const* const path = getenv("COUNTED_RANGES");
    FILE* const file = path ? fopen(path, "w") : NULL;
    if (!file)
        return;
    for (unsigned place = 0; place != names; ++place)
        fprintf(file, "%lu %s\n", pushed[place].count, pushed[place].name);
    fprintf(file, "%u\n", popped);
    fclose(file);
}

__attribute__((visibility("default"))) int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_export_table) {
    NvtxExportTableCallbacks const* const callbacks = get_export_table(NVTX_ETID_CALLBACKS);
    NvtxFunctionTable table = NULL;
    unsigned size = 0;
    if (!callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size) ||
        size <= NVTX_CBID_CORE_RangePop)
        return 0;
    *table[NVTX_CBID_CORE_RangePushA] = (NvtxFunctionPointer)count_push;
    *table[NVTX_CBID_CORE_RangePop] = (NvtxFunctionPointer)count_pop;
    return 1;
}
