/* Recurrent layers, forward and backward: LSTM, GRU and the plain RNN.
 *
 * Everything of the inputs is one product over all time steps, before (forward) or after (backward) the loop over time. The loop itself runs per block of
 * batch rows and direction, each a work item that goes through all steps on one thread: nothing waits between steps, and the split follows from the
 * shapes alone. R is laid out once for the products of all steps (step_gemm.h).
 *
 * x [steps, rows, inputs]; per direction W [gates hidden, inputs], R [gates hidden, hidden], B [2 gates hidden]; y [steps, directions, rows, hidden];
 * saved gates [directions, steps, rows, gates hidden] after activation; states [directions, rows, hidden]. With lengths [rows], a row's state stays as it
 * is at steps beyond its length, and y is 0 there. ints: steps, rows, inputs, hidden, directions, kind of direction, option. */
#ifndef ORTRAIN_RECURRENT_H
#define ORTRAIN_RECURRENT_H
#include <math.h>
#include <string.h>
#include "kernel.h"
#include "recurrent/step_gemm.h"
#include "common/vector_math.h"

enum { FORWARD = 0, REVERSE = 1, BIDIRECTIONAL = 2 };

typedef struct Recurrence {
    const KernelArgs *args;
    int64_t steps, rows, inputs, hidden, directions, kind, option, gates;
    int64_t block, blocks;                              /* rows of a block, blocks of a direction */
    const int32_t *lengths;
} Recurrence;

static Recurrence recurrence_of(const KernelArgs *args, int64_t gates, int64_t lengths)
{
    const int64_t *s = args->ints;
    int64_t block = gates * s[3] * s[3] <= KEPT_WEIGHTS ? SMALL_BLOCK : LARGE_BLOCK;
    return (Recurrence){ .args = args, .steps = s[0], .rows = s[1], .inputs = s[2], .hidden = s[3], .directions = s[4], .kind = s[5], .option = s[6],
                         .gates = gates, .block = block, .blocks = (s[1] + block - 1) / block,
                         .lengths = args->n_inputs > lengths ? args->inputs[lengths].data : NULL };
}

/* the time of the k-th step that direction d takes */
static inline int64_t time_of(const Recurrence *r, int64_t d, int64_t k) { return r->kind == REVERSE || d == 1 ? r->steps - 1 - k : k; }
/* the direction, the first row and the rows of a work item */
typedef struct RowBlock { int64_t direction, first, count; } RowBlock;
static inline RowBlock rows_of_item(const Recurrence *r, int64_t item)
{
    int64_t first = item % r->blocks * r->block, left = r->rows - first;
    return (RowBlock){ item / r->blocks, first, left < r->block ? left : r->block };
}
static inline int runs_at(const Recurrence *r, int64_t row, int64_t time) { return !r->lengths || time < r->lengths[row]; }

#define REAL float
#define NAMED(name) name##_float
#define GEMM gemm_float32
#define SIGMOID ot_sigmoidf
#define TANH ot_tanhf
#include "recurrent/common.h"
#include "recurrent/lstm.h"
#include "recurrent/gru.h"
#include "recurrent/rnn.h"
#undef REAL
#undef NAMED
#undef GEMM
#undef SIGMOID
#undef TANH

static inline double sigmoid_of_double(double x) { return 1 / (1 + exp(-x)); }
#define REAL double
#define NAMED(name) name##_double
#define GEMM gemm_float64
#define SIGMOID sigmoid_of_double
#define TANH tanh
#include "recurrent/common.h"
#include "recurrent/lstm.h"
#include "recurrent/gru.h"
#include "recurrent/rnn.h"

#define BOTH(name) static int name(const KernelArgs *args) { return args->inputs[0].dtype == DTYPE_FLOAT32 ? name##_float(args) : name##_double(args); }
BOTH(lstm) BOTH(lstm_grad) BOTH(gru) BOTH(gru_grad) BOTH(rnn) BOTH(rnn_grad)
#endif
