# Libraries that only some commands need, or that only make things faster.
#
# Each is looked for, and found or not the build goes on. The outcome is kept as words, because the one who needs them
# is the user of a command that is missing: `rosatune --version` prints the list, and the command concerned can say the
# same.
#
# rosatune_feature(name state) adds "name: state" to the list, e.g. rosatune_feature(zlib "not found").

set(rosatune_features "")

function(rosatune_feature name state)
	message(STATUS "Optional ${name}: ${state}")
	list(APPEND rosatune_features "${name}: ${state}")
	set(rosatune_features "${rosatune_features}" PARENT_SCOPE)
endfunction()

# nvcc compiles what runs on CUDA devices (cmake/Cuda.cmake). The program and the library are built without it.
set(ROSATUNE_CUDA_BUILT OFF)
if(NOT ROSATUNE_CUDA)
	rosatune_feature(cuda "switched off (ROSATUNE_CUDA)")
elseif(ROSATUNE_SANITIZE)
	rosatune_feature(cuda "left out (ROSATUNE_SANITIZE)")
else()
	include(CheckLanguage)
	check_language(CUDA)
	if(CMAKE_CUDA_COMPILER)
		set(ROSATUNE_CUDA_BUILT ON)
		rosatune_feature(cuda "yes")
	elseif(ROSATUNE_CUDA STREQUAL AUTO)
		rosatune_feature(cuda "not built, nvcc was not found")
	else()
		message(FATAL_ERROR "ROSATUNE_CUDA: nvcc was not found; put its folder into PATH")
	endif()
endif()

# OpenBLAS multiplies matrices; without it plain C does, several times slower. It is tried by linking the very functions
# that are used: a cblas.h may be another library's. The target rosatune_blas is what to link, empty where there is
# none.
add_library(rosatune_blas INTERFACE)
set(ROSATUNE_BLAS_LIBS "") # for rosatune.pc
if(ROSATUNE_BLAS)
	include(CheckCSourceCompiles)
	find_package(PkgConfig QUIET)
	if(PKG_CONFIG_FOUND)
		pkg_check_modules(PC_OPENBLAS QUIET openblas)
	endif()
	find_path(OPENBLAS_INCLUDE_DIR cblas.h HINTS ${PC_OPENBLAS_INCLUDE_DIRS} PATH_SUFFIXES openblas openblas-pthread)
	if(ROSATUNE_STATIC)
		set(blas_library OPENBLAS_STATIC_LIBRARY)
		find_library(${blas_library} libopenblas.a HINTS ${PC_OPENBLAS_LIBRARY_DIRS} PATH_SUFFIXES openblas-pthread)
	else()
		set(blas_library OPENBLAS_LIBRARY)
		find_library(${blas_library} openblas HINTS ${PC_OPENBLAS_LIBRARY_DIRS} PATH_SUFFIXES openblas-pthread)
	endif()
	if(OPENBLAS_INCLUDE_DIR AND ${blas_library})
		set(CMAKE_REQUIRED_INCLUDES ${OPENBLAS_INCLUDE_DIR})
		set(CMAKE_REQUIRED_LIBRARIES ${${blas_library}} Threads::Threads m)
		check_c_source_compiles("
			#include <cblas.h>
			int main(void)
			{
				float x = 1, y;

				cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, 1, 1, 1, 1, &x, 1, &x, 1, 0, &y, 1);
				openblas_set_num_threads(openblas_get_num_threads());
				return openblas_get_parallel() == OPENBLAS_OPENMP;
			}" ${blas_library}_LINKS)
		unset(CMAKE_REQUIRED_INCLUDES)
		unset(CMAKE_REQUIRED_LIBRARIES)
	endif()
endif()
if(NOT ROSATUNE_BLAS)
	rosatune_feature(openblas "switched off (ROSATUNE_BLAS)")
