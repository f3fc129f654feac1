// Trains a classifier of handwritten digits for an epoch and runs the exported model: train_digits ARTIFACTS CHECKPOINT OUT.
package main

/*
#include <stdlib.h>
#include "ortrain_c_api.h"

// cgo cannot call pointers to functions: one function for each that the program uses.
static const OrtApi *ort(void) { return OrtGetApiBase()->GetApi(ORT_API_VERSION); }
static const OrtTrainingApi *training(void) { return ort()->GetTrainingApi(ORT_API_VERSION); }

static const char *message(OrtStatus *s) { return ort()->GetErrorMessage(s); }
static void release_status(OrtStatus *s) { ort()->ReleaseStatus(s); }
static OrtStatus *create_env(const char *name, OrtEnv **out) { return ort()->CreateEnv(ORT_LOGGING_LEVEL_WARNING, name, out); }
static void release_env(OrtEnv *env) { ort()->ReleaseEnv(env); }
static OrtStatus *create_options(OrtSessionOptions **out) { return ort()->CreateSessionOptions(out); }
static void release_options(OrtSessionOptions *options) { ort()->ReleaseSessionOptions(options); }
static OrtStatus *create_memory(OrtMemoryInfo **out) { return ort()->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, out); }
static void release_memory(OrtMemoryInfo *memory) { ort()->ReleaseMemoryInfo(memory); }
static OrtStatus *create_session(OrtEnv *env, const char *path, OrtSessionOptions *options, OrtSession **out) {
    return ort()->CreateSession(env, path, options, out);
}
static void release_session(OrtSession *session) { ort()->ReleaseSession(session); }
static OrtStatus *run(OrtSession *session, const char *input, OrtValue *x, const char *output, OrtValue **out) {
    return ort()->Run(session, NULL, &input, (const OrtValue *const *)&x, 1, &output, 1, out);
}
static OrtStatus *create_tensor(OrtMemoryInfo *memory, void *data, size_t size, int64_t rows, int64_t columns, int type, OrtValue **out) {
    const int64_t shape[] = { rows, columns };
    return ort()->CreateTensorWithDataAsOrtValue(memory, data, size, shape, columns > 0 ? 2 : 1, (ONNXTensorElementDataType)type, out);
}
static OrtStatus *tensor_data(OrtValue *value, void **out) { return ort()->GetTensorMutableData(value, out); }
static void release_value(OrtValue *value) { ort()->ReleaseValue(value); }

static OrtStatus *load(const char *path, OrtCheckpointState **out) { return training()->LoadCheckpoint(path, out); }
static OrtStatus *save(OrtCheckpointState *state, const char *path) { return training()->SaveCheckpoint(state, path, true); }
static void release_state(OrtCheckpointState *state) { training()->ReleaseCheckpointState(state); }
static OrtStatus *create_trainer(OrtEnv *env, OrtSessionOptions *options, OrtCheckpointState *state, const char *train, const char *eval,
                                 const char *optimizer, OrtTrainingSession **out) {
    return training()->CreateTrainingSession(env, options, state, train, eval, optimizer, out);
}
static void release_trainer(OrtTrainingSession *session) { training()->ReleaseTrainingSession(session); }
static OrtStatus *step(OrtTrainingSession *session, int is_training, OrtValue *x, OrtValue *labels, OrtValue **loss) {
    const OrtValue *inputs[] = { x, labels };
    return is_training ? training()->TrainStep(session, NULL, 2, inputs, 1, loss) : training()->EvalStep(session, NULL, 2, inputs, 1, loss);
}
static OrtStatus *optimizer_step(OrtTrainingSession *session) { return training()->OptimizerStep(session, NULL); }
static OrtStatus *scheduler_step(OrtTrainingSession *session) { return training()->SchedulerStep(session); }
static OrtStatus *lazy_reset_grad(OrtTrainingSession *session) { return training()->LazyResetGrad(session); }
static OrtStatus *linear_schedule(OrtTrainingSession *session, int64_t warmup, int64_t total, float rate) {
    return training()->RegisterLinearLRScheduler(session, warmup, total, rate);
}
static OrtStatus *learning_rate(OrtTrainingSession *session, float *out) { return training()->GetLearningRate(session, out); }
static OrtStatus *export_model(OrtTrainingSession *session, const char *path, const char *output) {
    return training()->ExportModelForInferencing(session, path, 1, &output);
}
static OrtStatus *set_epochs(OrtCheckpointState *state, float epochs) { return training()->AddProperty(state, "epochs", OrtFloatProperty, &epochs); }
static float epochs(OrtCheckpointState *state) {      // 0 for a new checkpoint
    OrtAllocator *allocator;
    enum OrtPropertyType type;
    void *found;
    OrtStatus *status = ort()->GetAllocatorWithDefaultOptions(&allocator);
    if (status == NULL)
        status = training()->GetProperty(state, "epochs", allocator, &type, &found);
    if (status != NULL) {
        ort()->ReleaseStatus(status);
        return 0;
    }
    float result = *(float *)found;
    release_status(ort()->AllocatorFree(allocator, found));
    return result;
}
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"unsafe"
)

const (
	pixels  = 64
	batch   = 32
	classes = 10
	float   = C.ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT
	int64s  = C.ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64
)

// failure returns the error of a status, nil for success.
func failure(status *C.OrtStatus) error {
	if status == nil {
		return nil
	}
	defer C.release_status(status)
	return errors.New(C.GoString(C.message(status)))
}

func check(status *C.OrtStatus) {
	if err := failure(status); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// text returns a string of C, which lives as long as the program.
func text(s string) *C.char { return C.CString(s) }

// inC reads a file into memory of C: values are used after the call that made them, which memory of Go must not be.
func inC(path string) (unsafe.Pointer, int) {
	bytes, err := os.ReadFile(path)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return C.CBytes(bytes), len(bytes)
}

type digits struct {
	memory *C.OrtMemoryInfo
	images unsafe.Pointer
	labels unsafe.Pointer
	rows   int
}

// tensors returns values over the rows from start on.
func (d *digits) tensors(start, rows int) (x, labels *C.OrtValue) {
	n := C.int64_t(rows)
	check(C.create_tensor(d.memory, unsafe.Add(d.images, start*pixels*4), C.size_t(rows*pixels*4), n, pixels, float, &x))
	check(C.create_tensor(d.memory, unsafe.Add(d.labels, start*8), C.size_t(rows*8), n, 0, int64s, &labels))
	return x, labels
}

// step runs a train or eval step and returns the loss.
func (d *digits) step(session *C.OrtTrainingSession, training C.int, start, rows int) float32 {
	var loss *C.OrtValue
	var data unsafe.Pointer
	x, labels := d.tensors(start, rows)
	defer C.release_value(x)
	defer C.release_value(labels)
	check(C.step(session, training, x, labels, &loss))
	defer C.release_value(loss)
	check(C.tensor_data(loss, &data))
	return *(*float32)(data)
}

// accuracy returns how many images the exported model recognizes.
func (d *digits) accuracy(env *C.OrtEnv, options *C.OrtSessionOptions, model string) float64 {
	var session *C.OrtSession
	var logits *C.OrtValue
	var data unsafe.Pointer
	check(C.create_session(env, text(model), options, &session))
	defer C.release_session(session)
	x, labels := d.tensors(0, d.rows)
	defer C.release_value(x)
	defer C.release_value(labels)
	check(C.run(session, text("pixels"), x, text("logits"), &logits))
	defer C.release_value(logits)
	check(C.tensor_data(logits, &data))
	scores, expected, right := unsafe.Slice((*float32)(data), d.rows*classes), unsafe.Slice((*int64)(d.labels), d.rows), 0
	for row, label := range expected {
		best, of := 0, scores[row*classes:(row+1)*classes]
		for digit, score := range of {
			if score > of[best] {
				best = digit
			}
		}
		if int64(best) == label {
			right++
		}
	}
	return float64(right) / float64(d.rows)
}

func main() {
	artifacts, checkpoint, out := os.Args[1], os.Args[2], os.Args[3]
	var (
		d       digits
		env     *C.OrtEnv
		options *C.OrtSessionOptions
		state   *C.OrtCheckpointState
		session *C.OrtTrainingSession
		rate    C.float
		size    int
	)
	d.images, _ = inC(filepath.Join(artifacts, "images.bin"))
	d.labels, size = inC(filepath.Join(artifacts, "labels.bin"))
	d.rows = size / 8
	check(C.create_env(text("digits"), &env))
	defer C.release_env(env)
	check(C.create_options(&options))
	defer C.release_options(options)
	check(C.create_memory(&d.memory))
	defer C.release_memory(d.memory)
	check(C.load(text(checkpoint), &state))
	defer C.release_state(state)
	model := func(name string) *C.char { return text(filepath.Join(artifacts, name+"_model.onnx")) }
	check(C.create_trainer(env, options, state, model("training"), model("eval"), model("optimizer"), &session))
	defer C.release_trainer(session)
	check(C.linear_schedule(session, 10, 100, 0.01))
	for start := 0; start+batch <= d.rows; start += batch {
		d.step(session, 1, start, batch)
		check(C.optimizer_step(session))
		check(C.scheduler_step(session))
		check(C.lazy_reset_grad(session))
	}
	check(C.learning_rate(session, &rate))
	fmt.Printf("loss %.9g\nrate %.9g\n", d.step(session, 0, 0, d.rows), float32(rate))
	epochs := C.epochs(state) + 1
	check(C.set_epochs(state, epochs))
	check(C.save(state, text(filepath.Join(out, "trained.checkpoint"))))
	exported := filepath.Join(out, "trained.onnx")
	check(C.export_model(session, text(exported), text("logits")))
	fmt.Printf("accuracy %.9g\nepochs %g\n", d.accuracy(env, options, exported), float32(epochs))
	var missing *C.OrtCheckpointState
	fmt.Println("refused", failure(C.load(text("no such checkpoint"), &missing)))
}
