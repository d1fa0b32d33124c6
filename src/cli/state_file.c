/* Where the XDG base directory specification puts state, which is neither configuration nor worth a backup. */
#include "cli/state_file.h"

#include "base/folders.h"
#include "base/paths.h"

#include <stdlib.h>
#include <string.h>

char *state_file(const char *name)
{
	const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
	char *base = NULL, *folder, *path = NULL;

	/* The specification wants relative paths to be ignored. */
	if (state && state[0] == '/')
		base = strdup(state);
	else if (home && home[0] == '/')
		base = path_join(home, ".local/state");
	folder = base ? path_join(base, "rosatune") : NULL;
	if (folder && folder_make(folder, NULL) == ROSA_OK)
		path = path_join(folder, name);
	free(base);
	free(folder);
	return path;
}
