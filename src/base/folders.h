/* Folders: made, synchronised with the disk, removed. */
#pragma once

#include "rosatune.h"

/* Makes a folder and those it is in, as far as they are missing. */
rosa_status folder_make(const char *path, rosa_error *err);

/* Waits until the disk has the names in a folder. */
rosa_status folder_sync(const char *path, rosa_error *err);

/* Removes a file, or a folder with everything in it. What cannot be removed is left without a message. */
void folder_remove(const char *path);
