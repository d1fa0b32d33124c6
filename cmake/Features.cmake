# Libraries that only some commands need.
#
# Each is looked for, and found or not the build goes on. The outcome is kept as words, because the one who needs them
# is the user of a command that is missing: `rosatune --version` prints the list, and the command concerned can say the
# same.
#
# rosatune_feature(name state) adds "name: state" to the list, e.g. rosatune_feature(cuda "not built").

set(rosatune_features "")

function(rosatune_feature name state)
	message(STATUS "Optional ${name}: ${state}")
	list(APPEND rosatune_features "${name}: ${state}")
	set(rosatune_features "${rosatune_features}" PARENT_SCOPE)
endfunction()

rosatune_feature(cuda "not built")

list(JOIN rosatune_features ", " ROSATUNE_FEATURES)
