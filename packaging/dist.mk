# Release binaries: dist/armtrace-x86_64 and dist/armtrace-aarch64, on a machine of either architecture.

.PHONY: dist dist-x86_64 dist-aarch64

dist: dist-x86_64 dist-aarch64 ## static release binaries for both architectures, in dist/

dist-x86_64 dist-aarch64: dist-%:
	packaging/dist $*
