/* Opens and closes sessions: sessions ARTIFACTS MODEL COUNT. Prints by how many bytes the process grew after the first few. */

#include "program.h"

int main(int argc, char **argv) {
    HOLDS(argc == 4);
    load_tables();
    long before = 0;
    for (int round = 0; round < atoi(argv[3]); round++) {
        Trainer t = open_trainer(argv[1], "checkpoint");
        OrtSession *session;
        OK(ort->CreateSession(t.env, argv[2], t.options, &session));
        if (round % 2)          /* in any order */
            ort->ReleaseSession(session);
        close_trainer(&t);
        if (round % 2 == 0)
            ort->ReleaseSession(session);
        if (round == 5)
            before = resident();
    }
    printf("%ld\n", resident() - before);
    return 0;
}
