# librosatune_cuda.so: retrieval on CUDA devices (src/retrieval/cuda/), and its test.
#
# Machine code for Hopper, and PTX that a driver compiles for the devices after it; -DCMAKE_CUDA_ARCHITECTURES= chooses
# others. The CUDA runtime is linked in, so that nothing but the driver is needed to run it.

if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
	set(CMAKE_CUDA_ARCHITECTURES 90)
endif()
enable_language(CUDA)
set(CMAKE_CUDA_STANDARD 17)

file(GLOB cuda_sources CONFIGURE_DEPENDS src/retrieval/cuda/*.cu)
add_library(rosatune_cuda MODULE ${cuda_sources})
set_target_properties(rosatune_cuda PROPERTIES OUTPUT_NAME rosatune_cuda CUDA_VISIBILITY_PRESET hidden
	CUDA_RUNTIME_LIBRARY Static)
target_include_directories(rosatune_cuda PRIVATE include src)
target_compile_options(rosatune_cuda PRIVATE -lineinfo -Xcompiler -Wall,-Wextra)

# The test needs no more than the library, so that a machine with a device and little else can build it.
add_executable(cuda_retrieve tests/cuda_retrieve.c tests/support_grid.c tests/oracle.c src/eval/streams.c)
target_include_directories(cuda_retrieve PRIVATE src tests)
target_link_libraries(cuda_retrieve PRIVATE rosatune_static Threads::Threads)
add_dependencies(cuda_retrieve rosatune_cuda)
