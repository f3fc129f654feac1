/* Where Python and ortrain are. */
#ifndef ORTRAIN_LOCATION_H
#define ORTRAIN_LOCATION_H

#include "handles.h"

#define SIDECAR "ortrain-native.cfg"

typedef struct Location {
    char *version;              /* of Python, such as 3.12 */
    char *library;              /* the path of libpython */
    char *executable;           /* the path of python, whose packages are used */
    char *path;                 /* a folder to put first on sys.path, or "" */
} Location;

/* Find Python: by the program that the variable ORTRAIN_PYTHON names, or else by the file beside this library. The location is to be freed, also when a
   status is returned. */
OrtStatus *find_python(Location *location);
void free_location(Location *location);

#endif
