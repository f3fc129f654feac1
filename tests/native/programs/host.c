/* The library leaves its host alone: host ARTIFACTS. Signals, locale, floating-point mode and arguments stay, and a forked child is refused. */
#include <fenv.h>
#include <locale.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "program.h"

static void handler(int number) { (void)number; }

static void messages(void *count, OrtLoggingLevel severity, const char *category, const char *id, const char *location, const char *message) {
    HOLDS(severity >= ORT_LOGGING_LEVEL_INFO && strcmp(id, "host") == 0 && category != NULL && location != NULL && message != NULL);
    ++*(int *)count;
}

int main(int argc, char **argv) {
    HOLDS(argc == 2);
    HOLDS(setlocale(LC_ALL, "C") != NULL);
    signal(SIGINT, SIG_DFL);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGUSR1, handler);
    fesetround(FE_UPWARD);
    load_tables();
    Trainer t = open_trainer(argv[1], "checkpoint");
    HOLDS(fegetround() == FE_UPWARD);
    HOLDS(strcmp(setlocale(LC_ALL, NULL), "C") == 0);
    HOLDS(signal(SIGINT, SIG_DFL) == SIG_DFL && signal(SIGPIPE, SIG_DFL) == SIG_DFL && signal(SIGUSR1, SIG_DFL) == handler);
    fesetround(FE_TONEAREST);
    int logged = 0, result;
    OrtEnv *env;
    OrtSession *session;
    OK(ort->CreateEnvWithCustomLogger(messages, &logged, ORT_LOGGING_LEVEL_INFO, "host", &env));
    REFUSED(ort->CreateSession(env, "no such file", NULL, &session), ORT_NO_SUCHFILE, "no such file");
    HOLDS(logged == 1);
    ort->ReleaseEnv(env);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        REFUSED(training->LazyResetGrad(t.session), ORT_FAIL, "forked");
        close_trainer(&t);
        _exit(0);
    }
    HOLDS(waitpid(child, &result, 0) == child && WIFEXITED(result) && WEXITSTATUS(result) == 0);
    OK(training->LazyResetGrad(t.session));
    puts("untouched");
    return 0;           /* with open sessions: the end of the process needs no order */
}
