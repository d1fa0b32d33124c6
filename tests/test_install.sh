#!/usr/bin/env bash
# What a user of the library gets: install into a scratch folder and use it from there.
#
# The unit tests link objects of the build, so they would not see a header that needs another one, a pkg-config file
# that points nowhere, or a function that is declared but hidden. The example is compiled as its own comment says.

set -eu

program=$1
build=$(cd "$(dirname "$program")" && pwd)
source=$(cd "$(dirname "$0")/.." && pwd)
cc=${CC:-cc}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
	echo "test_install: $*" >&2
	exit 1
}

same() { # what, expected, found
	[ "$2" = "$3" ] || fail "$1: expected
$2
and found
$3"
}

DESTDIR=$work/root cmake --install "$build" --prefix /opt/rosatune >"$work/log" || fail "$(cat "$work/log")"
prefix=$work/root/opt/rosatune
pc=$(find "$prefix" -name rosatune.pc)
[ -n "$pc" ] || fail "no rosatune.pc"
lib=$(dirname "$(dirname "$pc")")
for file in "$prefix/bin/rosatune" "$prefix/include/rosatune.h" "$prefix/share/man/man1/rosatune.1" \
	"$lib/librosatune.a" "$lib/librosatune.so"; do
	[ -s "$file" ] || fail "not installed: ${file#"$prefix/"}"
done

# --------------------------------------------------------------------------------------------------- one version number
export PKG_CONFIG_PATH=$lib/pkgconfig
version=$(pkg-config --modversion rosatune)
part() {
	sed -n "s/^#define ROSA_VERSION_$1 *//p" "$prefix/include/rosatune.h"
}
same "version of the header" "$version" "$(part MAJOR).$(part MINOR).$(part PATCH)"
"$prefix/bin/rosatune" --version >"$work/version"
grep -qwF "$version" "$work/version" || fail "rosatune --version does not say $version: $(cat "$work/version")"
grep -q "cuda: " "$work/version" || fail "rosatune --version does not list the optional parts: $(cat "$work/version")"

# ------------------------------------------------------------------------------------------------------- shared library
dynamic=$(readelf -dW "$lib/librosatune.so")
same "soname" "librosatune.so.$(part MAJOR)" "$(sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p' <<<"$dynamic")"
needed=$(sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' <<<"$dynamic" |
	grep -Ev '^(libc|libm|libpthread|ld-linux.*)\.so\.' || true)
blas=
if grep -q "openblas: yes" "$work/version"; then
	blas=libopenblas.so.0
fi
same "libraries needed beyond the C library" "$blas" "$needed"

# Every function that the header declares, and nothing else.
declared=$(tr '\n' ' ' <"$prefix/include/rosatune.h" | grep -oE 'ROSA_API [^;{}()]*\(' |
	grep -oE 'rosa_[a-z0-9_]+\(' | tr -d '(' | sort)
exported=$(nm -D --defined-only "$lib/librosatune.so" | awk '{ print $3 }' | sort)
[ -n "$declared" ] || fail "found no declarations in the header"
same "exported symbols" "$declared" "$exported"

# -------------------------------------------------------------------------------------------------------------- example
expected='step  0  query -  no match
step  1  query -  no match
step  2  query -  no match
step  3  query -  no match
step  4  query -  no match
step  5  query -  no match
step  6  query -  no match
step  7  query a  destination 6 (d), match of 1
step  8  query b  destination 2 (r), match of 2
step  9  query r  destination 3 (a), match of 3
step 10  query a  destination 4 (c), match of 4'

strict=(-std=c11 -Wall -Wextra -Wpedantic -Werror)
read -ra flags <<<"$(pkg-config --cflags --libs rosatune)"
"$cc" "${strict[@]}" "$source/examples/retrieve.c" "${flags[@]}" -o "$work/shared"
readelf -dW "$work/shared" | grep -q "NEEDED.*librosatune.so.$(part MAJOR)" ||
	fail "the example does not use the shared library"
same "example, shared" "$expected" "$(LD_LIBRARY_PATH=$lib "$work/shared")"

