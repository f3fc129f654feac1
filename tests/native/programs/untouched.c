/* What host.c does not look at: untouched ARTIFACTS MODEL words... Arguments, environment, signal mask and actions, floating-point mode and traps of every thread,
   umask, folder and standard streams are after training and inference what they were before; a forked child is refused by each function that needs the engine. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <fenv.h>
#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "program.h"

extern char **environ;

enum { RESTORER = 0x04000000 };         /* a flag that the C library adds whenever it sets an action */

typedef struct Host {
    char words[4096], environment[65536], folder[4096], locale[256];
    sigset_t blocked;
    struct sigaction actions[32];
    int streams[3];
    mode_t mask;
} Host;

static void join(char *to, size_t room, char **words) {
    size_t used = 0;
    for (; *words != NULL; words++) {
        size_t length = strlen(*words) + 1;
        HOLDS(used + length < room);
        memcpy(to + used, *words, length);
        used += length;
    }
}

static void look(Host *host, char **argv) {
    memset(host, 0, sizeof(*host));
    join(host->words, sizeof(host->words), argv);
    join(host->environment, sizeof(host->environment), environ);
    HOLDS(getcwd(host->folder, sizeof(host->folder)) != NULL);
    snprintf(host->locale, sizeof(host->locale), "%s", setlocale(LC_ALL, NULL));
    HOLDS(pthread_sigmask(SIG_BLOCK, NULL, &host->blocked) == 0);
    for (int number = 1; number < 32; number++)
        HOLDS(sigaction(number, NULL, &host->actions[number]) == 0);
    for (int stream = 0; stream < 3; stream++)
        host->streams[stream] = fcntl(stream, F_GETFL);
    umask(host->mask = umask(0));
}

static void compare(const Host *before, const Host *after) {
    HOLDS(memcmp(before->words, after->words, sizeof(before->words)) == 0);
    HOLDS(memcmp(before->environment, after->environment, sizeof(before->environment)) == 0);
    HOLDS(strcmp(before->folder, after->folder) == 0 && strcmp(before->locale, after->locale) == 0);
    HOLDS(memcmp(&before->blocked, &after->blocked, sizeof(before->blocked)) == 0);
    for (int number = 1; number < 32; number++) {
        const struct sigaction *old = &before->actions[number], *new = &after->actions[number];
        bool same = old->sa_handler == new->sa_handler && (old->sa_flags & ~RESTORER) == (new->sa_flags & ~RESTORER);
        if (!same)
            fprintf(stderr, "signal %d: %p and flags %x became %p and flags %x\n", number, (void *)old->sa_handler, (unsigned)old->sa_flags,
                    (void *)new->sa_handler, (unsigned)new->sa_flags);
        HOLDS(same);
    }
    HOLDS(memcmp(before->streams, after->streams, sizeof(before->streams)) == 0 && before->mask == after->mask);
}

static const char *folder, *model;

static void train_and_infer(void) {
    Trainer t = open_trainer(folder, "checkpoint");
    OrtSession *session;
    float x[12] = { 1 };
    int64_t labels[4] = { 0 };
    const char *const names[2] = { "x", "scores" };
    OrtValue *inputs[2] = { tensor_over(&t, x, 4, 3, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, sizeof(float)),
                            tensor_over(&t, labels, 4, 0, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, sizeof(int64_t)) };
    OrtValue *outputs[2] = { NULL, NULL }, *scores = NULL;
    OK(training->TrainStep(t.session, NULL, 2, (const OrtValue *const *)inputs, 2, outputs));
    OK(training->OptimizerStep(t.session, NULL));
    OK(ort->CreateSession(t.env, model, t.options, &session));
    OK(ort->Run(session, NULL, &names[0], (const OrtValue *const *)inputs, 1, &names[1], 1, &scores));
    OrtValue *values[] = { inputs[0], inputs[1], outputs[0], outputs[1], scores };
    for (int i = 0; i < 5; i++)
        ort->ReleaseValue(values[i]);
    ort->ReleaseSession(session);
    close_trainer(&t);
}

/* Train in a thread with a rounding mode and with flags of its own. */
static void *in_thread(void *unused) {
    fenv_t before, after;
    fesetround(FE_DOWNWARD);
    feclearexcept(FE_ALL_EXCEPT);
    fegetenv(&before);
    train_and_infer();
    HOLDS(fegetround() == FE_DOWNWARD);
    fegetenv(&after);
#ifdef __x86_64__
    HOLDS((before.__mxcsr & ~0x3Fu) == (after.__mxcsr & ~0x3Fu) && before.__control_word == after.__control_word);      /* the low bits are sticky flags */
#endif
    return unused;
}

static void in_child(Trainer *t) {
    OrtSession *session = NULL;
    OrtCheckpointState *state = NULL;
    char *checkpoint = in_folder(folder, "checkpoint");
    REFUSED(training->LoadCheckpoint(checkpoint, &state), ORT_FAIL, "forked");
    REFUSED(ort->CreateSession(t->env, model, t->options, &session), ORT_FAIL, "forked");
    REFUSED(training->OptimizerStep(t->session, NULL), ORT_FAIL, "forked");
    REFUSED(training->SaveCheckpoint(t->state, "child.checkpoint", true), ORT_FAIL, "forked");
    REFUSED(training->SetSeed(1), ORT_FAIL, "forked");
    HOLDS(state == NULL && session == NULL && access("child.checkpoint", F_OK) != 0);
    close_trainer(t);
    _exit(0);
}

int main(int argc, char **argv) {
    HOLDS(argc > 3);
    static Host before, after;
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR2);
    HOLDS(pthread_sigmask(SIG_BLOCK, &blocked, NULL) == 0 && setlocale(LC_ALL, "C.UTF-8") != NULL);
    umask(027);
    folder = argv[1];
    model = argv[2];
    look(&before, argv);
    load_tables();
    train_and_infer();
    look(&after, argv);
    compare(&before, &after);
    pthread_t thread;
    HOLDS(pthread_create(&thread, NULL, in_thread, NULL) == 0 && pthread_join(thread, NULL) == 0);
    look(&after, argv);
    compare(&before, &after);
    Trainer t = open_trainer(folder, "checkpoint");
    fflush(stdout);
    int result;
    pid_t child = fork();
    if (child == 0)
        in_child(&t);
    HOLDS(waitpid(child, &result, 0) == child && WIFEXITED(result) && WEXITSTATUS(result) == 0);
    close_trainer(&t);
    puts("untouched");
    return 0;
}
