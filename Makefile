# zfs-fuse: `make demo` shows it, `make test` proves it, `make bench` measures it, `make install` installs it.
PREFIX ?= /usr/local
DESTDIR ?=
CARGO ?= cargo

.PHONY: all build demo undemo test check soak bench install uninstall clean

all: build

build:
	$(CARGO) build --release

demo:
	sh tools/demo.sh

undemo:
	sh tools/demo.sh --remove

check:
	sh tools/test.sh format lints tidy licences

test:
	sh tools/test.sh

# Simulated worlds and crash points with fresh seeds: make soak MINUTES=480
MINUTES ?= 10
soak:
	nice -n 19 $(CARGO) xtask sim --soak $(MINUTES) --subsets 300 --images 100 --shrink

# BENCH takes options: make bench BENCH="--full --rows fsync"
bench:
	sh tools/setup.sh bench
	$(CARGO) xtask bench $(BENCH)

install: build
	install -d $(DESTDIR)$(PREFIX)/sbin $(DESTDIR)$(PREFIX)/share/man/man7 $(DESTDIR)$(PREFIX)/share/man/man8
	install -m 755 target/release/zfs-fuse target/release/zpool target/release/zfs target/release/zdb target/release/ztest $(DESTDIR)$(PREFIX)/sbin/
	install -d $(DESTDIR)/sbin
	ln -sf $(PREFIX)/sbin/zfs $(DESTDIR)/sbin/mount.fuse.zfs
	rm -rf target/man target/completions
	$(CARGO) run -q --release -p xtask -- manual target/man
	$(CARGO) run -q --release -p xtask -- completions target/completions
	for f in target/man/*.8; do install -m 644 $$f $(DESTDIR)$(PREFIX)/share/man/man8/; done
	for f in target/man/*.7; do install -m 644 $$f $(DESTDIR)$(PREFIX)/share/man/man7/; done
	install -d $(DESTDIR)$(PREFIX)/share/zfs-fuse/completions
	cp -r target/completions/. $(DESTDIR)$(PREFIX)/share/zfs-fuse/completions/
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/system
	sed 's|@PREFIX@|$(PREFIX)|g' tools/zfs-fuse.service.in > $(DESTDIR)$(PREFIX)/lib/systemd/system/zfs-fuse.service

uninstall:
	rm -f $(DESTDIR)$(PREFIX)/sbin/zfs-fuse $(DESTDIR)$(PREFIX)/sbin/zpool $(DESTDIR)$(PREFIX)/sbin/zfs $(DESTDIR)$(PREFIX)/sbin/zdb $(DESTDIR)$(PREFIX)/sbin/ztest
	rm -f $(DESTDIR)/sbin/mount.fuse.zfs
	rm -f $(DESTDIR)$(PREFIX)/share/man/man8/zfs-fuse.8 $(DESTDIR)$(PREFIX)/share/man/man8/zpool.8 $(DESTDIR)$(PREFIX)/share/man/man8/zfs.8 $(DESTDIR)$(PREFIX)/share/man/man8/zdb.8
	rm -f $(DESTDIR)$(PREFIX)/share/man/man7/zfsprops.7 $(DESTDIR)$(PREFIX)/share/man/man7/zpoolprops.7
	rm -rf $(DESTDIR)$(PREFIX)/share/zfs-fuse
	rm -f $(DESTDIR)$(PREFIX)/lib/systemd/system/zfs-fuse.service

clean:
	$(CARGO) clean
