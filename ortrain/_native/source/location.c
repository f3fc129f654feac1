/* Both sources give the same text, lines of key=value, which ortrain/_native/location.py writes. */
#define _GNU_SOURCE
#include "location.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "text.h"

extern char **environ;

enum { MAX_TEXT = 16384 };

static const char *const ADVICE = "`python -m ortrain native install DIR` puts the library and this file into a folder, and ORTRAIN_PYTHON may name a python "
                                  "program that has ortrain";

void free_location(Location *location) {
    free(location->version);
    free(location->library);
    free(location->executable);
    free(location->path);
}

static OrtStatus *parse(char *text, Location *location) {
    struct { const char *key; char **place; } fields[] = { { "version", &location->version }, { "library", &location->library },
                                                           { "executable", &location->executable }, { "path", &location->path } };
    char *rest = text;
    for (char *line; (line = strsep(&rest, "\n")) != NULL;) {
        char *value = strchr(line, '=');
        if (value == NULL)
            continue;
        *value++ = '\0';
        for (size_t i = 0; i < sizeof(fields) / sizeof(*fields); i++)
            if (strcmp(line, fields[i].key) == 0)
                RETURN_IF(set_text(fields[i].place, value));
    }
    for (size_t i = 0; i < sizeof(fields) / sizeof(*fields); i++)
        if (*fields[i].place == NULL)
            return make_status(ORT_FAIL, "expected a line %s=... in the description of Python; %s", fields[i].key, ADVICE);
    return NULL;
}

/* Read a descriptor to its end, at most MAX_TEXT - 1 bytes. */
static size_t read_all(int descriptor, char *text) {
    size_t size = 0;
    for (;;) {
        ssize_t found = read(descriptor, text + size, MAX_TEXT - 1 - size);
        if (found < 0 && errno == EINTR)
            continue;
        if (found <= 0)
            break;
        size += (size_t)found;
    }
    text[size] = '\0';
    return size;
}

static OrtStatus *ask_python(const char *program, Location *location) {
    char code[] = "import sys; from ortrain._native.location import text; sys.stdout.write(text())", option[] = "-c";
    char *arguments[] = { (char *)program, option, code, NULL };
    int ends[2];
    pid_t child;
    posix_spawn_file_actions_t actions;
    if (pipe(ends) != 0)
        return make_status(ORT_FAIL, "expected a pipe, got: %s", strerror(errno));
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_addclose(&actions, ends[0]);
    int failed = posix_spawnp(&child, program, &actions, NULL, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    char text[MAX_TEXT];
    size_t size = failed ? 0 : read_all(ends[0], text);
    close(ends[0]);
    if (failed)
        return make_status(ORT_FAIL, "expected ORTRAIN_PYTHON to name a python program, got \"%s\": %s", program, strerror(failed));
    while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
        ;
    if (size == 0)
        return make_status(ORT_FAIL, "expected ORTRAIN_PYTHON to name a python program that has ortrain, got \"%s\", which could not import it", program);
    return parse(text, location);
}

static OrtStatus *read_sidecar(Location *location) {
    Dl_info info;
    char library[PATH_MAX], path[PATH_MAX + sizeof(SIDECAR) + 1], text[MAX_TEXT];
    if (dladdr((void *)(uintptr_t)&find_python, &info) == 0 || realpath(info.dli_fname, library) == NULL)
        return make_status(ORT_FAIL, "expected to find the folder of libonnxruntime; %s", ADVICE);
    *strrchr(library, '/') = '\0';
    snprintf(path, sizeof(path), "%s/%s", library, SIDECAR);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return make_status(ORT_FAIL, "expected the file %s, which tells where Python is, or the variable ORTRAIN_PYTHON, found neither; %s", path, ADVICE);
    text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
    fclose(file);
    return parse(text, location);
}

OrtStatus *find_python(Location *location) {
    const char *program = getenv("ORTRAIN_PYTHON");
    return program != NULL && *program != '\0' ? ask_python(program, location) : read_sidecar(location);
}
