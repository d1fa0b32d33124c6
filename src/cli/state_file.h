/* Files that the program keeps for its user, between runs. */
#pragma once

/* The path of a file in $XDG_STATE_HOME/rosatune, where XDG_STATE_HOME is ~/.local/state by default. The folder is
 * made. From malloc; NULL if there is no such folder and it cannot be made. */
char *state_file(const char *name);
