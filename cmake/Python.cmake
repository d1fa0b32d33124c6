# What goes into a wheel: the shared library as rosatune/_lib/librosatune.so, librosatune_cuda.so beside it where nvcc
# is found, and the program among the scripts.
#
# Read in builds that scikit-build-core starts (pyproject.toml), which builds these two targets and installs one
# component. Wheels hold no symbolic links, so the library has no version in its name here; the package around it is its
# version. The program does not use that library: all it needs of it is linked in.

set_property(TARGET rosatune_shared PROPERTY VERSION)
set_property(TARGET rosatune_shared PROPERTY SOVERSION)
install(TARGETS rosatune_shared LIBRARY DESTINATION _lib COMPONENT python)
if(ROSATUNE_CUDA_BUILT)
	# found beside the library; built with it, for the list of targets in pyproject.toml has no conditions
	add_dependencies(rosatune_shared rosatune_cuda)
	install(TARGETS rosatune_cuda LIBRARY DESTINATION _lib COMPONENT python)
endif()
install(TARGETS rosatune RUNTIME DESTINATION ${SKBUILD_SCRIPTS_DIR} COMPONENT python)
