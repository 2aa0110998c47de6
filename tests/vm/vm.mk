# Guests: other kernels and the other architecture. Included by the top-level Makefile, like packaging/dist.mk.

ARCH ?= amd64
vm_agent_amd64 = dist-x86_64
vm_agent_arm64 = dist-aarch64

.PHONY: vm-arm64 vm-kernel vm-matrix vm-images vm-packages

vm-arm64: dist-aarch64 ## the smoke test on arm64: the quickest proof that the agent works on ARM
	tests/vm/check arm64 $(or $(KERNEL),6.12) $(VMFLAGS)

vm-kernel: $(vm_agent_$(ARCH)) ## the smoke test on one kernel: make vm-kernel KERNEL=5.10 [ARCH=arm64] [VMFLAGS="--server mariadb --cpu cortex-a72"]
	$(if $(KERNEL),,$(error say which: make vm-kernel KERNEL=5.10, 6.1, 6.12 or 7.x))tests/vm/check $(ARCH) $(KERNEL) $(VMFLAGS)

vm-matrix: dist-x86_64 dist-aarch64 ## the smoke test on every supported kernel and architecture; prints the table
	tests/vm/matrix

vm-images: ## download and build what guests need, so that a later run needs no network
	tests/vm/image amd64
	tests/vm/image arm64
	for suite in bullseye bookworm trixie sid; do tests/vm/kernel amd64 $$suite || exit 1; done
	for suite in bookworm trixie sid; do tests/vm/kernel arm64 $$suite || exit 1; done

vm-packages: packages ## the package on systemd in Debian 12 and 13: installed, killed, upgraded, removed
	tests/vm/packages amd64 bookworm
	tests/vm/packages amd64 trixie
	tests/vm/packages arm64 trixie