elseif(${blas_library}_LINKS)
	target_include_directories(rosatune_blas INTERFACE ${OPENBLAS_INCLUDE_DIR})
	target_compile_definitions(rosatune_blas INTERFACE ROSATUNE_OPENBLAS)
	target_link_libraries(rosatune_blas INTERFACE ${${blas_library}})
	get_filename_component(blas_folder ${${blas_library}} DIRECTORY)
	set(ROSATUNE_BLAS_LIBS "-L${blas_folder} -lopenblas")
	if(ROSATUNE_STATIC)
		rosatune_feature(openblas "built in")
	else()
		rosatune_feature(openblas "yes")
	endif()
elseif(ROSATUNE_STATIC)
	message(FATAL_ERROR "ROSATUNE_STATIC: no libopenblas.a that can be linked was found "
		"(scripts/install-deps build)")
else()
	rosatune_feature(openblas "not found")
endif()

# What reading models takes: JSON, the tokenizers' regular expressions, and Unicode's normal forms. Each becomes a
# target rosatune_<name>, empty where there is none, and a definition ROSATUNE_<NAME>. Further arguments are the
# libraries that its static form needs.
function(rosatune_library name header library)
	string(TOUPPER ${name} upper)
	add_library(rosatune_${name} INTERFACE)
	find_path(${upper}_INCLUDE_DIR ${header})
	set(found "")
	if(ROSATUNE_STATIC)
		foreach(part ${library} ${ARGN})
			find_library(${upper}_${part} lib${part}.a)
			list(APPEND found ${${upper}_${part}})
		endforeach()
	else()
		find_library(${upper}_LIBRARY ${library})
		set(found ${${upper}_LIBRARY})
	endif()
	if(${upper}_INCLUDE_DIR AND NOT "${found}" MATCHES "NOTFOUND")
		target_include_directories(rosatune_${name} INTERFACE ${${upper}_INCLUDE_DIR})
		target_compile_definitions(rosatune_${name} INTERFACE ROSATUNE_${upper})
		target_link_libraries(rosatune_${name} INTERFACE ${found})
		if(ROSATUNE_STATIC)
			rosatune_feature(${name} "built in")
		else()
			rosatune_feature(${name} "yes")
		endif()
	else()
		rosatune_feature(${name} "not found")
	endif()
	set(rosatune_features "${rosatune_features}" PARENT_SCOPE)
endfunction()

rosatune_library(jansson jansson.h jansson)
rosatune_library(pcre2 pcre2.h pcre2-8)
rosatune_library(utf8proc utf8proc.h utf8proc)
# And what training texts are compressed with.
rosatune_library(zlib zlib.h z)
rosatune_library(lzma lzma.h lzma)
rosatune_library(zstd zstd.h zstd)

# And what edits lines in a chat.
rosatune_library(libedit histedit.h edit tinfo bsd md)

# And what answers HTTP requests. Its static form would bring GnuTLS and all that it needs, so packages go without.
if(ROSATUNE_STATIC)
	add_library(rosatune_microhttpd INTERFACE)
	rosatune_feature(microhttpd "left out (ROSATUNE_STATIC)")
else()
	rosatune_library(microhttpd microhttpd.h microhttpd)
endif()

# MPI lets several processes train together; `rosatune tune` alone does without it. rosatune_mpi is what to link.
add_library(rosatune_mpi INTERFACE)
if(ROSATUNE_MPI AND NOT ROSATUNE_STATIC)
	find_package(MPI QUIET COMPONENTS C)
endif()
if(NOT ROSATUNE_MPI)
	rosatune_feature(mpi "switched off (ROSATUNE_MPI)")
elseif(ROSATUNE_STATIC)
	rosatune_feature(mpi "left out (ROSATUNE_STATIC)")
elseif(MPI_C_FOUND)
	target_compile_definitions(rosatune_mpi INTERFACE ROSATUNE_MPI)
	target_link_libraries(rosatune_mpi INTERFACE MPI::MPI_C)
	rosatune_feature(mpi "yes")
else()
	rosatune_feature(mpi "not found")
endif()

list(JOIN rosatune_features ", " ROSATUNE_FEATURES)
