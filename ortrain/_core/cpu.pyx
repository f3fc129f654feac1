"""Detection of the instruction sets of the processor."""

cdef extern from *:
    """
    static int ortrain_supports(int level) {
    #if (defined(__x86_64__) || defined(_M_X64)) && defined(__GNUC__)
        __builtin_cpu_init();
        if (level == 4)
            return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd")
                && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("bmi2");
        if (level == 3)
            return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi")
                && __builtin_cpu_supports("bmi2");
    #endif
        return level <= 1;
    }
    """
    int ortrain_supports(int level)


def supports(name: str) -> bool:
    """Return True if this processor runs code of the instruction set "baseline", "avx2" or "avx512"."""
    return bool(ortrain_supports({"baseline": 1, "avx2": 3, "avx512": 4}[name]))
