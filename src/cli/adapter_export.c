/* rosatune adapter export: an adapter as it is used, without what only training needs. */
#include "cli/commands.h"

#include "cli/args.h"
#include "cli/report.h"
#include "train/adapter_export.h"

#include <stdio.h>

static const char *const types[] = {"bf16", "f32", NULL};
static const enum format formats[] = {FORMAT_BF16, FORMAT_F32};

int adapter_export_command(int count, char **words)
{
	struct arg_words paths;
	const char *out = NULL;
	int type = 0;
	struct arg options[] = {
	    OPTION_TEXT("out", &out, "DIR", "the folder to write, in place of OUT"),
	    OPTION_CHOICE("type", &type, "T", types, "of the numbers: bf16 (default) or f32"),
	};
	struct args args = {
	    .command = "adapter export",
	    .usage = "DIR OUT [--type bf16|f32]",
	    .summary =
		"Copies an adapter without its optimiser to the folder OUT. DIR is an adapter folder, or the folder "
		"of\n"
		"a run of rosatune tune, which stands for its newest adapter. Where the backbone was trained too, the\n"
		"model goes with it.",
	    .options = options,
	    .count = sizeof(options) / sizeof(*options),
	    .operands = &paths,
	    .operand_name = "DIR OUT",
	};
	enum args_result parsed = args_parse(&args, count, words);
	rosa_error error;

	if (parsed != ARGS_OK)
		return parsed == ARGS_HELP ? DONE : MISUSED;
	if (paths.count != (out ? 1 : 2)) {
		complain("adapter export", "give two folders: rosatune adapter export %s", args.usage);
		return MISUSED;
	}
	if (!out)
		out = paths.all[1];
	if (adapter_export(paths.all[0], out, formats[type], false, &error) != ROSA_OK) {
		complain("adapter export", "%s", error.message);
		return FAILED;
	}
	printf("written to %s\n", out);
	return DONE;
}
