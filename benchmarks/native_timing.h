/* What the programs that time the C interface share. */
#ifndef NATIVE_TIMING_H
#define NATIVE_TIMING_H
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "ortrain_c_api.h"

static const OrtApi *ort;

/* End the program where a call failed. */
static void check(OrtStatus *status) {
    if (status != NULL) {
        fprintf(stderr, "%s\n", ort->GetErrorMessage(status));
        exit(1);
    }
}

/* Return the time of a clock in seconds. */
static double now(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}
#endif
