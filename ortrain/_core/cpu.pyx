"""Detection of the instruction sets of the processor."""

cdef extern from *:
    """
    #include <string.h>
    #if defined(__aarch64__) && defined(__linux__)
    #include <sys/auxv.h>
    #ifndef HWCAP2_BF16
    #define HWCAP2_BF16 (1 << 14)
    #endif
    static int multiplies_bfloat16(void) { return (getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0; }
    #elif defined(__aarch64__) && defined(__APPLE__)
    #include <sys/sysctl.h>
    static int multiplies_bfloat16(void)
    {
        int present = 0;
        size_t size = sizeof present;
        return sysctlbyname("hw.optional.arm.FEAT_BF16", &present, &size, NULL, 0) == 0 && present;
    }
    #elif defined(__aarch64__)
    static int multiplies_bfloat16(void) { return 0; }        /* where it is not known how to ask */
    #endif
    /* Whether this processor runs code of an instruction set, by its name in kernel_table.py, or has the instructions avx512_bf16 or neon_bf16. */
    static int ortrain_supports(const char *name) {
    #if defined(__x86_64__)
        __builtin_cpu_init();
        if (!strcmp(name, "avx512"))
            return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd")
                && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("bmi2");
        if (!strcmp(name, "avx512_bf16")) return __builtin_cpu_supports("avx512bf16");
        if (!strcmp(name, "avx2"))
            return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi")
                && __builtin_cpu_supports("bmi2");
        return !strcmp(name, "baseline");
    #elif defined(__aarch64__)
        return !strcmp(name, "neon") || (!strcmp(name, "neon_bf16") && multiplies_bfloat16());
    #elif defined(__wasm__)
        return !strcmp(name, "simd128");
    #else
        return !strcmp(name, "baseline");
    #endif
    }
    static int ortrain_is_intel(void) {
    #if defined(__x86_64__)
        __builtin_cpu_init();
        return __builtin_cpu_is("intel");
    #else
        return 0;
    #endif
    }
    """
    int ortrain_supports(const char *name)
    int ortrain_is_intel()


def supports(str name):
    """Return True if this processor runs code of an instruction set named in kernel_table.py, or has the instructions avx512_bf16 or neon_bf16."""
    return bool(ortrain_supports(name.encode()))


def is_intel():
    """Return True if this is a processor of Intel's."""
    return bool(ortrain_is_intel())
