# What goes into a wheel: the shared library alone, as rosatune/_lib/librosatune.so.
#
# Read in builds that scikit-build-core starts (pyproject.toml), which builds one target and installs one component.
# Wheels hold no symbolic links, so the library has no version in its name here; the package around it is its version.

set_property(TARGET rosatune_shared PROPERTY VERSION)
set_property(TARGET rosatune_shared PROPERTY SOVERSION)
install(TARGETS rosatune_shared LIBRARY DESTINATION _lib COMPONENT python)
