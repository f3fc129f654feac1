/* Recurrent layers and their gradients: ONNX LSTM, GRU and RNN in float32 and float64.
 *
 * The input projections x W^T of all time steps are one GEMM before the loop over time, and the gradients of x, W and R are GEMMs after it. The loop itself
 * runs per direction and block of batch rows: a work item computes all time steps of its block on one thread, so threads never synchronize between steps. The
 * split depends on the shapes only; SMALL_BLOCK, LARGE_BLOCK and KEPT_WEIGHTS (common/tuning.h) choose the rows of a block. R is packed once for the GEMMs of
 * all steps (step_gemm.h).
 *
 * Shapes ("rows" are the sequences of the batch, "gates" is 4 for LSTM, 3 for GRU, 1 for RNN):
 *   x        [steps, rows, inputs]
 *   W        [directions, gates * hidden, inputs]
 *   R        [directions, gates * hidden, hidden]
 *   B        [directions, 2 * gates * hidden]: the biases Wb, then Rb
 *   lengths  [rows], int32: the state of a sequence stays unchanged at steps beyond its length, and y is 0 there
 *   h0, c0, h, c  [directions, rows, hidden]: initial and final states
 *   y        [steps, directions, rows, hidden], or with the first three axes in another order
 *   gates    [directions, steps, rows, gates * hidden]: saved after activation for the backward pass
 *
 * ints: steps, rows, inputs, hidden, directions, kind of direction (FORWARD, REVERSE, BIDIRECTIONAL), option (GRU: linear_before_reset; RNN: ReLU instead of
 * tanh), then the distances of steps, directions and rows in y, and for gradients those in dy. Inputs of each kernel are listed at the kernel; B, lengths,
 * initial states and P may be absent. */
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
    int64_t block, blocks;                              /* rows per block, blocks per direction */
    const int64_t *y_strides, *dy_strides;              /* of steps, directions and rows; dy_strides in gradients only */
    const int32_t *lengths;
} Recurrence;

/* Unpack the ints. gates: of the layer; lengths: index of the lengths among the inputs. */
static Recurrence recurrence_of(const KernelArgs *args, int64_t gates, int64_t lengths)
{
    const int64_t *s = args->ints;
    int is_tiled = args->engine->rounds && args->engine->amx;                    /* tiles have 16 rows (lstm's step: 3.0 to 2.5 ms) */
    int64_t block = gates * s[3] * s[3] <= KEPT_WEIGHTS && !is_tiled ? SMALL_BLOCK : LARGE_BLOCK;
    return (Recurrence){ .args = args, .steps = s[0], .rows = s[1], .inputs = s[2], .hidden = s[3], .directions = s[4], .kind = s[5], .option = s[6],
                         .gates = gates, .block = block, .blocks = (s[1] + block - 1) / block, .y_strides = s + 7, .dy_strides = s + 10,
                         .lengths = args->n_inputs > lengths ? args->inputs[lengths].data : NULL };
}

/* Return the time index of the k-th step of direction d. */
static inline int64_t time_of(const Recurrence *r, int64_t d, int64_t k) { return r->kind == REVERSE || d == 1 ? r->steps - 1 - k : k; }

/* Return where the row of a sequence at a step is in y or dy, of which the strides are given. */
static inline int64_t output_row(const int64_t *strides, int64_t d, int64_t time, int64_t row) { return time * strides[0] + d * strides[1] + row * strides[2]; }

/* The direction and the rows [first, first + count) of a work item. */
typedef struct RowBlock { int64_t direction, first, count; } RowBlock;
static inline RowBlock rows_of_item(const Recurrence *r, int64_t item)
{
    int64_t first = item % r->blocks * r->block, left = r->rows - first;
    return (RowBlock){ item / r->blocks, first, left < r->block ? left : r->block };
}

/* Return whether a time index is within the length of a sequence. */
static inline int is_active(const Recurrence *r, int64_t row, int64_t time) { return !r->lengths || time < r->lengths[row]; }

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

#define BY_DTYPE(name) static int name(const KernelArgs *args) { return args->inputs[0].dtype == DTYPE_FLOAT32 ? name##_float(args) : name##_double(args); }
BY_DTYPE(lstm) BY_DTYPE(lstm_grad) BY_DTYPE(gru) BY_DTYPE(gru_grad) BY_DTYPE(rnn) BY_DTYPE(rnn_grad)
#endif
