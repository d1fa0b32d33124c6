# The tests, found by pattern like the sources:
#
#   tests/test_*.c      one cmocka program each                                  label "unit"
#   tests/*.sh          scripts; the first argument is the path of the program   label "program"
#   tests/*_checks.py   the same in Python
#   tests/fuzz_*.c      libFuzzer targets, instead of the above in a fuzz build  label "fuzz"
#   tests/*.bash, tests/oracle.c, tests/support_*.c
#                       what they share
#
# A script that exits with 77 counts as skipped. cmocka and pkg-config are only looked for here: whoever just wants the
# program does not need them.

find_package(PkgConfig QUIET)
if(PKG_CONFIG_FOUND)
	pkg_check_modules(CMOCKA QUIET IMPORTED_TARGET cmocka)
endif()
if(NOT CMOCKA_FOUND)
	message(STATUS "Tests: not built, cmocka was not found (scripts/install-deps test)")
	return()
endif()

file(GLOB support_sources CONFIGURE_DEPENDS tests/oracle.c tests/support_*.c)
add_library(rosatune_test_support INTERFACE)
target_include_directories(rosatune_test_support INTERFACE tests src)
target_link_libraries(rosatune_test_support INTERFACE rosatune_cli rosatune_model rosatune_static rosatune_blas
	rosatune_jansson rosatune_pcre2 rosatune_utf8proc PkgConfig::CMOCKA
	Threads::Threads m)
# cmocka hands every test a state, which few of them use.
target_compile_options(rosatune_test_support INTERFACE -Wno-unused-parameter)
if(support_sources)
	add_library(rosatune_test_objects STATIC ${support_sources})
	target_link_libraries(rosatune_test_objects PUBLIC rosatune_test_support)
	set(test_libraries rosatune_test_objects)
else()
	set(test_libraries rosatune_test_support)
endif()

# Sanitizers say where; a leak fails the test like any other error.
# What was freed is kept a while to find its use, but not so much that it looks like a leak.
set(test_environment "ASAN_OPTIONS=detect_leaks=1:quarantine_size_mb=16" "UBSAN_OPTIONS=print_stacktrace=1")

if(ROSATUNE_FUZZ)
	file(GLOB fuzz_sources CONFIGURE_DEPENDS tests/fuzz_*.c)
	foreach(source ${fuzz_sources})
		get_filename_component(name ${source} NAME_WE)
		add_executable(${name} ${source})
		target_link_options(${name} PRIVATE -fsanitize=fuzzer)
		target_link_libraries(${name} PRIVATE ${test_libraries})

		# libFuzzer adds what it finds to the first folder; the seeds in the tree are only read.
		string(REGEX REPLACE "^fuzz_" "" short ${name})
		set(corpora ${PROJECT_BINARY_DIR}/corpus/${short})
		file(MAKE_DIRECTORY ${corpora})
		foreach(seeds tests/corpus/${short} tests/corpus/${name})
			if(IS_DIRECTORY ${PROJECT_SOURCE_DIR}/${seeds})
				list(APPEND corpora ${PROJECT_SOURCE_DIR}/${seeds})
			endif()
		endforeach()
		math(EXPR limit "${ROSATUNE_FUZZ_SECONDS} + 120")
		add_test(NAME ${name} COMMAND ${name} -seed=1 -runs=${ROSATUNE_FUZZ_RUNS}
			-max_total_time=${ROSATUNE_FUZZ_SECONDS} -print_final_stats=1
			-artifact_prefix=${PROJECT_BINARY_DIR}/${name}- ${corpora})
		set_tests_properties(${name} PROPERTIES LABELS fuzz TIMEOUT ${limit} ENVIRONMENT "${test_environment}")
	endforeach()
	return()
endif()

file(GLOB test_sources CONFIGURE_DEPENDS tests/test_*.c)
foreach(source ${test_sources})
	get_filename_component(name ${source} NAME_WE)
	add_executable(${name} ${source})
	target_link_libraries(${name} PRIVATE ${test_libraries})
	add_test(NAME ${name} COMMAND ${name})
	set_tests_properties(${name} PROPERTIES LABELS unit ENVIRONMENT "${test_environment}")
endforeach()

if(ROSATUNE_CUDA_BUILT)
	add_test(NAME cuda_retrieve COMMAND cuda_retrieve)
	set_tests_properties(cuda_retrieve PROPERTIES LABELS unit SKIP_RETURN_CODE 77)
endif()

# Examples are part of the documentation, so they must build and end well; test_install.sh reads what they print.
file(GLOB example_sources CONFIGURE_DEPENDS examples/*.c)
foreach(source ${example_sources})
	get_filename_component(name ${source} NAME_WE)
	add_executable(example_${name} ${source})
	target_link_libraries(example_${name} PRIVATE rosatune_static Threads::Threads)
	add_test(NAME example_${name} COMMAND example_${name})
	set_tests_properties(example_${name} PROPERTIES LABELS unit ENVIRONMENT "${test_environment}")
endforeach()

file(GLOB test_scripts CONFIGURE_DEPENDS tests/*.sh tests/*_checks.py)
if(ROSATUNE_SANITIZE)
	# What is installed is never a sanitizer build.
	list(FILTER test_scripts EXCLUDE REGEX "/test_install\\.sh$")
endif()
foreach(script ${test_scripts})
	get_filename_component(name ${script} NAME_WE)
	set(runner bash)
	if(name MATCHES "^(.*)_checks$")
		set(name test_${CMAKE_MATCH_1})
		set(runner bash ${PROJECT_SOURCE_DIR}/tests/python.bash)
	endif()
	if(TEST ${name})
		set(name ${name}_script)
	endif()
	add_test(NAME ${name} COMMAND ${runner} ${script} $<TARGET_FILE:rosatune>)
	set_tests_properties(${name} PROPERTIES LABELS program SKIP_RETURN_CODE 77
		ENVIRONMENT "${test_environment}")
endforeach()

# The longest begin first, so that the last to end does not end alone.
set_tests_properties(test_cli test_data_pack test_decoder test_generate test_mqar_script test_page test_retrieve
	test_serve_script test_tune PROPERTIES COST 1)

if(NOT ROSATUNE_SANITIZE)
	add_test(NAME format COMMAND ${PROJECT_SOURCE_DIR}/scripts/format --check)
	set_tests_properties(format PROPERTIES LABELS source SKIP_RETURN_CODE 77)
	add_test(NAME layers COMMAND ${PROJECT_SOURCE_DIR}/scripts/layers)
	add_test(NAME docs COMMAND ${PROJECT_SOURCE_DIR}/scripts/docs)
	set_tests_properties(layers docs PROPERTIES LABELS source)
endif()