read -ra flags <<<"$(pkg-config --static --cflags --libs rosatune)"
"$cc" "${strict[@]}" -static "$source/examples/retrieve.c" "${flags[@]}" -o "$work/static"
same "example, static" "$expected" "$("$work/static")"

# The header stands alone, in C and in C++.
echo '#include <rosatune.h>' >"$work/alone.c"
"$cc" "${strict[@]}" -I"$prefix/include" -fsyntax-only "$work/alone.c"
if command -v c++ >/dev/null; then
	c++ -Wall -Wextra -Werror -I"$prefix/include" -fsyntax-only -x c++ "$work/alone.c"
fi

# ------------------------------------------------------------------------------------------------------------ man pages
# Every command is in the overview and has a page with every option that its help names; every page can be formatted.
man=$prefix/share/man/man1
[ "$(wc -l <"$man/rosatune.1")" -lt 200 ] || fail "the overview page has 200 lines or more"
options() {
	grep -oE -- '(^|[^a-z])--?[a-z][a-z-]*' | grep -oE -- '--?[a-z][a-z-]*' | sort -u
}
"$prefix/bin/rosatune" --help >"$work/help"
mapfile -t commands < <(sed -n '/^commands:/,/^$/s/^  \([a-z ]*[a-z]\)  .*/\1/p' "$work/help")
[ "${#commands[@]}" -gt 3 ]
for command in "${commands[@]}"; do
	page=$man/rosatune-${command// /-}.1
	[ -s "$page" ] || fail "no manual page of $command"
	sed 's/\\-/-/g; s/\\f[BIR]/ /g' "$page" >"$work/page"
	grep -q -- "$command" "$man/rosatune.1" || fail "rosatune.1 does not name $command"
	# shellcheck disable=SC2086
	"$prefix/bin/rosatune" help $command >"$work/help"
	missing=$(comm -23 <(sed -n '/^options:/,/^$/p' "$work/help" | sed 's/\( *\(-[a-z], \)*--[a-z-]*\).*/\1/' | options) \
		<(sed -n '/^\.SH OPTIONS/,/^\.SH [^O]/p' "$work/page" | options))
	same "options of the help of $command that its page lacks" "" "$missing"
	# shellcheck disable=SC2086
	same "first line of rosatune help $command" "usage: rosatune $command" \
		"$(head -n 1 "$work/help" | cut -c "1-$((16 + ${#command}))")"
done
for page in "$man"/*.1; do
	if command -v groff >/dev/null; then
		same "what groff says of $page" "" "$(groff -man -ww -Tutf8 "$page" 2>&1 >"$work/formatted")"
		[ -s "$work/formatted" ] || fail "$page is empty"
	fi
done

# ---------------------------------------------------------------------------------------------------------- completions
completion=$prefix/share/bash-completion/completions/rosatune
[ -s "$prefix/share/fish/vendor_completions.d/rosatune.fish" ] || fail "no completion for fish"
# complete WORDS...: what bash offers for the last of them.
complete_words() {
	bash -c '. "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _rosatune; echo "${COMPREPLY[*]}"' \
		completion "$completion" "$@"
}
same "completion of a command" "generate gradients" "$(complete_words rosatune g)"
same "completion of a second word" "retrieve" "$(complete_words rosatune bench r)"
same "completion of an option" "--temperature" "$(complete_words rosatune generate --te)"
same "completion of an option of two words" "--no-fold --no-flips" "$(complete_words rosatune bench retrieve --no)"
same "completion of a choice" "literal" "$(complete_words rosatune retrieve --policy li)"
same "completion of a choice after =" "literal" "$(complete_words rosatune retrieve --policy = li)"
same "completion of a number" "" "$(complete_words rosatune generate --seed '')"
same "completion of a command's name" "chat" "$(complete_words rosatune help ch)"
touch "$work/a model.gguf"
same "completion of a file" "$work/a model.gguf" "$(complete_words rosatune generate -m "$work/a mo")"

echo "test_install: ok"
