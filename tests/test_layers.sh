#!/usr/bin/env bash
# scripts/layers accepts an order of folders that holds, and names the file and line that breaks it.

set -u
exec </dev/null
layers=$(realpath "$(dirname "$0")/../scripts/layers")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failures=0

# try STATUS PATTERN FILE LINE: a tree in which FILE has this line.
try() {
	rm -rf "$folder/src"
	mkdir -p "$folder/src/base" "$folder/src/model" "$folder/$(dirname "$3")"
	printf '#include <stdio.h>\n#include "base/file.h"\n' >"$folder/src/model/weights.c"
	printf '\n%b\n' "$4" >"$folder/$3"
	"$layers" "$folder" >"$folder/out" 2>&1
	if [ $? != "$1" ] || ! grep -qF -- "$2" "$folder/out"; then
		failures=$((failures + 1))
		echo "FAILED: $4 in $3: not status $1 with '$2', but: $(cat "$folder/out")" >&2
	fi
}

try 0 'only itself' src/model/a.c '#include "model/b.h"'
try 0 'only itself' src/model/a.c '#include <rosatune.h>\n#include "rosatune.h"'
try 1 'src/base/a.c:2: base/ may not include "model/b.h"' src/base/a.c '#include "model/b.h"'
try 1 'src/base/a.c:2: base/ may not include "model/b.h"' src/base/a.c ' # include\t"model/b.h"'
try 1 'src/base/a.h:2: base/ may not include "model/b.h"' src/base/a.h '#include <model/b.h>'
try 1 'src/base/deep/a.c:2: base/ may not include "cli/b.h"' src/base/deep/a.c '#include "cli/b.h"'
try 1 'src/base/deep/er/a.cu:2: base/ may not' src/base/deep/er/a.cu '#include "cli/b.h"'
try 1 'is included without its folder' src/model/a.c '#include "b.h"'
try 1 'is in no folder of src/' src/model/a.c '#include "../model/b.h"'
try 1 'src/other/ has no place in the order' src/other/a.c '#include "base/b.h"'

[ "$failures" = 0 ] && echo 'scripts/layers names what breaks the order'
