/* Ten threads with a session each: threads ARTIFACTS STEPS. Each prints its last loss; the memory of the process must not grow with the steps. */
#include <pthread.h>

#include "program.h"

enum { THREADS = 10 };

static const char *folder;
static long steps;

static float run(const Trainer *t, long count) {
    float x[12], loss = 0;
    int64_t labels[4] = { 0, 1, 2, 1 };
    for (int i = 0; i < 12; i++)
        x[i] = (float)(i % 5) - 2;
    for (long step = 0; step < count; step++) {
        OrtValue *inputs[2] = { tensor_over(t, x, 4, 3, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, sizeof(float)),
                                tensor_over(t, labels, 4, 0, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, sizeof(int64_t)) };
        OrtValue *outputs[2] = { NULL, NULL };
        float *made;
        OK(training->TrainStep(t->session, NULL, 2, (const OrtValue *const *)inputs, 2, outputs));
        OK(training->OptimizerStep(t->session, NULL));
        OK(training->LazyResetGrad(t->session));
        OK(ort->GetTensorMutableData(outputs[0], (void **)&made));
        loss = *made;
        for (int i = 0; i < 2; i++) {
            ort->ReleaseValue(inputs[i]);
            ort->ReleaseValue(outputs[i]);
        }
    }
    return loss;
}

static pthread_barrier_t warm, measured, done;

static void *work(void *result) {
    Trainer t = open_trainer(folder, "checkpoint");
    run(&t, steps / 10 + 1);
    pthread_barrier_wait(&warm);
    pthread_barrier_wait(&measured);
    *(float *)result = run(&t, steps);
    pthread_barrier_wait(&done);
    pthread_barrier_wait(&measured);
    close_trainer(&t);
    return NULL;
}

/* Run all threads; return by how many bytes the process grew with the steps. */
static long run_threads(float losses[THREADS]) {
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        HOLDS(pthread_create(&threads[i], NULL, work, &losses[i]) == 0);
    pthread_barrier_wait(&warm);
    long before = resident();
    pthread_barrier_wait(&measured);
    pthread_barrier_wait(&done);
    long grown = resident() - before;
    pthread_barrier_wait(&measured);
    for (int i = 0; i < THREADS; i++)
        HOLDS(pthread_join(threads[i], NULL) == 0);
    return grown;
}

int main(int argc, char **argv) {
    HOLDS(argc == 3);
    load_tables();
    folder = argv[1];
    steps = atol(argv[2]);
    float losses[THREADS], again[THREADS];
    pthread_barrier_init(&warm, NULL, THREADS + 1);
    pthread_barrier_init(&measured, NULL, THREADS + 1);
    pthread_barrier_init(&done, NULL, THREADS + 1);
    run_threads(losses);
    long grown = run_threads(again);
    HOLDS(memcmp(losses, again, sizeof(losses)) == 0);
    for (int i = 1; i < THREADS; i++)
        HOLDS(losses[i] == losses[0]);
    printf("%.9g %ld\n", losses[0], grown);
    return 0;
}
